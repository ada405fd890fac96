"""One suite for every way to read, over gRPC and straight from the store, waiting and awaiting: rows and their types."""

from datetime import date, datetime

import duckdb
import pyarrow as pa
import pytest
from icedb_client import Client
from icedb_client.settings import ClientSettings
from icedb_log.clock import SystemClock, new_batch_id
from icedb_log.errors import CorruptLog, InvalidRequest, NotFound
from icedb_log.table.partitions import PartitionFilter

CLOCK = SystemClock()
CONDITIONS = [
    "event = 'view'",
    "event = 'view' or n >= 2.5",
    "n between 1 and 2",
    "n is null",
    "not ok",
    "ok is not true and n > 0",
    "ts >= timestamp '2026-01-03'",
    "ts::date = date '2026-01-02'",
    "event like 'v%' and ts < '2026-01-03'",
    "event in ('click', 'nope')",
    "n = 1 and false",
    "length(event) = 4 -- four letters",
    "day = timestamp '2026-01-01 12:00:00'",
    "lower(event) <> 'view' and (n > 1 or n is null)",
]


@pytest.fixture(scope="module")
def all_rows(parquet):
    """Every row of `events`, by a plain union of the files: what the readers are held against."""
    with Client(settings=ClientSettings(), warehouse=parquet.warehouse) as client:
        uris = ", ".join(f"'{uri}'" for uri in client.snapshot("events").files.uris)
    con = duckdb.connect()
    columns = "ts::timestamp as ts, event, n::double as n, ok, day::timestamp as day, country"
    con.execute(f"create table events as select {columns} from read_parquet([{uris}], union_by_name = true)")
    return con


def naive(table):
    """Rows as DuckDB has them: times without their zone, which is UTC."""
    return [
        tuple(value.replace(tzinfo=None) if isinstance(value, datetime) else value for value in row.values())
        for row in table.to_pylist()
    ]


def expected(all_rows, where):
    return all_rows.execute(f"select * from events where ({where}\n) order by ts, event").fetchall()


def test_conditions_mean_what_they_say(client, all_rows):
    for where in CONDITIONS:
        found = naive(client.snapshot("events", where=where).to_arrow())
        assert _same(found, expected(all_rows, where)), where


def test_a_condition_means_the_same_to_every_reader(client, all_rows):
    where = CONDITIONS[1]
    snapshot = client.snapshot("events", where=where)
    wanted = expected(all_rows, where)
    assert _same(naive(pa.Table.from_batches(snapshot.to_arrow_reader())), wanted)
    assert _same(naive(pa.Table.from_pandas(snapshot.to_pandas())), wanted)
    assert _same(naive(snapshot.to_polars().to_arrow()), wanted)
    assert _same([row[:6] for row in snapshot.sql("select * from events").fetchall()], wanted)
    with duckdb.connect() as con:
        snapshot.duckdb(con, view="v")
        assert _same(con.execute("select * exclude (d, c) from v").fetchall(), wanted)


def test_conditions_on_widened_columns_of_a_view(client, all_rows):
    with duckdb.connect() as con:
        client.snapshot("events").duckdb(con)
        for where in (*CONDITIONS, "n <> 2.75", "day > timestamp '2026-01-01 06:00:00'", "n in (2.75, 1)"):
            found = con.execute(f"select * exclude (d, c) from events where ({where}\n)").fetchall()
            assert _same(found, expected(all_rows, where)), where


def _same(found, wanted):
    return sorted(map(repr, found)) == sorted(map(repr, wanted))


def test_files_are_left_out_too(client):
    snapshot = client.snapshot("events", where="ts >= timestamp '2026-01-03'")
    assert (len(snapshot.files), snapshot.total_file_count) == (2, 3)
    assert len(client.snapshot("events", where="n = 1 and false").files) == 0


def test_types_do_not_depend_on_the_rows(client):
    types = {
        "ts": pa.timestamp("us", "UTC"),
        "event": pa.string(),
        "n": pa.float64(),
        "ok": pa.bool_(),
        "day": pa.timestamp("us", "UTC"),
        "country": pa.string(),
    }
    for where in (None, "event = 'click'", "n is null", "false"):
        table = client.snapshot("events", where=where).to_arrow()
        assert dict(zip(table.schema.names, table.schema.types, strict=True)) == types
    snapshot = client.snapshot("events")
    assert dict(snapshot.schema) == {
        "ts": "TIMESTAMP",
        "event": "VARCHAR",
        "n": "DOUBLE",
        "ok": "BOOLEAN",
        "day": "TIMESTAMP",
        "country": "VARCHAR",
    }
    frame = snapshot.to_pandas()
    assert {name: str(kind) for name, kind in frame.dtypes.items()} == {
        "ts": "datetime64[us, UTC]",
        "event": "object",
        "n": "float64",
        "ok": "boolean",
        "day": "datetime64[us, UTC]",
        "country": "object",
    }
    polars = snapshot.to_polars()
    assert {name: str(kind) for name, kind in polars.schema.items()} == {
        "ts": "Datetime(time_unit='us', time_zone='UTC')",
        "event": "String",
        "n": "Float64",
        "ok": "Boolean",
        "day": "Datetime(time_unit='us', time_zone='UTC')",
        "country": "String",
    }
    assert len(frame) == len(polars) == 6


def test_columns_are_chosen_and_ordered_and_partition_fields_may_be_among_them(client):
    snapshot = client.snapshot("events", where="event = 'nine'")
    assert snapshot.to_arrow(columns=["c", "EVENT", "d"]).to_pylist() == [
        {"c": "a/b", "event": "nine", "d": "2026-01-03"}
    ]
    assert list(snapshot.to_pandas(columns=["n"]).columns) == ["n"]
    for columns in ([], "n", ["nope"], ["n", "x"]):
        with pytest.raises(InvalidRequest, match="column"):
            snapshot.to_arrow(columns=columns)
    with pytest.raises(InvalidRequest, match="batch_rows"):
        snapshot.to_arrow_reader(batch_rows=0)


def test_views_have_the_partition_fields_and_leave_out_files_by_them(client):
    snapshot = client.snapshot("events")
    found = snapshot.sql("select distinct d, c, country from events order by all").fetchall()
    assert found == [("2026-01-02", "São", "São"), ("2026-01-03", "a/b", "a/b"), ("2026-01-03", None, None)]
    plan = snapshot.sql("explain analyze select event from events where d = '2026-01-02'").fetchall()[0][1]
    assert "Total Files Read: 1 " in plan
    empty = client.snapshot("events", partitions={"d": "1999-01-01"})
    assert empty.sql("select count(*) from events where d = '2026-01-02' and c is null").fetchall() == [(0,)]
    assert empty.to_arrow(columns=["d", "n"]).num_rows == 0


def test_tables_without_files_and_without_columns(client):
    empty = client.snapshot("bare")
    assert (len(empty.files), dict(empty.schema), empty.row_count) == (0, {}, 0)
    assert (empty.to_arrow().num_columns, empty.to_arrow_reader().read_all().num_rows) == (0, 0)
    assert (len(empty.to_pandas()), empty.to_polars().shape) == (0, (0, 0))
    assert empty.sql("select count(*) from bare").fetchall() == [(0,)]
    none = client.snapshot("events", where="event = 'none at all'")
    assert none.to_arrow().num_rows == 0


def test_columns_that_are_only_declared_are_columns(client, parquet):
    empty = client.snapshot("empty", where="ts >= '2026-01-01'")
    assert (dict(empty.schema), empty.to_arrow().schema.names, len(empty.files)) == ({"ts": "TIMESTAMP"}, ["ts"], 0)
    snapshot = client.snapshot("declared", where="later is null and event = 'a'")
    assert dict(snapshot.schema) == {"event": "VARCHAR", "later": "BIGINT"}
    assert snapshot.to_arrow().to_pylist() == [{"event": "a", "later": None}]
    assert client.snapshot("declared", where="later = 3").to_arrow().num_rows == 0


def test_big_results_come_in_batches(client):
    stream = client.snapshot("events").to_arrow_reader(batch_rows=1)
    assert stream.schema.field("ts").type == pa.timestamp("us", "UTC")
    assert sum(batch.num_rows for batch in stream) == 6


@pytest.mark.parametrize(
    ("partitions", "rows"),
    [
        ({"d": "2026-01-02"}, 4),
        ({"d": date(2026, 1, 3)}, 2),
        ({"d": [date(2026, 1, 2), "2026-01-03"]}, 6),
        ({"c": None}, 1),
        ({"c": "São", "d": "2026-01-02"}, 4),
        ([PartitionFilter("d", at_least="2026-01-03")], 2),
        ([PartitionFilter("c", is_null=False), PartitionFilter("d", above="2026-01-02")], 1),
        ([PartitionFilter("c", glob="S*o")], 4),
    ],
)
def test_partitions(client, partitions, rows):
    assert client.snapshot("events", partitions=partitions).row_count == rows


def test_bad_requests_say_what_is_wrong(client):
    for error, words, call in [
        (NotFound, "nope", lambda: client.snapshot("nope")),
        (InvalidRequest, "a-z", lambda: client.snapshot("No such name")),
        (InvalidRequest, "no partition field 'x'", lambda: client.snapshot("events", partitions={"x": "1"})),
        (InvalidRequest, "nope", lambda: client.snapshot("events", where="nope = 1")),
        (InvalidRequest, "where=", lambda: client.snapshot("events", where="event = ")),
        (InvalidRequest, "where=", lambda: client.snapshot("events", where="true) union select (1")),
        (InvalidRequest, "where=", lambda: client.snapshot("events", where="n > (select 1)")),
        (InvalidRequest, "a tag", lambda: client.snapshot("events", tag="q", as_of=1)),
        (InvalidRequest, "tag", lambda: client.snapshot("events", tag="q", min_commit="x")),
        (NotFound, "no tag", lambda: client.snapshot("events", tag="nope")),
        (InvalidRequest, "min_commit 'x' is no batch id", lambda: client.snapshot("events", min_commit="x")),
        (NotFound, "never accepted", lambda: client.snapshot("events", min_commit=new_batch_id(CLOCK))),
        (CorruptLog, "line 0", lambda: client.snapshot("damaged")),
        (InvalidRequest, "director", lambda: client.snapshot("events", presign_ms=60_000).files.uris),
        (NotFound, "nope", lambda: client.table("nope")),
        (NotFound, "nope", lambda: client.changes("nope", from_=1)),
        (InvalidRequest, "future", lambda: client.changes("past", from_=CLOCK.now_ms() + 60_000)),
        (InvalidRequest, "earlier", lambda: client.changes("past", from_=2, to=1)),
        (NotFound, "nope", lambda: next(client.watch(["nope"]))),
        (InvalidRequest, "list of names", lambda: next(client.watch("events"))),
        (InvalidRequest, "names 'past'", lambda: client.snapshot("events").sql("select * from past")),
        (InvalidRequest, "INSERT", lambda: client.snapshot("events").sql("insert into events values (1)")),
    ]:
        with pytest.raises(error, match=words):
            call()


def test_a_condition_that_only_duckdb_can_refuse(client):
    snapshot = client.snapshot("events", where="date_trunc('nonsense', ts) = ts")
    for read in (snapshot.to_arrow, lambda: list(snapshot.to_arrow_reader())):
        with pytest.raises(InvalidRequest, match="where="):
            read()


def test_tables_and_what_they_are(client):
    assert {"damaged", "empty", "events", "past"} <= set(client.tables())
    assert client.tables(glob="e*s") == ("events",)
    assert client.tables(glob="[!a-d]mpty") == ("empty",)
    table = client.table("events")
    assert (table.name, dict(table.schema)["n"]) == ("events", "DOUBLE")
    assert [str(field) for field in table.partition_fields] == ["d=day(ts)", "c=country"]
    assert table.data_grace_ms > table.log_grace_ms > 0
    assert (table.retention_ms, table.retention_field, table.horizon_ms) == (None, None, None)


def test_queries_over_several_tables(client):
    result = client.query("select count(*), (select count(*) from past) from events where d = '2026-01-03'", as_of=None)
    with result as rows:
        assert rows.fetchall() == [(2, 2)]
    assert set(result.snapshots) == {"events", "past"}
