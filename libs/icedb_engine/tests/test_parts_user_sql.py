"""What an ``insert_query`` may be, by its text alone."""

import pytest
from icedb_engine.query.user_sql import blank_comments, check_condition, check_user_sql
from icedb_log.errors import InvalidRequest


def check(query):
    check_user_sql(query, view="_rows", what="insert_query")


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM _rows",
        "select * from `_rows`;",
        "SELECT a AS b, CAST(c AS DOUBLE) FROM _ROWS WHERE a > 1 -- a remark",
        "WITH t AS (SELECT * FROM _rows), u AS (SELECT a FROM t) SELECT * FROM u UNION ALL SELECT a FROM t",
        "SELECT a, tag FROM _rows LATERAL VIEW explode(split(tags, ',')) t AS tag",
        "SELECT explode(from_json(items, 'array<string>')) AS item FROM _rows",
        "SELECT * EXCEPT (a), get_json_object(props, '$.x') AS x FROM _rows",
        "SELECT a, count(*) AS n, max(b) OVER (PARTITION BY a) AS m FROM _rows GROUP BY a, b HAVING n > 1",
        "SELECT (SELECT max(a) FROM _rows) AS m, a FROM _rows",
        "FROM _rows SELECT a",
        "FROM _rows |> WHERE a > 1 |> SELECT a",
        "SELECT try_cast(a AS INT) AS a, from_json(s, 'a INT, b STRING').b AS b, m['k'] AS k FROM _rows",
    ],
)
def test_a_query_over_the_rows_is_fine(query):
    check(query)


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("", "0 statements"),
        ("SELECT 1 FROM _rows; SELECT 2 FROM _rows", "2 statements"),
        ("SELECT FROM WHERE", "line 1, column"),
        ("SELECT (a FROM _rows", "line 1, column"),
        ("DROP TABLE x", "a DROP statement instead of a query"),
        ("INSERT INTO x SELECT * FROM _rows", "an? INSERT statement"),
        ("CREATE TABLE x AS SELECT * FROM _rows", "a CREATE statement"),
        ("SET spark.sql.runSQLOnFiles=true", "statement instead of a query"),
        ("VALUES (1)", "instead of a query"),
        ("SELECT 1 AS a", "does not read _rows"),
        ("SELECT * FROM other", "relation 'other' does not exist"),
        ("SELECT * FROM _rows JOIN spark_catalog.default.x USING (a)", "no table, no file"),
        ("SELECT * FROM parquet.`/etc/x`", "no table, no file"),
        ("SELECT * FROM _rows, range(10)", "table functions"),
        ("SELECT * FROM identifier('x')", "reaches beyond|table functions"),
        ("SELECT (SELECT max(a) FROM csv.`/etc/passwd`) FROM _rows", "no table, no file"),
        ("WITH _rows AS (SELECT 1 AS a) SELECT * FROM _rows", "hides _rows"),
        ("SELECT reflect('java.lang.System', 'exit', 1) FROM _rows", "reaches beyond the query"),
        ("SELECT Java_Method('java.lang.System', 'exit', 1) FROM _rows", "reaches beyond the query"),
        ("SELECT from_protobuf(a, 'M', '/etc/x') FROM _rows", "reaches beyond the query"),
        ("SELECT other.f(a) FROM _rows", "bare names"),
        ("SELECT some_udf(a) FROM _rows", "some_udf is none of the functions"),
        ("SELECT from_xml(a, 'a string', map('rowValidationXSDPath', '/etc/x')) FROM _rows", "its options name files"),
        ("SELECT " + "array[" * 40 + "1" + "]" * 40 + " FROM _rows", "nested too deeply|line"),
        ("SELECT TRANSFORM(a) USING 'cat' AS (b) FROM _rows", "run a program"),
        ("SELECT /*+ BROADCAST(_rows) */ a FROM _rows", "hints"),
        ("SELECT :a FROM _rows", "parameters have no value"),
        ("SELECT a FROM _rows LATERAL VIEW range(1) t AS c", "make rows"),
        ("SELECT '" + "x" * 70_000 + "' FROM _rows", "70020 characters"),
        ("SELECT " + "(" * 5000 + "a" + ")" * 5000 + " FROM _rows", "nested too deeply|line"),
    ],
)
def test_anything_else_is_refused_with_the_reason(query, reason):
    with pytest.raises(InvalidRequest, match=rf"insert_query: .*({reason}).*; write one SELECT over _rows"):
        check(query)


@pytest.mark.parametrize("query", ["SELECT rand() AS a FROM _rows", "SELECT * FROM _rows TABLESAMPLE (10 PERCENT)"])
def test_a_query_that_replaces_rows_leaves_nothing_to_chance(query):
    check(query)
    with pytest.raises(InvalidRequest, match="is another one"):
        check_user_sql(query, view="_rows", what="merge_query", is_repeatable=True)
    check_user_sql("SELECT a FROM _rows WHERE t > now()", view="_rows", what="rewrite query", is_repeatable=True)


def test_a_condition_is_about_one_row():
    found = check_condition("User_ID = 'x' AND `a b` IN (1, 2) AND NOT exists(split(s, ','), y -> y = 'b')", what="c")
    assert found == {"user_id", "a b", "s", "y"}


@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        ("", "empty"),
        ("a = 1; DROP TABLE x", "no single expression"),
        ("a = 1) OR (1 = 1", "no single expression"),
        ("a = 1 AS b", "no single expression"),
        ("SELECT 1", "no single expression"),
        ("a = 1 -- OR b", "comment"),
        ("a = 1 /* OR b */", "comment"),
        ("a IN (SELECT a FROM x)", "no query inside"),
        ("EXISTS (SELECT 1)", "no query inside"),
        ("a = (SELECT max(a) FROM csv.`/etc/passwd`)", "no query inside"),
        ("count(*) > 1", "no aggregate"),
        ("row_number() OVER (ORDER BY a) = 1", "no window"),
        ("explode(split(a, ',')) = 'x'", "no generator"),
        ("Rand() < 0.5", "it may differ"),
        ("transform(array(1), z -> random())[0] > 0", "it may differ"),
        ("ts < now() - INTERVAL 1 DAY", "it may differ"),
        ("d < current_date", "it may differ"),
        ("a = session_user", "it may differ"),
        ("reflect('java.lang.System', 'exit', 1) IS NULL", "reaches beyond"),
        ("other.f(a) = 1", "bare names"),
        ("a = :b", "parameters"),
        ("array[" * 40 + "1" + "]" * 40 + " = 1", "nested too deeply"),
        ("*", "name the columns"),
        ("(" * 5000 + "a" + ")" * 5000, "nested too deeply"),
        ("a = '" + "x" * 70_000 + "'", "70006 characters"),
    ],
)
def test_any_other_condition_is_refused_with_the_reason(condition, reason):
    with pytest.raises(InvalidRequest, match=rf"condition: .*{reason}.*; write one condition"):
        check_condition(condition, what="condition")


@pytest.mark.parametrize(
    ("text", "blanked"),
    [
        ("SELECT a -- x\n, b", "SELECT a     \n, b"),
        ("SELECT /* a /* b */ c */ '--é😀/*', `/*`, r'\\d' ;", "SELECT                   '--é😀/*', `/*`, r'\\d'  "),
        ('SELECT 5L, 3BD, 1e3, X\'1F\', "a""b", a::int', 'SELECT 5L, 3BD, 1e3, X\'1F\', "a""b", a::int'),
        ("SELECT a -- \\\n || 'x'", "SELECT a     \n || 'x'"),
    ],
)
def test_comments_become_blanks_and_all_else_stays(text, blanked):
    assert blank_comments(text) == blanked
