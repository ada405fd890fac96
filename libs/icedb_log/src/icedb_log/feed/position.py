"""What a reader of a table's changes has seen of its appends, and what comes next. Pure, and the codec.

Views and followers read changes in the same way: a position names the appends that are taken, as far as their log files
still exist. A log file that is gone is gone for good (W2, F4), so its name may be forgotten: no append is taken twice
(V1, L1). A view keeps the names in the commits that have its rows, a follower in a :class:`Position` of its own. Beside
them stands there what is being delivered in pieces, because it is larger than one batch: one commit, or the whole state
that it began with.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Final, Literal

from pydantic import Field, TypeAdapter, ValidationError

from icedb_log.errors import InvalidRequest
from icedb_log.keys import log_name, parse_log_key
from icedb_log.log.fold import fold
from icedb_log.model import FileMarker, ListedLogFile, ListedLogHead, LogView
from icedb_log.texts import first_message

LogFiles = Iterable[ListedLogFile] | Iterable[ListedLogHead]


def find_appends(files: LogFiles, *, taken: Collection[str] = ()) -> Iterator[str]:
    """Yield the names of the appends among some log files that are not taken, in their order."""
    for file in files:
        name = log_name(file.key)
        if name not in taken and not file.log.is_seal and not parse_log_key(file.key).is_merged:
            yield name


def advance(taken: Iterable[str], files: LogFiles, *, decided: Iterable[str]) -> tuple[str, ...]:
    """Return the names to be kept when some more appends are taken, ascending (V1, L1).

    Args:
        taken: Names until now; one whose log file is gone is forgotten.
        files: Log files that are there.
        decided: Names that are taken now.
    """
    present = {log_name(file.key) for file in files}
    return tuple(sorted({*(name for name in taken if name in present), *decided}))


def find_living(files: Iterable[ListedLogFile]) -> tuple[str, ...]:
    """Return the names of the log files that no other one has replaced: they say all that the whole log says (M1).

    One that is dead already may go at any time; these stay as long as something holds them.
    """
    files = tuple(files)
    dead = {tombstone.path for file in files for tombstone in file.log.log_tombstones}
    return tuple(log_name(file.key) for file in files if file.key not in dead and not file.log.is_seal)


def fold_some(view: LogView, names: Collection[str]) -> tuple[FileMarker, ...]:
    """Return the data files that some log files alone say to be live."""
    wanted = set(names)
    files = tuple(file for file in view.files if log_name(file.key) in wanted)
    return tuple(fold(LogView(view.table, files, view.store_now_ms)).live)


def find_missing(view: LogView, names: Iterable[str]) -> set[str]:
    """Return which of some log files are gone; a seal in the place of one is not that one."""
    return {*names} - {log_name(file.key) for file in view.files if not file.log.is_seal}


def find_unfilled(backfilled: Sequence[int], count: int) -> Iterator[int]:
    """Yield the places of the data files of a backfill that are not decided, ascending (V1).

    Args:
        backfilled: As of :class:`~icedb_log.model.FeedState`.
        count: Data files of the backfill.
    """
    decided = set(backfilled[1:])
    return (place for place in range(backfilled[0] if backfilled else 0, count) if place not in decided)


def advance_backfill(backfilled: Sequence[int], *, decided: Iterable[int]) -> tuple[int, ...]:
    """Return what is decided of a backfill when some more of its data files are (V1)."""
    places = {*backfilled[1:], *decided}
    first = backfilled[0] if backfilled else 0
    while first in places:
        places.remove(first)
        first += 1
    return (first, *sorted(places))


@dataclass(frozen=True, slots=True)
class Slice:
    """Files that are delivered, or that are left to be: of one append, or of the state that a follower began with.

    Attributes:
        logs: Names of log files: one append, whose files these are, or all log files of the state, whose live files
            these are. The order of the files is always the same.
        is_state: Whether it is the latter.
        first: Place of the first file.
        last: Place behind the last file; ``None``: to the end.
    """

    logs: tuple[str, ...]
    is_state: Annotated[bool, Field(alias="state")] = False
    first: Annotated[int, Field(alias="done")] = 0
    last: Annotated[int | None, Field(exclude=True)] = None


@dataclass(frozen=True, slots=True)
class Position:
    """How far a follower has got.

    Attributes:
        number: Which table of its name it is (T4).
        read_ms: The store's clock before the log was listed of which this position is made; earlier if it leaves
            appends behind: none of them was dead by then (L2).
        taken: Names of the appends that are delivered, and of those that are none of the follower's, ascending; only
            those whose log files were there when the position was made.
        lease_id: The lease that holds what lies behind the position; ``None``: the grace periods alone.
        rebuilt: Which rebuild had made the table's log anew (B3).
        open: What is left of what is delivered in part; ``None``: nothing.
        format: Of the checkpoint.
    """

    number: int
    read_ms: int
    taken: tuple[str, ...]
    lease_id: Annotated[str | None, Field(alias="lease")] = None
    rebuilt: str | None = None
    open: Slice | None = None

    format: Literal[1] = 1

    def to_json(self) -> dict[str, Any]:
        """Return the position in the form in which a checkpoint keeps it."""
        return dict(_codec().dump_python(self, mode="json", by_alias=True, exclude_none=True))


@cache
def _codec() -> TypeAdapter[Position]:
    """Return what reads and writes a position: made when one is, as it takes 15 ms."""
    return TypeAdapter(Position)


def read_position(value: Mapping[str, Any]) -> Position:
    """Return a position from what a checkpoint kept. Raises InvalidRequest."""
    try:
        return _codec().validate_python(value)
    except ValidationError as error:
        raise InvalidRequest(
            f"this checkpoint was not written by this release ({first_message(error)[:100]}): use the release that "
            "wrote it, or begin with a new checkpoint"
        ) from error


def slices_between(start: Position, end: Position) -> tuple[Slice, ...]:
    """Return what is delivered by going from one position to a later one, oldest first."""
    found: list[Slice] = []
    before, after = start.open, end.open
    finished: tuple[str, ...] = ()
    if before is not None:
        is_same = after is not None and (after.logs, after.is_state) == (before.logs, before.is_state)
        last = after.first if is_same and after is not None else None
        if last != before.first:
            found.append(Slice(before.logs, before.is_state, before.first, last))
        finished = () if before.is_state else before.logs
        after = None if is_same else after
    known = {*start.taken, *finished}
    found += [Slice((name,)) for name in end.taken if name not in known]
    if after is not None:
        found.append(Slice(after.logs, after.is_state, 0, after.first))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Budget:
    """How much one step of a follower may deliver; at least one file always.

    Attributes:
        max_files: Data files; ``None``: no limit.
        max_bytes: Bytes of data files; ``None``: no limit.
    """

    max_files: int | None = None
    max_bytes: int | None = None


NO_BUDGET: Final = Budget()


class Spent:
    """What a step has delivered, against its budget."""

    def __init__(self, budget: Budget) -> None:
        self._max_files = float("inf") if budget.max_files is None else budget.max_files
        self._max_bytes = float("inf") if budget.max_bytes is None else budget.max_bytes
        self.file_count = 0
        self._size_bytes = 0

    @property
    def is_over(self) -> bool:
        """Whether no file more may be delivered for certain."""
        return self.file_count >= self._max_files or self._size_bytes >= self._max_bytes

    def take(self, marker: FileMarker) -> bool:
        """Count a file, if there is room for it."""
        size_bytes = self._size_bytes + marker.size_bytes
        if self.file_count and (self.file_count >= self._max_files or size_bytes > self._max_bytes):
            return False
        self.file_count += 1
        self._size_bytes = size_bytes
        return True
