"""What every system of the benchmark of appends sends, ours and peers. Imports nothing of ours."""

from typing import Any, Final

MEASURED: Final = 100
"""Appends of a turn; the table has so many as the case says when the first turn begins, and more in the next."""


def make_row(number: int) -> dict[str, Any]:
    """Return the row of an append."""
    return {"ts": "2026-01-02T03:04:05Z", "event": "view", "user_id": f"u{number}", "n": number}
