"""Imports on Spark with a real S3: copies on the server, from and to a directory; then merged, vacuumed and read."""

import io
from dataclasses import replace
from datetime import datetime, timedelta

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from icedb_client.client import Client
from icedb_client.settings import ClientSettings
from icedb_engine.imports.import_unit import open_source
from icedb_engine.jobs import import_driver
from icedb_engine.jobs.import_driver import ImportDriver
from icedb_engine.jobs.merge_driver import MergeDriver
from icedb_engine.spark.spark_runner import SparkRunner
from icedb_log.clean.vacuum import vacuum_table
from icedb_log.clock import SystemClock
from icedb_log.commit.table import Table
from icedb_log.errors import NotFound
from icedb_log.imports.import_sources import list_sources, parse_pattern
from icedb_log.imports.imports import ImportOptions, import_files
from icedb_log.log.fold import fold
from icedb_log.log.reader import LogReader
from icedb_log.merge.merge import merge_table
from icedb_log.merge.merge_plan import MergeOptions
from icedb_log.store import s3
from icedb_log.store.object_store import list_all
from icedb_log.store.table_store import TableStore
from icedb_log.store_settings import StoreSettings
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import PartitionField, TableConfig

pytestmark = [pytest.mark.s3, pytest.mark.spark]

CLOCK = SystemClock()
DAYS = 3
FILES_PER_DAY = 4


def source_rows():
    """Rows of each file by name: two types of ``n``, unsorted, one column that some files lack."""
    rows = {}
    for day in range(DAYS):
        for number in range(FILES_PER_DAY):
            start = datetime(2026, 1, 1 + day)
            rows[f"{day}-{number}"] = [
                {"ts": start + timedelta(minutes=(7 * n) % 60), "n": (31 * n + number) % 97, "event": "xyz"[n % 3]}
                | ({"late": n / 2} if number else {})
                for n in range(40)
            ]
    return rows


def put_sources(store, prefix):
    for number, (name, rows) in enumerate(source_rows().items()):
        columns = {key: [row[key] for row in rows] for key in rows[0]}
        columns["n"] = pa.array(columns["n"], pa.int32() if number % 2 else pa.int64())
        columns["ts"] = pa.array(columns["ts"], pa.timestamp("us"))
        sink = io.BytesIO()
        pq.write_table(pa.table(columns), sink)
        store.put(f"{prefix}/day={name[0]}/{name}.parquet", sink.getvalue())


def expected():
    rows = [row for rows in source_rows().values() for row in rows]
    return sorted((row["ts"], row["n"], row["event"], row.get("late")) for row in rows)


class ImportingTable:
    def __init__(self, spark, settings, source_s3, monkeypatch):
        monkeypatch.setattr(import_driver, "DIRECT_FILES", 0)  # every job is one of Spark
        monkeypatch.setattr(import_driver, "FOOTERS_PER_UNIT", 5)
        monkeypatch.setattr(import_driver, "COPIES_PER_UNIT", 5)
        self.settings = settings
        self.source_s3 = source_s3
        self.warehouse = settings.open()
        self.store, self.paths = self.warehouse.store, self.warehouse.table("imported").paths
        self.importer = ImportDriver(
            SparkRunner(spark, StoreSettings(settings.url, settings.s3 or source_s3)), clock=CLOCK
        )
        self.merger = MergeDriver(SparkRunner(spark, settings), clock=CLOCK)
        fields = (PartitionField.parse("d=day(ts)"),)
        config = TableConfig.create(
            name="imported", partition=fields, sort=("event", "n"), data_grace_ms=1000, log_grace_ms=1000
        )
        create_table(TableStore(self.store, self.paths), config)

    def run_import(self, *patterns, **options):
        sources = list_sources(
            [parse_pattern(text) for text in patterns],
            open_store=open_source(self.settings.s3 or self.source_s3),
            allowed=["s3://", "file:///"],
        )
        return import_files(
            Table.open(TableStore(self.store, self.paths), clock=CLOCK, owner="test"),
            self.importer,
            sources,
            options=ImportOptions(**options),
        )

    def rows(self):
        """What an engine reads from the snapshot's files, by itself."""
        settings = ClientSettings(store=self.settings.url)
        with Client(settings=settings, warehouse=self.warehouse) as client:
            snapshot = client.snapshot("imported")
            con = duckdb.connect()
            replace(snapshot, s3=self.settings.s3).duckdb(con)
            return sorted(con.sql("SELECT ts, n, event, late FROM imported").fetchall())

    def merge_and_vacuum(self):
        merged = merge_table(
            Table.open(TableStore(self.store, self.paths), clock=CLOCK, owner="test"),
            self.merger,
            options=MergeOptions(full=True),
        )
        assert (merged.input_count, merged.output_count) == (DAYS * FILES_PER_DAY, DAYS)
        deleted = 0
        for _ in range(100):
            deleted += len(vacuum_table(Table.open(TableStore(self.store, self.paths), clock=CLOCK)).deleted_data)
            if deleted == DAYS * FILES_PER_DAY:
                break
            CLOCK.sleep_ms(100)
        live = {marker.path for marker in fold(LogReader(TableStore(self.store, self.paths), clock=CLOCK).read()).live}
        assert {info.key for info in list_all(self.store, self.paths.data_prefix).objects} == live
        assert len(live) == DAYS


def test_objects_of_s3_are_copied_by_the_server_imported_once_merged_and_read(spark, s3_server, monkeypatch):
    settings = StoreSettings(f"s3://{s3_server.bucket}/import-a/w", s3_server.options)
    table = ImportingTable(spark, settings, None, monkeypatch)
    put_sources(table.store, "import-a/in")
    monkeypatch.setattr(table.store, "upload", lambda *_: pytest.fail("bytes came through the worker"))
    pattern = f"s3://{s3_server.bucket}/import-a/in/**/*.parquet"
    planned = table.run_import(pattern, is_dry_run=True)
    done = table.run_import(pattern)
    assert (planned.file_count, planned.row_count, planned.size_bytes) == (12, 480, done.size_bytes)
    assert (done.file_count, done.row_count, len(done.committed_keys), done.refused) == (12, 480, 1, [])
    assert set(done.partitions) == {"d=2026-01-01", "d=2026-01-02", "d=2026-01-03"}
    assert table.rows() == expected()
    table.merge_and_vacuum()
    again = table.run_import(pattern)
    assert (again.file_count, again.imported_before_count) == (0, 12)
    assert table.rows() == expected()
    info = table.store.head("import-a/in/day=0/0-0.parquet")
    with pytest.raises(NotFound):
        table.store.copy_from(table.store, replace(info, key="import-a/in/none"), "import-a/w/x.parquet")


def test_objects_of_s3_stream_into_a_directory_and_files_in_place_stay(spark, s3_server, monkeypatch, tmp_path):
    settings = StoreSettings(f"file://{tmp_path}/w")
    table = ImportingTable(spark, settings, s3_server.options, monkeypatch)
    source = StoreSettings(f"s3://{s3_server.bucket}", s3_server.options).open().store
    put_sources(source, "import-b/in")
    first = table.run_import(f"s3://{s3_server.bucket}/import-b/in/day=[01]/*.parquet")
    assert (first.file_count, first.refused) == (8, [])
    for name in [name for name in source_rows() if name.startswith("2")]:
        body = source.get(f"import-b/in/day=2/{name}.parquet").body
        table.store.put(f"{table.paths.data_prefix}d=2026-01-03/mine-{name}.parquet", body)
    in_place = table.run_import(f"file://{tmp_path}/w/imported/_data/d=2026-01-03/*.parquet", mode="in_place")
    assert (in_place.file_count, in_place.refused) == (4, [])
    assert table.rows() == expected()
    assert (tmp_path / "w" / "imported" / "_data" / "d=2026-01-03" / "mine-2-0.parquet").exists()
    table.merge_and_vacuum()
    assert table.rows() == expected()


def test_a_large_object_is_copied_in_parts(s3_server, monkeypatch):
    monkeypatch.setattr(s3, "SINGLE_COPY_BYTES", 1)
    store = StoreSettings(f"s3://{s3_server.bucket}", s3_server.options).open().store
    body = bytes(range(256)) * (36 * 1024)  # 9 MiB: two parts
    store.put("import-c/in", body)
    copied = store.copy_from(store, store.head("import-c/in"), "import-c/out")
    assert (copied.size_bytes, store.get("import-c/out").body == body) == (len(body), True)
    with pytest.raises(NotFound):
        store.copy_from(store, replace(copied, key="import-c/none"), "import-c/out")
