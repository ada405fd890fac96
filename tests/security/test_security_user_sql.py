"""SQL that table admins write: it sees its rows, opens nothing, and ends within its limits; the process really goes."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from icedb_engine.limits import MIB, EngineLimits
from icedb_engine.sql import process as process_module
from icedb_engine.sql.process import QueryProblem, QueryTooLarge, SqlProcess
from icedb_log.errors import Unavailable
from waiting import LIMIT_S, wait_until

SCHEMA = {"a": "VARCHAR", "n": "BIGINT"}
ROWS = pa.record_batch([pa.array(["x", None]), pa.array([1, 2])], ["a", "n"])
LIMITS = EngineLimits(memory_bytes=128 * MIB, scratch_bytes=64 * MIB, thread_count=1, query_ms=1000 * LIMIT_S)
HASTY = replace(LIMITS, query_ms=1000)
"""For what never ends. On a busy machine anything may take longer."""


@pytest.fixture(scope="module")
def process():
    with SqlProcess(LIMITS) as process:
        yield process


@pytest.fixture(scope="module")
def hasty():
    with pytest.MonkeyPatch.context() as patch, SqlProcess(HASTY) as process:
        patch.setattr(process_module, "KILL_AFTER_MS", 300)  # what does not end by itself is not waited for as long
        yield process


def wait_until_it_answers(process):
    def answers():
        try:
            return run(process, "SELECT n FROM _rows") == [{"n": 1}, {"n": 2}]
        except QueryProblem:
            return False

    wait_until(answers, "a query within its time")


@pytest.fixture(scope="module")
def secret(tmp_path_factory):
    path = tmp_path_factory.mktemp("secret") / "secret.csv"
    path.write_text("hidden\n1\n")
    return path


def run(process, query, *, checked=True):
    """Return the rows of a query over ROWS."""
    if checked:
        process.check(query, SCHEMA, relation="_rows", kind="query")
    assert process.load("_rows", SCHEMA, [ROWS]) == 2
    return [row for batch in process.select(query, ["*"], relation="_rows") for row in batch.to_pylist()]


REACHES = [
    "SELECT * FROM _rows, 'FILE'",
    'SELECT * FROM _rows, "FILE"',
    "SELECT * FROM _rows, read_csv('FILE')",
    "SELECT * FROM _rows, read_text('FILE')",
    "SELECT * FROM _rows, read_blob('FILE')",
    "SELECT * FROM _rows, read_json('FILE')",
    "SELECT * FROM _rows, read_parquet('FILE')",
    "SELECT * FROM _rows, parquet_metadata('FILE')",
    "SELECT * FROM _rows, sniff_csv('FILE')",
    "SELECT * FROM _rows, glob('/etc/*')",
    "SELECT * FROM _rows, read_csv('http://127.0.0.1:1/x')",
    "SELECT * FROM _rows, query('SELECT * FROM read_csv(''FILE'')')",
    "SELECT * FROM _rows, query_table('FILE')",
    "SELECT * FROM _rows, json_execute_serialized_sql('{}')",
    "SELECT (SELECT max(content) FROM read_text('FILE')) AS b FROM _rows",
    "SELECT a FROM _rows WHERE a IN (SELECT content FROM read_text('FILE'))",
    "WITH c AS (SELECT * FROM 'FILE') SELECT * FROM c, _rows",
    "SELECT * FROM _rows, LATERAL (SELECT * FROM read_text(a))",
    "SELECT * FROM _rows PIVOT (max(n) FOR a IN (SELECT content FROM read_text('FILE')))",
    "SELECT * FROM _rows UNION ALL FROM 'FILE'",
    "SELECT * FROM _rows, duckdb_settings()",
    "SELECT * FROM _rows, duckdb_secrets()",
    "SELECT * FROM _rows, duckdb_extensions()",
    "SELECT * FROM _rows, duckdb_settings",
    "WITH duckdb_tables AS (SELECT 1) SELECT * FROM _rows, duckdb_tables",
    "SELECT * FROM _rows, information_schema.tables",
    "SELECT * FROM _rows, pg_catalog.pg_settings",
    "SELECT * FROM _rows, sqlite_master",
    "SELECT * FROM _rows, pragma_database_size()",
    "SELECT * FROM _rows, pragma_table_info('_rows')",
    "SELECT * FROM _rows, sql_auto_complete('SEL')",
    "SELECT * FROM _rows, arrow_scan_dumb(1, 2, 3)",
    "SELECT * FROM _rows, pandas_scan(1)",
    "SELECT * FROM _rows, python_map_function(1)",
    "SELECT * FROM (DESCRIBE _rows)",
    "SELECT * FROM (SHOW ALL TABLES), _rows",
    "SELECT * FROM _rows, memory.main.x",
    "SELECT * FROM _rows, icedb_arrow",
    "SELECT getenv('HOME') AS b FROM _rows",
    "SELECT current_setting('memory_limit') AS b FROM _rows",
    "SELECT main.current_setting('memory_limit') AS b FROM _rows",
    "SELECT getvariable('x') AS b FROM _rows",
    "SELECT current_user AS b FROM _rows",
    "SELECT 'memory_limit'.current_setting() AS b FROM _rows",
    "SELECT list_transform(['memory_limit'], x -> current_setting(x)) AS b FROM _rows",
    "SELECT pg_sleep(1) AS b FROM _rows",
    "SELECT sleep_ms(1) AS b FROM _rows",
    "SELECT write_log('x') AS b FROM _rows",
    "SELECT nextval('x') AS b FROM _rows",
    "SELECT $1 AS b FROM _rows",
    "SELECT ? AS b FROM _rows",
    "COPY (SELECT 1) TO 'FILE.out'",
    "COPY _rows TO '/dev/stdout'",
    "COPY _rows FROM 'FILE'",
    "EXPORT DATABASE 'FILE.dir'",
    "ATTACH 'FILE.db'",
    "INSTALL httpfs",
    "LOAD 'FILE'",
    "SET enable_external_access = true",
    "SET memory_limit = '100GB'",
    "RESET memory_limit",
    "PRAGMA memory_limit = '100GB'",
    "PRAGMA database_list",
    "CALL pragma_version()",
    "CREATE TABLE x AS SELECT * FROM _rows",
    "CREATE MACRO f() AS 1",
    "INSERT INTO _rows SELECT * FROM _rows",
    "DELETE FROM _rows",
    "DROP TABLE _rows",
    "EXPLAIN SELECT * FROM _rows",
    "PREPARE x AS SELECT 1",
    "SELECT 1 FROM _rows; SELECT 2 FROM _rows",
    "SELECT 1 AS a",
    "WITH _rows AS (SELECT 1 AS a) SELECT * FROM _rows",
    "",
]
HARMLESS = (
    "SELECT 1 AS a",
    "WITH _rows AS (SELECT 1 AS a) SELECT * FROM _rows",
    "SELECT 1 FROM _rows; SELECT 2 FROM _rows",
)


@pytest.mark.parametrize("query", REACHES)
def test_no_query_leaves_its_rows(process, secret, query):
    text = query.replace("FILE", str(secret))
    with pytest.raises(QueryProblem) as raised:
        process.check(text, SCHEMA, relation="_rows", kind="query")
    assert 0 < len(str(raised.value)) < 1000 and "\n" not in str(raised.value)
    assert run(process, "SELECT n FROM _rows") == [{"n": 1}, {"n": 2}], "the next query runs"
    assert [path.name for path in secret.parent.iterdir()] == ["secret.csv"]


ELSEWHERE = (
    "SELECT (SELECT",
    "SELECT a FROM _rows WHERE a IN",
    "WITH c AS",
    "PIVOT",
    "UNION ALL FROM",
    "read_blob",
    "sniff_csv",
)
"""Functions and scans of files once more, in another place of a query, where DuckDB asks the same switch."""
UNCHECKED = [
    pytest.param(each, marks=pytest.mark.soak if any(place in each for place in ELSEWHERE) else ())
    for each in REACHES
    if "FILE" in each and each.startswith(("SELECT", "WITH", "COPY", "ATTACH"))
]


@pytest.mark.parametrize("query", UNCHECKED)
def test_what_the_rules_would_let_pass_opens_no_file_either(process, secret, query):
    try:
        found = run(process, query.replace("FILE", str(secret)), checked=False)
    except QueryProblem:
        found = []
    assert "hidden" not in str(found)
    assert [path.name for path in secret.parent.iterdir()] == ["secret.csv"]


PLAIN = [
    "SELECT a AS b, CAST(n AS DOUBLE) AS n FROM _ROWS WHERE n > 0 -- a remark\n ORDER BY n;",
    "FROM _rows",
    "WITH t AS (SELECT * FROM _rows), u AS (SELECT a FROM t) SELECT a FROM u UNION ALL SELECT a FROM t",
    "SELECT a, unnest(string_split(a, ',')) AS tag FROM _rows",
    "SELECT a, sum(n) OVER w AS s, row_number() OVER (ORDER BY n) AS r FROM _rows WINDOW w AS (PARTITION BY a)",
    "SELECT (SELECT max(n) FROM _rows) AS m, a FROM _rows WHERE EXISTS (FROM _rows) GROUP BY ALL HAVING count(*) > 0",
    "SELECT * EXCLUDE (a) REPLACE (n + 1 AS n) FROM _rows",
    "SELECT _rows.a, b.k FROM _rows JOIN (VALUES (1, 'one')) AS b(i, k) ON n = b.i",
    "SELECT list_filter([n], x -> x > 0)[1] AS x, '{\"a\": 1}'::JSON ->> '$.a' AS y FROM _rows",
    "SELECT * FROM _rows, range(3) AS t(i), LATERAL (SELECT i + n AS s)",
    "SELECT v, k FROM (SELECT n, n AS m FROM _rows) UNPIVOT (v FOR k IN (n, m))",
    "SELECT * FROM _rows PIVOT (max(n) FOR a IN ('x'))",
    "WITH RECURSIVE r AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM r WHERE i < 3) SELECT i, a FROM r, _rows",
    "SELECT * FROM _rows QUALIFY row_number() OVER (PARTITION BY a ORDER BY n) = 1",
    "SELECT CASE WHEN n > 0 THEN upper(a) END AS b, date_trunc('hour', TIMESTAMP '2020-01-01') AS t FROM _rows",
    "SELECT 'it''s -- no /* comment */' AS b, 'é😀' AS c, $$ ' $$ AS d, \"a\" FROM _rows",
    "SELECT now() AS t, random() AS r, uuid() AS u, current_date AS d FROM _rows",
    "SELECT try_cast(a AS INT) AS i, regexp_extract(a, '(x)', 1) AS e, coalesce(a, 'none') AS c FROM _rows",
]


@pytest.mark.parametrize("query", PLAIN)
def test_plain_queries_run(process, query):
    assert run(process, query)


LARGE = [
    "SELECT repeat('x', 2000000000) AS b FROM _rows",
    "SELECT range(1000000000) AS b FROM _rows",
    "SELECT list(i) AS b FROM _rows, range(2000000000) AS t(i)",
    "SELECT list_transform(range(30000), x -> list_transform(range(30000), y -> repeat('x', 100))) AS b FROM _rows",
    "SELECT list_sort(list_transform(range(50000000), x -> hash(x + n))) AS b FROM _rows",
    "SELECT count(*) AS b FROM _rows, range(100000) AS x(i), range(100000) AS y(j), range(100000) AS z(k)",
    "SELECT x.i, y.j FROM range(100000000) AS x(i), range(100000000) AS y(j), _rows ORDER BY hash(x.i + y.j)",
    "WITH RECURSIVE r AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM r) SELECT max(i) AS b FROM r, _rows",
    "SELECT regexp_replace(repeat('a', 20000000), '(a?){1000}', 'b', 'g') AS b FROM _rows",
    "SELECT levenshtein(repeat('ab', 200000), repeat('ba', 200000)) AS b FROM _rows",
    "SELECT count(DISTINCT hash(i)) AS b FROM range(3000000000) AS t(i), _rows",
    "SELECT bit_count(repeat('1', 2000000000)::BIT) AS b FROM _rows",
]
ALIKE = [
    "SELECT repeat(a, 2000000000) AS b FROM _rows WHERE a IS NOT NULL",
    "SELECT lpad(a, 2000000000, 'y') AS b FROM _rows",
    "SELECT list_aggregate(range(n, 2000000000), 'sum') AS b FROM _rows",
    "SELECT string_agg(repeat('x', 1000), '' ORDER BY i) AS b FROM _rows, range(2000000000) AS t(i)",
    "SELECT sum(hash(i) // 2 + hash(j) // 2) AS b FROM range(100000000) AS x(i), range(100000000) AS y(j), _rows",
    "WITH RECURSIVE r AS (SELECT 'x' AS s UNION ALL SELECT s || s FROM r) SELECT max(len(s)) AS b FROM r, _rows",
    "SELECT factorial(30) * range(200000000)[n] AS b FROM _rows",
]
"""What runs into the same bound as one above, in the same way: each costs a process."""


@pytest.mark.parametrize("query", [*LARGE, *(pytest.param(each, marks=pytest.mark.soak) for each in ALIKE)])
def test_what_does_not_fit_ends_within_its_limits_and_leaves_nothing(hasty, query):
    wait_until_it_answers(hasty)
    pid = hasty.pid
    with pytest.raises(QueryProblem, match=r"needs more than|takes longer than|characters|Regex|Invalid") as raised:
        run(hasty, query)
    assert "\n" not in str(raised.value)
    assert not psutil.pid_exists(pid), "it really is gone"
    wait_until_it_answers(hasty)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT " + "(" * 30_000 + "n" + ")" * 30_000 + " AS n FROM _rows",
        "SELECT " + "array[" * 10_000 + "n" + "]" * 10_000 + " AS n FROM _rows",
        "SELECT " + "n + " * 15_000 + "n AS n FROM _rows",
        "SELECT " + "NOT " * 16_000 + "true AS n FROM _rows",
        "SELECT " + "CASE WHEN true THEN " * 3000 + "1" + " END" * 3000 + " AS n FROM _rows",
        "SELECT n FROM _rows" + " UNION ALL SELECT n FROM _rows" * 2000,
        "SELECT '" + "x" * 70_000 + "' AS n FROM _rows",
        "SELECT 1 AS \ud800 FROM _rows",
        "SELECT '\0' AS n FROM _rows",
    ],
    ids=["parentheses", "arrays", "sums", "nots", "cases", "unions", "long", "surrogate", "nul"],
)
def test_no_text_takes_long_to_refuse_or_to_take(process, text):
    try:
        process.check(text, SCHEMA, relation="_rows", kind="query")
    except QueryProblem as error:
        assert len(str(error)) < 1000
    assert run(process, "SELECT n FROM _rows") == [{"n": 1}, {"n": 2}]


DEPENDS = [
    *(
        "random()",
        "uuid()",
        "gen_random_uuid()",
        "uuidv7()",
        "main.random()",
        "now()",
        "today()",
        "get_current_timestamp()",
    ),
    *(
        "current_date",
        "current_timestamp",
        "localtimestamp",
        "CURRENT_TIME",
        "transaction_timestamp()",
        "age(TIMESTAMP '2020-01-01')",
    ),
    *("ago(INTERVAL 1 DAY)", "list_transform([1], x -> random())[1]", "setseed(0.5)", "txid_current()"),
]


@pytest.mark.parametrize("call", DEPENDS)
def test_what_replaces_rows_leaves_nothing_to_chance_or_clock(process, call):
    for kind, text in (("condition", f"{call} IS NULL"), ("repeatable", f"SELECT {call} AS b FROM _rows")):
        with pytest.raises(QueryProblem, match=r"another one each time|depends on the clock|asks the engine"):
            process.check(text, SCHEMA, relation="_rows", kind=kind)


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELECT first(a) AS b FROM _rows", "order of rows"),
        ("SELECT any_value(a) AS b FROM _rows", "order of rows"),
        ("SELECT list(a) AS b FROM _rows", "order of rows"),
        ("SELECT string_agg(a, ',') AS b FROM _rows", "order of rows"),
        ("SELECT row_number() OVER () AS b FROM _rows", "order of rows"),
        ("SELECT lag(a) OVER (PARTITION BY n) AS b FROM _rows", "order of rows"),
        ("SELECT * FROM _rows LIMIT 1", "LIMIT without ORDER BY"),
        ("SELECT DISTINCT ON (a) * FROM _rows", "DISTINCT ON without ORDER BY"),
        ("SELECT * FROM _rows USING SAMPLE 1", "sample"),
        ("SELECT * FROM _rows TABLESAMPLE 10%", "sample"),
        ("SELECT reservoir_quantile(n, 0.5) AS b FROM _rows", "another one each time"),
    ],
)
def test_what_replaces_rows_does_not_depend_on_their_order(process, query, reason):
    process.check(query, SCHEMA, relation="_rows", kind="query")
    with pytest.raises(QueryProblem, match=reason):
        process.check(query, SCHEMA, relation="_rows", kind="repeatable")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT first(a ORDER BY n) AS b, list(a ORDER BY n) AS c, max_by(a, n) AS d FROM _rows",
        "SELECT row_number() OVER (ORDER BY n) AS b, sum(n) OVER () AS c FROM _rows ORDER BY n LIMIT 1",
        "SELECT age(TIMESTAMP '2020-01-02', TIMESTAMP '2020-01-01') AS b, error('x') AS c FROM _rows",
    ],
)
def test_what_names_its_order_is_fine(process, query):
    process.check(query, SCHEMA, relation="_rows", kind="repeatable")


def test_a_column_may_be_called_like_a_function_of_the_clock(process):
    process.check("current_date = 'x'", {"current_date": "VARCHAR"}, relation="_rows", kind="condition")


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        ("", "empty"),
        ("n = 1; DROP TABLE x", "syntax error"),
        ("n = 1) OR (1 = 1", "syntax error"),
        ("n = 1), (n = 2", "syntax error"),
        ("n = 1 AS b", "syntax error"),
        ("SELECT 1", "no query inside"),
        ("n IN (SELECT n FROM _rows)", "no query inside"),
        ("EXISTS (FROM read_csv('/etc/passwd'))", "no query inside"),
        ("count(*) > 1", "no aggregate"),
        ("row_number() OVER (ORDER BY n) = 1", "no window"),
        ("unnest([true])", "no generator"),
        ("COLUMNS(*) = 1", "name the columns"),
        ("n = $1", "parameters"),
        ("wow = 1", "not found"),
    ],
)
def test_a_condition_is_about_its_row(process, condition, reason):
    with pytest.raises(QueryProblem, match=reason):
        process.check(condition, SCHEMA, relation="_rows", kind="condition")


def test_the_process_knows_no_secret_and_ends_with_its_parent(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "sesame")
    with SqlProcess(LIMITS) as process:
        run(process, "SELECT n FROM _rows")
        child = psutil.Process(process.pid)
        assert "sesame" not in Path(f"/proc/{process.pid}/environ").read_text()
        assert set(child.environ()) <= {
            "LANG",
            "TZ",
            "HOME",
            "MALLOC_ARENA_MAX",
            "ARROW_DEFAULT_MEMORY_POOL",
            "PATH",
            "LD_LIBRARY_PATH",
            "LC_CTYPE",
        }
        assert 0 < child.rlimit(psutil.RLIMIT_AS)[0] < 2 * 1024 * MIB, "infinity is -1"
        assert "SELECT" not in " ".join(child.cmdline())
        files = {str(each.readlink()) for each in Path(f"/proc/{process.pid}/fd").iterdir()}
        assert not [name for name in files if not name.startswith(("pipe:", "/dev/", "/tmp/"))]
        os.close(process._child.lifeline)  # as when the parent is killed
        assert child.wait(timeout=LIMIT_S) is not None
        process._child.lifeline = os.open(os.devnull, os.O_RDONLY)


@pytest.fixture
def heeded_hangup():
    """Under ``nohup`` this process, and each that it starts, passes SIGHUP over."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("heeded_hangup")
def test_a_signal_that_stops_the_parent_is_not_the_fault_of_a_query():
    with SqlProcess(LIMITS) as process:
        run(process, "SELECT n FROM _rows")
        assert os.getpgid(process.pid) != os.getpgid(0), "Ctrl-C goes to the parent's group"
        for each in (signal.SIGINT, signal.SIGTERM):
            os.kill(process.pid, each)
        assert run(process, "SELECT n FROM _rows")[0] == {"n": 1}
        os.kill(process.pid, signal.SIGHUP)
        with pytest.raises(Unavailable, match="from outside"):
            run(process, "SELECT n FROM _rows")


def test_one_process_answers_group_after_group_and_forgets_each():
    with SqlProcess(LIMITS) as process:
        for count in (1, 2):
            assert run(process, "SELECT count(*) AS c FROM _rows") == [{"c": 2}]
            assert count and process.pid
        pid = process.pid
        with pytest.raises(QueryProblem):
            run(process, "SELECT * FROM _rows, _rows2")
        assert process.pid == pid, "what was refused before it ran leaves it as it was"
        with pytest.raises(QueryTooLarge):
            run(process, LARGE[0])
        assert process.pid is None
        assert run(process, "SELECT n FROM _rows")[0] == {"n": 1}
        assert process.pid != pid
    assert process.pid is None


def test_rows_that_fit_neither_memory_nor_scratch_are_said(tmp_path):
    wide = pa.record_batch([pa.array([os.urandom(4000).hex() for _ in range(1000)]), pa.array(range(1000))], ["a", "n"])
    limits = EngineLimits(memory_bytes=64 * MIB, scratch_bytes=8 * MIB, thread_count=1, query_ms=1000 * LIMIT_S)
    with (
        SqlProcess(limits, scratch=tmp_path) as process,
        pytest.raises(QueryTooLarge, match="64 MiB of memory and 8 MiB of scratch"),
    ):
        process.load("_rows", SCHEMA, (wide for _ in range(40)))
    with SqlProcess(
        EngineLimits(memory_bytes=64 * MIB, thread_count=1, query_ms=1000 * LIMIT_S), scratch=tmp_path
    ) as process:
        assert process.load("_rows", SCHEMA, (wide for _ in range(20))) == 20_000
        assert sum(batch.num_rows for batch in process.select("FROM _rows", ["n"], relation="_rows")) == 20_000
    assert list((tmp_path / "sql").iterdir()) == []


def test_an_error_of_whoever_makes_the_rows_ends_the_process_and_comes_through():
    def rows():
        yield ROWS
        raise FileNotFoundError("a data file")

    with SqlProcess(LIMITS) as process:
        with pytest.raises(FileNotFoundError, match="a data file"):
            process.load("_rows", SCHEMA, rows())
        assert process.pid is None


def test_a_mask_has_a_value_for_each_row():
    with SqlProcess(LIMITS) as process, process.masking("n > 1 OR NULL", SCHEMA, relation="_rows") as mask:
        assert mask(ROWS).to_pylist() == [False, True]
        assert mask(ROWS.slice(1)).to_pylist() == [True]
        assert mask(ROWS.slice(0, 0)).to_pylist() == []
