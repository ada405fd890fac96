"""A promoted column is what DuckDB takes out of the text of its row, whoever wrote the row and in whatever format it came."""

import io
import json
import re
from dataclasses import replace
from decimal import Decimal

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from icedb_engine.reading import frame, promoted
from icedb_engine.sql import quote_text
from icedb_engine.units.merge_unit import merge_unit
from icedb_engine.units.query_unit import insert_unit
from icedb_engine.units.typed_rows import append_unit
from icedb_engine.work import MergeUnit
from icedb_log.errors import InvalidRequest
from icedb_log.jobs import MergeGroup, RowChange
from icedb_log.table.promoted_paths import add_promotions, parse_promotions
from icedb_log.units import MIB

ENGINE = duckdb.connect(config={"threads": 1})
LETTERS = [f"key{place}" for place in range(11)]
KEYS = ["plan", "n", "deep", "x", "a.b", 'say "hi"', "größe", "back\\", "$", "[0]", "Plan"]
TYPES = ["BIGINT", "DOUBLE", "BOOLEAN", "DATE", "TIMESTAMP", "DECIMAL(12,4)"]
NAMES = {sql_type: re.sub(r"\W", "", sql_type).lower() for sql_type in TYPES}
PATHS = [
    *(f"p.{json.dumps(key)} as {name}" for name, key in zip(LETTERS, KEYS, strict=True)),
    "p.deep.x.n as below",
    *(f"p.n:{sql_type} as {NAMES[sql_type]}" for sql_type in TYPES),
    "p.n:TIMESTAMP(epoch_s) as seconds",
    "p.n as again",
]


def promote(*texts):
    return add_promotions({}, parse_promotions(texts, option="--promote"), option="--promote")


def make(make_table, *texts, partition=(), **more):
    return make_table(*partition, **{**promote(*texts), **more})


def read_texts(texts):
    """Return what DuckDB's own functions give, in SQL as a reader would write it.

    The text at each key of KEYS, below ``deep`` and at ``n``, and the JSON value ``n``: a tuple for each row.
    """
    paths = [(key,) for key in KEYS] + [("deep", "x", "n"), ("n",)]
    pointers = ["".join("/" + key.replace("~", "~0").replace("/", "~1") for key in path) for path in paths]
    found = [f"json_extract_string(t, {quote_text(pointer)})" for pointer in pointers]
    found.append("CAST(json_extract(t, '/n') AS VARCHAR)")
    cases = ", ".join(f"CASE WHEN json_valid(t) THEN {value} END" for value in found)
    rows = f"SELECT unnest($1::VARCHAR[]) AS t, unnest(range({len(texts)})) AS place"
    return ENGINE.execute(f"SELECT {cases} FROM ({rows}) ORDER BY place", [texts]).fetchall()


DECLARED = {**{name: sql_type for sql_type, name in NAMES.items()}, "seconds": "TIMESTAMP"}
TAKEN = {}
"""What declared columns of all types took of each JSON value that was asked for: a flush of values that are bad takes long."""


def cast_as_declared(make_table, raws):
    """Return what declared columns of all types take of JSON values; None where they are bad, or not there."""
    asked = [raw for raw in dict.fromkeys(raws) if raw is not None and raw not in TAKEN]
    if asked:
        table = make_table(declared={"row": "BIGINT", **DECLARED}, times={"seconds": {"unit": "epoch_s"}}, on_bad_rows="quarantine_rows")  # fmt: skip
        lines = (f'{{"row":{row},"{name}":{raw}}}\n' for name in DECLARED for row, raw in enumerate(asked))
        found = table.rows(*table.flush(table.stage(body="".join(lines).encode())).files)
        TAKEN.update((raw, {}) for raw in asked)
        for row in found:
            TAKEN[asked[row["row"]]].update({name: row[name] for name in DECLARED if row.get(name) is not None})
    return {name: [None if raw is None else TAKEN[raw].get(name) for raw in raws] for name in DECLARED}


def show(values):
    """Return values so that NaN is itself, and -0.0 is not 0.0."""
    return [repr(value) for value in values]


def check_rows(make_table, rows):
    """Compare all columns of rows of a table with PATHS with what their text says."""
    rows = sorted(rows, key=lambda row: row["row"])
    *columns, raws = zip(*read_texts([row.get("p") for row in rows]), strict=True)
    for name, column in zip([*LETTERS, "below", "again"], columns, strict=True):
        assert [row.get(name) for row in rows] == list(column), name
    misfit_count = 0
    for name, wanted in cast_as_declared(make_table, raws).items():
        if name == NAMES["DECIMAL(12,4)"]:
            wanted = [None if has_many_digits(raw) else value for raw, value in zip(raws, wanted, strict=True)]
        found = [row.get(name) for row in rows]
        assert show(found) == show(wanted), name
        misfit_count += sum(raw not in (None, "null") and value is None for raw, value in zip(raws, found, strict=True))
    return misfit_count


def has_many_digits(raw):
    """Whether a value is a number with a fraction of more digits than a double keeps."""
    if raw is None or not re.fullmatch(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?", raw) or raw.lstrip("-").isdigit():
        return False
    return len(re.sub(r"[eE].*|[-.]", "", raw).strip("0")) > 15


NUMBERS = st.one_of(
    st.sampled_from(["0", "-0", "-0.0", "1.50", "1e3", "9007199254740993", "9223372036854775808", "1e400", "-1e-400", "1E+2", "0.10000000000000001", "12345678901234567.89", "1700000000", "19.99", "NaN", "-Infinity"]),
    st.from_regex(r"\A-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?\Z"),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
)  # fmt: skip
WORDS = st.one_of(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), st.sampled_from(["2024-02-29", "2024-01-02T03:04:05.5+02:00", "12.5", "true", "null", "NaN", "7", "", '{"n":1}', "\0"]))  # fmt: skip
STRINGS = WORDS.flatmap(lambda text: st.sampled_from([json.dumps(text), json.dumps(text, ensure_ascii=False)]))
SCALARS = st.one_of(NUMBERS, STRINGS, st.sampled_from(["true", "false", "null", "{}", "[]"]))


def to_object(pairs):
    return "{" + ", ".join(f"{json.dumps(key)}: {value}" for key, value in pairs) + "}"


VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda items: "[" + ",".join(items) + "]"),
        st.lists(st.tuples(st.sampled_from([*KEYS, "other", "*", ""]), inner), max_size=5).map(to_object),
    ),
    max_leaves=12,
)
OBJECTS = st.lists(st.tuples(st.sampled_from([*KEYS, "n", "n", "*"]), VALUES), max_size=8).map(to_object)
TEXTS = st.one_of(OBJECTS, OBJECTS, VALUES.filter(lambda text: text[0] in '[{"n'))


def ndjson(texts):
    return "".join(f'{{"row":{i},"p":{text}}}\n' for i, text in enumerate(texts)).encode(), "ndjson"


def document(texts):
    return ("[" + ",".join(f'{{"row":{i},"p":{text}}}' for i, text in enumerate(texts)) + "]").encode(), "json"


def text_of(texts):
    """Return the texts as text, and among them what is none: as CSV and typed formats have it."""
    return [None if text == "null" else text if i % 5 else f" \n{text} x" if i else f"\t{text}" for i, text in enumerate(texts)]  # fmt: skip


def arrow_text(texts):
    sink = io.BytesIO()
    rows = pa.table({"row": list(range(len(texts))), "p": pa.array(text_of(texts), pa.string())})
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=2)
    return sink.getvalue(), "arrow"


def csv(texts):
    cells = ("" if text is None else '"' + text.replace('"', '""') + '"' for text in text_of(texts))
    return b"row,p\n" + "".join(f"{i},{cell}\n" for i, cell in enumerate(cells)).encode(), "csv"


@pytest.mark.parametrize(
    ("body", "sample_lines"),
    [(ndjson, 0), (ndjson, 10**9), (document, 0), (document, 10**9), (arrow_text, 10**9), (csv, 10**9)],
    ids=["fast", "exact", "document fast", "document exact", "arrow text", "csv"],
)
@given(texts=st.lists(TEXTS, min_size=1, max_size=12))
@example(
    [
        '{"n":1,"n":2}',
        '{"deep":{"y":1},"deep":{"x":{"n":2}}}',
        '{"plan":null,"n":null}',
        "{}",
        '{"deep":[{"x":1}]}',
        "null",
    ]
)
@example(['{"n":-0}', '{"n":-0.0}', '{"n":12345678901234567.89}', '{"n":1e400}', '{"n":NaN}', '{"n":"19.990"}'])
@example(['{"n":0.1234567}', '{"n":"2024-02-30"}', '{"n":253402300800}', '{"n":{"n":1}}', '{"a.b":{"x":1}}', '"x"'])
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_column_is_what_duckdb_takes_out_of_the_text(make_table, monkeypatch, body, sample_lines, texts):
    monkeypatch.setattr(frame, "SAMPLE_LINES", sample_lines)
    table = make(make_table, *PATHS)
    sent, staging_format = body(texts)
    result = table.flush(table.stage(body=sent, staging_format=staging_format))
    assert not result.rejected
    assert check_rows(make_table, table.rows(*result.files)) == result.misfit_count


LEAVES = st.one_of(st.none(), WORDS)
STRUCTS = pa.struct(
    [
        ("plan", pa.string()),
        ("n", pa.float64()),
        ("deep", pa.struct([("x", pa.struct([("n", pa.decimal128(20, 3))]))])),
        ("a.b", pa.list_(pa.int64())),
        ('say "hi"', pa.bool_()),
        ("x", pa.timestamp("us")),
        ("größe", pa.map_(pa.string(), pa.int32())),
    ]
)
ITEMS = st.fixed_dictionaries(
    {
        "plan": LEAVES,
        "n": st.none() | st.floats(),
        "deep": st.none() | st.fixed_dictionaries({"x": st.none() | st.fixed_dictionaries({"n": st.none() | st.decimals(-(10**9), 10**9, places=3)})}),
        "a.b": st.none() | st.lists(st.integers(-(2**63), 2**63 - 1), max_size=2),
        'say "hi"': st.none() | st.booleans(),
        "x": st.none() | st.datetimes(),
        "größe": st.none() | st.lists(st.tuples(st.sampled_from(["k", "é"]), st.integers(0, 9)), max_size=2),
    }
)  # fmt: skip


@given(items=st.lists(st.none() | ITEMS, min_size=1, max_size=8), parquet=st.booleans())
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_column_of_a_struct_is_what_duckdb_takes_out_of_its_text(make_table, items, parquet):
    rows = pa.table({"row": list(range(len(items))), "p": pa.array(items, STRUCTS)})
    sink = io.BytesIO()
    if parquet:
        pq.write_table(rows, sink)
    else:
        with pa.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
    table = make(make_table, *PATHS)
    result = table.flush(table.stage(body=sink.getvalue(), staging_format="parquet" if parquet else "arrow"))
    assert not result.rejected
    assert check_rows(make_table, table.rows(*result.files)) == result.misfit_count


EVENTS = [
    {"i": 1, "p": {"plan": "pro", "price": 2.5}},
    {"i": 2, "p": {"plan": "free", "price": "?"}},
    {"i": 3, "p": {"plan": "pro"}},
    {"i": 4},
]
TWO = ("p.plan", "p.price:DOUBLE")


def by_plan(table, files):
    rows = sorted(table.rows(*files), key=lambda row: row["i"])
    return [(row["i"], row.get("p__plan"), row.get("p__price")) for row in rows]


def test_rows_of_all_sections_of_a_large_unit_stay_beside_their_text(make_table):
    """The engine gives rows in any order, and those of the fast reader stay where they are."""
    table = make(make_table, "p.k", "p.k:BIGINT as n", sort=("n",))
    table.engine = replace(table.engine, memory_bytes=512 * MIB, thread_count=4)
    lines = "".join(f'{{"i":{i},"p":{{"k":{i * 7919 % 99991}}}}}\n' for i in range(150_000)).encode()
    wide = pa.table({"i": range(150_000), "p": [f'{{"k":{i}}}' for i in range(150_000)]})
    sink = io.BytesIO()
    pq.write_table(wide, sink)
    result = table.flush(table.stage(body=lines), table.stage(body=sink.getvalue(), staging_format="parquet"))
    found = pa.concat_tables(table.parquet(marker).read() for marker in result.files)
    assert found.num_rows == 300_000
    texts = pc.binary_join_element_wise('{"k":', found["p__k"], "}", "")
    assert texts.equals(found["p"])
    assert found["n"].cast(pa.string()).equals(found["p__k"])


FEW = ("p.s", "p.deep.x as x", "p.i:BIGINT as i", "p.d:DOUBLE as d", "p.b:BOOLEAN as b", "p.day:DATE as day", "p.at:TIMESTAMP as at", "p.ms:TIMESTAMP(epoch_ms) as ms", "p.s:BIGINT as other", "p.deep", "p.more as more", "p.D as upper")  # fmt: skip
OF_ONE_KIND = {
    "s": STRINGS,
    "deep": st.one_of(st.just("null"), STRINGS.map(lambda text: f'{{ "x" : {text} }}'), st.just("{}")),
    "i": st.one_of(st.integers(-(2**63), 2**63 - 1).map(str), st.just("-0")),
    "d": NUMBERS,
    "b": st.sampled_from(["true", "false", "null"]),
    "day": st.sampled_from(['"2024-02-29"', '"2024-02-30"', '"0001-01-01"', "null"]),
    "at": st.sampled_from(['"2024-01-02T03:04:05.5+02:00"', '"2024-01-02 03:04"', '"2024-01-02T03:04:05Z"']),
    "ms": st.integers(-(10**15), 10**15).map(str),
    "more": VALUES,
}
ODD = st.tuples(st.sampled_from([*OF_ONE_KIND]), VALUES)


@given(
    texts=st.lists(
        st.one_of(
            st.fixed_dictionaries({}, optional=OF_ONE_KIND).map(lambda found: to_object(found.items())),
            st.fixed_dictionaries({}, optional=OF_ONE_KIND).map(lambda found: "\n" + to_object(found.items())[:-1] + "\n}"),
            st.tuples(st.fixed_dictionaries(OF_ONE_KIND), ODD).map(lambda found: to_object([*found[0].items(), found[1]])),
            st.sampled_from([None, "[]", "7", "", "{", '{"s":"}', '{"}', '{"s":"x"}{"s":"y"}', '{"s":"x"} ', '{"s":"x"}\0}', '"{\\"s\\":1}"']),
        ),
        min_size=1,
        max_size=6,
    ),
    piece_rows=st.sampled_from([2, 64]),
)  # fmt: skip
@example(['{"s":"}', '{"}', '{"s":"x"}{"s":"y"}'], 64)
@example(['{"d":-0}', '{"d":-0.0}', '{"more":1e-7}', '{"more":"1e-07"}', '{"more":1.5e300}'], 64)
@example(['{"deep":', '{"x":"a"}}', '{"deep":{"x":"b"}}{"deep":{"x":"c"}}'], 64)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_rows_in_pieces_get_what_a_query_over_all_gives(make_table, monkeypatch, texts, piece_rows):
    monkeypatch.setattr(promoted, "_PIECE_ROWS", piece_rows)
    names = {}
    columns = promoted.Promoted(
        make(make_table, *FEW).config, {"p": "VARCHAR"}, lambda name: names.setdefault(name, f"c{len(names)}")
    )
    rows = pa.table({names["p"]: pa.array(texts, pa.string())})
    ENGINE.register("rows", rows.append_column("place", pa.array(range(len(texts)))))
    wanted = ENGINE.execute(f"{columns.select('rows', kept='place')} ORDER BY place").to_arrow_table()
    found = columns.make(rows, ENGINE.cursor, thread_count=2)
    assert {name: show(found[name].to_pylist()) for name in found.column_names} == {
        name: show(wanted[name].to_pylist()) for name in wanted.column_names if name != "place"
    }


def test_a_text_that_no_struct_takes_is_parsed_again_and_all_others_once(make_table, monkeypatch):
    """``json_transform`` fails where a text is no JSON, and writes some doubles in other digits."""
    runs = []
    run = promoted._run
    monkeypatch.setattr(promoted, "_run", lambda *told: runs.append(1) or run(*told))
    table = make(make_table, "p.v", "p.at:TIMESTAMP as at")
    plain = ['{"v":"2.5e-2","at":1700000000000}', '{"v":[1,"a"],"at":0}', '{"v":1.5}', '{"at":null}', '{"v":true}']
    for texts, found, count in (
        (plain, ["2.5e-2", '[1,"a"]', "1.5", None, "true"], 2),
        ([*plain[1:], '{"v":1e-7}'], ['[1,"a"]', "1.5", None, "true", "1e-7"], 2),
        (plain[1:], ['[1,"a"]', "1.5", None, "true"], 1),
        ([*plain[1:], "{"], ['[1,"a"]', "1.5", None, "true", None], 2),
        ([*plain[1:], '{"at":"2024-01-02"}'], ['[1,"a"]', "1.5", None, "true", None], 2),
    ):
        runs.clear()
        rows = pa.table({"c_p": pa.array(texts)})
        columns = promoted.Promoted(table.config, {"p": "VARCHAR"}, "c_{}".format)
        assert columns.make(rows, ENGINE.cursor)["c_p__v"].to_pylist() == found
        assert len(runs) == count, texts


def test_a_path_is_a_partition_and_a_sort_column_with_statistics(make_table):
    table = make(make_table, *TWO, partition=["plan=p__plan"], sort=("p__price",), on_bad_rows="quarantine_rows")
    result = table.flush(table.stage(*EVENTS))
    assert result.partitions == ("plan=free", "plan=pro")
    assert by_plan(table, result.files) == [(1, "pro", 2.5), (2, "free", None), (3, "pro", None)]
    assert result.files[1].stats["p__price"] == (2.5, 2.5, 1)
    (bad,) = result.bad_rows
    assert "p.plan, column 'p__plan', is missing or null, and partition plan=p__plan" in bad.reason


@pytest.mark.parametrize("sample_lines", [0, 10**9], ids=["fast", "exact"])
def test_a_value_of_the_columns_own_is_a_bad_row(make_table, monkeypatch, sample_lines):
    monkeypatch.setattr(frame, "SAMPLE_LINES", sample_lines)
    table = make(make_table, *TWO)
    promoted_from = "column 'p__plan' is promoted: its values are those of p.plan, and no others"
    for name, words in (("p__plan", promoted_from), ("P__PLAN", "'p__plan' and 'P__PLAN' differ only in case")):
        reason = table.reason(table.stage({"p": {"plan": "pro"}, name: "free"}))
        assert words in reason


def test_merges_and_deletions_carry_columns_and_a_rewrite_makes_them_anew(make_table):
    table = make(make_table, *TWO, sort=("p__plan",))
    files = [file for row in EVENTS for file in table.flush(table.stage(row)).files]
    merged = table.merge(*files, schema={"i": "BIGINT", **table.config.declared}).outputs
    before = [(1, "pro", 2.5), (2, "free", None), (3, "pro", None), (4, None, None)]
    assert by_plan(table, merged) == before

    def change(kind, sql):
        schema = {"i": "BIGINT", **table.config.declared}
        unit = table.unit(MergeUnit, schema=schema, group=MergeGroup("", merged), change=RowChange(kind, sql))
        done = merge_unit(unit, table.store, clock=table.clock)
        assert done.misfit_count == (kind == "rewrite" and "EXCLUDE" not in sql)
        return done.outputs

    assert by_plan(table, change("delete", "p__plan = 'free'")) == [before[0], *before[2:]]
    assert by_plan(table, change("delete", "p->>'plan' = 'free'")) == [before[0], *before[2:]]
    assert by_plan(table, change("rewrite", "SELECT * REPLACE ('x' AS p__plan) FROM _rows")) == before, (
        "never by itself"
    )
    rewritten = change("rewrite", """SELECT i, replace(p, '"pro"', '"max"') AS p FROM _rows""")
    assert by_plan(table, rewritten) == [(1, "max", 2.5), before[1], (3, "max", None), before[3]]
    with pytest.raises(InvalidRequest, match="the merge_query drops column 'p', which the table is sorted by"):
        change("merge_query", "SELECT * EXCLUDE (p) FROM source_files")
    table.config = table.config.model_copy(update={"sort": ("i",)})
    assert by_plan(table, change("rewrite", "SELECT * EXCLUDE (p) FROM _rows")) == [
        (i, None, None) for i in range(1, 5)
    ], "without its text a column has no values"


def test_what_a_query_and_a_write_give_has_the_columns(make_table):
    table = make(
        make_table, *TWO, partition=["plan=p__plan"], insert_query="SELECT i, body AS p FROM _rows",
        source={"i": "BIGINT", "body": "VARCHAR"},
    )  # fmt: skip
    batch = table.stage(*({"i": row["i"], "body": row["p"]} for row in EVENTS[:3]))
    result = insert_unit(table.flush_unit(batch), table.store, clock=table.clock)
    assert result.columns == {"i": "BIGINT", "p": "VARCHAR", "p__plan": "VARCHAR", "p__price": "DOUBLE"}
    assert (result.misfit_count, result.partitions) == (1, ("plan=free", "plan=pro"))
    assert by_plan(table, result.files) == [(1, "pro", 2.5), (2, "free", None), (3, "pro", None)]
    rows = pa.record_batch({"i": [5, 6], "p": ['{"plan":"new","price":1}', '{"plan":"new","price":"1"}']})
    written = append_unit(table.write_unit({"i": "BIGINT", "p": "VARCHAR"}), [rows], table.store, clock=table.clock)
    assert by_plan(table, written.files) == [(5, "new", 1.0), (6, "new", None)]
    assert written.misfit_count == 1


def test_decimals_of_text_and_whole_numbers_are_exact(make_table):
    table = make(make_table, "p.d:DECIMAL(38,2) as d")
    values = ['"123456789012345678901234567890.12"', "123456789012345678901234567890", "0.1", "1234567890123456.7"]
    body = "".join(f'{{"p":{{"d":{value}}}}}\n' for value in values).encode()
    result = table.flush(table.stage(body=body))
    found = [row["d"] for row in table.rows(*result.files)]
    whole = "123456789012345678901234567890"
    assert found == [Decimal(f"{whole}.12"), Decimal(whole), Decimal("0.1"), None]
    assert result.misfit_count == 1


def test_a_table_without_paths_asks_nothing_more(make_table, monkeypatch):
    def select(*_args, **_options):
        raise AssertionError

    monkeypatch.setattr(promoted.Promoted, "select", select)
    table = make_table()
    assert table.rows(*table.flush(table.stage(*EVENTS)).files)[0]["p"]
