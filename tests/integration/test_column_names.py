"""Columns whose names mean something to an engine: every door gives what was appended, and no name is taken for another.

DuckDB has a column `filename` of its own, Spark `_metadata`, Iceberg `_file` and `_pos`, a table of DuckDB `rowid`,
Hive a value in the path; and helpers of ours have names, too.
"""

import itertools
import re

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from iceberg_engines import connect_duckdb
from icedb import connect
from icedb_client.duck import load_httpfs, select_from
from icedb_log.errors import InvalidRequest
from icedb_log.imports.import_sources import list_sources, parse_pattern
from icedb_log.imports.imports import import_files
from icedb_log.store_settings import StoreSettings
from icedb_log.table.table_config import OF_ARROW
from icedb_log.texts import quote_name, quote_text
from icedb_sim.rigs.access_rig import write_access
from icedb_sim.rigs.gateway_rig import BUCKET, LOOPBACK, start_gateway
from many_conditions import ask_at_once
from pyarrow import fs
from pyiceberg.table import StaticTable

OF_ENGINES = [
    "filename", "file_row_number", "file_index", "rowid", "tableoid", "ctid", "_metadata", "_file", "_pos", "_partition",
    "_deleted", "_spec_id", "_row_id", "_last_updated_sequence_number", "file_path", "pos", "file_name", "row_nr",
    "__index_level_0__", "_path", "_size", "_time", "element", "key", "value", "list", "array", "map",
]  # fmt: skip
OF_SQL = ["select", "from", "user", "current_date", "null", "true", "case", "order", "columns", "row_number", "end"]
OF_OURS = [
    "_rows", "_data", "_log", "_icedb", "icedb_path", "icedb_column", "icedb_arrow", "nothing", "holds", "rows",
    "listed", "low", "high", "name", "nulls", "batch", "no", "line", "batch_id", "source_files", "t", "events",
    "partition.d", "min.n", "row_count", "path", "size_bytes", "created_ms",
]  # fmt: skip
OF_QUOTES = [
    'double"quote', "single'quote", "back`tick", "semi;colon", "--comment", "/*comment*/", "back\\slash", "$1", "?", "*",
    "count(*)", "x y", " lead", "trail ", "a.b", "a,b", "d=1", "a/b", "%3D", "{brace}", "[0]", "ä", "日本", "#", ":", "@",
]  # fmt: skip
OF_PATTERNS = [
    "a+",
    "(x|y)",
    "^s$",
    "[a-z]*",
    ".*",
    "x{2}",
    "%41",
    "a%3Db",
    "100%",
    "%s",
    "%(n)s",
    "{0}",
    "p=1",
    "p=%31",
]
NAMES = [*OF_ENGINES, *OF_SQL, *OF_OURS, *OF_QUOTES, *OF_PATTERNS]
VALUES = ["app.js", "style.css", None, "", "a/b c%", "parquet"]
CONDITIONS = {
    "= 'app.js'": lambda value: value == "app.js",
    "<> 'app.js'": lambda value: value not in (None, "app.js"),
    "LIKE '%parquet'": lambda value: value is not None and value.endswith("parquet"),
    "IS NULL": lambda value: value is None,
}
PATTERN_VALUES = [
    "a=b", "d=1", "=", "%3D", "%253D", "%", "100%", "a/b", "..", ".", "a+b", "a b", ".*", "[ab]", "?", "*", "(a|b)",
    "^a$", "\\d", "line\nfeed", "cr\rlf", "tab\t", "", "null", "NULL", "__HIVE_DEFAULT_PARTITION__", "_", "_3D", "'", '"',
    "ä", "日本", "A", "a",
]  # fmt: skip
KEY = ("READER", "a-secret-of-the-test")


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    with connect(tmp_path_factory.mktemp("names") / "lake") as lake:
        yield lake


def make_rows(names):
    """Return rows in which each column has another value, and each value of `VALUES` once in each column."""
    return [
        {"n": n, **{name: VALUES[(n + place) % len(VALUES)] for place, name in enumerate(names)}}
        for n in range(len(VALUES))
    ]


def fill(table, rows):
    """Append rows in two batches; those of a partitioned table have no NULL where it is partitioned."""
    table.append([row for row in rows if row["n"] % 2])
    table.append([row for row in rows if not row["n"] % 2])
    return table


def expect(rows, name, condition):
    return [row["n"] for row in rows if CONDITIONS[condition](row[name])]


def find_wrong(ask, rows, asked):
    """Return for which of some columns and conditions other rows are found."""
    found = ask([f"{quote_name(name)} {condition}" for name, condition in asked])
    return [each for each, numbers in zip(asked, found, strict=True) if numbers != expect(rows, *each)]


def numbers_of(rows, name):
    return ", ".join(str(row["n"]) for row in rows if row[name] == "app.js")


def import_file(lake, table, path):
    sources = list_sources(
        [parse_pattern(f"file://{path}")], open_store=lambda url: StoreSettings(url).open().store, allowed=["file:///"]
    )
    return import_files(table.open(), lake.engine.importer, sources)


def doors(lake, table):
    """Return every way to ask a table in this process: from conditions to the numbers of rows for each, sorted."""

    def query(wheres):
        return ask_at_once(lambda sql: lake.query(sql), table.name, wheres)

    def view(wheres):
        with duckdb.connect() as con:
            return ask_at_once(con.execute, table.snapshot().duckdb(con), wheres)

    def printed(wheres):
        with duckdb.connect() as con:
            con.execute(f"CREATE VIEW printed AS {select_from(table.snapshot())}")
            return ask_at_once(con.execute, "printed", wheres)

    def arrow(wheres):
        return [sorted(table.snapshot(where=each).to_arrow(columns=["n"])["n"].to_pylist()) for each in wheres]

    def polars(wheres):
        return [sorted(table.snapshot(where=each).to_polars(columns=["n"])["n"].to_list()) for each in wheres]

    def pandas(wheres):
        return [sorted(table.snapshot(where=each).to_pandas(columns=["n"])["n"]) for each in wheres]

    return {"query": query, "view": view, "printed": printed, "arrow": arrow, "polars": polars, "pandas": pandas}


@pytest.fixture(scope="module", params=["all", "upper"])
def named(request, lake):
    """A table with columns of all these names; and one with the names in capitals."""
    names = NAMES if request.param == "all" else [name.upper() for name in OF_ENGINES]
    rows = make_rows(names)
    table = lake.create_table(f"named_{request.param}", columns={"n": "BIGINT", **dict.fromkeys(names, "VARCHAR")})
    return fill(table, rows), rows, names


@pytest.mark.parametrize("door", ["query", "view", "printed", "arrow", "polars", "pandas"])
def test_conditions_are_about_the_column_of_that_name(lake, named, door):
    table, rows, names = named
    ways = doors(lake, table)
    place = list(ways).index(door)
    # Each name has another condition at each door; and a query of its own at one of those that ask a snapshot.
    conditions = itertools.islice(itertools.cycle(CONDITIONS), place, place + len(names))
    asked = list(zip(names, conditions, strict=True))
    of_snapshots = {"arrow": asked[::2], "polars": asked[1::4], "pandas": asked[3::4]}
    assert not find_wrong(ways[door], rows, of_snapshots.get(door, asked))


def test_every_reader_gives_the_values_that_were_appended(lake, named):
    table, rows, names = named
    readers = {
        "arrow": table.snapshot().to_arrow().to_pylist(),
        "columns": table.snapshot().to_arrow(columns=["n", *reversed(names)]).to_pylist(),
        "query": lake.query(f"FROM {table.name}").to_arrow_table().to_pylist(),
        "files": ds.dataset(table.snapshot().files.uris).to_table().to_pylist(),
        "polars files": pl.scan_parquet(table.snapshot().files.uris, hive_partitioning=False).collect().to_dicts(),
    }
    for reader, found in readers.items():
        assert sorted(found, key=lambda row: row["n"]) == rows, reader
    described = {column.name: column.distinct_count for column in table.describe().columns}
    assert described == {"n": 6, **dict.fromkeys(names, 5)}


def test_rows_are_deleted_by_the_column_of_that_name(lake, named):
    table, rows, names = named
    # By one condition on all of them, which is true of each row only if each name is that of its column.
    mine = (f"({quote_name(name)} IS NOT DISTINCT FROM 'app.js') = (n IN ({numbers_of(rows, name)}))" for name in names)
    assert table.delete(" AND ".join(mine), dry_run=True).rows_removed == len(rows)
    copy = fill(lake.create_table(f"{table.name}_changed"), rows)
    for name in names[:: max(1, len(names) // 6)]:
        copy.delete(f"{quote_name(name)} = 'app.js'")
        rows = [row for row in rows if row[name] != "app.js"]
    assert sorted(copy.snapshot().to_arrow().to_pylist(), key=lambda row: row["n"]) == rows


@pytest.mark.parametrize("name", ["filename", "rowid", "file_row_number", "_rows", "select", 'double"quote', "d=1"])
@pytest.mark.parametrize("kind", ["partition", "bucket", "sort"])
def test_tables_that_are_laid_out_by_such_a_column(lake, name, kind):
    rows = [row for row in make_rows([name]) if row[name] is not None]
    field = name if name.isidentifier() else f"p=identity({name})"
    layout = {
        "partition": {"partition": [field]},
        "bucket": {"partition": [f"b=bucket[4]({name})"]},
        "sort": {"sort": [name]},
    }[kind]
    place = f"{kind}_{''.join(filter(str.isalpha, name.lower()))}"
    table = fill(lake.create_table(place, columns={"n": "BIGINT", name: "VARCHAR"}, **layout), rows)
    for place in range(2):
        # Half of the doors before the merge, the others after it; for the next name the other way round.
        for door, ask in list(doors(lake, table).items())[(place + len(name)) % 2 :: 2]:
            conditions = list(CONDITIONS)[:1] if door in ("polars", "pandas") else CONDITIONS
            assert not find_wrong(ask, rows, [(name, each) for each in conditions]), door
        table.merge()
    table.delete(f"{quote_name(name)} LIKE '%parquet'")
    assert sorted(row["n"] for row in table.snapshot().to_arrow().to_pylist()) == [
        row["n"] for row in rows if row[name] != "parquet"
    ]


@pytest.mark.parametrize(
    "name", ["filename", "rowid", "file_row_number", "file_index", "_rows", "icedb_path", "select"]
)
def test_partition_fields_that_are_called_so(lake, name):
    table = lake.create_table(f"field_{name.strip('_')}", columns={"n": "BIGINT"}, partition=[f"{name}=bucket[4](n)"])
    table.append([{"n": n} for n in range(12)])
    values = {row["n"]: row[name] for row in table.snapshot().to_arrow(columns=["n", name]).to_pylist()}
    assert set(values.values()) <= set("0123")
    assert len(set(values.values())) > 1
    for value in set(values.values()):
        found = lake.query(f"SELECT n FROM {table.name} WHERE {quote_name(name)} = '{value}'").fetchall()
        assert sorted(n for (n,) in found) == [n for n in values if values[n] == value]
    with pytest.raises(InvalidRequest, match="column"):
        table.snapshot(where=f"{quote_name(name)} = '1'").to_arrow()


@pytest.mark.parametrize("name", ["rowid", "filename", "file_row_number", "file_index", "tableoid"])
def test_a_name_that_no_column_has_is_no_column(lake, name):
    """A table of DuckDB has a `rowid`: which row has which depends on chance."""
    table = lake.create_table(f"without_{name}", columns={"n": "BIGINT"})
    table.append([{"n": n} for n in range(3)])
    with pytest.raises(InvalidRequest, match=name):
        lake.query(f"SELECT {name} FROM {table.name}")
    with pytest.raises(InvalidRequest, match=name):
        table.snapshot(where=f"{name} = 1")
    with pytest.raises(InvalidRequest, match=name):
        table.delete(f"{name} = 1")
    with pytest.raises(InvalidRequest, match=name):
        table.rewrite(f"SELECT n FROM _rows WHERE {name} = 1")


@pytest.mark.parametrize("name", sorted(OF_ARROW))
def test_columns_with_which_arrow_reads_no_file_are_refused(lake, name):
    table = lake.create_table(f"of_{name.strip('_')}", columns={"n": "BIGINT"})
    with pytest.raises(InvalidRequest, match="Arrow reads no file"):
        table.append([{"n": 1, name: "x"}])
    with pytest.raises(InvalidRequest, match="Arrow reads no file"):
        lake.create_table(f"declares_{name.strip('_')}", columns={name: "VARCHAR"})


def test_engines_that_read_what_is_published(named):
    table, rows, names = named
    uri = table.publish()
    scan = StaticTable.from_metadata(uri).scan()
    assert sorted(scan.to_arrow().to_pylist(), key=lambda row: row["n"]) == rows
    with connect_duckdb() as con:
        source = f"iceberg_scan('{uri.removeprefix('file://')}')"
        found = con.execute(f"SELECT * FROM {source} ORDER BY n").to_arrow_table().to_pylist()
        assert found == rows
        asked = list(zip(names, itertools.cycle(CONDITIONS)))
        assert not find_wrong(lambda wheres: ask_at_once(con.execute, source, wheres), rows, asked)


def test_the_recipes_through_the_gateway(lake, named, tmp_path):
    table, rows, names = named
    access = {
        "identities": {"reader": {"access_keys": [{"id": KEY[0], "secret": KEY[1]}]}},
        "grants": [{"identities": ["reader"], "tables": ["*"], "verbs": ["read"]}],
    }
    file = write_access(tmp_path / "access.json", access)
    rig = start_gateway(lake.warehouse, access_file=str(file), gateway_staleness_ms=0)
    try:
        endpoint = f"{LOOPBACK}:{rig.gateway.port}"
        source = (
            f"read_parquet('s3://{BUCKET}/{table.name}/**/*.parquet', hive_partitioning = false, union_by_name = true)"
        )
        with duckdb.connect() as con:
            load_httpfs(con)
            con.execute(
                f"CREATE SECRET (TYPE s3, KEY_ID '{KEY[0]}', SECRET '{KEY[1]}', ENDPOINT '{endpoint}', URL_STYLE 'path', "
                "USE_SSL false, REGION 'us-east-1')"
            )
            assert con.execute(f"SELECT * FROM {source} ORDER BY n").to_arrow_table().to_pylist() == rows
            for name in ("filename" if "filename" in names else "FILENAME", names[-1]):
                for condition in CONDITIONS:
                    found = con.execute(
                        f"SELECT n FROM {source} WHERE {quote_name(name)} {condition} ORDER BY n"
                    ).fetchall()
                    assert [n for (n,) in found] == expect(rows, name, condition)
        s3 = fs.S3FileSystem(
            access_key=KEY[0], secret_key=KEY[1], scheme="http", endpoint_override=endpoint, region="us-east-1"
        )
        found = ds.dataset(f"{BUCKET}/{table.name}", filesystem=s3, format="parquet").to_table().to_pylist()
        assert sorted(found, key=lambda row: row["n"]) == rows
        options = {
            "aws_access_key_id": KEY[0], "aws_secret_access_key": KEY[1], "aws_endpoint_url": rig.url,
            "aws_region": "us-east-1", "aws_allow_http": "true",
        }  # fmt: skip
        frame = pl.scan_parquet(
            f"s3://{BUCKET}/{table.name}/**/*.parquet", hive_partitioning=False, storage_options=options
        )
        assert frame.sort("n").collect().to_dicts() == rows
    finally:
        rig.gateway.stop()


@pytest.mark.parametrize(("first", "second"), [("Foo", "foo"), ("filename", "FILENAME"), ("É", "é"), ("a+", "A+")])
def test_names_that_differ_in_case_only_are_refused_by_each_door(lake, tmp_path, first, second):
    words = f"columns '{first}' and '{second}' differ only in case"
    with pytest.raises(InvalidRequest, match=re.escape(words)):
        lake.create_table("case_declared", columns={first: "VARCHAR", second: "VARCHAR"})
    table = lake.create_table(f"case_{len(lake.tables())}")
    with pytest.raises(InvalidRequest, match=re.escape(words)):
        table.append([{first: "x", second: "y"}])
    table.append([{first: "x"}])
    for rows in ([{second: "y"}], pa.table({second: ["y"]})):
        with pytest.raises(InvalidRequest, match=re.escape(words)):
            table.append(rows)
    pq.write_table(pa.table({second: ["y"]}), tmp_path / "other.parquet")
    (refused,) = import_file(lake, table, tmp_path / "other.parquet").refused
    assert words in refused.reason
    with pytest.raises(InvalidRequest, match="case does not count"):
        table.rewrite(f"SELECT *, 'y' AS {quote_name(second)} FROM _rows")
    for name in (first, second) if first.isascii() else (first,):  # to DuckDB only ASCII has case
        assert lake.query(f"SELECT {quote_name(name)} FROM {table.name}").fetchall() == [("x",)]
    assert table.snapshot().to_arrow().to_pylist() == [{first: "x"}]


@pytest.mark.parametrize("name", ["line\nfeed", "cr\r", "tab\t", "nul\0", "\x7f", "\u2028", "a\u200b", "n" * 256, ""])
def test_names_that_nobody_can_print_are_refused_by_each_door(lake, name):
    with pytest.raises(InvalidRequest, match="printable characters"):
        lake.create_table("unprintable", columns={name: "VARCHAR"})
    table = lake.create_table(f"unprintable_{len(lake.tables())}", columns={"n": "BIGINT"})
    rows = pa.table({"n": [1], name: ["x"]})
    for given in (rows.to_pylist(), rows, rows.to_batches()[0]):
        with pytest.raises(InvalidRequest, match="printable characters"):
            table.append(given)
    with pytest.raises(InvalidRequest, match=r"printable characters|column has a NUL"):
        table.append(pl.DataFrame({"n": [1], name: ["x"]}))
    table.append([{"n": 1}])
    if name:  # SQL itself knows no empty name
        with pytest.raises(InvalidRequest, match=r"printable characters|has a NUL"):
            table.rewrite(f"SELECT n, 'x' AS {quote_name(name)} FROM _rows")
    assert table.snapshot().to_arrow().to_pylist() == [{"n": 1}]


@pytest.mark.parametrize("name", ["filename", "file_row_number", "rowid", "tableoid", "select", "a+", "%41", "d=1"])
def test_rows_are_rewritten_by_the_column_of_that_name(lake, name):
    rows = make_rows([name])
    column = quote_name(name)
    table = fill(lake.create_table(f"rewritten_{len(lake.tables())}"), rows)
    table.rewrite(f"SELECT * REPLACE (upper({column}) AS {column}) FROM _rows WHERE {column} <> 'parquet'")
    kept = [{**row, name: row[name].upper()} for row in rows if row[name] not in (None, "parquet")]
    assert sorted(table.snapshot().to_arrow().to_pylist(), key=lambda row: row["n"]) == kept
    table.rewrite(f"SELECT n, {column} FROM _rows ORDER BY {column}")
    found = lake.query(f"SELECT n, {column} FROM {table.name} ORDER BY n").fetchall()
    assert found == [(row["n"], row[name]) for row in kept]


@pytest.mark.parametrize("name", ["v", "filename", "a+", "%41"])
def test_partition_values_with_what_means_something_in_a_path_or_a_pattern(lake, name):
    """Each is in a folder of its own, is found by every door, and goes alone."""
    rows = [{"n": n, name: value} for n, value in enumerate(PATTERN_VALUES)]
    field = name if name.isidentifier() else f"p=identity({name})"
    table = lake.create_table(
        f"values_{len(lake.tables())}", columns={"n": "BIGINT", name: "VARCHAR"}, partition=[field]
    )
    table.append(rows)
    assert len(table.snapshot().files) == len(PATTERN_VALUES)
    column = quote_name(name)
    ways = doors(lake, table)
    for door in ("query", "printed", "arrow"):
        found = ways[door]([f"{column} = {quote_text(value)}" for value in PATTERN_VALUES])
        assert found == [[n] for n in range(len(PATTERN_VALUES))], door
    assert sorted(table.snapshot().to_arrow().to_pylist(), key=lambda row: row["n"]) == rows
    gone = [value for value in PATTERN_VALUES if not value.isalnum()]
    for value in gone[:4]:
        table.delete(f"{column} = {quote_text(value)}")
    table.merge(full=True)
    left = [row for row in rows if row[name] not in gone[:4]]
    assert sorted(table.snapshot().to_arrow().to_pylist(), key=lambda row: row["n"]) == left
