"""A promoted column that old data files lack is what a flush would have made of the same text, copied or decoded (S4)."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from icedb_engine.reading import filling, promoted
from icedb_engine.units.merge_unit import merge_unit
from icedb_engine.work import MergeUnit
from icedb_engine.writing import row_groups
from icedb_log.jobs import MergeGroup, RowChange
from icedb_log.table.promoted_paths import add_promotions, parse_promotions
from icedb_sim.tables.profiles import SHARED_FIXTURES

PATHS = ("p.plan", "p.price:DOUBLE", "p.n:BIGINT", "q.plan as other", "p.at:DATE")
SCHEMA = {"i": "BIGINT", "p": "VARCHAR", "q": "VARCHAR"}
values = st.one_of(
    st.none(), st.integers(), st.floats(), st.text(max_size=5), st.sampled_from(["2025-01-02", "1", True]), st.just([1])
)
texts = st.one_of(
    st.none(),
    st.sampled_from(["", "{", "[1]", '{"plan":1,"plan":2}', "null"]),
    st.dictionaries(st.sampled_from(["plan", "price", "n", "at", "größe"]), values, max_size=4).map(json.dumps),
)


@pytest.fixture(autouse=True, scope="module")
def half_is_small():
    """Call half a row group small, as in the tests of copies."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_groups, "SMALL_SHARE", 2)
        patch.setattr(promoted, "_PIECE_ROWS", 3)
        yield


def promote(table, *paths):
    fields = {"declared": table.config.declared, "promoted": table.config.promoted}
    change = add_promotions(fields, parse_promotions(paths, option="promote"), option="promote")
    table.config = table.config.model_copy(update={name: change[name] for name in fields})


def make(make_table, **config):
    table = make_table(declared=SCHEMA, **config)
    table.config = table.config.model_copy(update={"row_group_rows": 8})
    return table


def flush(table, rows):
    """Write rows as a flush does; a text that is no JSON comes in a column of text."""
    return table.flush(table.stage(body=to_lines(rows))).files


def to_lines(rows):
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def merge(table, *markers, change=None, schema=SCHEMA):
    unit = table.unit(MergeUnit, schema=schema, group=MergeGroup("", markers), change=change)
    return merge_unit(unit, table.store, clock=table.clock)


def rows_of(table, markers):
    return sorted(table.rows(*markers), key=lambda row: row["i"])


def told(rows):
    """Return what rows say, so that -0.0 is not 0.0; a flush leaves a column out that has no value."""
    return [repr({name: value for name, value in sorted(row.items()) if value is not None}) for row in rows]


@given(rows=st.lists(st.tuples(texts, texts), min_size=17, max_size=40), sort=st.sampled_from([(), ("i",), ("p",)]))
@settings(max_examples=10, deadline=None, suppress_health_check=SHARED_FIXTURES)
def test_what_is_filled_is_what_a_flush_makes(make_table, rows, sort):
    events = [{"i": i, "p": p, "q": q} for i, (p, q) in enumerate(rows)]
    new = make(make_table, sort=sort)
    promote(new, *PATHS)
    flushed = new.flush(new.stage(body=to_lines(events)))
    expected = rows_of(new, flushed.files)
    for parts in ([events], [events[:16], events[16:]]):
        table = make(make_table, sort=sort)
        old = [marker for part in parts for marker in flush(table, part)]
        promote(table, *PATHS)
        merged = merge(table, *old)
        assert told(rows_of(table, merged.outputs)) == told(expected)
        assert {marker.promoted_count for marker in merged.outputs} == {len(PATHS)}
        assert not merged.contents.differences
        assert merged.misfit_count == flushed.misfit_count


def test_row_groups_are_copied_and_their_texts_alone_decoded(make_table, monkeypatch):
    table = make(make_table, sort=("i",))
    events = [{"i": i, "p": json.dumps({"plan": f"p{i % 3}", "n": i}), "q": "x" * 50} for i in range(32)]
    old = flush(table, events)
    promote(table, "p.plan", "p.n:BIGINT")
    made = []
    read_columns = filling._read_columns
    monkeypatch.setattr(
        filling, "_read_columns", lambda *told, **more: made.append(read_columns(*told, **more)) or made[-1]
    )
    merged = merge(table, *old)
    assert merged.rows_decoded == 0 and merged.copied_bytes > 0
    assert [rows.column_names for rows in made] == [["p"]] * 4
    assert rows_of(table, merged.outputs) == [
        {**row, "p__plan": f"p{row['i'] % 3}", "p__n": row["i"]} for row in events
    ]
    (marker,) = merged.outputs
    assert marker.stats == old[0].stats and marker.inexact == ()
    again = merge(table, marker)
    assert rows_of(table, again.outputs) == rows_of(table, merged.outputs)
    assert len(made) == 4, "nothing is lacking any more"


def test_files_of_all_ages_become_one(make_table):
    table = make(make_table, sort=("i",))
    text = '{"plan":"pro","n":9007199254740993}'
    first = flush(table, [{"i": i, "p": text} for i in range(0, 30, 3)])
    promote(table, "p.plan")
    second = flush(table, [{"i": i, "p": text} for i in range(1, 30, 3)])
    promote(table, "p.n:BIGINT", "q.x")
    third = flush(table, [{"i": i, "p": text} for i in range(2, 30, 3)])
    without = flush(table, [{"i": 100}])
    assert [marker.promoted_count for (marker,) in (first, second, third, without)] == [0, 1, 3, 3]
    merged = merge(table, *first, *second, *third, *without)
    *rows, last = rows_of(table, merged.outputs)
    assert {(row["p__plan"], row["p__n"]) for row in rows} == {("pro", 9007199254740993)}
    assert last["p__plan"] is None
    assert {marker.inexact for marker in merged.outputs} == {("p__n",)}


def test_what_a_file_has_of_a_column_that_it_lacks_by_the_log_is_made_anew(make_table):
    table = make(make_table, sort=("i",))
    promote(table, "p.plan")
    (marker,) = flush(table, [{"i": i, "p": '{"plan":"new"}'} for i in range(16)])
    table.config = table.config.model_copy(update={"promoted": {"p__plan": ("p", "other")}})
    merged = merge(table, replace(marker, promoted_count=0))
    assert {row["p__plan"] for row in rows_of(table, merged.outputs)} == {None}


@pytest.mark.parametrize("kind", ["delete", "rewrite", "merge_query"])
def test_changes_fill_what_they_write_and_see_what_readers_see(make_table, kind):
    table = make(make_table, sort=("i",))
    old = flush(table, [{"i": i, "p": '{"plan":"pro"}'} for i in range(16)])
    promote(table, "p.plan")
    new = flush(table, [{"i": i, "p": '{"plan":"max"}'} for i in range(16, 32)])
    sql = {
        "delete": "i = 0",
        "rewrite": "SELECT * FROM _rows WHERE i > 0",
        "merge_query": "SELECT * FROM source_files WHERE i > 0",
    }[kind]
    table.config = table.config.model_copy(update={"merge_query": sql if kind == "merge_query" else None})
    merged = merge(table, *old, *new, change=RowChange(kind, sql))
    rows = rows_of(table, merged.outputs)
    assert [row["p__plan"] for row in rows] == ["pro"] * 15 + ["max"] * 16
    assert {marker.promoted_count for marker in merged.outputs} == {1}
