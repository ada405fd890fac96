"""Row groups that a merge copied, from a store over HTTP, as engines read them: page indexes and bloom filters on."""

import functools
import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from icedb_engine.limits import EngineLimits
from icedb_engine.units.merge_unit import merge_unit
from icedb_engine.work import MergeUnit, Unit
from icedb_engine.writing.part_files import PartEncoder, PartLayout
from icedb_log.clock import SystemClock
from icedb_log.jobs import MergeGroup
from icedb_log.keys import TablePaths
from icedb_log.model import FileMarker
from icedb_log.store.s3 import S3ObjectStore
from icedb_log.table.table_config import TableConfig
from pyspark.sql import DataFrame

CLOCK = SystemClock()
COLUMNS = {"i": "BIGINT", "s": "VARCHAR", "f": "DOUBLE", "late": "VARCHAR"}
ROWS = 20_000
SORTED = TableConfig.create(name="sorted", sort=("i",), row_group_rows=4096)
PLAIN = TableConfig.create(name="plain", row_group_rows=4096)
# Nothing that NaN fulfils: statistics do not know of it, and engines leave row groups out by them, whoever wrote the file.
CONDITIONS = [
    "i = 12345",
    "i >= 39990",
    "s = 'v7' AND i < 9000",
    "f < 20.5",
    "late IS NOT NULL AND i = 20001",
    "s IS NULL",
    "i = 77777777",
]


def make_rows(first: int, *, has_late: bool) -> pa.Table:
    numbers = range(first, first + ROWS)
    columns = {
        "i": pa.array(numbers, pa.int64()),
        "s": pa.array([None if n % 11 == 0 else f"v{n % 13}" for n in numbers]),
        "f": pa.array([math.nan if n % 17 == 0 else n / 4 for n in numbers]),
    }
    return pa.table({**columns, "late": pa.array([f"l{n}" for n in numbers])} if has_late else columns)


class Merged:
    """One table on S3, whose files were merged, and the result as a local file."""

    def __init__(self, server, folder: Path, config: TableConfig):
        self.store = S3ObjectStore(server.bucket, server.options, clock=CLOCK)
        self.paths = TablePaths(config.name, f"copied/{config.name}")
        self.config, self.folder = config, folder
        told = {"paths": self.paths, "config": config, "commit_id": "c", "time_ms": 1, "engine": EngineLimits()}
        inputs = self.put_inputs(told)
        group = MergeGroup("", inputs)
        self.result = merge_unit(MergeUnit(**told, schema=COLUMNS, group=group), self.store, clock=CLOCK)
        (output,) = self.result.outputs
        self.file = folder / "merged.parquet"
        self.store.download(output.path, self.file)
        self.rows = pa.concat_tables(
            [make_rows(0, has_late=False), make_rows(ROWS, has_late=True)], promote_options="default"
        )

    def put_inputs(self, told) -> tuple[FileMarker, ...]:
        one = self.put_own(make_rows(0, has_late=False), told)
        if self.config.sort:
            return one, self.put_own(make_rows(ROWS, has_late=True), told)
        path = self.folder / "foreign.parquet"
        pq.write_table(
            make_rows(ROWS, has_late=True),
            path,
            row_group_size=5000,
            write_page_index=True,
            data_page_size=1024,
            data_page_version="2.0",
            bloom_filter_options={"i": {"ndv": 5000}, "s": {"ndv": 20}},
        )
        return one, self.put(path, {})

    def put_own(self, rows: pa.Table, told) -> FileMarker:
        types = {name: COLUMNS[name] for name in rows.column_names}
        layout = PartLayout(Unit(**told, schema=types), types, ("",))
        encoder = PartEncoder(self.folder / "own.parquet", layout)
        for first in range(0, rows.num_rows, 4096):
            encoder.write_group(rows.slice(first, 4096))
        encoder.close(layout.make_footer(0))
        return self.put(encoder.path, encoder.stats.finish())

    def put(self, path: Path, stats) -> FileMarker:
        key = self.paths.data_key(partition="", file_id=CLOCK.new_id())
        self.store.upload(key, path)
        return FileMarker(key, path.stat().st_size, 1, row_count=ROWS, stats=stats)

    def expected(self, condition: str) -> int:
        with duckdb.connect() as engine:
            engine.register("rows", self.rows)
            return engine.execute(f"SELECT count(*) FROM rows WHERE {condition}").fetchone()[0]


@pytest.fixture(scope="module", params=[SORTED, PLAIN], ids=lambda config: config.name)
def merged(request, s3_server, tmp_path_factory) -> Merged:
    return Merged(s3_server, tmp_path_factory.mktemp("copied"), request.param)


def test_everything_was_copied(merged):
    assert merged.result.copied_bytes > 0
    assert merged.result.rows_decoded == 0
    assert merged.result.contents.differences == ()


@pytest.mark.parametrize("condition", CONDITIONS)
def test_duckdb_polars_and_arrow_find_the_same_rows(merged, condition):
    wanted = merged.expected(condition)
    with duckdb.connect() as engine:
        found = engine.execute(f"SELECT count(*) FROM '{merged.file}' WHERE {condition}").fetchone()[0]
    assert found == wanted
    frame = pl.scan_parquet(merged.file, parallel="prefiltered", use_statistics=True)
    assert pl.SQLContext(rows=frame).execute(f"SELECT * FROM rows WHERE {condition}").collect().height == wanted
    arrow = pq.read_table(merged.file, page_checksum_verification=True)
    assert arrow.num_rows == merged.rows.num_rows
    assert arrow["i"].to_pylist() == merged.rows["i"].to_pylist()


@pytest.mark.spark
def test_spark_finds_the_same_rows(merged, spark):
    for options in (
        {"spark.sql.parquet.enableVectorizedReader": "true"},
        {"spark.sql.parquet.enableVectorizedReader": "false"},
    ):
        before = {name: spark.conf.get(name) for name in options}
        for name, value in options.items():
            spark.conf.set(name, value)
        try:
            frame = (
                spark.read.option("parquet.filter.columnindex.enabled", "true")
                .option("parquet.filter.bloom.enabled", "true")
                .option("parquet.filter.dictionary.enabled", "true")
                .parquet(str(merged.file))
            )
            # One query, in which each condition has a scan of its own, down to which it is pushed.
            frames = [frame.where(each).selectExpr("count(*)") for each in CONDITIONS]
            asked = [each.selectExpr(f"{place} AS place", "*") for place, each in enumerate(frames)]
            found = dict(tuple(row) for row in functools.reduce(DataFrame.union, asked).collect())
            assert found == {place: merged.expected(each) for place, each in enumerate(CONDITIONS)}, options
            assert frame.agg({"i": "sum"}).collect()[0][0] == sum(range(2 * ROWS))
        finally:
            for name, value in before.items():
                spark.conf.set(name, value)


CHDB = """
import json, sys
from chdb import session
with session.Session() as engine:
    print(json.dumps([str(engine.query(each, "TSV")).strip() for each in json.load(sys.stdin)]))
"""


@pytest.mark.soak
@pytest.mark.skipif(importlib.util.find_spec("chdb") is None, reason="no chDB: `make engines` installs it")
def test_clickhouse_finds_the_same_rows(merged):
    sql = "SELECT count(*) FROM file('{file}', Parquet) WHERE {condition} SETTINGS {settings}"
    settings = "input_format_parquet_filter_push_down = 1, input_format_parquet_bloom_filter_push_down = 1"
    statements = [sql.format(file=merged.file, condition=each, settings=settings) for each in CONDITIONS]
    answer = subprocess.run(
        [sys.executable, "-c", CHDB], input=json.dumps(statements), capture_output=True, text=True, check=True
    )
    assert [int(each) for each in json.loads(answer.stdout.splitlines()[-1])] == [
        merged.expected(each) for each in CONDITIONS
    ]
