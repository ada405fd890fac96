"""What people may have done by the console, each with the right ``maintain`` and after they have confirmed it.

Workers are woken, as the ``icedb`` command wakes them: what they do is theirs. What stands in the store alone (a batch
in quarantine, a tag, a lease) is done at once, by the functions that the command calls.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from icedb_log.clock import Clock
from icedb_log.holds.leases import release_lease
from icedb_log.holds.tags import delete_tag
from icedb_log.ingest.quarantine_ops import drop_quarantined, retry_quarantined
from icedb_log.names import INGEST_FLUSH, JANITOR_VACUUM, MERGE_MERGE
from icedb_log.store.store_clock import AlignedClock
from icedb_log.store.table_store import TableStore
from icedb_log.warehouse import Warehouse
from icedb_service.celery_app import make_app
from icedb_service.redis_clients import open_redis
from icedb_service.wakeup import Wakeups

from icedb_console.settings import ConsoleSettings


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that can be done.

    Attributes:
        title: What a button says.
        question: What is asked before; ``{table}`` and ``{what}`` stand for the names.
        effect: What comes of it, for who decides.
        needs: What of the table it is about: ``batch``, ``tag``, ``lease``; empty: the whole table.
        is_final: Whether nobody can take it back.
        loses_rows: Whether rows go by it: then the right ``erase`` is needed, too.
    """

    title: str
    question: str
    effect: str
    needs: str = ""
    is_final: bool = False
    loses_rows: bool = False


ACTIONS: Final[Mapping[str, Action]] = {
    "flush": Action(
        "Commit what waits",
        "Wake the ingest worker for table {table}?",
        "Staged batches are committed now, not with the next sweep. Nothing else changes.",
    ),
    "merge": Action(
        "Merge now",
        "Wake the merge worker for table {table}?",
        "It merges what the table's policy would merge anyway, sooner. No row changes.",
    ),
    "vacuum": Action(
        "Clean now",
        "Wake the janitor for table {table}?",
        "It deletes dead files whose grace period is over and that nothing holds, sooner than with its next sweep.",
    ),
    "retry": Action(
        "Try again",
        "Stage batch {what} of table {table} again?",
        "It is staged under a fresh id and leaves quarantine; the next flush takes it, or sets it aside once more.",
        needs="batch",
    ),
    "drop": Action(
        "Delete for good",
        "Delete batch {what} of table {table} from quarantine?",
        "Its rows are lost. Nobody can take this back.",
        needs="batch",
        is_final=True,
        loses_rows=True,
    ),
    "delete_tag": Action(
        "End the tag",
        "End tag {what} of table {table}?",
        "What only it holds may be deleted when a grace period is over. The tagged state cannot be read after that.",
        needs="tag",
        is_final=True,
    ),
    "release": Action(
        "End the lease",
        "End lease {what} of table {table}?",
        "Whoever reads under it may find its files gone, and has to begin anew. Not renewed, it ends by itself.",
        needs="lease",
        is_final=True,
    ),
}


class Actions:
    """Does what was confirmed. Blocks; connects to Redis on first use. Thread-safe.

    Args:
        warehouse: Where the tables lie.
        settings: Where Redis is.
        clock: For ids.
        on_redis_failure: Counts a request to Redis that failed.
    """

    def __init__(
        self,
        warehouse: Warehouse,
        *,
        settings: ConsoleSettings,
        clock: Clock,
        on_redis_failure: Callable[[], None],
    ) -> None:
        self._warehouse = warehouse
        self._settings = settings
        self._clock = clock
        self._on_redis_failure = on_redis_failure

    def run(self, name: str, table: str, what: str) -> str:
        """Do one thing; return what was done, in words.

        Raises:
            InvalidRequest: It cannot be done to this.
            NotFound: What it is about is gone.
            Unavailable: The store, or Redis, did not answer.
        """
        place = self._warehouse.table(table)
        work: dict[str, Callable[[], str]] = {
            "flush": lambda: self._wake(INGEST_FLUSH, table),
            "merge": lambda: self._wake(MERGE_MERGE, table),
            "vacuum": lambda: self._wake(JANITOR_VACUUM, table),
            "retry": lambda: self._retry(place, what),
            "drop": lambda: _drop(place, what),
            "delete_tag": lambda: f"tag {what} {'has ended' if delete_tag(place, what) else 'had ended before'}",
            "release": lambda: _release(place, what),
        }
        return work[name]()

    @cached_property
    def _wakeups(self) -> Wakeups:
        settings = self._settings
        redis = open_redis(settings.redis_url, timeout_ms=settings.redis_timeout_ms, on_failure=self._on_redis_failure)
        return Wakeups(make_app(settings), redis, settings=settings)

    def _wake(self, task: str, table: str) -> str:
        return "the worker is woken" if self._wakeups.wake(task, table) else "the worker was woken a moment ago"

    def _retry(self, place: TableStore, batch_id: str) -> str:
        again = retry_quarantined(place, batch_id, clock=AlignedClock(self._clock, place.store, may_ask=True))
        is_woken = self._wakeups.try_wake(INGEST_FLUSH, place.name)
        return f"batch {batch_id} is staged as {again}{'' if is_woken else '; the next sweep takes it'}"


def _drop(place: TableStore, batch_id: str) -> str:
    drop_quarantined(place, batch_id)
    return f"batch {batch_id} is deleted"


def _release(place: TableStore, lease_id: str) -> str:
    release_lease(place, lease_id)
    return f"lease {lease_id} has ended"
