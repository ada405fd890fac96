"""What every system of the benchmark of tiny batches sends, ours and peers. Imports nothing of ours."""

from typing import Any, Final

ROWS_PER_BATCH: Final = 10
WARM_SHARE: Final = 10
"""Of its batches a system sends one in so many in its first turn, which does not count."""


def make_rows(number: int) -> list[dict[str, Any]]:
    """Return the rows of a batch."""
    return [
        {
            "ts": "2025-06-01T12:00:00.000Z", "event": "page_view", "user_id": f"u{number}", "path": "/pricing",
            "duration_ms": number * ROWS_PER_BATCH + place, "price": 9.75,
        }
        for place in range(ROWS_PER_BATCH)
    ]  # fmt: skip


def sum_durations(batch_count: int) -> int:
    """Return the sum of ``duration_ms`` over so many batches."""
    row_count = batch_count * ROWS_PER_BATCH
    return row_count * (row_count - 1) // 2
