"""Tables with an ``insert_query`` through a real Spark session: the check, the flush, and batches that it cannot take."""

import json
from datetime import date, datetime

import pyarrow.parquet as pq
import pytest
from icedb_engine.jobs.flush_driver import FlushDriver
from icedb_engine.limits import EngineLimits, FlushUnitLimits, JobLimits
from icedb_engine.spark.spark_runner import SparkRunner
from icedb_engine.sql.checks import check_insert_query
from icedb_log.clock import SystemClock, new_batch_id
from icedb_log.errors import InvalidRequest
from icedb_log.jobs import FlushJob, StagedBatch
from icedb_log.store_settings import StoreSettings
from icedb_log.table.table_config import PartitionField, TableConfig

pytestmark = pytest.mark.spark

CLOCK = SystemClock()
SOURCE = {"seen": "VARCHAR", "who": "VARCHAR", "n": "BIGINT", "props": "VARCHAR"}
QUERY = """
    SELECT CAST(seen AS TIMESTAMPTZ) AS ts, upper(who) AS user, props ->> '$.x' AS x, CAST(n AS DOUBLE) AS n
    FROM _rows WHERE n <> 13
"""
PARTITION = (PartitionField.parse("d=day(ts)"),)


def make_config(query=QUERY, source=None, **more):
    return TableConfig.create(
        **{"name": "events", "partition": PARTITION, "sort": ("user", "ts"), **more},
        insert_query=query,
        source=source or SOURCE,
    )


class Table:
    def __init__(self, folder):
        self.settings = StoreSettings(f"file://{folder}/store")
        warehouse = self.settings.open()
        self.store, self.paths = warehouse.store, warehouse.table("events").paths
        self.engine = EngineLimits(scratch_folder=str(folder / "scratch"))

    def stage(self, *rows):
        body = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
        batch_id = new_batch_id(CLOCK)
        key = self.paths.staging_key(batch_id=batch_id, staging_format="ndjson")
        self.store.put(key, body)
        return StagedBatch(key, batch_id, "ndjson", len(body), 0)

    def flush(self, spark, config, *batches, schema=None, direct_bytes=10**9):
        limits = JobLimits(FlushUnitLimits(), self.engine, direct_bytes=direct_bytes)
        writer = FlushDriver(SparkRunner(spark, self.settings), clock=CLOCK, limits=limits)
        return writer.write_batches(
            FlushJob(paths=self.paths, config=config, schema=schema or {}, batches=batches, commit_id="c1", time_ms=1)
        )

    def rows(self, output):
        return [
            row
            for marker in output.files
            for row in pq.read_table(self.store.uri(marker.path), partitioning=None).to_pylist()
        ]


@pytest.fixture
def table(tmp_path):
    return Table(tmp_path)


def event(n, who="ann", day=1, **more):
    return {"seen": f"2023-06-{day:02d}T10:00:00Z", "who": who, "n": n, "props": {"x": f"p{n}"}, **more}


def test_a_query_shapes_what_the_table_gets(spark, table):
    schema = check_insert_query(make_config())
    assert schema == {"ts": "TIMESTAMP", "user": "VARCHAR", "x": "VARCHAR", "n": "DOUBLE"}
    config = make_config(declared=dict(schema))
    batches = [
        table.stage(event(2, who="bob"), event(13), event(1)),
        table.stage(event(3, day=2), {"seen": "2023-06-02"}, {"n": 4, "seen": "2023-06-01T23:00:00-02:00", "more": 1}),
        table.stage(),
    ]
    output = table.flush(spark, config, *batches)
    assert output.accepted == tuple(batches)
    assert output.schema == schema
    assert [table.paths.partition_of(marker.path) for marker in output.files] == ["d=2023-06-01", "d=2023-06-02"]
    assert table.rows(output) == [
        {"ts": datetime(2023, 6, 1, 10), "user": "ANN", "x": "p1", "n": 1.0},
        {"ts": datetime(2023, 6, 1, 10), "user": "BOB", "x": "p2", "n": 2.0},
        {"ts": datetime(2023, 6, 2, 10), "user": "ANN", "x": "p3", "n": 3.0},
        {"ts": datetime(2023, 6, 2, 1), "user": None, "x": None, "n": 4.0},
    ], "a row without n fails the WHERE, as NULL does"
    assert output.row_count == 4
    spread = table.flush(spark, config, *batches, direct_bytes=0)
    assert sorted(map(str, table.rows(spread))) == sorted(map(str, table.rows(output)))


def test_a_time_that_is_a_bigint_goes_through_a_query_and_stays_what_it_is(spark, table):
    types = {"ts": "BIGINT", "user": "VARCHAR"}
    times = {"ts": {"unit": "epoch_ms", "from_ms": 631_152_000_000, "to_ms": 4_102_444_800_000}}
    config = make_config("SELECT ts, user FROM _rows", types, declared=types, times=times)
    assert check_insert_query(config) == types
    now_ms = 1_686_176_939_445
    good, seconds = (table.stage({"ts": ts, "user": "ann"}) for ts in (now_ms, now_ms // 1000))
    output = table.flush(spark, config, good, seconds)
    assert [table.paths.partition_of(marker.path) for marker in output.files] == ["d=2023-06-07"]
    assert table.rows(output) == [{"ts": now_ms, "user": "ann"}]
    ((rejected,),) = (output.rejected,)
    assert (rejected.batch, "looks like seconds (2023-06-07T22:28:59Z)" in rejected.reason) == (seconds, True)
    made = make_config("SELECT ts // 1000 AS ts, user FROM _rows", types, declared=types, times=times)
    ((rejected,),) = (table.flush(spark, made, good).rejected,)
    assert "the insert_query gives ts = 1686176939" in rejected.reason
    assert "looks like seconds" in rejected.reason


def test_a_batch_that_the_query_cannot_take_does_not_hold_up_the_others(spark, table):
    good = [table.stage(event(n)) for n in range(2)]
    bad_cast = table.stage(event(5), {"seen": "yesterday", "n": 6})
    no_partition = table.stage({"n": 7})
    output = table.flush(spark, make_config(), good[0], bad_cast, good[1], no_partition)
    assert output.accepted == tuple(good)
    assert sorted(row["n"] for row in table.rows(output)) == [0, 1]
    reasons = {rejected.batch: rejected.reason for rejected in output.rejected}
    assert list(reasons) == [bad_cast, no_partition]
    assert "Conversion Error" in reasons[bad_cast] and '"yesterday"' in reasons[bad_cast]
    assert "column 'ts' is NULL, and partition d=day(ts)" in reasons[no_partition]


@pytest.mark.soak
def test_keys_beyond_the_source_pass_or_not_as_the_table_evolves(spark, table):
    config = make_config(
        "SELECT *, CAST(seen AS DATE) AS day FROM _rows", partition=(PartitionField.parse("day"),), sort=()
    )
    first = table.stage(event(1, more=1), event(2, more=2))
    output = table.flush(spark, config, first, table.stage(event(3, day=2, more=0.5)))
    assert output.schema == {**SOURCE, "more": "DOUBLE", "day": "DATE"}
    assert {row["day"] for row in table.rows(output)} == {date(2023, 6, 1), date(2023, 6, 2)}
    whole, huge, text = (table.stage(event(4, more=more)) for more in (7, 2**60, "x"))
    again = table.flush(spark, config, whole, huge, text, schema=output.schema)
    assert again.accepted == (whole,)
    assert [row["more"] for row in table.rows(again)] == [7.0]
    assert [
        "beyond 2^53 lose" in r.reason or "as VARCHAR, and the table has DOUBLE" in r.reason for r in again.rejected
    ] == [
        True,
        True,
    ]
    later = table.stage(event(5, more=8))
    behind = table.flush(spark, config, text, later, schema=output.schema)
    assert behind.accepted == (later,), "a batch that is refused settles no type for others"
    assert "as VARCHAR, and the table has DOUBLE" in behind.rejected[0].reason
    strict = config.model_copy(update={"evolution": "strict", "declared": dict(output.schema)})
    refused = table.flush(spark, strict, first)
    assert [rejected.batch for rejected in refused.rejected] == [first]


def test_a_commit_takes_no_more_partitions_than_it_may(spark, table):
    config = make_config(max_partitions_per_flush=2)
    waiting = [table.stage(event(day, day=day)) for day in (1, 2, 1, 3, 4)]
    commits = []
    while waiting:
        output = table.flush(spark, config, *waiting)
        commits.append([len(output.accepted), len(output.files)])
        waiting = list(output.deferred)
    assert sum(accepted for accepted, _ in commits) == 5
    assert max(files for _, files in commits) == 2
    big = table.flush(spark, config, table.stage(*(event(day, day=day) for day in range(1, 6))))
    assert (len(big.files), big.deferred) == (5, ())


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELECT who FROM _rows", "drops column 'ts', which partition d=day\\(ts\\) needs"),
        ("SELECT CAST(seen AS TIMESTAMP) AS ts FROM _rows", "drops column 'user', which the table is sorted by"),
        ("SELECT seen AS ts, who AS user FROM _rows", "'ts' as VARCHAR, and the table has TIMESTAMP: write CAST"),
        ("SELECT CAST(seen AS TIMESTAMP) AS ts, who AS user, wow FROM _rows", 'Referenced column "wow" not found'),
        ("SELECT CAST(seen AS TIMESTAMP) AS ts, who AS user, [n] AS a FROM _rows", "BIGINT\\[\\]: write to_json"),
        (
            "SELECT CAST(seen AS TIMESTAMP) AS ts, who AS user, NULL AS a FROM _rows",
            "'a' no type: write CAST\\(NULL AS",
        ),
        ("SELECT CAST(seen AS TIMESTAMP) AS ts, who AS user, n AS User FROM _rows", "column 'User' twice"),
        (
            "SELECT CAST(seen AS TIMESTAMP) AS ts, who AS user, n AS d FROM _rows",
            "'d' is named like the partition",
        ),
        (
            "SELECT CAST(seen AS TIMESTAMP) AS ts, who AS user, INTERVAL 1 DAY AS a FROM _rows",
            "INTERVAL, which a table cannot",
        ),
        ("SELECT * FROM '/etc/x.parquet'", "relation '/etc/x.parquet' does not exist"),
    ],
)
def test_the_check_says_what_is_wrong(query, reason):
    with pytest.raises(InvalidRequest, match=reason):
        check_insert_query(make_config(query))


def test_types_of_duckdb_become_ours():
    query = (
        "SELECT CAST(seen AS TIMESTAMP) AS ts, who AS user, CAST(n AS INT) AS i, CAST(n AS FLOAT) AS f, 1.5 AS dec, "
        "CAST(n AS DECIMAL(38, 0)) AS whole, n > 1 AS b, CAST(seen AS DATE) AS day, CAST(seen AS TIMESTAMPTZ) AS tz, "
        "n::HUGEINT AS huge, props::JSON AS js FROM _rows"
    )
    assert check_insert_query(make_config(query)) == {
        "ts": "TIMESTAMP", "user": "VARCHAR", "i": "BIGINT", "f": "DOUBLE", "dec": "DECIMAL(2,1)",
        "whole": "DECIMAL(38,0)", "b": "BOOLEAN", "day": "DATE", "tz": "TIMESTAMP", "huge": "BIGINT", "js": "VARCHAR",
    }  # fmt: skip


def test_a_query_that_was_never_checked_rejects_what_it_cannot_take(spark, table):
    output = table.flush(spark, make_config("SELECT * FROM other"), table.stage(event(1)))
    ((rejected,), accepted) = (output.rejected, output.accepted)
    assert ("relation 'other' does not exist" in rejected.reason, accepted) == (True, ())
    with pytest.raises(InvalidRequest, match="declare what _rows has"):
        check_insert_query(make_config().model_copy(update={"source": {}}))


def test_units_of_a_flush_agree_about_the_types_of_new_columns(spark, table):
    config = make_config(
        "SELECT *, CAST(seen AS DATE) AS day FROM _rows", partition=(PartitionField.parse("day"),), sort=()
    )
    batches = [table.stage(event(1, more=1)), table.stage(event(2, more="x")), table.stage(event(3, more=2, last=1))]
    output = table.flush(spark, config, *batches, direct_bytes=0)
    assert output.accepted == (batches[0], batches[2])
    assert "as VARCHAR, and the table has BIGINT" in output.rejected[0].reason
    assert output.schema == {**SOURCE, "more": "BIGINT", "day": "DATE", "last": "BIGINT"}
