"""The options by which a reader chooses a state of a table, and times as text."""

import re
from typing import Annotated, Final

import typer
from icedb_client.requests import to_ms
from icedb_log.units import parse_duration

_SPAN: Final = re.compile(r"[0-9.]+ *[a-z]+")

AsOf = Annotated[
    str | None,
    typer.Option("--as-of", metavar="TIME", help="Time travel: 2026-01-02T03:04:05Z, a date, unix ms, or 5m ago: 5m."),
]
TagOption = Annotated[
    str | None,
    typer.Option("--tag", metavar="NAME", help="Read the state that this tag keeps; see `icedb tag list`."),
]
MaxStaleness = Annotated[
    str | None,
    typer.Option(
        "--max-staleness",
        metavar="TIME",
        help="How old the snapshot service's cached state may be, e.g. 5s; 0s reads the log now.",
    ),
]


def parse_time(text: str, *, option: str, now_ms: int) -> int:
    """Return unix milliseconds from ISO 8601 (UTC if it names no zone), digits, or how long ago it was, e.g. ``7d``.

    Raises:
        InvalidRequest: It is none of them.
    """
    if not _SPAN.fullmatch(text.strip()):
        return to_ms(text, what=option)
    return max(0, now_ms - parse_duration(text, option=option))


def maybe_time(text: str | None, *, option: str, now_ms: int) -> int | None:
    """Return a time as :func:`parse_time` does; ``None``: none was given."""
    return None if text is None else parse_time(text, option=option, now_ms=now_ms)
