"""SQL that table admins write cannot leave its view in Spark: neither past the check of the text, nor past that of the plan.

Each attempt runs twice: as a table's ``insert_query``, and without the check of the text, as if that had been fooled.
"""

import pytest
from icedb_engine.query import guarded_query
from icedb_engine.query.change_query import check_row_change
from icedb_engine.query.guarded_query import ReachesBeyond, guard_condition, run_query
from icedb_engine.query.insert_query import QueryProblem, check_insert_query, query_errors, rows_view
from icedb_engine.query.spark_functions import ALLOWED, FORBIDDEN, GENERATORS
from icedb_engine.query.user_sql import check_user_sql
from icedb_log.errors import InvalidRequest
from icedb_log.jobs import RowChange
from icedb_log.table.table_config import TableConfig

pytestmark = pytest.mark.spark

CALL = "reflect('java.lang.System', 'getProperty', 'user.home')"
QUOTED = CALL.replace("'", '"')


@pytest.fixture(scope="module")
def rows(spark):
    return spark.createDataFrame([("x", 1)], schema="a string, n bigint")


@pytest.fixture(scope="module")
def secret_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("secret") / "secret.csv"
    path.write_text("hidden,1\n")
    return path


def make_config(query):
    return TableConfig.create(name="events", insert_query=query, source={"a": "VARCHAR", "n": "BIGINT"})


ATTEMPTS = [
    f"SELECT {CALL} AS b FROM _rows",
    f"SELECT try_{CALL} AS b FROM _rows",
    f"SELECT java_method{CALL.removeprefix('reflect')} AS b FROM _rows",
    f"SELECT `reflect`{CALL.removeprefix('reflect')} AS b FROM _rows",
    f"SELECT builtin.{CALL} AS b FROM _rows",
    f"SELECT `system`.`builtin`.`reflect`{CALL.removeprefix('reflect')} AS b FROM _rows",
    f"SELECT aggregate(array(1), 0, (x, y) -> length({CALL})) AS b FROM _rows",
    f"SELECT a FROM _rows ORDER BY {CALL}",
    f"SELECT a FROM _rows WHERE a IN (SELECT {CALL} FROM _rows)",
    f"SELECT max(a) OVER w AS b FROM _rows WINDOW w AS (PARTITION BY {CALL})",
    f"WITH c AS (SELECT {CALL} AS b FROM _rows) SELECT b FROM c",
    f"SELECT a FROM _rows |> EXTEND {CALL} AS b",
    f"SELECT a FROM _rows LATERAL VIEW explode(array({CALL})) t AS b",
    f"SELECT * FROM _rows, LATERAL (SELECT {CALL} AS b)",
    f"SELECT a FROM _rows PIVOT (max({CALL}) FOR n IN (1))",
    "SELECT * FROM (VALUES (reflect('java.lang.System', 'lineSeparator'))) t(b), _rows",
    "SELECT IDENTIFIER('reflect')('java.lang.System', 'lineSeparator') AS b FROM _rows",
    "SELECT a, b FROM _rows, csv.`FILE` AS t(b)",
    "SELECT a, b FROM _rows, text.`FILE` AS t(b)",
    "SELECT (SELECT max(_c0) FROM csv.`FILE`) AS b FROM _rows",
    "SELECT * FROM _rows, `FILE`",
    "SELECT * FROM _rows, IDENTIFIER('csv.`FILE`')",
    "SELECT from_xml('<a>1</a>', 'a string', map('rowValidationXSDPath', 'FILE')) AS b FROM _rows",
    "SELECT schema_of_xml('<a>1</a>', map('rowValidationXSDPath', 'FILE')) AS b FROM _rows",
    "SELECT from_avro(CAST(a AS BINARY), '\"string\"', map('avroSchemaUrl', 'FILE')) AS b FROM _rows",
    "SELECT from_protobuf(CAST(a AS BINARY), 'M', 'FILE') AS b FROM _rows",
    "SELECT input_file_name() AS b FROM _rows",
    "SELECT * FROM _rows, range(3)",
    "SELECT * FROM _rows, LATERAL range(3)",
    f"SELECT a, b FROM _rows, LATERAL explode(array({CALL})) AS t(b)",
    "SELECT * FROM _rows, LATERAL builtin.python_worker_logs()",
    "SELECT * FROM _rows, python_worker_logs()",
    "SELECT * FROM _rows, spark_catalog.default.x",
    "SELECT * FROM _rows, global_temp.x",
    "SELECT * FROM _rows, other",
    "SELECT * FROM _rows WITH (path = 'FILE')",
    "SELECT * FROM STREAM _rows",
    "SELECT TRANSFORM(a) USING 'cat FILE' AS (b) FROM _rows",
    "SELECT /*+ COALESCE(1) */ a FROM _rows",
    "SELECT :p AS b FROM _rows",
    "FROM _rows INSERT OVERWRITE DIRECTORY 'FILE.out' USING csv SELECT a",
    "INSERT OVERWRITE DIRECTORY 'FILE.out' USING csv SELECT a FROM _rows",
    "SELECT a FROM _rows) UNION ALL (SELECT _c0 FROM csv.`FILE`",
    "CREATE TEMPORARY VIEW x AS SELECT a FROM _rows",
    "CREATE TEMPORARY FUNCTION f AS 'java.lang.String' USING JAR 'FILE'",
    "SET spark.sql.runSQLOnFiles=true",
    "SET VAR x = 1",
    "DECLARE VARIABLE x INT",
    "RESET",
    "ADD JAR 'FILE'",
    "ADD FILE 'FILE'",
    "CACHE TABLE _rows",
    "SHOW TABLES",
    "SHOW FUNCTIONS",
    "DESCRIBE _rows",
    "EXPLAIN SELECT a FROM _rows",
    "USE default",
    "LOAD DATA INPATH 'FILE' INTO TABLE x",
    "EXECUTE IMMEDIATE 'SELECT a FROM _rows'",
    "BEGIN SELECT a FROM _rows; END",
]


@pytest.mark.parametrize("query", ATTEMPTS)
def test_no_query_leaves_its_view(spark, rows, secret_file, query):
    text = query.replace("FILE", str(secret_file))
    with pytest.raises(InvalidRequest):
        check_insert_query(spark, make_config(text))
    with pytest.raises(QueryProblem), rows_view(rows), query_errors("an attempt"):
        run_query(spark, text, view="_rows")
    assert not secret_file.with_name("secret.csv.out").exists()
    assert spark.conf.get("spark.sql.runSQLOnFiles") == "false"


@pytest.mark.parametrize(
    "query",
    [
        f"SELECT a -- \\\n || '\n, {QUOTED} AS b -- ' AS z\n FROM _rows",
        f"SELECT a /* \\*/ || '*/ , {QUOTED} AS b /*' AS z */ FROM _rows",
        f"SELECT a {{# /* #}} || '*/ , {QUOTED} AS b /* ' AS z -- */ \nFROM _rows",
        f"SELECT r'\\' AS y, {QUOTED} AS b, '\\' AS z FROM _rows",
        f"SELECT 'a\\\\' || '\\', {QUOTED} AS b --' AS z\n FROM _rows",
    ],
)
def test_what_two_parsers_read_differently_does_not_get_through(spark, rows, query):
    try:
        check_user_sql(query, view="_rows", what="insert_query")
        with rows_view(rows), query_errors("an attempt"):
            found = run_query(spark, query, view="_rows").collect()
    except (InvalidRequest, QueryProblem):
        return
    assert find_home(spark) not in str(found)


def find_home(spark):
    """Return what the calls of the attempts are after."""
    return spark.sql(f"SELECT {CALL}").first()[0]


def test_a_hidden_call_is_real_and_each_defence_holds_it_alone(spark, rows, monkeypatch):
    query = f"SELECT a -- \\\n || '\n, {QUOTED} AS b -- ' AS z\n FROM _rows"
    home = find_home(spark)
    with rows_view(rows):
        check_user_sql(query, view="_rows", what="insert_query")
        assert home in str(spark.sql(query).collect()), "Spark runs what the check of the text takes for text"
        assert home not in str(run_query(spark, query, view="_rows").collect())
        monkeypatch.setattr(guarded_query, "blank_comments", lambda text: text)
        with pytest.raises(QueryProblem), query_errors("an attempt"):
            run_query(spark, query, view="_rows")


@pytest.mark.parametrize("name", ["env:PATH", "system:user.home", "spark.driver.host", "sparkconf:spark.master"])
def test_variables_are_text(spark, rows, name):
    text = f"${{{name}}}"
    with rows_view(rows):
        assert run_query(spark, f"SELECT '{text}' AS b FROM _rows", view="_rows").collect() == [(text,)]
    assert rows.where(guard_condition(spark, f"a = '{text}'")).count() == 0


@pytest.mark.parametrize(
    "condition",
    [
        f"{CALL} = 'x'",
        f"length(builtin.{CALL}) > 0",
        "a IN (SELECT a FROM _rows)",
        "EXISTS (SELECT 1 FROM csv.`/etc/passwd`)",
        "a = (SELECT max(a) FROM _rows)",
        "input_file_name() = 'x'",
        "from_xml(a, 'a string', map('rowValidationXSDPath', '/etc/passwd')).a = 'x'",
        "a = :p",
        f"a = 'x' -- \\\n OR '\n OR {QUOTED} = 'x' -- ' = 'x'",
        "true) OR (true",
    ],
)
def test_no_condition_leaves_its_row(spark, condition):
    config = TableConfig.create(name="events", declared={"a": "VARCHAR"})
    with pytest.raises(InvalidRequest):
        check_row_change(spark, config, {"a": "VARCHAR"}, RowChange("delete", condition))


@pytest.mark.parametrize(
    "condition", [f"{CALL} = 'x'", "a IN (SELECT a FROM _rows)", "EXISTS (SELECT 1)", "a = :p", "a IN (FROM _rows)"]
)
def test_no_parsed_condition_leaves_its_row(spark, condition):
    with pytest.raises(ReachesBeyond):
        guard_condition(spark, condition)


@pytest.mark.parametrize(
    "query",
    [
        "SELECT a AS b, CAST(n AS DOUBLE) AS n FROM _ROWS WHERE n > 0 -- a remark\n ORDER BY n;",
        "WITH t AS (SELECT * FROM _rows), u AS (SELECT a FROM t) SELECT a FROM u UNION ALL SELECT a FROM t",
        "SELECT a, tag FROM _rows LATERAL VIEW explode(split(a, ',')) t AS tag",
        "SELECT a, sum(n) OVER w AS s, row_number() OVER (ORDER BY n) AS r FROM _rows WINDOW w AS (PARTITION BY a)",
        "SELECT (SELECT max(n) FROM _rows) AS m, a FROM _rows WHERE EXISTS (SELECT 1 FROM _rows) GROUP BY ALL HAVING count(*) > 0",
        "FROM _rows |> WHERE n > 0 |> SELECT a",
        "SELECT filter(array(n), x -> x > 0)[0] AS x, from_xml('<r><a>1</a></r>', 'a string').a AS y FROM _rows",
        "SELECT * EXCEPT (a) FROM _rows",
        "SELECT a FROM _rows WHERE a RLIKE '^x' AND n BETWEEN 0 AND 2 AND a IN ('x', 'y') LIMIT 5",
        "SELECT _rows.a, b.k FROM _rows JOIN (VALUES (1, 'one')) AS b(i, k) ON n = b.i",
        "SELECT /* why */ if(n > 0, upper(a), NULL) AS b, date_trunc('hour', TIMESTAMP '2020-01-01') AS t FROM _rows",
        "SELECT a, count(*) AS c FROM _rows GROUP BY CUBE (a, n) DISTRIBUTE BY a",
        "SELECT v, k FROM (SELECT n, n AS m FROM _rows) UNPIVOT (v FOR k IN (n, m))",
        "WITH RECURSIVE r AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM r WHERE i < 3) SELECT i, a FROM r, _rows",
        "SELECT * FROM _rows QUALIFY a IS NULL OR row_number() OVER (PARTITION BY a ORDER BY n) = 1",
        "SELECT a, t.v FROM _rows, LATERAL explode(array(n, 2)) AS t(v)",
        "SELECT a, t.value FROM _rows CROSS JOIN LATERAL variant_explode(parse_json('[1]')) AS t",
        "SELECT 'it''s -- no /* comment */' AS b, \"é😀\" AS c, `a` FROM _rows",
    ],
)
def test_plain_queries_run(spark, rows, query):
    check_user_sql(query, view="_rows", what="insert_query")
    with rows_view(rows):
        assert run_query(spark, query, view="_rows").collect()


def test_every_function_of_this_spark_has_been_looked_at(spark):
    """A release of Spark brings new ones: put each into the list of those that are allowed, or of those that are not."""
    found = {row[0] for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()}
    table_functions = {"range"} | (GENERATORS - ALLOWED)
    unusable = {"measure"}  # of metric views
    names = {name for name in found if name.isidentifier()}
    assert names - ALLOWED - FORBIDDEN - table_functions - unusable == set()
    assert not ALLOWED & FORBIDDEN


@pytest.mark.parametrize(
    "query",
    [
        pytest.param(
            "SELECT collect_list(i) AS b FROM (SELECT explode(sequence(n, 20000000)) AS i FROM _rows) AS x, _rows",
            marks=[pytest.mark.soak, pytest.mark.timeout(900)],  # minutes of collecting garbage
        ),
        "SELECT repeat('x', 2000000000) AS b FROM _rows",  # Spark folds constants before any task runs
        "SELECT sequence(1, 500000000) AS b FROM _rows",
        "SELECT repeat(a, 2000000000) AS b FROM _rows",
        "SELECT array_repeat(n, 2000000000) AS b FROM _rows",
    ],
)
def test_values_that_do_not_fit_fail_their_query_alone(spark, rows, query):
    with (
        pytest.raises(QueryProblem, match=r"more memory than Spark has|TOO_MANY|EXCEED"),
        rows_view(rows),
        query_errors("x"),
    ):
        run_query(spark, query, view="_rows").selectExpr("length(CAST(b AS STRING)) AS n").collect()
    assert rows.count() == 1


@pytest.mark.soak
def test_a_recursion_without_end_is_ended(spark, rows):
    query = "WITH RECURSIVE r AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM r) SELECT i, a FROM r, _rows"
    with pytest.raises(QueryProblem, match="RECURSION"), rows_view(rows), query_errors("x"):
        run_query(spark, query, view="_rows").collect()
