"""Snapshots straight from a directory, and queries over them that can read nothing else."""

import contextlib
from datetime import date, datetime
from pathlib import Path

import duckdb
import pytest
from icedb_client import duck
from icedb_client.client import Client
from icedb_client.duck import find_snapshots, lock, open_duckdb
from icedb_client.requests import to_filters
from icedb_client.settings import ClientSettings
from icedb_log.errors import CorruptLog, InvalidRequest, NotFound, Unavailable, UnsupportedFormat
from icedb_log.store.local_store import LocalObjectStore
from icedb_log.table.partitions import HIVE_NULL, PartitionFilter, encode_partition_value
from icedb_log.texts import quote_name, quote_text
from icedb_log.warehouse import Warehouse
from icedb_sim.rigs.parquet_warehouse import ParquetWarehouse

SCHEMA = {"ts": "TIMESTAMP", "event": "VARCHAR", "amount": "DOUBLE", "odd \"'name": "BIGINT"}


@pytest.fixture
def parquet(tmp_path):
    folder = tmp_path / "it's here"
    folder.mkdir()
    parquet = ParquetWarehouse(Warehouse(LocalObjectStore(folder), "wh"))
    parquet.create("events", "d=day(ts)")
    for name in ("empty", "other"):
        parquet.create(name)
    return parquet


@pytest.fixture
def warehouse(parquet):
    return parquet.warehouse


@pytest.fixture
def client(warehouse):
    return Client(settings=ClientSettings(store="file:///unused"), warehouse=warehouse)


@pytest.fixture
def commit(parquet):
    def commit(name, select, partition="", schema=SCHEMA, time_ms=None):
        return parquet.commit(name, select, partition=partition, schema=schema, time_ms=time_ms).time_ms

    return commit


def rows(client, sql, **kwargs):
    result = client.query(sql, **kwargs)
    try:
        return result.fetchall()
    finally:
        result.close()


def test_a_snapshot_names_files_and_columns(client, commit):
    commit("events", "select timestamp '2026-01-02' as ts, 'a' as event", "d=2026-01-02")
    commit("events", "select timestamp '2026-01-03' as ts, 'b' as event from range(4)", "d=2026-01-03")
    found = client.snapshot("events")
    assert (found.row_count, len(found.files), found.total_file_count) == (5, 2, 2)
    assert dict(found.schema) == SCHEMA
    assert found.files[0].partition == {"d": "2026-01-02"}
    pruned = client.snapshot("events", partitions={"d": "2026-01-03"})
    assert (pruned.row_count, pruned.total_file_count) == (4, 2)
    assert pruned.snapshot_id == found.snapshot_id
    assert client.snapshot("events", partitions=[PartitionFilter("d", at_least="2026-01-04")]).files == ()


@pytest.mark.parametrize(
    ("encoded", "value", "pattern_count"),
    [
        pytest.param("plain", "plain", 1, id="as it stands there"),
        pytest.param(encode_partition_value("a/b c"), "a/b c", 2, id="encoded"),
        pytest.param(encode_partition_value(""), "", 2, id="empty"),
        pytest.param(HIVE_NULL, None, 2, id="no value"),
        pytest.param(None, None, 2, id="no field"),
    ],
)
def test_a_partition_value_costs_one_pattern_unless_one_is_not_what_its_path_says(
    client, commit, parquet, encoded, value, pattern_count
):
    parquet.create("visits", "u=identity(user_name)")
    for path in ("u=bob", "" if encoded is None else f"u={encoded}"):
        commit("visits", "select 1::double as amount", path, schema={"amount": "DOUBLE"})
    assert duck.select_from(client.snapshot("visits")).count("regexp_extract") == pattern_count
    assert rows(client, "select u from visits order by u nulls last") == sorted(
        [("bob",), (value,)], key=lambda row: (row[0] is None, row[0])
    )
    assert rows(client, "select count(*) from visits where u = 'bob'") == [(1,)]
    other = "NULL" if value is None else quote_text(value)
    assert rows(client, f"select count(*) from visits where u is not distinct from {other}") == [(1,)]


def test_time_travel(client, commit):
    first = commit("events", "select 1 as amount", "d=2026-01-02", time_ms=1_767_312_000_000)
    commit("events", "select 1 as amount", "d=2026-01-02")
    assert client.snapshot("events", as_of=first).row_count == 1
    assert client.snapshot("events", as_of=first).is_stable
    before = client.snapshot("events", as_of=first - 1)
    assert (before.row_count, before.files, dict(before.schema)) == (0, (), {"ts": "TIMESTAMP"}), "R3: it was empty"
    with pytest.raises(InvalidRequest, match="amount"):
        client.query("select amount from events", as_of=first - 1)
    assert rows(client, "select count(*) from events", as_of=first) == [(1,)]


def test_every_column_is_there_with_its_type(client, commit):
    commit("events", "select timestamp '2026-01-02' as ts, 'a' as event", "d=2026-01-02")
    commit("events", "select 2 as amount, 'b' as event", "d=2026-01-02")
    described = rows(client, "describe events")
    assert [(row[0], row[1]) for row in described] == [*SCHEMA.items(), ("d", "VARCHAR")]
    assert rows(client, 'select event, amount, "odd ""\'name" from events order by event') == [
        ("a", None, None),
        ("b", 2.0, None),
    ]


def test_values_come_beside_a_statement(client, commit):
    commit("events", "select timestamp '2026-01-02' as ts, 'it''s' as event, 2.5 as amount", "d=2026-01-02")
    commit("other", "select 1 as a", schema={"a": "BIGINT"})
    for sql, parameters, found in (
        ("select amount from events where event = ? and d = ?", ["it's", "2026-01-02"], [(2.5,)]),
        ("select amount, a from events, other where event = $e and a = $a", {"e": "it's", "a": 1}, [(2.5, 1)]),
        ("select amount from events where d in $days", {"days": ["2026-01-02"]}, [(2.5,)]),
        ("select amount from events where event = ?", [None], []),
    ):
        assert rows(client, sql, parameters=parameters) == found
    found = client.snapshot("events").sql("select event from events where amount < $most", parameters={"most": 3})
    assert found.fetchall() == [("it's",)]


def test_a_value_leaves_out_files_as_a_literal_does(client, commit):
    for day in ("2026-01-02", "2026-01-03"):
        commit("events", f"select timestamp '{day}' as ts, 'a' as event, 2.5 as amount", f"d={day}")
    plan = rows(client, "explain analyze select amount from events where d = ?", parameters=["2026-01-03"])
    assert "Scanning Files: 1/2" in plan[0][1]


@pytest.mark.parametrize(
    ("sql", "parameters", "words"),
    [
        ("select * from events where event = ?", None, "parameters: 1"),
        ("select * from events where event = $e", {"f": 1}, "parameters: e"),
        ("select * from events", [1], "excess parameters: 1"),
        ("select * from events where event = ?", "a", "give a list"),
        ("select * from events where event = ?", [object()], "object"),
        ("select * from events where amount = ?", ["a"], "'a'"),
    ],
)
def test_values_that_do_not_fit_a_statement_are_named(client, commit, sql, parameters, words):
    commit("events", "select timestamp '2026-01-02' as ts, 'a' as event, 2.5 as amount", "d=2026-01-02")
    with pytest.raises(InvalidRequest, match=words):
        rows(client, sql, parameters=parameters)


def test_empty_tables_answer(client, commit):
    assert rows(client, "select count(*) from empty") == [(0,)]
    assert rows(client, "select * from empty") == []
    commit("other", "select 1 as a where false", schema={"a": "BIGINT"})
    assert rows(client, "select sum(a), count(*) from other") == [(None, 0)]


def test_a_query_on_a_table_without_a_commit_says_so(client, commit):
    with pytest.raises(InvalidRequest, match=r"table 'empty' has no columns.*icedb status empty") as caught:
        client.query("select event from empty")
    assert "nothing" not in str(caught.value).replace("nothing was committed", "")
    commit("events", "select 'a' as event", "d=2026-01-02")
    with pytest.raises(InvalidRequest, match="nope"):
        client.query("select nope from events")


def test_a_result_gives_its_rows_in_every_form(client, commit):
    commit("events", "select timestamp '2026-01-02' as ts, 'a' as event, 2.5 as amount", "d=2026-01-02")
    result = client.query("select ts, event, amount from events")
    row = (datetime(2026, 1, 2), "a", 2.5)
    assert result.fetchall() == result.fetchall() == [row]
    snapshot, columns = client.snapshot("events"), list(result.columns)
    assert result.to_arrow().equals(snapshot.to_arrow(columns=columns)), "times are in UTC, as in the table"
    assert result.to_polars().equals(snapshot.to_polars(columns=columns))
    assert result.to_pandas().equals(snapshot.to_pandas(columns=columns))
    assert repr(result) == str(result)
    assert "│ 2026-01-02 00:00:00 │ a       │    2.5 │" in repr(result)


@pytest.mark.parametrize(
    ("sql", "remedy"),
    [
        ("select event.price from events", "write event->>'price', or (event->>'price')::DOUBLE for a number"),
        ('select count(*) from events e where e.event."a\'b" > 2', "write event->>'a''b', or"),
        ('select "odd ""\'name".x from events', 'write "odd ""\'name"->>\'x\', or'),
    ],
)
def test_a_field_of_a_nested_value_is_refused_with_how_it_is_read(client, commit, sql, remedy):
    commit("events", "select 'a' as event", "d=2026-01-02")
    with pytest.raises(InvalidRequest) as caught:
        client.query(sql)
    assert f"; nested values are JSON text: {remedy}" in str(caught.value)


def test_a_condition_on_a_field_of_a_nested_value_is_refused_with_how_it_is_read(client, commit):
    commit("events", "select 'a' as event", "d=2026-01-02")
    with pytest.raises(InvalidRequest, match=r"nested values are JSON text: write event->>'price', or \(event->>"):
        client.snapshot("events", where="event.price > 2")


def test_joins_and_ctes(client, commit):
    commit("events", "select 'a' as event", "d=2026-01-02")
    commit("other", "select 'a' as event, 7 as n", schema={"event": "VARCHAR", "n": "BIGINT"})
    sql = "with o as (select * from other) select o.n from events join o using (event)"
    assert rows(client, sql) == [(7,)]
    assert set(client.query(sql).snapshots) == {"events", "other"}
    assert rows(client, "select n from Other where n > (select count(*) from EVENTS)") == [(7,)]
    client_settings = [1]  # DuckDB must not find Python's variables
    with pytest.raises(NotFound):
        client.query("select * from client_settings")
    assert client_settings


@pytest.mark.parametrize(
    ("sql", "error", "words"),
    [
        ("select * from nope", NotFound, "nope"),
        ("insert into events values (1)", InvalidRequest, "INSERT is not allowed"),
        ("create table x (a int)", InvalidRequest, "CREATE is not allowed"),
        ("copy events to '/tmp/x'", InvalidRequest, "COPY is not allowed"),
        ("attach 'x.db'", InvalidRequest, "ATTACH is not allowed"),
        ("set threads = 1", InvalidRequest, "SET is not allowed"),
        ("explain analyze create table x as select 1", InvalidRequest, "CREATE is not allowed"),
        ("explain create table x as select 1", InvalidRequest, "CREATE is not allowed"),
        ("explain (analyze, format json) create table x as (select 1)", InvalidRequest, "CREATE is not allowed"),
        ("explain -- (select 1)\n analyze /* select */ insert into events select 1", InvalidRequest, "INSERT is not"),
        ("explain analyze copy (select 1) to '/tmp/x'", InvalidRequest, "COPY is not allowed"),
        ("explain analyze set threads = 1", InvalidRequest, "SET is not allowed"),
        ("explain analyze delete from events", InvalidRequest, "DELETE is not allowed"),
        ("explain execute x", InvalidRequest, "EXECUTE is not allowed"),
        ("explain analyze call pragma_version()", InvalidRequest, "CALL is not allowed"),
        ("select * from query('create table x as select 1')", InvalidRequest, "single SELECT"),
        ("with a as (select 1) insert into events select * from a", InvalidRequest, "INSERT is not allowed"),
        ("explain", InvalidRequest, "not understood"),
        ("select 1; select 2", InvalidRequest, "one statement, not 2"),
        ("", InvalidRequest, "one statement, not 0"),
        ("selec 1", InvalidRequest, "not understood"),
        ("select nope from events", InvalidRequest, "nope"),
        ("select * from '/etc/passwd.csv'", InvalidRequest, "tables and nothing else"),
        ("select * from EVENTS join ../x", InvalidRequest, "not understood"),
        ('select * from "../x"', InvalidRequest, "a-z"),
        ("select * from s.events", InvalidRequest, "schema"),
        ("select * from read_text('/etc/passwd')", InvalidRequest, "tables and nothing else"),
        ("select * from glob('/etc/*')", InvalidRequest, "tables and nothing else"),
        ("select " + "x" * 10_000, InvalidRequest, "x"),
    ],
)
def test_queries_only_read_tables(client, commit, sql, error, words):
    commit("events", "select 'a' as event", "d=2026-01-02")
    with pytest.raises(error, match=words) as caught:
        client.query(sql)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "sql",
    [
        "select count(*) from events join other using (nothing)",
        "from (unpivot events on a)",
        "with n as (from events) select * from n, other",
        "summarize EVENTS",
    ],
)
def test_each_table_of_a_query_is_found_whatever_duckdb_says_of_it_first(client, sql):
    read = []

    def read_snapshot(name):
        read.append(name)
        return client.snapshot(name)

    with contextlib.suppress(InvalidRequest):  # of columns that are not there, once the tables are
        find_snapshots(sql, read_snapshot)
    assert sorted(read) == (["events", "other"] if "other" in sql else ["events"])


def test_a_name_with_the_words_of_an_error_in_it_is_taken_whole(client):
    with pytest.raises((NotFound, InvalidRequest), match="events does not exist! or so"):
        rows(client, 'select * from "events does not exist! or so"')


@pytest.mark.parametrize(
    "sql",
    [
        "explain select event from events",
        "EXPLAIN ANALYZE SELECT event FROM events",
        "explain /* ä */ analyze -- select\n from events",
        "explain (format json) select event from events",
        "explain (select event from events)",
        "explain analyze (select event from events) limit 1",
        "explain (analyze, format json) (select event from events)",
        "explain with a as (from events) select * from a",
        "explain describe events",
    ],
)
def test_a_query_is_explained_and_runs_where_its_files_are_alone(client, commit, monkeypatch, sql):
    """To bind `EXPLAIN ANALYZE` is to run it: what names the tables is asked with the query that is explained."""
    bound = []
    look = duck._first_unknown_table
    monkeypatch.setattr(
        duck, "_first_unknown_table", lambda con, sql, *given, **at: bound.append(sql) or look(con, sql, *given, **at)
    )
    commit("events", "select 'a' as event", "d=2026-01-02")
    ((_, plan),) = rows(client, sql)
    assert plan.strip()
    assert bound
    assert not any("explain" in each.lower() or "analyze" in each.lower() for each in bound)


def test_a_file_that_is_gone_says_what_to_do(client, commit, warehouse):
    commit("events", "select 'a' as event", "d=2026-01-02")
    key = client.snapshot("events").files[0].path
    warehouse.store.delete([key])
    with pytest.raises(Unavailable, match="data grace period"):
        rows(client, "select * from events")


def test_to_duckdb_makes_a_view_of_any_name(client, commit):
    commit("events", "select 'a' as event", "d=2026-01-02")
    con = duckdb.connect()
    assert client.snapshot("events").duckdb(con, view='my "view"') == 'my "view"'
    assert con.execute('select count(*) from "my ""view"""').fetchone() == (1,)
    client.snapshot("empty").duckdb(con)
    assert con.execute("select count(*) from empty").fetchone() == (0,)


def test_a_damaged_page_names_what_finds_it(client, commit, warehouse):
    select = "select timestamp '2026-01-02' as ts, range::text as event from range(20000)"
    commit("events", select, "d=2026-01-02")
    (path,) = client.snapshot("events").files.uris
    file = Path(path.removeprefix("file://"))
    body = bytearray(file.read_bytes())
    end = len(body) - 8 - int.from_bytes(body[-8:-4], "little")
    body[4:end] = bytes(byte ^ 0xFF for byte in body[4:end])
    file.write_bytes(body)
    with pytest.raises(InvalidRequest, match="icedb fsck TABLE --pages"):
        rows(client, "select max(ts), max(event) from events")


def test_a_damaged_log_is_a_halt(client, warehouse):
    warehouse.store.put(f"{warehouse.table('events').paths.log_prefix}1767312000000_ab.jsonl", b"[]")
    with pytest.raises(CorruptLog, match="line 0"):
        client.snapshot("events")
    assert client.snapshot("other").row_count == 0


def test_partitions_as_people_write_them():
    filters = to_filters({"a": 3, "b": ["x", date(2026, 1, 2)], "c": None, "d": True})
    assert [(f.field, f.any_of, f.is_null) for f in filters] == [
        ("a", {"3"}, None),
        ("b", {"x", "2026-01-02"}, None),
        ("c", None, True),
        ("d", {"true"}, None),
    ]
    assert to_filters(None) == ()
    with pytest.raises(InvalidRequest, match="float"):
        to_filters({"a": 1.5})


@pytest.mark.parametrize("is_wide_first", [True, False])
def test_data_files_of_both_types_of_a_widened_column_are_read_as_the_wide_one(client, parquet, is_wide_first):
    schema = {"n": "BIGINT", "t": "DATE"}
    narrow = ("select 1::bigint as n, date '2026-01-02' as t", {})
    wide = ("select 0.5::double as n, timestamp '2026-01-03 01:02:03' as t", {"n": "DOUBLE", "t": "TIMESTAMP"})
    first_ms = 0
    for select, widened in (wide, narrow) if is_wide_first else (narrow, wide):
        done = parquet.commit("other", select, schema=schema, widened=widened)
        first_ms = first_ms or done.time_ms
    assert dict(client.snapshot("other").schema) == {"n": "DOUBLE", "t": "TIMESTAMP"}
    assert [(row[0], row[1]) for row in rows(client, "describe other")] == [("n", "DOUBLE"), ("t", "TIMESTAMP")]
    assert rows(client, "select n, t from other order by n") == [
        (0.5, datetime(2026, 1, 3, 1, 2, 3)),
        (1.0, datetime(2026, 1, 2)),
    ]
    assert rows(client, "select sum(n), max(t) from other where t >= timestamp '2026-01-02'") == [
        (1.5, datetime(2026, 1, 3, 1, 2, 3))
    ]
    con = duckdb.connect()
    client.snapshot("other").duckdb(con)
    assert con.execute("select typeof(n), typeof(t) from other limit 1").fetchone() == ("DOUBLE", "TIMESTAMP")


def test_time_travel_before_the_widening_gives_the_narrow_type(client, parquet):
    schema = {"n": "BIGINT"}
    first = parquet.commit("other", "select 1::bigint as n", schema=schema, time_ms=1_767_312_000_000)
    parquet.commit("other", "select 0.5::double as n", schema=schema, widened={"n": "DOUBLE"})
    assert [row[1] for row in rows(client, "describe other", as_of=first.time_ms)] == ["BIGINT"]
    assert rows(client, "select n from other", as_of=first.time_ms) == [(1,)]


def test_a_type_is_never_taken_for_sql(client, commit):
    commit("other", "select 1 as a", schema={"a": "INTEGER) AS x; COPY (SELECT 1) TO '/tmp/x'; --"})
    with pytest.raises(UnsupportedFormat, match="cannot be queried"):
        client.query("select * from other")
    commit("events", "select [1.5] as a", "d=2026-01-02", schema={"a": "DECIMAL(18, 3)[]"})
    assert len(rows(client, "select a from events")) == 1


def test_a_locked_connection_opens_its_snapshots_files_and_no_others(client, commit, tmp_path):
    commit("events", "select 'a' as event", "d=2026-01-02")
    found = client.snapshot("events")
    secret = tmp_path / "secret.txt"
    secret.write_text("x")
    with open_duckdb() as con:
        found.duckdb(con)
        lock(con, found.files.uris)
        assert con.execute("select event from events").fetchall() == [("a",)]
        for sql in (
            f"select * from read_text('{secret}')",
            f"copy (select 1) to '{secret}'",
            f"attach '{tmp_path}/x.db'",
            "set enable_external_access = true",
            f"set allowed_paths = ['{secret}']",
        ):
            with pytest.raises(duckdb.Error):
                con.execute(sql)


def test_quoting():
    assert quote_name('a"b') == '"a""b"'
    assert quote_text("it's") == "'it''s'"
