"""A query over HTTP: rows in JSON, problems with a type, the grants and bounds of the query page."""

import asyncio
import json

import pytest
from icedb import connect
from icedb_console.query_api import PATHS, SCHEMAS
from icedb_log.holds.tags import create_tag
from icedb_log.store_settings import StoreSettings
from icedb_sim.rigs.console_rig import READER, open_console
from icedb_sim.tables.small_table import SmallTable
from jsonschema import Draft202012Validator

JSON = "application/json"


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lake")
    lake = connect(folder)
    for name in ("t", "other"):
        lake.create_table(name, sort=["n"]).append([{"n": n, "s": "a"} for n in range(3)])
    return folder


def ask(lake, body, *, content_type=JSON, token=READER, **settings):
    """Send one request; its answer, held to what the document says of it."""

    async def work():
        warehouse = StoreSettings(f"file://{lake}", None).open()
        async with open_console(SmallTable(), warehouse=warehouse, store=f"file://{lake}", **settings) as rig:
            browser = rig.browser()
            browser.token = token
            text = body if isinstance(body, str) else json.dumps(body)
            return await browser.ask("POST", "/v1/query", body=text, headers={"content_type": content_type})

    answer = asyncio.run(work())
    ((media_type, content),) = PATHS["/v1/query"]["post"]["responses"][str(answer.status)]["content"].items()
    assert answer.headers["content-type"] == media_type
    document = json.loads(answer.text)
    if answer.status == 200:
        Draft202012Validator(content["schema"] | {"components": {"schemas": SCHEMAS}}).validate(document)
    else:
        assert document.keys() >= {"type", "title", "status", "detail"}
    return answer, document


def test_rows_come_as_json(lake):
    answer, document = ask(
        lake, {"sql": "select n, n > 0 as more, s, null as x from t order by n"}, console_query_rows=2
    )
    assert answer.status == 200
    assert [each["name"] for each in document["columns"]] == ["n", "more", "s", "x"]
    assert document["rows"] == [[0, False, "a", None], [1, True, "a", None]]
    assert document["is_cut"] and list(document["tables"]) == ["t"]
    assert answer.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("body", "content_type", "status", "words"),
    [
        ({"sql": "drop table t"}, JSON, 400, "not allowed"),
        ({"sql": "select no_such from t"}, JSON, 400, "no_such"),
        ({"sql": "select error('boom') from t"}, JSON, 400, "boom"),
        ({"sql": "select 1", "limit": 3}, JSON, 400, '{"sql"'),
        ("{", JSON, 400, "no JSON"),
        ("sql=select+1", "application/x-www-form-urlencoded", 400, "Content-Type"),
        ({"sql": "x" * 300_000}, JSON, 400, "bytes"),
        ({"parameters": [1]}, JSON, 400, "sql: Field required"),
        ({"sql": "select ?", "parameters": "x"}, JSON, 400, "parameters: "),
        ({"sql": "select ?"}, JSON, 400, "parameters: 1"),
        ({"sql": "select * from t", "as_of": "noon"}, JSON, 400, "'noon' is not a time"),
        ({"sql": "select * from t", "as_of": 1.5}, JSON, 400, "as_of: "),
        ({"sql": "select * from t", "tag": "none"}, JSON, 400, "none"),
        ("[1]", JSON, 400, '{"sql"'),
    ],
)
def test_what_is_wrong_is_a_problem(lake, body, content_type, status, words):
    answer, document = ask(lake, body, content_type=content_type)
    assert (answer.status, words in document["detail"]) == (status, True), document


def test_values_come_beside_the_statement(lake):
    text = "x' or '1'='1"
    _, document = ask(lake, {"sql": "select n from t where n > ? and s <> ? order by n", "parameters": [0, text]})
    assert document["rows"] == [[1], [2]]
    values = {"text": text, "wanted": [2]}
    _, document = ask(lake, {"sql": "select $text, n from t where n in $wanted", "parameters": values})
    assert document["rows"] == [[text, 2]]


def test_a_query_reads_an_earlier_time_and_a_tag(tmp_path):
    lake = connect(tmp_path)
    table = lake.create_table("t", sort=["n"])
    table.append([{"n": 1}])
    create_tag(table.open(), "first")
    before = lake.client.snapshot("t").last_commit_ms
    table.append([{"n": 2}])
    for body, count in (({}, 2), ({"as_of": before}, 1), ({"tag": "first"}, 1), ({"as_of": "2020-01-01T00:00:00Z"}, 0)):
        _, document = ask(tmp_path, {"sql": "select count(*) from t", **body})
        assert document["rows"] == [[count]], body


def test_who_asks_reads_their_own_tables_alone(lake, tmp_path):
    assert ask(lake, {"sql": "select count(*) from t"}, folder=tmp_path)[1]["rows"] == [[3]]
    hidden, document = ask(lake, {"sql": "select * from other"}, folder=tmp_path)
    assert (hidden.status, "does not exist" in document["detail"]) == (400, True)
    nobody, document = ask(lake, {"sql": "select 1"}, folder=tmp_path, token=None)
    assert (nobody.status, document["type"]) == (401, "urn:icedb:problem:unauthenticated")
    assert nobody.headers["www-authenticate"].startswith("Bearer")


def test_a_query_that_needs_more_than_it_may_have_is_told_from_a_wrong_one(lake):
    forever = "select sum(a.range * b.range) from range(10000000) a, range(10000000) b"
    answer, document = ask(lake, {"sql": forever}, console_query_limit_ms=1000)
    assert (answer.status, document["type"]) == (422, "urn:icedb:problem:query-failed")
    assert "ICEDB_CONSOLE_QUERY_LIMIT_MS" in document["detail"]


def test_queries_can_be_turned_off(lake):
    assert ask(lake, {"sql": "select 1"}, console_max_queries=0)[0].status == 400
