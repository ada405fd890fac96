"""The input of the merge benchmark: a table of ours with very many small data files, as flushes leave them.

Product events of ten columns. Each file is sorted, written by the writer of the ingest job, and named in a log file
with the statistics that a flush gives; a log file names some tens of them. Deterministic by seed.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from icedb_engine.limits import EngineLimits
from icedb_engine.work import Unit
from icedb_engine.writing.part_files import PartEncoder, PartLayout
from icedb_log.clock import SystemClock
from icedb_log.commit.fence import acquire_fence
from icedb_log.commit.table import Table
from icedb_log.model import FileMarker, LogFile
from icedb_log.store.table_store import TableStore
from icedb_log.store_settings import StoreSettings
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import PartitionField, TableConfig

from bench.merge_work import MergeInput

TABLE: Final = "events"
SCHEMA: Final = {
    "ts": "TIMESTAMP",
    "event": "VARCHAR",
    "user_id": "VARCHAR",
    "path": "VARCHAR",
    "country": "VARCHAR",
    "session_id": "VARCHAR",
    "duration_ms": "BIGINT",
    "price": "DOUBLE",
    "is_new": "BOOLEAN",
    "campaign": "VARCHAR",
}
_FILES_PER_LOG_FILE: Final = 50
_FIRST_HOUR: Final = datetime(2025, 6, 1, tzinfo=UTC)
_FIRST_TS_US: Final = int(_FIRST_HOUR.timestamp()) * 1_000_000
_HOUR_US: Final = 3_600_000_000
_DAY_US: Final = 86_400_000_000
_HOURS: Final = 24
_CLOCKS_US: Final = 5_000_000
_EVENTS: Final = ("page_view", "click", "scroll", "search", "add_to_cart", "purchase", "sign_up", "error")
_PATHS: Final = ("/", "/pricing", "/docs", "/docs/start", "/blog", "/login", "/cart", "/checkout", "/about")
_COUNTRIES: Final = ("US", "DE", "IN", "BR", "GB", "FR", "JP", "NL", "SE", "ZA", "MX", "VN")
_CAMPAIGNS: Final = ("spring_sale", "newsletter_23", "podcast")
_CAMPAIGN_SHARE: Final = 0.3
_USER_COUNT: Final = 50_000


def write_merge_input(
    root: Path,
    *,
    file_count: int,
    rows_per_file: int,
    sort: tuple[str, ...],
    is_in_time_order: bool,
    producer_count: int = 1,
    late_share: float = 0.0,
    partition_count: int = 1,
    **settings: Any,
) -> MergeInput:
    """Make a table of ``file_count`` sorted data files.

    Args:
        root: Folder of the store; made here.
        file_count: Data files.
        rows_per_file: Rows of each.
        sort: The table's sort columns.
        is_in_time_order: Whether each file's times follow those of the file before it; else all cover the same day.
        producer_count: Producers, whose clocks differ by up to some seconds.
        late_share: How many of the rows are up to an hour older than their file.
        partition_count: Partitions of an hour each, among which files are dealt out; 1: the table has none.
        settings: Of the table, beside a target size that puts everything into one group.
    """
    root.mkdir(parents=True)
    warehouse = StoreSettings(f"file://{root}").open()
    paths = warehouse.table(TABLE).paths
    # Everything goes into one group and one file, whatever its size, so that all systems make the same.
    settings = {"target_file_bytes": 1 << 33, **settings}
    if partition_count > 1:
        settings["partition"] = (PartitionField.parse("h=hour(ts)"),)
    config = TableConfig.create(name=TABLE, sort=sort, **settings)
    create_table(TableStore(warehouse.store, paths), config)
    markers: list[FileMarker] = []
    duration_sum = 0
    for number in range(file_count):
        window = (number, file_count) if is_in_time_order else (0, 1)
        partition = ""
        if partition_count > 1:
            window = (number % partition_count, _HOURS)
            partition = f"h={_FIRST_HOUR + timedelta(hours=window[0]):%Y-%m-%d-%H}"
        rows = make_rows(number, rows_per_file, window, producer_count=producer_count, late_share=late_share)
        rows = rows.sort_by([(column, "ascending") for column in sort])
        duration_sum += int(np.sum(rows["duration_ms"].to_numpy()))
        markers.append(
            put_file(TableStore(warehouse.store, paths), config, rows, scratch=root.parent, partition=partition)
        )
    _commit(TableStore(warehouse.store, paths), markers)
    return MergeInput(
        root=root,
        files=tuple(root / marker.path for marker in markers),
        sort=sort,
        row_count=file_count * rows_per_file,
        size_bytes=sum(marker.size_bytes for marker in markers),
        duration_sum=duration_sum,
    )


def make_rows(
    seed: int, count: int, window: tuple[int, int] = (0, 1), *, producer_count: int = 1, late_share: float = 0.0
) -> pa.Table:
    """Make events in random order; ``window``: which of how many equal parts of the day their times fall in."""
    rng = np.random.default_rng((7, seed))
    part_us = _DAY_US // window[1]
    ts = _FIRST_TS_US + window[0] * part_us + rng.integers(0, part_us, count)
    if producer_count > 1:
        clocks_us = np.random.default_rng(producer_count).integers(-_CLOCKS_US, _CLOCKS_US, producer_count)
        ts += clocks_us[rng.integers(0, producer_count, count)]
    if late_share:
        ts -= np.where(rng.random(count) < late_share, rng.integers(0, _HOUR_US, count), 0)
    has_campaign = rng.random(count) < _CAMPAIGN_SHARE
    campaigns = np.array(_CAMPAIGNS, dtype=object)[rng.integers(0, len(_CAMPAIGNS), count)]
    campaigns[~has_campaign] = None
    columns: list[Any] = [
        pa.array(ts, pa.timestamp("us")),
        _pick(rng, _EVENTS, count),
        _text("u", rng.zipf(1.3, count) % _USER_COUNT),
        _pick(rng, _PATHS, count),
        _pick(rng, _COUNTRIES, count),
        _text("s", rng.integers(10**11, 10**12, count)),
        pa.array(rng.integers(0, 60_000, count)),
        pa.array(rng.integers(1, 500, count) + rng.integers(1, 4, count) / 4),
        pa.array(rng.random(count) < 0.5),
        pa.array(campaigns, pa.string()),
    ]
    return pa.table(columns, names=list(SCHEMA))


def _pick(rng: np.random.Generator, words: tuple[str, ...], count: int) -> pa.Array:
    return pa.array(words).take(pa.array(rng.integers(0, len(words), count)))


def _text(prefix: str, numbers: np.ndarray) -> pa.Array:
    return pa.array(np.char.add(prefix, numbers.astype(str)), pa.string())


def put_file(
    table: TableStore, config: TableConfig, rows: pa.Table, *, scratch: Path, partition: str = ""
) -> FileMarker:
    """Write rows as a data file, one row group after the other, and upload it.

    Args:
        table: Its store and keys.
        config: Sort columns and rows of a row group.
        rows: Sorted already.
        scratch: A folder.
        partition: Of the table's, ``name=value``; empty: it has none.
    """
    clock = SystemClock()
    unit = Unit(
        paths=table.paths,
        config=config,
        schema=SCHEMA,
        commit_id="bench",
        time_ms=clock.now_ms(),
        engine=EngineLimits(),
    )
    layout = PartLayout(unit, SCHEMA, (partition,))
    path = scratch / "next.parquet"
    encoder = PartEncoder(path, layout)
    for first in range(0, rows.num_rows, config.row_group_rows):
        encoder.write_group(rows.slice(first, config.row_group_rows))
    encoder.close(layout.make_footer(0))
    key = table.paths.data_key(partition=partition, file_id=clock.new_id())
    table.store.upload(key, path)
    return FileMarker(key, path.stat().st_size, unit.time_ms, row_count=rows.num_rows, stats=encoder.stats.finish())


def _commit(table: TableStore, markers: list[FileMarker]) -> None:
    clock = SystemClock()
    fence = acquire_fence(Table.open(table, clock=clock, owner="bench"), "ingest")
    time_ms = clock.now_ms()
    for first in range(0, len(markers), _FILES_PER_LOG_FILE):
        log = LogFile(
            time_ms=time_ms + first,
            schema=SCHEMA,
            markers=tuple(markers[first : first + _FILES_PER_LOG_FILE]),
            commit_id=clock.new_id(),
        )
        fence.commit(log)
    fence.release()
