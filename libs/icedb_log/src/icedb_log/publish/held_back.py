"""What keeps the newest state of a table from being published: written down for operators, readers and merges.

``_icedb/iceberg/held-back.json``: ``{"format": 1, "id": <of this state>, "as_of": <ms>, "reason": <text>, "files":
[<paths>], "narrow": [<paths>]}``. It is advice, never taken away, and void as soon as none of its files is live, or a
publication shows a later state. Merges write the narrow files anew before anything else
(:mod:`icedb_log.merge.merge_plan`), so that a table whose columns became wider mends itself.

Paths say values of partitions, so an erasure empties it (E5), and it is changed by compare-and-set: a log that is read
after the state which is replaced says that each file is live. A publisher that slept through the erasure either finds
another state than it read, or reads a log in which the erased files are dead.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter

from icedb_log.clock import Clock
from icedb_log.errors import CommitConflict
from icedb_log.log.fold import fold
from icedb_log.log.live_files import LiveFiles
from icedb_log.model import LogView
from icedb_log.store.object_store import StoredObject
from icedb_log.store.records import Record
from icedb_log.store.table_store import TableStore
from icedb_log.table.table import Table

_TRIES: Final = 10
MAX_PATHS: Final = 1000
"""So many files are written down; others are found when these have gone."""


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Why a state was not published.

    Attributes:
        as_of_ms: The store's clock before its log was listed.
        reason: In words, with what to do.
        files: Paths of live data files that cannot be published; not all of them if they are many.
        narrow: Those of them that a merge writes anew rightly: older than a column's wider type.
        state_id: Of this state of the object: no content, hence no ETag, ever comes back.
        format: Of the object.
    """

    as_of_ms: Annotated[int, Field(alias="as_of")]
    reason: str
    files: tuple[str, ...]
    narrow: tuple[str, ...] = ()
    state_id: Annotated[str, Field(alias="id")] = ""
    format: Literal[1] = 1

    def is_over(self, live: LiveFiles, *, published_ms: int) -> bool:
        """Whether it says nothing any more, given what is live, and which time the current publication shows."""
        return published_ms >= self.as_of_ms or all(live.find(path) is None for path in self.files)


def write_held_back(table: Table, held: HeldBack) -> None:
    """Write down why a state was not published, unless its files are not live any more. Idempotent.

    One request where it stands there already; else the log is read once more.

    Raises:
        CommitConflict: Others kept changing it.
        HaltError: The log cannot be understood.
        Unavailable: The store did not answer.
    """
    held = replace(held, files=held.files[:MAX_PATHS], narrow=held.narrow[:MAX_PATHS], state_id=table.clock.new_id())

    def change(known: HeldBack | None) -> HeldBack:
        # The same files are live, so that no later state was published meanwhile.
        if known is not None and (known.reason, known.files, known.narrow) == (held.reason, held.files, held.narrow):
            return known
        # WARN: E5: after what stands there was read. Before it: files are live, an erasure deletes them and empties the
        # object, the empty state is read, and replaced by one that names them.
        live = fold(table.read_log()).live
        is_true = all(live.find(path) is not None for path in held.files)
        return held if is_true else known or HeldBack(0, "", (), state_id=held.state_id)

    _change(table, change)


def forget_held_back(table: TableStore, *, clock: Clock) -> None:
    """Write over what stands there, or nothing (E5): whoever read it before cannot write any more. Raises as above."""
    _change(table, lambda _: HeldBack(0, "", (), state_id=clock.new_id()))


def _change(table: TableStore, change: Callable[[HeldBack | None], HeldBack]) -> None:
    gave_up = CommitConflict(f"{table.paths.held_back_key}: others kept changing it; run again")
    _record(table).change(change, tries=_TRIES, gave_up=gave_up)


def read_held_back(table: TableStore) -> HeldBack | None:
    """Return what stands there, over or not, without files if it is not understood; ``None``: nothing. One request.

    Raises:
        Unavailable: The store did not answer.
    """
    return _record(table).read()[0]


def _record(table: TableStore) -> Record[HeldBack]:
    return Record(table.store, table.paths.held_back_key, _decode, lambda held: _codec().dump_json(held, by_alias=True))


@cache
def _codec() -> TypeAdapter[HeldBack]:
    return TypeAdapter(HeldBack)


def _decode(stored: StoredObject) -> HeldBack:
    try:
        return _codec().validate_json(stored.body)
    except ValueError:
        return HeldBack(0, "", ())  # advice that nobody understands is none


def find_narrow(table: TableStore, view: LogView) -> frozenset[str]:
    """Return data files that are older than a column's wider type and keep the table from being published.

    One request, and none for a table without widened columns.

    Raises:
        Unavailable: The store did not answer.
    """
    if not any(file.log.widened for file in view.files):
        return frozenset()
    held = read_held_back(table)
    return frozenset() if held is None else frozenset(held.narrow)
