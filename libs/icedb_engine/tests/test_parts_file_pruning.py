"""Pruning by a condition never drops a file that holds a row for which it is true, and drops those that it should."""

import itertools
from datetime import date, datetime

import duckdb
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from icedb_engine.arrow_types import ARROW_TYPES
from icedb_engine.sql import quote_text
from icedb_engine.writing.part_files import StatsCollector
from icedb_log.model import FileMarker
from icedb_log.table.conditions import check_condition
from icedb_log.table.file_pruning import FilePruner
from icedb_log.table.partitions import encode_partition_value
from icedb_log.table.table_config import TIME_TRANSFORMS, PartitionField, TableConfig
from icedb_log.table.transforms import transform_value
from icedb_sim.tables.profiles import SHARED_FIXTURES

TYPES = {
    "ts": "TIMESTAMP", "day": "DATE", "name": "VARCHAR", "n": "BIGINT", "x": "DOUBLE", "flag": "BOOLEAN", "Other": "VARCHAR",
}  # fmt: skip
LONG = "é" * 63
POOL = {
    "ts": [
        datetime(2023, 12, 31),
        datetime(2023, 12, 31, 23, 59, 59, 999999),
        datetime(2024, 1, 1, 5),
        datetime(2024, 2, 9),
    ],
    "day": [date(2023, 12, 31), date(2024, 1, 1), date(2024, 1, 30)],
    "name": ["", "a", "ab", "abc", "abcd", "b", "ba", "Z", LONG, LONG + "xy", LONG + "\U0010ffff\U0010ffff", "%"],
    "n": [-7, -1, 0, 1, 2, 5, 7, 9, 2**53 + 1, -(2**62)],
    "x": [-1.5, -0.0, 0.0, 0.1, 2.0, float("nan"), float("inf")],
    "flag": [True, False],
    "Other": ["a", "2023-01-01", "2024-01-01T00:00:00.000000Z"],
}
PARTITIONS = [
    (),
    ("y=year(ts)",),
    ("m=month(ts)", "name"),
    ("d=day(ts)", "h=hour(ts)"),
    ("m=month(day)",),
    ("day", "flag"),
    ("b=bucket[3](name)", "c=bucket[2](n)"),
    ("p=truncate[2](name)", "t=truncate[4](n)"),
    ("n",),
    ("ts",),
    ("z=bucket[5](x)",),
]


def literals(column, value):
    """Return how a value can be written."""
    if column in ("ts", "day"):
        return [f"{'TIMESTAMP' if column == 'ts' else 'DATE'} {quote_text(str(value))}", quote_text(str(value))]
    if isinstance(value, bool):
        return [str(value)]
    return [quote_text(value)] if isinstance(value, str) else [repr(value)]


def make_atoms(column):
    """Yield conditions on a column, in every form, with values that rows have and such as lie between."""
    values = [value for value in POOL[column] if value == value and value not in (float("inf"), "%")]
    texts = [text for value in values for text in literals(column, value)]
    texts += ["1.5", "2.0", "5e0"] if column == "n" else []
    name = column.upper() if column in ("n", "Other") else column
    yield from (f"{name} {sign} {text}" for text in texts for sign in ("=", "<", "<=", ">", ">=", "<>"))
    yield from (f"{text} {sign} {name}" for text in texts for sign in ("=", "<", "<=", ">", ">="))
    for negation in ("", "NOT "):
        yield f"{name} IS {negation}NULL"
        yield f"{name} IS {negation}DISTINCT FROM NULL"
        for first, second in [*itertools.pairwise(texts), (texts[-1], texts[0])]:
            yield f"{name} {negation}BETWEEN {first} AND {second}"
            yield f"{name} {negation}IN ({first}, {second})"
            yield f"({name} {negation}IN ({first}, NULL)) IS NOT TRUE"
            yield f"({name} {negation}IN ({first}, NULL)) IS NOT FALSE"
            yield f"{name} IS {negation}DISTINCT FROM {first}"
            yield f"({name} < {first}) IS {negation}TRUE"
            yield f"({name} = {first}) IS {negation}FALSE"
    if column == "ts":
        yield from (f"CAST(ts AS DATE) {sign} DATE '{day}'" for day in POOL["day"] for sign in ("=", "<", ">", "<>"))
    if column == "name":
        patterns = ("a%", "ab", "ab%", "%", "a_c%", "ab_", "b%a", "_", LONG + "%", "Z%%", "é%")
        yield from (f"name {negation}LIKE '{pattern}'" for pattern in patterns for negation in ("", "NOT "))
        yield "length(name) > 1"
    if column == "flag":
        yield from ("flag", "NOT flag", "flag IS NOT TRUE")


DUCKDB_ATOMS = {
    "ts": [
        f"{name} {sign} {literal}"
        for name in ("ts", '"TS"', '"ts"')
        for sign in ("=", "<", ">=", "<>", "IS DISTINCT FROM")
        for literal in (
            "TIMESTAMPTZ '2024-01-01 00:00:00'",
            "TIMESTAMPTZ '2024-01-01 00:00:00Z'",
            "TIMESTAMP WITH TIME ZONE '2024-01-01 05:00:00+00'",
            "'2024-01-01 05:00:00+05'::TIMESTAMPTZ",
            "'2024-01-01T05:00:00Z'",
            "'2024-01-01 10:00:00+05'",
            "DATE '2024-01-01'",
            "'2024-01-01'::DATE",
            "'2024-01-01 05:00'",
            "'2024-1-1'",
            "TIMESTAMP '2023-12-31 23:59:59.999999'",
            "TIMESTAMP_S '2023-12-31 23:59:59.9'",
            "TRY_CAST('nonsense' AS TIMESTAMP)",
            "make_timestamp(2024, 1, 1, 5, 0, 0.0)",
        )
    ]
    + [
        "ts::DATE = '2024-01-01'",
        "CAST(ts AS DATE) BETWEEN '2023-12-31' AND DATE '2024-01-01'",
        "TRY_CAST(ts AS DATE) > DATE '2024-01-30'",
        "date_trunc('month', ts) = '2024-01-01'",
        "year(ts) = 2024 AND ts > '2024-01-15'",
        "ts BETWEEN '2023-12-31' AND TIMESTAMPTZ '2024-01-01 04:00:00'",
        "ts IN (DATE '2024-01-01', '2024-01-01 05:00:00')",
        "ts IN (TIMESTAMPTZ '2024-01-01 00:00:00', TIMESTAMP '2024-02-09 00:00:00')",
        "ts AT TIME ZONE 'America/New_York' > TIMESTAMPTZ '2024-01-01 09:00:00+00'",
    ],
    "day": [
        f"{name} {sign} {literal}"
        for name in ("day", '"Day"')
        for sign in ("=", "<", ">", ">=", "<=", "<>")
        for literal in (
            "TIMESTAMP '2024-01-01 12:00:00'",
            "TIMESTAMPTZ '2024-01-01 02:00:00+00'",
            "'2024-01-01'",
            "'2024-1-30'",
            "TRY_CAST('2024-99-99' AS DATE)",
        )
    ]
    + ["day::TIMESTAMP < '2024-01-01 00:00:01'", "day IN ('2024-01-01', TIMESTAMP '2024-01-30 00:00:01')"],
    "name": [
        "\"name\" = 'a'", "name ILIKE 'AB%'", "name ^@ 'ab'", "starts_with(name, 'ab')", "name GLOB 'a*'", "name ~ 'a.*'",
        "name COLLATE NOCASE = 'AB'", "name LIKE 'a!%' ESCAPE '!'", "name LIKE '!%' ESCAPE '!'", "name = 'it''s'",
        "name = $$ab$$", "name = ''", "name || 'x' = 'ax'", "prefix(name, 'b')", "name = TRY_CAST('ab' AS VARCHAR)",
        "name IS NOT DISTINCT FROM CAST(NULL AS VARCHAR)", "name[1] = 'a'", "NOT name SIMILAR TO 'a.*'",
        "name BETWEEN 'Z' AND 'ab'", "(name, n) = ('a', 1)", "name NOT IN ('a', 'ab')", "coalesce(name, 'zz') = 'zz'",
    ],
    "n": [
        f"{name} {sign} {literal}"
        for name in ("n", '"N"')
        for sign in ("=", "<", ">", "<=", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM")
        for literal in (
            "'5'", "5.0", "5e0", "4.9999999999999999", "9007199254740992e0", "9007199254740993.0", "5::DOUBLE", "5::BIGINT",
            "TRY_CAST(300 AS TINYINT)", "TRY_CAST(99999999999999999999 AS BIGINT)", "TRY_CAST('x' AS BIGINT)", "-(-5)", "2 + 3", "5::SMALLINT", "5.4::BIGINT",
            "9223372036854775808", "1e300",
        )
    ]
    + [
        "n IN (9007199254740992, 1e0)", "n IN (1, 2.5, 1e0)", "n BETWEEN 1e0 AND 9007199254740992", "n IN (1, '5')",
        "n BETWEEN 9007199254740992 AND 1e300", "NOT n IN (9007199254740992, 0e0)", "n // 2 = 1", "n::VARCHAR = '5'",
        f"n IN (9007199254740993, {10**38})", f"n BETWEEN 9007199254740993 AND {2**128}",
        f"n NOT IN (4, {2**128})", f"n IN (9007199254740993, {10**38 - 1})",
        "n % 2 = 1", "n ISNULL", "n NOTNULL", "n BETWEEN 1.5 AND 2.5", "abs(n) = 7", "n == 5", "n != 5", "-n < -5",
        "n IS NOT NULL = true", "n > 0 IS NULL",
    ],
    "x": [
        f"x {sign} {literal}"
        for sign in ("=", "<", ">", "<=", ">=", "<>")
        for literal in (
            "'nan'", "'nan'::DOUBLE", "'inf'::DOUBLE", "0.1", "0.1::FLOAT", "0.1::DECIMAL(3, 2)", "1e308", "9007199254740993", "2",
            "'2'",
        )
    ]
    + ["isnan(x)", "x IN (0.1, 2)", "x = -0.0", "x IN (0, 9007199254740993)", "x + 0 > 1"],
    "flag": ["flag = 1", "flag = 'true'", "flag > FALSE", "flag IN (TRUE, NULL)", "NOT (flag = TRUE)", "flag IS NOT NULL"],
    "Other": ['"Other" = \'a\'', "other >= '2023-01-01'", "other::DATE = DATE '2023-01-01' OR other = 'a'"],
}  # fmt: skip
"""What DuckDB understands and Spark does not, or otherwise: other spellings, casts that it makes by itself, zones."""

NEAR = {
    "ts": [datetime(2023, 12, 31, 19), datetime(2023, 12, 31, 18, 30), datetime(2024, 1, 1, 10)],
    "n": [2**53, 2**53 - 1, 300, 44, 4, -5, 6],
    "x": [float(2**53), 0.1 + 2**-56, -float("inf")],
    "day": [date(2024, 1, 2)],
}
"""Values beside the literals above, where a conversion would make them equal."""

ATOMS = {column: sorted(set(make_atoms(column))) for column in POOL}
DUCKDB_CONDITIONS = st.sampled_from(sorted(ATOMS)).flatmap(
    lambda column: st.lists(
        st.one_of(st.sampled_from(DUCKDB_ATOMS[column]), st.sampled_from(ATOMS[column])), min_size=30, max_size=30
    )
)
CONDITIONS = st.sampled_from(sorted(ATOMS)).flatmap(
    lambda column: st.lists(st.sampled_from(ATOMS[column]), min_size=30, max_size=30)
)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            column: st.one_of(st.none(), st.sampled_from(values), st.sampled_from(values))
            for column, values in POOL.items()
        }
    ),
    min_size=1,
    max_size=3,
)


def combine(atoms):
    """Return conditions, their negations, and pairs of them."""
    pairs = list(zip(atoms[::2], atoms[1::2], strict=True))
    return [
        *atoms,
        *(f"NOT ({atom})" for atom in atoms),
        *(f"({first}) OR ({second})" for first, second in pairs),
        *(f"({first}) AND ({second})" for first, second in pairs),
        *(f"NOT (({first}) AND NOT ({second}))" for first, second in pairs),
        *(f"NOT (({first}) OR ({second}))" for first, second in pairs),
    ]


def make_files(rows, config, *, stats_columns):
    """Return the rows of each partition with the marker that a writer gives them."""
    groups = {}
    for row in rows:
        if any(row[field.column] is None for field in config.partition):
            continue
        path = "/".join(
            f"{f.name}={encode_partition_value(transform_value(f, row[f.column]))}" for f in config.partition
        )
        groups.setdefault(path, []).append(row)
    for path, members in groups.items():
        table = pa.Table.from_pylist(members, pa.schema([(name, ARROW_TYPES[kind]) for name, kind in TYPES.items()]))
        stats = StatsCollector(stats_columns)
        stats.add(table)
        key = f"wh/events/_data/{path + '/' if path else ''}a.parquet"
        yield table, FileMarker(key, 1, 1, row_count=len(members), stats=stats.finish())


@pytest.fixture(scope="module")
def engine():
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        yield connection


@pytest.fixture
def in_utc(engine):
    engine.execute("SET TimeZone = 'UTC'")


@settings(max_examples=25, deadline=None, suppress_health_check=SHARED_FIXTURES)
@given(
    rows=ROWS, atoms=CONDITIONS, spec=st.sampled_from(PARTITIONS), knows_types=st.booleans(), has_stats=st.booleans()
)
def test_no_file_with_such_a_row_is_dropped(engine, in_utc, rows, atoms, spec, knows_types, has_stats):
    fields = tuple(PartitionField.parse(text) for text in spec)
    needed = {field.column for field in fields}
    declared = {name: kind for name, kind in TYPES.items() if knows_types or name in needed}
    config = TableConfig.model_construct(name="events", partition=fields, sort=(), declared=declared)
    conditions = combine(atoms)
    pruners = [FilePruner(condition, config) for condition in conditions]
    counts = ", ".join(f"count(*) FILTER (WHERE {condition})" for condition in conditions)
    for table, marker in make_files(rows, config, stats_columns=sorted(TYPES) if has_stats else ()):
        engine.register("arrow", table)
        engine.execute("CREATE OR REPLACE TEMP TABLE rows AS SELECT * FROM arrow")
        found = engine.execute(f"SELECT {counts} FROM rows").fetchone()
        for condition, pruner, count in zip(conditions, pruners, found, strict=True):
            assert not count or pruner.may_be_true(marker), (condition, marker)


# The message of a failure names the one condition and the file: there is nothing to shrink.
@settings(max_examples=15, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(
    rows=ROWS,
    atoms=DUCKDB_CONDITIONS,
    spec=st.sampled_from(PARTITIONS),
    zone=st.sampled_from(["UTC", "America/New_York", "Asia/Kolkata"]),
)
def test_what_duckdb_finds_is_in_no_file_that_was_left_out(engine, rows, atoms, spec, zone):
    config = TableConfig.model_construct(
        name="events", partition=tuple(PartitionField.parse(text) for text in spec), sort=(), declared=TYPES
    )
    conditions = combine(atoms)
    for condition in atoms:
        check_condition(condition, TYPES, table="events")
    pruners = [FilePruner(condition, config, schema=TYPES) for condition in conditions]
    engine.execute(f"SET TimeZone = '{zone}'")
    for table, marker in make_files(rows, config, stats_columns=sorted(TYPES)):
        engine.register("arrow", table)
        engine.execute("CREATE OR REPLACE TEMP TABLE rows AS SELECT * FROM arrow")
        for condition, count in zip(conditions, count_rows(engine, conditions), strict=True):
            pruner = pruners[conditions.index(condition)]
            assert not count or pruner.may_be_true(marker), (condition, zone, marker)


@pytest.mark.parametrize(
    ("column", "zone"),
    [*((column, "UTC") for column in sorted(POOL)), *((column, "America/New_York") for column in ("day", "ts"))],
)
def test_no_spelling_of_duckdb_loses_a_file_of_one_value(engine, column, zone):
    config = TableConfig.model_construct(name="events", partition=(), sort=(), declared=TYPES)
    atoms = DUCKDB_ATOMS[column]
    conditions = [*atoms, *(f"NOT ({atom})" for atom in atoms), *(f"({atom}) IS NOT TRUE" for atom in atoms)]
    pruners = [FilePruner(condition, config, schema=TYPES) for condition in conditions]
    engine.execute(f"SET TimeZone = '{zone}'")
    for value in [*POOL[column], None, *NEAR.get(column, ())]:
        row = {**dict.fromkeys(TYPES), column: value}
        for table, marker in make_files([row], config, stats_columns=sorted(TYPES)):
            engine.register("arrow", table)
            engine.execute("CREATE OR REPLACE TEMP TABLE rows AS SELECT * FROM arrow")
            for condition, pruner, count in zip(conditions, pruners, count_rows(engine, conditions), strict=True):
                assert not count or pruner.may_be_true(marker), (condition, zone, value)


def count_rows(engine, conditions):
    """Return for how many rows each condition is true; 0 where DuckDB refuses a value, as it does for a reader."""
    counts = ", ".join(f"count(*) FILTER (WHERE {condition})" for condition in conditions)
    try:
        return engine.execute(f"SELECT {counts} FROM rows").fetchone()
    except duckdb.Error:
        if len(conditions) == 1:
            return (0,)
        half = len(conditions) // 2
        return (*count_rows(engine, conditions[:half]), *count_rows(engine, conditions[half:]))


CONFIG = TableConfig.create(
    name="events",
    partition=tuple(PartitionField.parse(text) for text in ("d=day(ts)", "u=bucket[4](user)", "c=country")),
)


def marker(path, row_count=10, **stats):
    return FileMarker(f"wh/events/_data/{path}/f.parquet", 1, 1, row_count=row_count, stats=stats)


@pytest.mark.parametrize(
    ("condition", "kept"),
    [
        ("ts >= '2023-06-02'", [1, 2]),
        ("ts < TIMESTAMP '2023-06-01 23:00:00' OR ts > '2023-06-03'", [0]),
        ("CAST(TS AS DATE) = '2023-06-02'", [1, 2]),
        ("to_date(ts) = DATE '2023-06-02' AND n > 100", [1, 2]),
        ("user = 'ann' AND ts BETWEEN '2023-06-01' AND '2023-06-02 12:00:00'", [0, 1]),
        ("user IN ('zed', 'zoe')", [2]),
        ("NOT (user <= 'm')", [2]),
        ("user LIKE 'an%'", [0, 1]),
        ("user NOT LIKE 'an%'", [1, 2]),
        ("user NOT LIKE 'a_x%'", [0, 1, 2]),
        ("(n IN (700, NULL)) IS NOT FALSE", [0, 1, 2]),
        ("(n NOT IN (700, NULL)) IS NOT TRUE", [0, 1, 2]),
        ("startswith(user, 'z')", [2]),
        ("user IS NULL", [1]),
        ("user IS NOT NULL", [0, 1, 2]),
        ("user <=> 'ann'", [0, 1]),
        ("NOT (user <=> 'ann')", [1, 2]),
        ("user IS DISTINCT FROM 'ann'", [1, 2]),
        ("user IS NOT DISTINCT FROM NULL", [1]),
        ("NOT (user IS DISTINCT FROM NULL)", [1]),
        ("n = 5.5 AND country = 'de'", []),
        ("n > 1 AND n < 5", [0, 1]),
        ("lower(user) = 'ann'", [0, 1, 2]),
        ("n = '5'", [0, 1, 2]),
        ("user = 5", [0, 1, 2]),
        (r"user = '\u0061nn'", [0, 1, 2]),
        ("user = 'it''s'", [0, 1, 2]),
        ("n BETWEEN SYMMETRIC 100 AND 1", [0, 1, 2]),
        ("a.n > 1000", [0, 1, 2]),
        ("user LIKE 'zz%' ESCAPE '/'", [0, 1, 2]),
        ("n >", [0, 1, 2]),
        ("FALSE", []),
        ("NULL", []),
        ("n = NULL OR n IN (NULL, 700)", []),
        (" OR ".join(f"n = {n}" for n in range(1000, 1600)), []),
    ],
)
def test_what_is_kept(condition, kept):
    files = [
        marker("d=2023-06-01/u=0/c=us", user=("ann", "ann", 0), n=(1, 5, 0)),
        marker("d=2023-06-02/u=1/c=us", user=("ann", "bob", 2), n=(1, 500, 0)),
        marker("d=2023-06-02/u=2/c=us", user=("zed", "zoe", 0), n=(50, 500, 0), country=("us", "us", 0)),
    ]
    config = CONFIG.model_copy(update={"partition": (CONFIG.partition[0], CONFIG.partition[2])})
    config = config.model_copy(update={"declared": {**config.declared, "country": "VARCHAR"}})
    assert [files.index(each) for each in FilePruner(condition, config).select(files)] == kept


def test_a_bucket_is_of_use_only_if_the_type_is_known():
    user = transform_value(CONFIG.partition[1], "ann")
    others = [bucket for bucket in "0123" if bucket != user]
    files = [marker(f"d=2023-06-01/u={bucket}/c=us") for bucket in (user, *others)]
    declared = CONFIG.model_copy(update={"declared": {**CONFIG.declared, "user": "VARCHAR"}})
    assert FilePruner("user = 'ann'", declared).select(files) == tuple(files[:1])
    assert FilePruner("user = 'ann'", CONFIG, schema={"user": "VARCHAR"}).select(files) == tuple(files[:1])
    assert FilePruner("user = 'ann'", CONFIG).select(files) == tuple(files)
    assert FilePruner("user <> 'ann'", declared).select(files) == tuple(files)


def test_a_file_whose_path_and_statistics_disagree_is_kept():
    config = TableConfig.create(name="events", partition=(PartitionField.parse("n"),), declared={"n": "BIGINT"})
    assert FilePruner("n = 7", config).may_be_true(marker("n=5", n=(1, 2, 0)))
    assert not FilePruner("n = 7", config).may_be_true(marker("n=5", n=(5, 5, 0)))
    assert FilePruner("n = 7", config).may_be_true(marker("n=__HIVE_DEFAULT_PARTITION__"))


SINGLE = {
    "name": [*POOL["name"], "éa", "abé", "A", "aa", "az"],
    "n": [*POOL["n"], *NEAR["n"], -8, -4, 3, 8],
    "x": [*POOL["x"], *NEAR["x"], -2.0, 1.0, 9007199254740992.0],
    "ts": [*POOL["ts"], *NEAR["ts"], datetime(2024, 2, 29, 23, 59, 59, 999999), datetime(2024, 12, 31, 23), datetime(2023, 2, 28)],
    "day": [*POOL["day"], *NEAR["day"], date(2024, 2, 29), date(2024, 12, 31), date(2023, 2, 28)],
    "flag": POOL["flag"],
    "Other": POOL["Other"],
}  # fmt: skip
LAYOUTS = {
    "name": ["name", "b=bucket[3](name)", "p=truncate[1](name)", "p=truncate[2](name)", "p=truncate[4](name)"],
    "n": ["n", "c=bucket[2](n)", "t=truncate[1](n)", "t=truncate[4](n)"],
    "x": ["z=bucket[2](x)", "z=bucket[5](x)", "z=bucket[7](x)"],
    "ts": ["ts", *(f"{each}(ts)" for each in TIME_TRANSFORMS), "b=bucket[3](ts)"],
    "day": ["day", *(f"{each}(day)" for each in TIME_TRANSFORMS), "b=bucket[3](day)"],
    "flag": ["flag", "b=bucket[2](flag)"],
    "Other": ["o=identity(Other)", "b=bucket[3](Other)"],
}


@pytest.mark.parametrize("column", sorted(SINGLE))
def test_every_condition_on_every_value_of_every_layout(engine, in_utc, column):
    """All of them, where the tests above draw some: 0.0 and -0.0 in a bucket, text of exactly n characters."""
    more = [f"{column} {sign} {text}" for value in SINGLE[column] if value == value and value != float("inf")
            for text in literals(column, value)[:1] for sign in ("=", "<", "<=", ">", ">=", "<>", "IS DISTINCT FROM")]  # fmt: skip
    more = [each for each in more if "inf" not in each]
    if column == "name":
        more += [f"name LIKE {quote_text(each[:2] + '%')}" for each in SINGLE["name"] if "%" not in each]
    atoms = [*dict.fromkeys([*ATOMS[column], *more])]
    conditions = [*atoms, *(f"NOT ({atom})" for atom in atoms), *(f"({atom}) IS NOT TRUE" for atom in atoms)]
    rows = [{**dict.fromkeys(TYPES), column: value} for value in [*SINGLE[column], None]]
    schema = pa.schema([("i", pa.int64()), *((name, ARROW_TYPES[kind]) for name, kind in TYPES.items())])
    engine.register("arrow", pa.Table.from_pylist([{"i": i, **row} for i, row in enumerate(rows)], schema))
    engine.execute("CREATE OR REPLACE TEMP TABLE rows AS SELECT * FROM arrow")
    columns = list(zip(*engine.execute(f"SELECT {', '.join(atoms)} FROM rows ORDER BY i").fetchall(), strict=True))
    values = [*columns, *([None if each is None else not each for each in column] for column in columns)]
    values += [[each is not True for each in column] for column in columns]
    true = [{i for i, each in enumerate(column) if each} for column in values]

    def check(config, numbered, stats_columns):
        pruners = [FilePruner(condition, config, schema=TYPES) for condition in conditions]
        for numbers in numbered:
            for _, found in make_files([rows[i] for i in numbers], config, stats_columns=stats_columns):
                for condition, pruner, holds in zip(conditions, pruners, true, strict=True):
                    assert holds.isdisjoint(numbers) or pruner.may_be_true(found), (condition, found)

    singles = [(i,) for i in range(len(rows))]
    for text in LAYOUTS[column]:
        config = TableConfig.model_construct(
            name="events", partition=(PartitionField.parse(text),), sort=(), declared=TYPES
        )
        check(config, singles[:-1], ())
    config = TableConfig.model_construct(name="events", partition=(), sort=(), declared=TYPES)
    pairs = [*itertools.pairwise(range(len(rows))), *((i, len(rows) - 1 - i) for i in range(len(rows) // 2))]
    check(config, [*singles, *pairs], [column])
