"""How far a follower has got in the log of a table, and what lies between two positions. Pure, and the codec.

A position names the appends that are delivered, as far as their log files still exist: as a view's feed does (V1), and
for the same reason a name may be forgotten when its log file is gone. Beside them stands what is being delivered in
pieces, because it is larger than one batch: one commit, or the whole state with which a follower began.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from icedb_log.errors import InvalidRequest

_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class Piecewise:
    """Files that are delivered in several pieces, in an order that is always the same.

    Attributes:
        logs: Names of log files: one append, whose files these are, or all log files of the state that a follower
            began with, whose live files these are.
        is_state: Whether it is the latter.
        done_count: How many of the files are delivered.
    """

    logs: tuple[str, ...]
    is_state: bool
    done_count: int


@dataclass(frozen=True, slots=True)
class Position:
    """How far a follower has got.

    Attributes:
        incarnation: Which table of its name it is (T4).
        read_ms: The store's clock before the log was listed of which this position is made.
        taken: Names of the appends that are delivered, and of those that are none of the follower's, ascending; only
            those whose log files were there when the position was made.
        lease_id: The lease that holds what lies behind the position; ``None``: the grace periods alone.
        rebuilds: How often the table's log had been rebuilt.
        open: What is delivered in part; ``None``: nothing.
    """

    incarnation: str
    read_ms: int
    taken: tuple[str, ...]
    lease_id: str | None = None
    rebuilds: int = 0
    open: Piecewise | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the position in the form in which a checkpoint keeps it."""
        value: dict[str, Any] = {
            "format": _FORMAT,
            "incarnation": self.incarnation,
            "read_ms": self.read_ms,
            "taken": list(self.taken),
            "rebuilds": self.rebuilds,
        }
        if self.lease_id is not None:
            value["lease"] = self.lease_id
        if self.open is not None:
            value["open"] = {
                "logs": list(self.open.logs),
                "state": self.open.is_state,
                "done": self.open.done_count,
            }
        return value


def read_position(value: Mapping[str, Any]) -> Position:
    """Return a position from what a checkpoint kept. Raises InvalidRequest."""
    try:
        if value["format"] != _FORMAT:
            raise ValueError(f"format {value['format']!r}")
        opened = value.get("open")
        return Position(
            incarnation=str(value["incarnation"]),
            read_ms=int(value["read_ms"]),
            taken=tuple(map(str, value["taken"])),
            lease_id=value.get("lease"),
            rebuilds=int(value["rebuilds"]),
            open=None
            if opened is None
            else Piecewise(tuple(map(str, opened["logs"])), bool(opened["state"]), int(opened["done"])),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(
            f"this checkpoint was not written by this release ({type(error).__name__}: {str(error)[:100]}): use the "
            "release that wrote it, or begin with a new checkpoint"
        ) from error


@dataclass(frozen=True, slots=True)
class Slice:
    """Files to be delivered: some of those of one append, or of the state that a follower began with.

    Attributes:
        logs: As of :class:`Piecewise`.
        is_state: As there.
        first: Place of the first file.
        last: Place behind the last file; ``None``: to the end.
    """

    logs: tuple[str, ...]
    is_state: bool
    first: int = 0
    last: int | None = None


def slices_between(start: Position, end: Position) -> tuple[Slice, ...]:
    """Return what is delivered by going from one position to a later one, oldest first."""
    found: list[Slice] = []
    before, after = start.open, end.open
    finished: tuple[str, ...] = ()
    if before is not None:
        is_same = after is not None and (after.logs, after.is_state) == (before.logs, before.is_state)
        last = after.done_count if is_same and after is not None else None
        if last != before.done_count:
            found.append(Slice(before.logs, before.is_state, before.done_count, last))
        finished = () if before.is_state else before.logs
        after = None if is_same else after
    known = {*start.taken, *finished}
    found += [Slice((name,), is_state=False) for name in end.taken if name not in known]
    if after is not None:
        found.append(Slice(after.logs, after.is_state, 0, after.done_count))
    return tuple(found)
