"""The rows of the benchmark of scans, and our own files of them. Deterministic."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from icedb import connect

from bench.figures import OURS
from bench.scan_work import SORT, Files, folder_name

BATCHES: Final = 20
SMALL_APPENDS: Final = 100
APPENDS_PER_MERGE: Final = 10
_DAY_US: Final = 86_400_000_000
_FIRST_TS_US: Final = 1_767_225_600_000_000  # 2026-01-01T00:00:00Z
_EVENT_SHARES: Final = (0.3, 0.2, 0.15, 0.1, 0.08, 0.06, 0.05, 0.03, 0.02, 0.01)
_NULL_SHARE: Final = 0.05
_ALL_ROWS_IN_ONE_FILE: Final = 1 << 33


def make_events(count: int, *, is_wide: bool = False) -> pa.Table:
    """Return product events of one day in the order of their times, of eight columns or of thirty."""
    rng = np.random.default_rng(26)

    def texts(values: list[str], numbers: np.ndarray) -> Any:
        return pa.array(values).take(pa.array(numbers))

    events = [f"event-{number}" for number in range(len(_EVENT_SHARES))]
    users = [f"u{number}" for number in range(20_000)]
    urls = [f"https://example.com/section-{number % 37}/page-{number}" for number in range(3_000)]
    agents = [f"Mozilla/5.0 (Agent {number}) Engine/{number}.0" for number in range(40)]
    rows = pa.table(
        {
            "ts": pa.array(np.sort(rng.integers(0, _DAY_US, count)) + _FIRST_TS_US, pa.timestamp("us")),
            "event": texts(events, rng.choice(len(events), count, p=_EVENT_SHARES)),
            "user_id": texts(users, rng.integers(0, len(users), count)),
            "url": texts(urls, np.minimum(rng.zipf(1.3, count) - 1, len(urls) - 1)),
            "price": pa.array(rng.integers(0, 10_000, count) / 100),
            "agent": texts(agents, rng.integers(0, len(agents), count)),
            "duration_ms": pa.array(rng.integers(0, 60_000, count)),
            "id": pa.array(np.char.mod("%016x", rng.integers(0, 2**62, count))),
        }
    )
    if is_wide:
        for name, values in _make_more(rng, count, texts).items():
            is_null = rng.random(count) < _NULL_SHARE
            rows = rows.append_column(name, pc.if_else(pa.array(is_null), None, values))
    return rows


def _make_more(rng: np.random.Generator, count: int, texts: Callable[[list[str], np.ndarray], Any]) -> dict[str, Any]:
    """Return 22 columns more, as those of such events are: texts of few values, numbers near to each other, flags."""
    distinct_counts = {"country": 200, "city": 5_000, "browser": 12, "referrer": 1_000, "campaign": 50, "plan": 4}
    columns: dict[str, Any] = {
        name: texts([f"{name}-{number}" for number in range(distinct)], rng.integers(0, distinct, count))
        for name, distinct in distinct_counts.items()
    }
    columns["session"] = pa.array(np.char.mod("%012x", rng.integers(0, count, count) * 7919))
    columns["received"] = pa.array(
        np.sort(rng.integers(0, _DAY_US, count)) + _FIRST_TS_US + rng.integers(0, 5_000_000, count), pa.timestamp("us")
    )
    columns |= {f"is_{number}": pa.array(rng.random(count) < share) for number, share in enumerate((0.5, 0.9, 0.01))}
    columns |= {f"count_{number}": pa.array(rng.geometric(share, count)) for number, share in enumerate((0.5, 0.01))}
    columns |= {f"number_{number}": pa.array(rng.integers(0, 10**size, count)) for number, size in enumerate((3, 6, 9))}
    columns |= {
        f"amount_{number}": pa.array(rng.integers(0, 10**size, count) / 100) for number, size in enumerate((3, 5))
    }
    columns |= {f"score_{number}": pa.array(rng.normal(size=count)) for number in range(4)}
    return columns


def write_ours(rows: pa.Table, folder: Path) -> list[Files]:
    """Write the rows as a user would: flushed only, merged, merged of many small appends, and copied in time order.

    Args:
        rows: In the order of their times.
        folder: Of the tables; made here.
    """
    shuffled = _shuffle(rows)
    return [
        write_merged(rows, folder),
        _write(folder, f"{OURS}, flushed", shuffled, append_count=BATCHES, finish=lambda _: None),
        _write(
            folder,
            f"{OURS}, {SMALL_APPENDS} small appends",
            shuffled,
            append_count=SMALL_APPENDS,
            finish=lambda table: table.merge(),
            merge_after=APPENDS_PER_MERGE,
        ),
        _write(
            folder,
            f"{OURS}, by time, copied",
            rows,
            append_count=BATCHES // 2,
            finish=lambda table: table.merge(),
            sort=("ts",),
        ),
    ]


def write_merged(rows: pa.Table, folder: Path) -> Files:
    """Write the rows as most are read: appended in some batches, each of all times, and merged."""
    return _write(folder, OURS, _shuffle(rows), append_count=BATCHES, finish=lambda table: table.merge())


def _shuffle(rows: pa.Table) -> pa.Table:
    return rows.take(pa.array(np.random.default_rng(27).permutation(rows.num_rows)))


def _write(
    folder: Path,
    name: str,
    rows: pa.Table,
    *,
    append_count: int,
    finish: Callable[[Any], Any],
    sort: tuple[str, ...] = SORT,
    merge_after: int = 0,
) -> Files:
    root = folder / folder_name(name)
    shutil.rmtree(root, ignore_errors=True)
    table = connect(root).create_table("events", sort=list(sort), target_file_bytes=_ALL_ROWS_IN_ONE_FILE)
    step = -(-rows.num_rows // append_count)
    for number in range(append_count):
        table.append(rows.slice(number * step, step))
        if merge_after and number % merge_after == merge_after - 1:
            table.merge()
    finish(table)
    return Files(name, tuple(root / file.path for file in table.snapshot().files))
