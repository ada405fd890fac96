"""Pruning by a condition never drops a file that holds a row for which it is true, and drops those that it should."""

from datetime import date, datetime, timedelta

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from icedb_log.model import FileMarker
from icedb_log.partition_path import encode_partition_value
from icedb_log.table_config import PartitionField, TableConfig
from icedb_parts.arrow_types import ARROW_TYPES
from icedb_parts.query.file_pruning import FilePruner
from icedb_parts.reading.transforms import transform_value
from icedb_parts.sql import quote_text
from icedb_parts.writing.column_stats import StatsCollector

TYPES = {
    "ts": "TIMESTAMP", "day": "DATE", "name": "VARCHAR", "n": "BIGINT", "x": "DOUBLE", "flag": "BOOLEAN", "Other": "VARCHAR",
}  # fmt: skip
LONG = "é" * 63
VALUES = {
    "ts": st.builds(lambda hours: datetime(2023, 12, 30) + timedelta(hours=hours), st.integers(0, 96)),
    "day": st.builds(lambda days: date(2023, 12, 30) + timedelta(days=days), st.integers(0, 40)),
    "name": st.sampled_from(
        ["", "a", "ab", "abc", "b", "ba", "Z", LONG, LONG + "xy", LONG + "\U0010ffff\U0010ffff", "%"]
    ),
    "n": st.sampled_from([-7, -1, 0, 1, 2, 5, 9, 2**53 + 1, -(2**62)]),
    "x": st.sampled_from([-1.5, -0.0, 0.0, 0.1, 2.0, 1e300, float("nan"), float("inf")]),
    "flag": st.booleans(),
    "Other": st.sampled_from(["a", "2023-01-01", "2023-01-01T00:00:00.000000Z"]),
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
    ("z=bucket[2](x)",),
]


def literal(column, value):
    if column in ("ts", "day"):
        return [f"{'TIMESTAMP' if column == 'ts' else 'DATE'} {quote_text(str(value))}", quote_text(str(value))]
    if isinstance(value, bool):
        return [str(value)]
    if isinstance(value, str):
        return [quote_text(value)]
    return ["(1e400 - 1e400)" if value != value else repr(value) if abs(value) < 1e300 else "1e300"]


@st.composite
def atoms(draw):
    column = draw(st.sampled_from(sorted(TYPES)))
    values = [draw(VALUES[column]) for _ in range(3)]
    texts = [draw(st.sampled_from(literal(column, value))) for value in values]
    name = draw(st.sampled_from([column, column.upper(), column.lower()]))
    if column == "ts" and draw(st.booleans()):
        name, texts = f"CAST({name} AS DATE)", [f"DATE '{value:%Y-%m-%d}'" for value in values]
    forms = [f"{name} {draw(st.sampled_from(['=', '<', '<=', '>', '>=', '<>', '!=']))} {texts[0]}"]
    forms.append(f"{texts[0]} {draw(st.sampled_from(['=', '<', '<=', '>', '>=']))} {name}")
    forms.append(f"{name} {draw(st.sampled_from(['', 'NOT']))} BETWEEN {texts[0]} AND {texts[1]}")
    forms.append(f"{name} {draw(st.sampled_from(['', 'NOT']))} IN ({', '.join(texts)})")
    forms.append(f"{name} {draw(st.sampled_from(['', 'NOT']))} IN ({texts[0]}, NULL)")
    forms.append(f"{name} IS {draw(st.sampled_from(['', 'NOT']))} NULL")
    forms.append(
        f"{name} IS {draw(st.sampled_from(['', 'NOT']))} DISTINCT FROM {draw(st.sampled_from([texts[0], 'NULL']))}"
    )
    forms.append(
        f"({name} = {texts[0]}) IS {draw(st.sampled_from(['', 'NOT']))} {draw(st.sampled_from(['TRUE', 'FALSE']))}"
    )
    if column == "name":
        pattern = draw(st.sampled_from(["a%", "ab", "%", "a_c%", "b%a", "_", LONG + "%", "Z%%"]))
        forms.append(f"{name} {draw(st.sampled_from(['', 'NOT']))} LIKE '{pattern}'")
        forms.append(f"length({name}) > 1")
    if column == "flag":
        forms += [name, f"NOT {name}"]
    return draw(st.sampled_from(forms))


CONDITIONS = st.recursive(
    atoms(),
    lambda inner: st.one_of(
        st.builds("({} AND {})".format, inner, inner),
        st.builds("({} OR {})".format, inner, inner),
        st.builds("NOT ({})".format, inner),
    ),
    max_leaves=4,
)
ROWS = st.lists(
    st.fixed_dictionaries({column: st.one_of(st.none(), values) for column, values in VALUES.items()}),
    min_size=1,
    max_size=5,
)


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


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=ROWS, condition=CONDITIONS, spec=st.sampled_from(PARTITIONS), knows_types=st.booleans(), data=st.data())
def test_no_file_with_such_a_row_is_dropped(engine, rows, condition, spec, knows_types, data):
    fields = tuple(PartitionField.parse(text) for text in spec)
    needed = {field.column for field in fields}
    declared = {name: kind for name, kind in TYPES.items() if knows_types or name in needed}
    config = TableConfig.model_construct(name="events", partition=fields, sort=(), declared=declared)
    stats_columns = data.draw(st.sets(st.sampled_from(sorted(TYPES))))
    pruner = FilePruner(condition, config)
    for table, marker in make_files(rows, config, stats_columns=sorted(stats_columns)):
        engine.register("arrow", table)
        engine.execute("CREATE OR REPLACE TEMP TABLE rows AS SELECT * FROM arrow")
        hit = engine.execute(f"SELECT count(*) FROM rows WHERE {condition}").fetchone()[0]
        assert not hit or pruner.may_be_true(marker), (condition, marker)


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
        ("date(TS) = '2023-06-02'", [1, 2]),
        ("to_date(ts) = DATE '2023-06-02' AND n > 100", [1, 2]),
        ("user = 'ann' AND ts BETWEEN '2023-06-01' AND '2023-06-02 12:00:00'", [0, 1]),
        ("user IN ('zed', 'zoe')", [2]),
        ("NOT (user <= 'm')", [2]),
        ("user LIKE 'an%'", [0, 1]),
        ("user NOT LIKE 'an%'", [1, 2]),
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
        (" OR ".join(f"n = {n}" for n in range(1000, 5000)), []),
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
