"""Small units share engines of their process: each finds its own rows, whatever was there before."""

import json

import pyarrow as pa
import pytest
from icedb_engine import unit_engine
from icedb_engine.unit_engine import lend_engine


@pytest.fixture(autouse=True)
def fresh_engines(monkeypatch):
    engines = unit_engine._KeptEngines()
    monkeypatch.setattr(unit_engine, "_KEPT", engines)
    return engines


def lines(*texts):
    return pa.table({"no": pa.array(range(len(texts)), pa.int32()), "line": pa.array(texts, pa.string())})


def run_unit(engine, *texts, column="line"):
    engine.fill("rows_in", lines(*texts))
    engine.make_table("made", f"SELECT no, {column} AS found FROM rows_in")
    engine.make_view("seen", "FROM made")
    return engine.fetch("SELECT no, found FROM seen ORDER BY no")


def test_the_next_unit_of_a_table_has_the_same_connection_and_its_plans():
    asked = []
    for number in range(4):
        with lend_engine("t") as engine:
            assert run_unit(engine, f"a{number}", "b") == [(0, f"a{number}"), (1, "b")]
            asked.append((engine, engine._plan_count))
    assert len({id(each) for each, _ in asked}) == 1
    assert [count for _, count in asked] == [0, 4, 4, 4], "planned when it is asked a second time, and not again"
    with lend_engine("other") as engine:
        assert engine is not asked[0][0]


def test_a_unit_that_asks_for_something_else_gets_it_and_so_does_the_next():
    for column, expected in (("line", "7"), ("line", "7"), ("CAST(line AS INTEGER)", 7), ("line", "7"), ("line", "7")):
        with lend_engine("t") as engine:
            assert run_unit(engine, "7", column=column) == [(0, expected)]


def test_a_plan_knows_nothing_of_the_rows_of_earlier_units():
    """With the optimizer it would: that there are no nulls, and between which values all of them lie."""
    for line, no, expected in (("a", 1, 1), ("b", 2, 1), ("c", 3, 1), (None, 1_000_000, 0), ("d", -5, 1)):
        with lend_engine("t") as engine:
            engine.fill("rows_in", pa.table({"no": pa.array([no], pa.int32()), "line": pa.array([line], pa.string())}))
            found = engine.fetch("SELECT no, count(*) FILTER (WHERE line IS NOT NULL) FROM rows_in GROUP BY no")
            assert found == [(no, expected)]


def test_what_was_made_of_something_else_is_made_anew():
    """The words are the same, the types are not: a table that was kept would turn the numbers into text."""
    for value in ("7", 7, 7, "7"):
        with lend_engine("t") as engine:
            engine.hold("held", pa.table({"n": [value]}))
            engine.make_table("made", "SELECT n FROM held")
            assert engine.fetch("SELECT n, typeof(n) FROM made") == [(value, "VARCHAR" if value == "7" else "BIGINT")]


def test_a_name_stands_for_what_it_was_given_last():
    for numbers in ([1], [2], [2, 3]):
        with lend_engine("t") as engine:
            for sent in (numbers, numbers[:1]):
                engine.fill("rows_in", lines("x"))
                engine.hold("held", pa.table({"n": sent}))
                assert engine.fetch("SELECT n FROM held ORDER BY n") == [(n,) for n in sent]


def test_a_unit_that_fails_leaves_nothing_behind():
    with lend_engine("t") as first:
        run_unit(first, "1")
    with pytest.raises(Exception, match="Conversion"), lend_engine("t") as failing:
        run_unit(failing, "x", column="CAST(line AS INTEGER)")
    with lend_engine("t") as engine:
        assert engine is not failing
        assert run_unit(engine, "2") == [(0, "2")]


def test_a_worn_connection_is_closed(monkeypatch):
    monkeypatch.setattr(unit_engine, "MAX_UNITS", 2)
    used = []
    for _ in range(3):
        with lend_engine("t") as engine:
            used.append(engine)
    assert used[0] is used[1]
    assert used[2] is not used[1]


def test_units_that_differ_in_any_order_have_their_own_rows(make_table):
    """Columns come and go, types differ, batches of other formats and bad rows are in between."""
    table = make_table("d=day(ts)", on_bad_rows="quarantine_rows", declared={"ts": "TIMESTAMP", "n": "BIGINT"})
    bodies = [
        ({"ts": 0, "n": 1}, None),
        ({"ts": 0, "n": 2}, None),
        ({"ts": 0, "n": 3, "x": "new"}, None),
        ({"ts": 0, "n": 4}, None),
        (None, b"ts,n\n1970-01-01,5\nsoon,6\n"),
        ({"ts": 0, "n": 7}, None),
        (None, b"n,ts\n8,1970-01-01\n"),
        ({"n": 9, "ts": 0, "x": 1.5}, None),
        ({"ts": 0, "n": 10}, None),
    ]
    found = []
    for row, csv in bodies:
        staged = table.stage(body=csv, staging_format="csv") if row is None else table.stage(row)
        result = table.flush(staged)
        found += [json.loads(json.dumps(each, default=str)) for each in table.rows(*result.files)]
    assert [row["n"] for row in found] == [1, 2, 3, 4, 5, 7, 8, 9, 10]
    assert [row.get("x") for row in found] == [None, None, "new", None, None, None, None, 1.5, None]
