"""The one place of the janitor that deletes: in bounded chunks, each written down first (rule J6).

A chunk is announced to the audit, deleted, and its outcome written down. Between chunks the caller may be stopped: what
was deleted by then is known, what was not is found again by the next run.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Literal

from icedb_log.errors import Unavailable
from icedb_log.jobs import CheckAlive, never_stop
from icedb_log.store.object_store import DeleteFailure, FailedDelete, ObjectStore

Kind = Literal[
    "log_file",
    "data_file",
    "staged_batch",
    "orphan",
    "lease",
    "pin",
    "publication",
    "quarantine",
    "idempotency_key",
    "dropped_table",
    "audit",
    "leftover",
]
"""What an object was, in audit, metrics and results."""

CHUNK_KEYS: Final = 10_000
"""Objects between two looks at the lock, and between two audit writes."""


@dataclass(frozen=True, slots=True)
class Doomed:
    """An object whose time has come.

    Attributes:
        key: Its key.
        kind: What it is.
        why: Why it may go, for people: one short sentence.
        passed: Guards that were asked and did not hold it.
        died_ms: When it died, unix ms; ``None`` where that has no meaning.
        size_bytes: Its size, if known.
    """

    key: str
    kind: Kind
    why: str
    passed: tuple[str, ...] = ()
    died_ms: int | None = None
    size_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Deleted:
    """What became of objects that were to be deleted.

    Attributes:
        keys: Those that are gone; one that was not there any more counts (J6).
        failed: The others, and why. The next run tries again.
    """

    keys: frozenset[str] = frozenset()
    failed: tuple[FailedDelete, ...] = ()


class Deleter:
    """Deletes for one run of the janitor.

    Args:
        audit: Where everything is written down; ``None``: nowhere.
        check_alive: Called before each chunk; raises to stop the run, e.g. when its lock is lost.
        chunk_keys: Objects in a chunk; smaller only in tests.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        audit: "RunAudit | None" = None,
        check_alive: CheckAlive = never_stop,
        chunk_keys: int = CHUNK_KEYS,
    ) -> None:
        self._store = store
        self._audit = audit
        self._check_alive = check_alive
        self._chunk_keys = chunk_keys

    def delete(self, doomed: Iterable[Doomed]) -> Deleted:
        """Delete objects. Idempotent. One that will not go keeps no other from going.

        Raises:
            IceDBError: What ``check_alive`` or the audit raised, before the chunk that comes next.
        """
        keys: set[str] = set()
        failed: list[FailedDelete] = []
        for done in self.delete_chunks(doomed):
            keys |= done.keys
            failed += done.failed
        return Deleted(frozenset(keys), tuple(failed))

    def delete_chunks(self, doomed: Iterable[Doomed]) -> Iterator[Deleted]:
        """Delete objects as :meth:`delete` does, and say after each chunk what became of it.

        For who has to know that when the run is stopped.
        """
        pending = iter(doomed)
        while chunk := list(islice(pending, self._chunk_keys)):
            self._check_alive()
            done = self._delete_announced(chunk)
            if self._audit is not None:
                self._audit.conclude(done.failed)
            yield done

    def _delete_announced(self, chunk: Sequence[Doomed]) -> Deleted:
        """Delete objects once it is written down that they go (J10)."""
        if self._audit is not None:
            self._audit.announce(chunk)
        return self._delete_chunk(chunk)

    def _delete_chunk(self, chunk: Sequence[Doomed]) -> Deleted:
        try:
            report = self._store.delete([each.key for each in chunk])
        except Unavailable as error:
            # J6: counted and left to the next run; keys that will not go must not keep the other kinds from going.
            return Deleted(failed=tuple(FailedDelete(each.key, str(error), "unanswered") for each in chunk))
        return Deleted(frozenset(report.deleted), report.failed)


@dataclass(frozen=True, slots=True)
class FailureGroup:
    """Deletes that failed alike: how, how many, one of them, and the store's words about that one."""

    kind: DeleteFailure
    count: int
    key: str
    reason: str


def group_failures(failed: Iterable[FailedDelete]) -> tuple[FailureGroup, ...]:
    """Return failed deletes by how they failed, most of them first: a few lines, however many failed."""
    counts: Counter[DeleteFailure] = Counter()
    first: dict[DeleteFailure, FailedDelete] = {}
    for each in failed:
        counts[each.kind] += 1
        first.setdefault(each.kind, each)
    return tuple(FailureGroup(kind, count, first[kind].key, first[kind].reason) for kind, count in counts.most_common())
