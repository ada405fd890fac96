"""The mark of a dropped table in its ``table.json``: what it says, and how people are told (rules T1 to T6).

States, each change by compare-and-set, and who makes it::

    (none) ── drop ──▶ trash ── due, or --force ──▶ purging ── nothing is left ──▶ purged ── create ──▶ (none)
       ▲                 │                             ▲                             │
       └───── undrop ────┘                             └─── what came late is left ──┘

Drop, undrop, create and --force are a person's, the others the janitor's.

When a table was dropped is the LastModified of ``table.json``, by the store's clock (T1): so nothing else may write a
marked one.
"""

from collections.abc import Iterable
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from icedb_log.clock import format_ms
from icedb_log.texts import Text, did_you_mean

DropState = Literal["trash", "purging", "purged"]
"""``trash``: all is there, undrop brings it back; ``purging``: being deleted; ``purged``: gone, the name is free."""

MAX_NOTE_CHARS: Final = 2000

BELIEVED_MS: Final = 10_000
"""How long who answers many readers believes that a table is there; it stays in the trash for as much longer (T1)."""


class Dropped(BaseModel):
    """That a table is dropped, and what becomes of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    state: DropState
    drop_id: Text
    """Unique for each drop; what fences carry once the purge has begun (T4)."""
    keep_ms: Annotated[int, Field(ge=0)]
    """How long it stays in the trash, from the drop, by the store's clock."""
    dropped_ms: int | None = None
    """When it was dropped, unix ms by the store's clock; ``None`` in the trash: then it is LastModified."""
    dropped_by: Text = ""
    note: Text = ""
    is_forced: bool = False
    """Whether it went past the trash, for people."""
    purgers: tuple[str, ...] = ()
    """Runs whose deletes of names that can come again may still be under way (T5)."""
    is_final: bool = False
    """Whether the last look at what came late was taken, or is being taken (T6)."""


def describe_missing(name: str, known: Iterable[str] = (), *, empty: str = "") -> str:
    """Return what is said of a table that is not there, and to whoever may not know that it is.

    Args:
        name: What was asked for.
        known: Tables that are there, and that the caller may know of: those that are close are named.
        empty: Where there is no table at all, if so.
    """
    if empty:
        return (
            f"table {name[:80]!r} does not exist: {empty} has no table yet; create it with `icedb table create {name}`,"
            " or correct ICEDB_STORE"
        )
    close = did_you_mean(name, known) or "; see `icedb table list`, or create it with `icedb table create`"
    return f"table {name[:80]!r} does not exist{close}"


def describe_drop(name: str, mark: Dropped, *, modified_ms: int) -> str:
    """Return what whoever asks for a dropped table is told: since when, and what to do."""
    who = f" by {mark.dropped_by}" if mark.dropped_by else ""
    since = f"{format_ms(mark.dropped_ms or modified_ms)}{who}"
    if mark.state == "trash":
        return f"table {name!r} was dropped at {since} and is in the trash; `icedb table undrop {name}` brings it back"
    if mark.state == "purging":
        return (
            f"table {name!r} was dropped at {since} and is being purged: nothing brings it back; "
            "`icedb table trash` shows how far that is"
        )
    return f"table {name!r} does not exist: it was dropped at {since} and purged; see `icedb table list`"
