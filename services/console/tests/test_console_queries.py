"""Queries: in a process of their own, over one's own tables and nothing else, bounded, and gone when nobody waits."""

import asyncio
import html
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import duckdb
import pytest
from icedb import connect
from icedb_console import query_process
from icedb_console.queries import Queries, QueryRows, QueryTooLarge, QueryTooSlow, Statement, _environment
from icedb_console.query_process import MAX_ANSWER_BYTES
from icedb_console.settings import ConsoleSettings
from icedb_console.views import chart_result
from icedb_log.errors import InvalidRequest, NotFound, Overloaded
from icedb_log.store_settings import StoreSettings
from icedb_sim.rigs.console_rig import READER, open_console
from icedb_sim.tables.small_table import SmallTable
from waiting import LIMIT_S

FOREVER = "select sum(a.range * b.range) from range(10000000) a, range(10000000) b"
EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """A warehouse in a folder: the processes of queries open it by themselves."""
    folder = tmp_path_factory.mktemp("lake")
    lake = connect(folder)
    table = lake.create_table("t", partition=["d=day(ts)"], sort=["ts"])
    rows = [{"ts": f"2026-01-0{1 + number % 3}T00:00:00Z", "n": number, "text": EVIL} for number in range(30)]
    table.append(rows)
    lake.create_table("other", partition=["d=day(ts)"], sort=["ts"]).append(rows[:1])
    return folder


def open_on(lake, **settings):
    warehouse = StoreSettings(f"file://{lake}", None).open()
    return open_console(SmallTable(), warehouse=warehouse, store=f"file://{lake}", **settings)


def run(work):
    return asyncio.run(work())


def test_a_result_is_a_table_and_a_picture(lake):
    async def work():
        async with open_on(lake, console_query_rows=2) as rig:
            sql = "select d, sum(n) as total, any_value(text) as text, null as nothing from t group by d order by d"
            page = await rig.browser().post("/query", {"sql": sql})
            assert page.status == 200
            assert page.text.count("<tr>") == 3  # head, and two of three rows
            assert "only the first are shown" in page.text
            assert ">135<" in page.text
            assert '<figure class="chart"' in page.text
            assert "total" in page.text
            assert "NULL" in page.text
            assert EVIL not in page.text
            assert "&lt;script&gt;" in page.text

    run(work)


def rows_of(*rows, columns):
    return QueryRows(columns=columns, rows=rows, is_cut=False, tables={}, duration_ms=1)


def test_a_second_column_of_words_makes_bars_of_several_kinds():
    columns = [("d", "DATE"), ("event", "VARCHAR"), ("n", "BIGINT"), ("mean", "DOUBLE")]
    rows = [["01", "a", 1, 0.5], ["01", "b", 2, "nan"], ["02", "b", 3, 1.5]]
    count, mean = chart_result(rows_of(*rows, columns=columns))
    assert (count["title"], count["x"]) == ("n", ["01", "02"])
    assert [(each["name"], each["values"]) for each in count["series"]] == [("a", [1, None]), ("b", [2, 3])]
    assert [each["values"] for each in mean["series"]] == [[0.5, None], [None, 1.5]]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([["x", "y", 1], ["x", "y", 2]], ["x · y", "x · y"]),
        ([["x", f"kind {number}", number] for number in range(7)], [f"x · kind {number}" for number in range(7)]),
        ([["x", None, 1], ["z", None, 2]], ["x · None", "z · None"]),
    ],
    ids=["the same pair twice", "too many kinds", "one kind"],
)
def test_bars_that_cannot_be_told_apart_by_kind_have_both_words_under_them(rows, words):
    (chart,) = chart_result(rows_of(*rows, columns=[("a", "VARCHAR"), ("b", "VARCHAR"), ("n", "BIGINT")]))
    assert chart["x"] == words
    assert [each["values"] for each in chart["series"]] == [[row[2] for row in rows]]


async def download(rig, sql, file_format, tables=("t",)):
    return await rig.parts.queries.download("somebody", Statement(sql=sql), tables=tables, file_format=file_format)


def test_a_result_is_downloaded_whole_as_csv_and_parquet(lake, tmp_path):
    async def work():
        async with open_on(lake, console_query_rows=2) as rig:
            sql = "select n, text, {'a': [n]} as nested from t order by n -- all"
            answer = await rig.browser().post("/query", {"sql": sql, "download": "csv"})
            assert answer.headers["content-disposition"] == 'attachment; filename="query.csv"'
            assert answer.headers["content-type"].startswith("text/csv")
            lines = answer.text.splitlines()
            assert (lines[0], len(lines)) == ("n,text,nested", 31)
            file = tmp_path / "query.parquet"
            file.write_bytes(await download(rig, sql, "parquet"))
            assert duckdb.sql(f"select count(*), sum(nested.a[1]) from '{file}'").fetchall() == [(30, 435)]
            nothing = await rig.browser().post("/query", {"sql": sql, "download": "exe"})
            assert nothing.headers["content-type"].startswith("text/html")

    run(work)


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("from other", "does not exist"),
        ("select * from read_text('/proc/self/environ')", "nothing else"),
        ("select * from read_text('/proc/self/fd/../environ')", "nothing else"),
        ("select * from read_text('/proc/self/fd/0')", "nothing else"),
        ("copy t to '/tmp/icedb-console-test.csv'", "not allowed"),
        ("select 1) to '/tmp/icedb-console-test.csv' (format csv", "syntax error"),
        ("select md5(range::varchar) as x from range(1000000)", "larger than 24 MiB.*icedb query -o csv"),
    ],
)
def test_a_download_reads_and_writes_no_more_than_a_query_and_is_bounded(lake, sql, reason):
    async def work():
        async with open_on(lake) as rig:
            with pytest.raises((InvalidRequest, NotFound), match=reason):
                await download(rig, sql, "csv")

    run(work)
    assert not Path("/tmp/icedb-console-test.csv").exists()


def test_the_box_has_tables_and_columns_to_pick_and_an_address_to_share(lake):
    async def work():
        async with open_on(lake) as rig:
            page = (await rig.browser().get("/query?table=t")).text
            assert 'data-table="other"' in page
            assert 'data-insert="text"' in page
            done = await rig.browser().post("/query", {"sql": "select 'a&b' as x"})
            link = re.search(r'id="link" href="([^"]+)"', done.text)[1]
            shared = await rig.browser().get(html.unescape(link))
            assert ">select &#39;a&amp;b&#39; as x</textarea>" in shared.text
            assert 'id="result-title"' not in shared.text, "an address runs nothing"

    run(work)


async def ask(rig, sql, tables=("t",)):
    return await rig.parts.queries.run("somebody", Statement(sql=sql), tables=tables)


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("select * from other", "does not exist"),
        ("select * from read_csv('/etc/passwd')", "nothing else"),
        ("copy t to '/tmp/icedb-console-test.csv'", "not allowed"),
        ("", "write a query"),
        ("select '\ud800'", "half a character"),
    ],
)
def test_a_query_reads_the_tables_it_may_and_nothing_else(lake, sql, reason):
    async def work():
        async with open_on(lake) as rig:
            with pytest.raises((InvalidRequest, NotFound), match=reason):
                await ask(rig, sql)

    run(work)
    assert not Path("/tmp/icedb-console-test.csv").exists()


def test_a_table_of_others_is_refused_as_one_that_is_not_there(lake, tmp_path):
    async def work():
        async with open_on(lake, folder=tmp_path) as rig:
            browser = rig.browser(READER)
            theirs, none = [(await browser.post("/query", {"sql": f"from {name}"})).text for name in ("other", "nope_")]
            assert "does not exist" in theirs
            assert theirs.replace("other", "nope_") == none

    run(work)


def test_a_query_that_takes_too_long_is_killed(lake):
    async def work():
        async with open_on(lake, console_query_limit_ms=1000) as rig:
            with pytest.raises(QueryTooSlow, match="takes longer than 1 s"):
                await ask(rig, FOREVER)
            assert not rig.parts.queries._processes
            assert rig.parts.queries._running.total() == 0

    run(work)


def test_a_query_that_needs_too_much_memory_fails_alone(lake):
    async def work():
        async with open_on(lake, console_query_memory_mb=128) as rig:
            with pytest.raises(QueryTooLarge, match="more than 128 MiB"):
                await ask(rig, "select list(range) from range(100000000)")
            assert (await ask(rig, "select count(*) as n from t")).rows == [[30]]

    run(work)


RESERVED = """
import ctypes, re, threading
threading.stack_size(1 << 18)
read = lambda: int(re.search(r"VmSize:\\s+(\\d+)", open("/proc/self/status").read())[1])
before, held, let_go, libc = read(), threading.Barrier(17), threading.Barrier(17), ctypes.CDLL(None)
def hold():
    libc.malloc(1000)
    held.wait()
    let_go.wait()
for _ in range(16): threading.Thread(target=hold).start()
held.wait()
print((read() - before) // 1024)
let_go.wait()
"""


def test_threads_leave_the_address_space_to_the_query():
    """Those that read a store each took 64 MiB of it for themselves: then no library of DuckDB could be loaded."""
    done = subprocess.run([sys.executable, "-c", RESERVED], env=_environment(), capture_output=True, check=True)
    assert int(done.stdout) < 256


def test_what_its_engine_does_not_count_is_bounded_by_the_process(lake):
    async def work():
        async with open_on(lake, console_query_memory_mb=128) as rig:
            with pytest.raises(QueryTooLarge, match="more than 128 MiB"):
                await ask(rig, "select length(repeat('x', 3000000000))")

    run(work)


def test_an_answer_is_cut_where_its_cells_are_too_large(lake):
    async def work():
        async with open_on(lake, console_query_rows=10_000) as rig:
            found = await ask(rig, "select repeat('x', 1000) as x from range(9000)")
            assert found.is_cut
            assert len(found.rows) == MAX_ANSWER_BYTES // 1000

    run(work)


def test_a_page_that_is_closed_ends_its_query(lake):
    async def work():
        async with open_on(lake) as rig:
            left = asyncio.Event()
            browser = rig.browser()
            browser.cookies["icedb_form"] = "k" * 43
            body = f"form_key={'k' * 43}&sql={FOREVER.replace(' ', '+')}"
            asking = asyncio.create_task(browser.ask("POST", "/query", body=body, left=left))
            while not rig.parts.queries._processes:  # noqa: ASYNC110 - a process starts when it does
                await asyncio.sleep(0.01)
            (process,) = rig.parts.queries._processes
            left.set()
            await asyncio.wait_for(asking, LIMIT_S)
            assert process.returncode == -9
            assert rig.parts.metrics._queries.labels("cancelled")._value.get() == 1

    run(work)


class Standing(Queries):
    """Its processes answer when they are let go."""

    def __init__(self, **settings):
        super().__init__(ConsoleSettings(store="file:///x", **settings), metrics=Counting(), clock=SmallTable().clock)
        self.let_go = asyncio.Event()

    async def _run_process(self, request):
        await self.let_go.wait()
        return b'{"columns": [["a", "INTEGER"]], "rows": [[1]], "is_cut": false, "tables": {}}'


class Counting:
    def __init__(self):
        self.outcomes = []

    def count_query(self, outcome):
        self.outcomes.append(outcome)


def test_so_many_run_at_once_and_so_many_of_one():
    async def work():
        queries = Standing(console_max_queries=3)
        running = [asyncio.create_task(queries.run("one", Statement(sql="select 1"), tables=())) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="2 of yours"):
            await queries.run("one", Statement(sql="select 1"), tables=())
        running.append(asyncio.create_task(queries.run("two", Statement(sql="select 1"), tables=())))
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="3 queries"):
            await queries.run("three", Statement(sql="select 1"), tables=())
        running[0].cancel()
        await asyncio.wait(running[:1])
        running.append(asyncio.create_task(queries.run("three", Statement(sql="select 1"), tables=())))
        await asyncio.sleep(0)
        queries.let_go.set()
        await asyncio.gather(*running[1:])
        assert queries._metrics.outcomes == ["busy", "busy", "cancelled", "ok", "ok", "ok"]
        assert not queries._running

    run(work)


def test_a_query_gets_what_the_store_needs_and_no_other_secret(monkeypatch):
    monkeypatch.setenv("ICEDB_REDIS_URL", "redis://:hush@127.0.0.1/0")
    monkeypatch.setenv("ICEDB_ACCESS_FILE", "/etc/icedb/access.toml")
    monkeypatch.setenv("AWS_PROFILE", "mine")
    monkeypatch.setenv("ICEDB_S3_ENDPOINT", "http://s3:9000")

    async def work():
        queries = Queries(ConsoleSettings(store="s3://b/p"), metrics=Counting(), clock=SmallTable().clock)
        environment = queries._store_environment()
        assert not {"ICEDB_STORE", "AWS_PROFILE", "ICEDB_S3_ENDPOINT", "ICEDB_REDIS_URL"} & _environment().keys()
        assert environment["ICEDB_STORE"] == "s3://b/p"
        assert environment["ICEDB_S3_ENDPOINT"] == "http://s3:9000"
        assert environment["AWS_PROFILE"] == "mine"
        assert not {"ICEDB_REDIS_URL", "ICEDB_ACCESS_FILE"} & environment.keys()

    run(work)


def test_what_the_store_needs_is_forgotten_before_the_statement_runs(monkeypatch, tmp_path):
    """DuckDB has no key of the store, and neither has the environment beside which it runs."""
    seen = {}

    def run(_sql, snapshots, **_bounds):
        seen.update(os.environ, files=[file.presigned_url for file in snapshots["events"].files])
        raise InvalidRequest("not now")

    folder = tmp_path / "lake"
    with connect(folder) as lake:
        lake.create_table("events").append([{"n": 1}])
    monkeypatch.setattr(query_process, "run", run)
    store = {"ICEDB_STORE": str(folder), "AWS_SECRET_ACCESS_KEY": "hush"}
    for name, value in store.items():
        monkeypatch.setenv(name, value)
    asked = Statement(sql="from events").model_dump()
    request = {"do": "query", **asked, "tables": ["events"], "store": store, "limit_ms": 1000}
    answer = query_process._answer({**request, "memory_bytes": 2**28, "thread_count": 1, "max_rows": 1})
    assert answer == {"error": "refused", "message": "not now"}
    assert not store.keys() & seen.keys()


def test_a_bucket_is_read_by_urls_that_end_soon(monkeypatch):
    asked = []
    answerer = SimpleNamespace(snapshot=lambda request: asked.append(request.presign_ms) or 1 / 0)
    client = SimpleNamespace(answerer=answerer, settings=SimpleNamespace(store="s3://bucket/wh"))
    statement = Statement(sql="from events").model_dump()
    request = {**statement, "tables": ["events"], "limit_ms": 30_000, "store": {}}
    with pytest.raises(ZeroDivisionError):
        query_process._query(client, request)
    assert asked == [90_000]


def test_columns_and_the_rows_of_a_batch_are_looked_into_by_a_process(lake):
    async def work():
        async with open_on(lake) as rig:
            page = (await rig.browser().get("/tables/t/columns")).text
            assert "2026-01-03" in page
            assert "exact" not in page
            assert EVIL not in page
            place = rig.parts.warehouse.table("t")
            key = place.paths.quarantine_key(f"x.batch-{'0' * 32}.ndjson")
            place.store.put(key, b'{"n": 1}\n{"n": 2}\n')
            assert list(await rig.parts.queries.preview("me", key, lines=1)) == ['{"n": 1}']

    run(work)


def test_queries_can_be_turned_off(lake):
    async def work():
        async with open_on(lake, console_max_queries=0) as rig:
            assert "turned off" in (await rig.browser().get("/query")).text
            assert "turned off" in (await rig.browser().post("/query", {"sql": "select 1"})).text

    run(work)
