"""Conditions that people send: ``where``, partition filters, globs, SQL of deletions and queries.

Whatever is sent: an answer in bounded work, InvalidRequest at worst. What pruning leaves out, DuckDB does not find; and
what the check lets pass reaches no file.
"""

import json
from datetime import date, datetime

import duckdb
import pyarrow as pa
import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st
from icedb_engine.arrow_types import ARROW_TYPES
from icedb_engine.sql.process import CHECK_LIMITS, QueryProblem, SqlProcess
from icedb_engine.writing.part_files import StatsCollector
from icedb_log.errors import InvalidRequest
from icedb_log.keys import TablePaths
from icedb_log.model import FileMarker
from icedb_log.table.conditions import check_condition
from icedb_log.table.file_pruning import FilePruner
from icedb_log.table.partitions import (
    PartitionFilter,
    PartitionMatcher,
    decode_partition_value,
    encode_partition_value,
    parse_partition_filters,
    parse_partition_path,
    select_partitions,
)
from icedb_log.table.table_config import TRANSFORMS, WIDTH_TRANSFORMS, PartitionField, TableConfig
from icedb_log.table.transforms import find_type_problem, transform_sql, transform_value
from icedb_sim.tables.profiles import fuzz_examples

TYPES = {"id": "BIGINT", "x": "DOUBLE", "name": "VARCHAR", "flag": "BOOLEAN", "day": "DATE", "ts": "TIMESTAMP"}
FIELDS = tuple(PartitionField.parse(text) for text in ("d=day(ts)", "u=bucket[4](name)", "t=truncate[10](id)", "flag"))
CONFIG = TableConfig.create(name="events", partition=FIELDS, declared=TYPES)
PATHS = TablePaths("events", "wh/events")

# ---- texts that may be conditions -------------------------------------------------------------------------------

LITERALS = st.one_of(
    st.sampled_from([
        "0", "1", "-1", "5", "2.5", "1e3", "1e308", "1e400", "9223372036854775807", "9223372036854775808", "1" * 39,
        "0." + "1" * 30, ".5", "5.", "1_000", "0x1F", "''", "'a'", "'ab'", "'it''s'", "'%'", "'_'", "'\x00'", "'é'",
        "'\U0001f600'", "'nan'", "'5'", "'true'", "NULL", "TRUE", "FALSE", "DATE '2024-01-01'", "DATE '0000-00-00'",
        "TIMESTAMP '2024-01-01 05:00:00'", "TIMESTAMP '99999-01-01'", "'2024-01-01'", "'infinity'::TIMESTAMP",
        "TIMESTAMPTZ '2024-01-01 00:00:00+05'", "CAST('5' AS BIGINT)", "TRY_CAST('x' AS BIGINT)", "now()",
        "INTERVAL 1 DAY", "[1, 2]", "{'a': 1}", "$$a$$", "E'\\\\n'", "X'00'", "?", "$1", "@x", "*", "id", '"a"', "`a`",
    ]),
    st.integers(-(10**20), 10**20).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.text(max_size=6).map(lambda text: "'" + text.replace("'", "''") + "'"),
)  # fmt: skip
COLUMNS = st.sampled_from(
    [*TYPES, "ID", '"name"', '"Name"', "nope", "e.id", "date(ts)", "CAST(ts AS DATE)", "lower(name)", "id + 1", "-id"]
)
COMPARISONS = st.sampled_from(
    [
        "=",
        "<>",
        "!=",
        "<",
        "<=",
        ">",
        ">=",
        "==",
        "<=>",
        "IS DISTINCT FROM",
        "IS NOT DISTINCT FROM",
        "LIKE",
        "NOT LIKE",
        "ILIKE",
        "GLOB",
        "SIMILAR TO",
        "~",
        "^@",
        "||",
        "IS",
    ]
)
ATOMS = st.one_of(
    st.builds(lambda a, o, b: f"{a} {o} {b}", COLUMNS, COMPARISONS, LITERALS),
    st.builds(lambda a, o, b: f"{a} {o} {b}", LITERALS, COMPARISONS, COLUMNS),
    st.builds(lambda a, n, bs: f"{a} {n}IN ({', '.join(bs)})", COLUMNS, st.sampled_from(["", "NOT "]), st.lists(LITERALS, max_size=4)),
    st.builds(lambda a, n, b, c: f"{a} {n}BETWEEN {b} AND {c}", COLUMNS, st.sampled_from(["", "NOT ", "SYMMETRIC "]), LITERALS, LITERALS),
    st.builds(lambda a, n: f"{a} IS {n}NULL", COLUMNS, st.sampled_from(["", "NOT "])),
    st.builds(lambda a, n, t: f"{a} IS {n}{t}", COLUMNS, st.sampled_from(["", "NOT "]), st.sampled_from(["TRUE", "FALSE", "UNKNOWN"])),
    st.builds(lambda a, b: f"starts_with({a}, {b})", COLUMNS, LITERALS),
    COLUMNS,
    LITERALS,
    st.sampled_from([
        "sum(id) > 1", "id IN (SELECT 1)", "EXISTS (SELECT 1)", "row_number() OVER () = 1", "read_csv('/etc/passwd')",
        "id = 1; DROP TABLE x", "id = 1 --", "id = 1 /* x", "getenv('HOME') = ''", "current_setting('x') = ''", "random() < 1",
        "CASE WHEN flag THEN id END = 1", "list_filter([1], x -> x > 0) IS NULL", "id = ANY([1, 2])", "COLUMNS(*) = 1", "(id, x) = (1, 2)",
    ]),
)  # fmt: skip
WRAPPERS = st.sampled_from(
    [
        ("(", ")"),
        ("NOT ", ""),
        ("NOT (", ")"),
        ("array[", "]"),
        ("CAST(", " AS BOOLEAN)"),
        ("CASE WHEN ", " THEN TRUE END"),
        ("IF(", ", TRUE, FALSE)"),
        ("- ", ""),
        ("{'a': ", "}"),
        ("MAP {'a': ", "}"),
        ("coalesce(", ", NULL)"),
        ("[", "]"),
        ("sum(", ")"),
        ("(SELECT ", ")"),
    ]
)
DEPTHS = st.sampled_from([2, 2, 5, 8, 20, 45, 300])
CONDITIONS = st.one_of(
    st.recursive(
        ATOMS,
        lambda inner: st.builds(lambda a, o, b: f"({a}) {o} ({b})", inner, st.sampled_from(["AND", "OR"]), inner)
        | inner.map(lambda text: f"NOT ({text})"),
        max_leaves=4,
    ),
    st.builds(lambda w, n, a: (w[0] * n + a + w[1] * n)[:70_000], WRAPPERS, DEPTHS, ATOMS),
    st.builds(lambda o, n, a: f" {o} ".join([a] * n)[:66_000], st.sampled_from(["AND", "OR", "+", ",", "||", "="]), st.sampled_from([3, 3, 3, 60, 700]), ATOMS),
    st.text(max_size=30),
    st.text(st.sampled_from("()[]{}'\"`;,.*-+/<>=!~@#$%^&|\\?: \n\tidnaxORANDNOTIN01"), max_size=40),
)  # fmt: skip


@pytest.fixture(scope="module")
def engine():
    with duckdb.connect(config={"threads": 1, "enable_external_access": "false"}) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        yield connection


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.sampled_from([None, 0, 1, 5, -1, 2**53, 2**53 + 1, 2**63 - 1, -(2**63)]) | st.integers(-20, 20),
            "x": st.sampled_from([None, 0.0, -0.0, 1.0, 2.5, float("nan"), float("inf"), 1e308, 0.1]),
            "name": st.sampled_from([None, "", "a", "ab", "b", "%", "it's", "é", "nan", "5", "\U0001f600", "A"]) | st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
            "flag": st.sampled_from([None, True, False]),
            "day": st.sampled_from([None, date(2024, 1, 1), date(1, 1, 1), date(9999, 12, 31)]),
            "ts": st.sampled_from([None, datetime(2024, 1, 1, 5), datetime(2023, 12, 31, 23, 59, 59, 999999), datetime(1, 1, 1), datetime(9999, 12, 31)]),
        }
    ),
    min_size=1,
    max_size=4,
)  # fmt: skip


def make_file(rows, *, has_stats, has_partition):
    table = pa.Table.from_pylist(rows, pa.schema([(name, ARROW_TYPES[kind]) for name, kind in TYPES.items()]))
    stats = StatsCollector(sorted(TYPES) if has_stats else ())
    stats.add(table)
    path = ""
    if has_partition and all(rows[0][field.column] is not None for field in FIELDS):
        values = [
            {field.name: transform_value(field, row[field.column]) for field in FIELDS}
            for row in rows
            if all(row[field.column] is not None for field in FIELDS)
        ]
        if len(values) == len(rows) and all(each == values[0] for each in values):
            path = "/".join(f"{name}={encode_partition_value(value)}" for name, value in values[0].items()) + "/"
    return table, FileMarker(f"wh/events/_data/{path}a.parquet", 1, 1, row_count=len(rows), stats=stats.finish())


def is_checked(condition):
    try:
        check_condition(condition, TYPES, table="events")
    except InvalidRequest as error:
        assert 0 < len(str(error)) < 6000
        return False
    return True


def count(engine, condition):
    """Return for how many rows DuckDB says that it is true; None if it says nothing."""
    try:
        return engine.execute(f"SELECT count(*) FROM rows WHERE {condition}\n").fetchone()[0]
    except (duckdb.Error, UnicodeEncodeError):
        return None


@fuzz_examples(100)
@given(CONDITIONS, ROWS, st.booleans(), st.booleans())
@example("array[" * 30 + "1" + "]" * 30 + " IS NULL", [dict.fromkeys(TYPES)], True, False)
@example("sum(" * 300 + "id" + ")" * 300 + " > 1", [dict.fromkeys(TYPES)], True, False)
def test_what_duckdb_finds_is_never_left_out(engine, condition, rows, has_stats, has_partition):
    table, marker = make_file(rows, has_stats=has_stats, has_partition=has_partition)
    is_fine = is_checked(condition)
    pruner = FilePruner(condition, CONFIG, schema=TYPES)
    is_kept = pruner.may_be_true(marker)
    assert FilePruner(condition, CONFIG).may_be_true(marker) or not is_kept
    event(f"{'fine' if is_fine else 'refused'}, {'kept' if is_kept else 'left out'}")
    if not is_fine or len(condition) > 20_000:
        return
    engine.register("arrow", table)
    engine.execute("CREATE OR REPLACE TEMP TABLE rows AS SELECT * FROM arrow")
    found = count(engine, condition)
    assert is_kept or not found, (condition, found)


@pytest.fixture(scope="module")
def process():
    with SqlProcess(CHECK_LIMITS) as process:
        yield process


@fuzz_examples(60)
@given(CONDITIONS)
@example("id = '\ud800'")
@example("(" * 20_000 + "id" + ")" * 20_000)
def test_sql_of_deletions_and_queries_is_taken_or_refused(process, condition):
    for text, kind in (
        (condition, "condition"),
        (condition, "repeatable"),
        (f"SELECT * FROM _rows WHERE {condition}", "query"),
    ):
        try:
            process.check(text, TYPES, relation="_rows", kind=kind)
            event("taken")
        except QueryProblem as error:
            assert 0 < len(str(error)) < 6000
            event("refused")


# ---- partitions -------------------------------------------------------------------------------------------------

VALUES = st.one_of(
    st.text(max_size=8),
    st.sampled_from(["2024-01-01", "2024-13-99", "3", "-1", "03", "9" * 25, "true", "", "\x00", "\ud800", "é" * 600, "²", "__HIVE_DEFAULT_PARTITION__", "_", "a_5f", "%2F", "../..", "*", "[", "[!", "[z-a]", "[]]", "**?" * 200, "(a+)+$"]),
)  # fmt: skip
FILTERS = st.one_of(
    st.builds(
        PartitionFilter,
        field=st.sampled_from(["d", "u", "t", "flag", "nope", ""]),
        any_of=st.none() | st.frozensets(VALUES, max_size=3),
        is_null=st.none() | st.booleans(),
        at_least=st.none() | VALUES, above=st.none() | VALUES, at_most=st.none() | VALUES, below=st.none() | VALUES,
        glob=st.none() | VALUES,
    ),
)  # fmt: skip
FILTER_TEXTS = st.builds(
    lambda f, o, v: f"{f}{o}{v}",
    st.sampled_from(["d", "u", "flag", " t ", "", "é"]),
    st.sampled_from(["=", ">=", "<", "~", " is null", " is not null", "!", " ", "=="]),
    VALUES,
)


@fuzz_examples(120)
@given(st.lists(FILTERS, max_size=3), st.lists(FILTER_TEXTS, max_size=3), st.lists(VALUES, min_size=4, max_size=4))
def test_partition_filters_are_taken_or_refused(filters, texts, values):
    known = dict(zip(("d", "u", "t", "flag"), values, strict=True))
    for make in (lambda: filters, lambda: parse_partition_filters(texts)):
        try:
            matcher = PartitionMatcher(make(), CONFIG)
        except InvalidRequest as error:
            assert 0 < len(str(error)) < 3000
            event("refused")
            continue
        event("taken")
        matcher.matches(known)
        assert matcher.matches({}), "what is unknown is kept"


@fuzz_examples(60)
@given(st.lists(VALUES, max_size=3), st.lists(VALUES, min_size=1, max_size=3), st.booleans())
def test_globs_of_removals_choose_or_are_refused(globs, values, may_match_all):
    paths = [f"d={encode(value)}" for value in values if encode(value) is not None]
    try:
        chosen = select_partitions("events", globs, paths, may_match_all=may_match_all)
    except InvalidRequest:
        event("refused")
        return
    assert set(chosen) <= set(paths)


def encode(value):
    try:
        return encode_partition_value(value)
    except UnicodeEncodeError:
        return None


@fuzz_examples(200)
@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
)
@example("", "_")
@example("_5f", "__5f")
@example("__HIVE_DEFAULT_PARTITION__", "_5f_HIVE_DEFAULT_PARTITION__")
def test_partition_values_come_back_and_never_meet(first, second):
    one, two = encode_partition_value(first), encode_partition_value(second)
    assert decode_partition_value(one) == first
    assert (one == two) == (first == second)
    key = PATHS.data_key(partition=f"d={one}", file_id="f")
    assert parse_partition_path(PATHS.partition_of(key)) == (("d", first),)
    assert ("/" not in one and ".." not in one.replace(first, "")) or "." in first
    assert json.dumps(one).isascii()


@fuzz_examples(80)
@given(st.text(max_size=20))
def test_any_form_of_a_partition_value_can_be_read(encoded):
    try:
        encoded.encode()
    except UnicodeEncodeError:
        return
    decode_partition_value(encoded)
    try:
        parse_partition_path(encoded)
    except InvalidRequest:
        event("refused")


@fuzz_examples(80)
@given(st.data(), st.sampled_from(TRANSFORMS))
def test_a_transform_in_sql_and_in_python_is_one(engine, data, transform):
    column = data.draw(st.sampled_from(sorted(TYPES)))
    width = data.draw(st.integers(1, 1000)) if transform in WIDTH_TRANSFORMS else None
    field = PartitionField(name="p", transform=transform, column=column, width=width)
    if find_type_problem(field, TYPES[column]):
        return
    (row,) = data.draw(ROWS.map(lambda rows: rows[:1]))
    if row[column] is None:
        return
    table, _ = make_file([row], has_stats=False, has_partition=False)
    engine.register("arrow", table)
    sql = transform_sql(field, f'"{column}"', TYPES[column])
    assert engine.execute(f"SELECT {sql} FROM arrow").fetchone()[0] == transform_value(field, row[column])
