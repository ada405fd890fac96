"""SQL of callers in DuckDB (conditions), and the engines that tasks run in: neither opens a file, an address or a setting."""

import duckdb
import pytest
from icedb_engine.engine import open_engine, open_scratch
from icedb_engine.limits import EngineLimits
from icedb_engine.sql import CLOSED, quote_name, quote_text
from icedb_engine.sql.checks import check_reader_condition
from icedb_log.errors import InvalidRequest
from icedb_log.table.conditions import check_condition
from icedb_log.units import MIB

SCHEMA = {"a": "VARCHAR", "n": "BIGINT"}
REACHES = [
    "SELECT * FROM read_csv('FILE')",
    "SELECT * FROM read_text('FILE')",
    "SELECT * FROM read_blob('FILE')",
    "SELECT * FROM read_json('FILE')",
    "SELECT * FROM read_parquet('FILE')",
    "SELECT * FROM 'FILE'",
    "SELECT * FROM glob('/etc/*')",
    "SELECT * FROM sniff_csv('FILE')",
    "SELECT * FROM query('SELECT * FROM read_csv(''FILE'')')",
    "SELECT * FROM query_table('FILE')",
    "SELECT * FROM read_csv('http://127.0.0.1:1/x')",
    "SELECT * FROM parquet_metadata('FILE')",
    "COPY (SELECT 1) TO 'FILE.out'",
    "COPY (SELECT 1) TO '/dev/stdout'",
    "EXPORT DATABASE 'FILE.dir'",
    "IMPORT DATABASE 'FILE.dir'",
    "ATTACH 'FILE.db'",
    "ATTACH 'http://127.0.0.1:1/x' (READ_ONLY)",
    "INSTALL httpfs",
    "LOAD httpfs",
    "LOAD 'FILE'",
    "SET enable_external_access = true",
    "SET GLOBAL allowed_directories = ['/']",
    "SET memory_limit = '100GB'",
    "SET threads = 64",
    "SET lock_configuration = false",
    "SET temp_directory = '/'",
    "RESET memory_limit",
    "PRAGMA memory_limit = '100GB'",
    "SET custom_extension_repository = 'http://127.0.0.1:1'",
]


@pytest.fixture
def engine(tmp_path):
    limits = EngineLimits(
        memory_bytes=64 * MIB, scratch_bytes=64 * MIB, thread_count=1, scratch_folder=str(tmp_path / "s")
    )
    with open_scratch(limits) as scratch, open_engine(limits, scratch) as connection:
        yield connection


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "secret.csv"
    path.write_text("hidden\n")
    return path


@pytest.mark.parametrize("statement", REACHES)
@pytest.mark.parametrize("kind", ["task", "closed"])
def test_an_engine_opens_nothing(engine, secret, kind, statement):
    connection = engine if kind == "task" else duckdb.connect(config={"threads": 1, **CLOSED})
    with pytest.raises(duckdb.Error):
        connection.execute(statement.replace("FILE", str(secret))).fetchall()
    assert [path.name for path in secret.parent.iterdir() if path.name.startswith("secret")] == ["secret.csv"]


def test_an_engine_says_what_it_is_bound_to(engine):
    names = ("enable_external_access", "lock_configuration", "threads", "autoload_known_extensions")
    found = [engine.execute(f"SELECT current_setting('{name}')").fetchone()[0] for name in names]
    assert found == [False, True, 1, False]
    assert engine.execute("SELECT current_setting('memory_limit')").fetchone() == ("64.0 MiB",)


@pytest.mark.parametrize(
    "condition",
    [
        "a IN (SELECT content FROM read_text('/etc/passwd'))",
        "EXISTS (FROM '/etc/passwd')",
        "a = (FROM read_csv('/etc/passwd'))",
        "n > 0; COPY (SELECT 1) TO '/tmp/x'",
        "n > 0) UNION ALL SELECT * FROM read_csv('/etc/passwd') --",
        "a = getenv('HOME')",
        "a = $1",
        "a = ?",
        "COLUMNS(*) = 1",
        "n > (SELECT count(*) FROM range(1000000000000))",
        "count(*) > 0",
        "row_number() OVER () = 1",
        "a = current_setting('memory_limit')",
        "a IN (SELECT value FROM duckdb_settings())",
        "a IN (FROM duckdb_secrets())",
        "a IN (FROM sql_auto_complete('SEL'))",
        "n = nextval('x')",
        "b = 1",
    ],
)
def test_a_condition_is_about_its_row(condition):
    with pytest.raises(InvalidRequest):
        check_reader_condition(condition, SCHEMA, table="events")


def test_conditions_take_no_time_to_refuse():
    for condition in (
        "array[" * 40 + "1" + "]" * 40 + " = 1",
        "(" * 20_000 + "n" + ")" * 20_000 + " = 1",
    ):
        with pytest.raises(InvalidRequest):
            check_condition(condition, SCHEMA, table="events")


@pytest.mark.parametrize("text", ["'", '"', "a'b", 'a"b', "\\", "'; DROP TABLE x --", "\0", "é\u202e", "$$", "E'\\''"])
def test_names_and_texts_are_quoted_whatever_they_hold(text):
    with duckdb.connect(config={"threads": 1, **CLOSED}) as connection:
        if "\0" not in text:
            found = connection.execute(f"SELECT {quote_text(text)} AS {quote_name(text)}")
            assert [column[0] for column in found.description] == [text]
            assert found.fetchall() == [(text,)]
