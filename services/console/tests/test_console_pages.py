"""What pages show, to whom, and what they never hold: names of others, scripts in values, anything from elsewhere."""

import asyncio
import re
import threading
from datetime import UTC, datetime
from html.parser import HTMLParser

import pytest
from icedb_client.wakeups import RedisLook
from icedb_log.changes.table_changes import alter_table_config
from icedb_log.commit.fence import acquire_fence
from icedb_log.errors import HaltError, Unavailable
from icedb_log.holds.leases import acquire_lease
from icedb_log.holds.tags import create_tag
from icedb_log.names import COMMAND_QUEUES, QUEUES
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import PartitionField, TableConfig
from icedb_log.wake_keys import WorkerLook
from icedb_log.warehouse import Warehouse
from icedb_sim.rigs.console_rig import KEEPER, READER, STRANGER, open_console
from icedb_sim.tables.small_table import SmallTable
from icedb_sim.tables.small_view import SmallView
from waiting import LIMIT_S


@pytest.fixture
def table():
    return SmallTable()


EVIL = "<script>alert(1)</script>"


def other_table(table, name="other", **config):
    place = TableStore(table.store, Warehouse(table.store, "wh").table(name).paths)
    create_table(place, TableConfig.create(name=name, **config))


async def read_all(rig):
    await asyncio.to_thread(rig.parts.figures.read_round)


async def until(is_so):
    while not is_so():  # noqa: ASYNC110 - another thread's doing
        await asyncio.sleep(0.001)


def run(work):
    return asyncio.run(work())


def test_the_overview_has_the_figures_of_each_table(table):
    async def work():
        async with open_console(table) as rig:
            first = await rig.browser().get("/")
            assert (first.status, "being read" in first.text) == (200, True)
            table.append(1, 2)
            table.append(3, p="b")
            await read_all(rig)
            page = await rig.browser().get("/")
            assert 'href="/tables/t"' in page.text
            assert re.search(r'title="3">3<', page.text)
            assert "being read" not in page.text
            assert "t" not in re.findall(r'href="/tables/(\w+)"', (await rig.browser().get("/?q=zzz")).text)

    run(work)


def test_a_table_that_cannot_be_read_says_why_beside_the_others(table):
    async def work():
        async with open_console(table) as rig:
            table.append(1)
            other_table(table)
            await read_all(rig)
            table.store.put(table.view().files[0].key.replace(".jsonl", "x.jsonl"), b"nonsense")
            await read_all(rig)
            page = (await rig.browser().get("/")).text
            assert "halted" in page
            assert 'href="/tables/other"' in page
            own = await rig.browser().get("/tables/t")
            assert (own.status, "halted" in own.text) == (200, True)

    run(work)


def test_a_thousand_tables_come_in_parts_sorted_and_found(table):
    async def work():
        async with open_console(table) as rig:
            for number in range(300):
                other_table(table, f"a{number:04}")
            await read_all(rig)
            page = (await rig.browser().get("/?sort=name")).text
            assert len(re.findall(r'<th scope="row"><a href="/tables/', page)) == 100
            assert "page 1 of 4" in page
            last = (await rig.browser().get("/?sort=name&page=4")).text
            assert 'href="/tables/t"' in last
            assert "page 4 of 4" in (await rig.browser().get("/?sort=name&page=99999")).text
            assert (await rig.browser().get("/?page=x&sort=nonsense")).status == 200

    run(work)


def test_a_tables_page_tells_what_it_did_what_waits_and_why(table):
    async def work():
        async with open_console(table) as rig:
            for number in range(4):
                table.append(number, p="a")
            lease = acquire_lease(table.opened(), ttl_ms=600_000, holder="analyst")
            create_tag(table.opened(), "q3", note="third quarter")
            table.merge(full=True)
            table.clock.advance(120_000)
            table.append(9, p="b")
            table.stage_bytes(b'{"id": 10, "p": "c"}\n')
            page = (await rig.browser().get("/tables/t")).text
            assert "p=a" in page
            assert "nothing to merge: one file only" in page
            assert "kept by lease" in page
            assert lease.lease_id in page
            assert "analyst" in page
            assert "third quarter" in page
            assert "filling" not in page
            assert "merge" in page
            assert "(write amplification)" in page
            assert "1 staged batch" in re.sub(r"<[^>]*>", "", page)
            assert page.count('<figure class="chart"') == 2

    run(work)


def test_a_column_that_is_filled_is_named_with_what_is_left(table):
    async def work():
        async with open_console(table) as rig:
            table.append(1, p="a")
            change = {"declared": {"body": "VARCHAR", "x": "VARCHAR"}, "promoted": {"x": ("body", "x")}}
            alter_table_config(table, change, clock=table.clock)
            table.append(2, p="a")
            page = re.sub(r"<[^>]*>", "", (await rig.browser().get("/tables/t")).text)
            assert "x: filling. Merges write 1 data file anew, 16 B." in page

    run(work)


def test_what_a_commit_did_is_remembered_after_its_log_file_is_gone(table):
    async def work():
        async with open_console(table) as rig:
            table.append(1, p="a")
            table.append(2, p="a")
            await rig.browser().get("/tables/t")
            table.merge(full=True)
            table.clock.advance(400_000)
            for _ in range(3):
                table.vacuum()
            table.clock.advance(2_000)
            page = (await rig.browser().get("/tables/t")).text
            assert len(re.findall(r'<th scope="row">append</th>', page)) == 2

    run(work)


def test_who_may_not_read_a_table_learns_nothing_of_it(table, tmp_path):
    async def work():
        async with open_console(table, folder=tmp_path) as rig:
            table.append(1)
            other_table(table)
            await read_all(rig)
            stranger = rig.browser(STRANGER)
            overview = (await stranger.get("/")).text
            assert re.findall(r'href="/tables/(\w+)"', overview) == ["other"]
            assert 'title="1">1<' in overview  # one table, and not two
            for path in ("/tables/{}", "/tables/{}/columns", "/tables/{}/do/merge", "/live?table={}"):
                theirs, none = [await stranger.get(path.format(name)) for name in ("t", "nothing")]
                assert theirs.status == none.status == 404
                assert theirs.text.replace("&#39;t&#39;", "&#39;nothing&#39;") == none.text
            assert "/tables/t" not in (await stranger.get("/workers")).text
            assert "table=t" not in (await stranger.get("/query")).text

    run(work)


def test_the_host_of_a_worker_is_for_those_who_maintain_its_table(table, tmp_path):
    async def work():
        async with open_console(table, folder=tmp_path) as rig:
            table.append(1)
            acquire_fence(table.opened(owner="merger@host-of-ours"), "merge")
            await read_all(rig)
            for path in ("/workers", "/tables/t"):
                theirs = {token: (await rig.browser(token).get(path)).text for token in (READER, KEEPER)}
                assert "merger" in theirs[READER]
                assert [token for token, text in theirs.items() if "host-of-ours" in text] == [KEEPER]

    run(work)


def test_workers_are_listed_with_what_they_do_to_those_who_may_know(table, tmp_path, monkeypatch):
    def look(now_ms):
        workers = (
            WorkerLook("ingest", "host-of-ours", 4711, "1.0.0", now_ms, (("icedb.ingest.flush", "t"),)),
            WorkerLook("janitor", "host-of-ours", 4712, "1.0.0", now_ms - 1_000, ()),
            WorkerLook("merge", "host-of-ours", 4713, "0.9.0", now_ms - 900_000, (("icedb.merge.merge", "secret"),)),
            WorkerLook("merge", EVIL, 4714, EVIL, now_ms, ((EVIL, "secret"),)),
        )
        waiting = dict.fromkeys((*QUEUES, *COMMAND_QUEUES.values()), 1)
        return RedisLook("7.2", "x", is_master=True, may_evict=False, waiting=waiting, workers=workers)

    monkeypatch.setattr("icedb_console.pages.look_at_redis", lambda *_, **__: look(table.clock.now_ms()))

    async def work():
        async with open_console(table, folder=tmp_path) as rig:
            table.append(1)
            await read_all(rig)
            reader, keeper = [(await rig.browser(token).get("/workers")).text for token in (READER, KEEPER)]
            for page in (reader, keeper):
                assert '<code>icedb.ingest.flush</code> of <a href="/tables/t">' in page
                assert "waits for messages" in page
                assert "silent" in page
                assert "15 min ago" in page
                assert "secret" not in page
                check_page(page)
            assert "host-of-ours, process 4711" in keeper
            assert "host-of-ours" not in reader

    run(work)


def test_names_of_views_and_holders_are_for_those_who_may_know_them(table, tmp_path):
    async def work():
        async with open_console(table, folder=tmp_path) as rig:
            table.append(1)
            lease = acquire_lease(table.opened(), ttl_ms=600_000, holder="analyst-of-another-team")
            table.append(2)
            table.merge(full=True)
            table.clock.advance(120_000)
            reader = (await rig.browser(READER).get("/tables/t")).text
            assert lease.lease_id in reader
            assert "analyst-of" not in reader
            assert "/do/" not in reader
            table.clock.advance(2_000)
            keeper = (await rig.browser(KEEPER).get("/tables/t")).text
            assert "analyst-of-another-team" in keeper
            assert "/tables/t/do/merge" in keeper

    run(work)


def test_what_of_a_table_cannot_be_read_hides_nothing_else_and_no_view_is_named_to_others(table, tmp_path, monkeypatch):
    def fail(*_args, **_kwargs):
        raise Unavailable("no answer")

    def halt(_source, *, on_halt):
        on_halt("secret_view", HaltError("its log is torn"))
        return ()

    monkeypatch.setattr("icedb_log.serving.statuses.list_tags", fail)
    monkeypatch.setattr("icedb_log.serving.statuses.list_view_lags", halt)

    async def work():
        async with open_console(table, folder=tmp_path) as rig:
            table.append(1, p="a")
            reader = await rig.browser(READER).get("/tables/t")
            assert (reader.status, "tags: no answer" in reader.text, "p=a" in reader.text) == (200, True, True)
            assert "secret_view" not in reader.text
        async with open_console(table) as rig:
            assert "view secret_view: its log is torn" in (await rig.browser().get("/tables/t")).text

    run(work)


def test_a_view_and_its_source_are_named_to_those_who_may_see_them(table, tmp_path):
    async def work():
        async with open_console(table, folder=tmp_path) as rig:
            table.append(1)
            view = SmallView(table, name="other")
            view.feed_all()
            source = (await rig.browser(READER).get("/tables/t")).text
            assert "/tables/other" not in source
            shown = (await rig.browser(STRANGER).get("/tables/other")).text
            assert "This table is a view of another table" in shown
            assert "/tables/t" not in shown

    run(work)


class _Page(HTMLParser):
    """Finds what a strict policy forbids, and whatever leads elsewhere."""

    def __init__(self):
        super().__init__()
        self.found = []
        self.open_script = False

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        if tag == "script" and not (given.get("src") or "").startswith("/static/"):
            self.found.append((tag, attrs))
        if tag in ("style", "iframe", "object", "embed", "base"):
            self.found.append((tag, attrs))
        for name, value in attrs:
            if name == "style" or name.startswith("on"):
                self.found.append((name, value))
            if name in ("href", "src", "action", "data-live") and not re.match(r"(/(?!/)|#)", value or ""):
                self.found.append((name, value))
        self.open_script = tag == "script"

    def handle_data(self, data):
        if self.open_script and data.strip():
            self.found.append(("script", data))

    def handle_endtag(self, tag):
        self.open_script = False


def check_page(text):
    page = _Page()
    page.feed(text)
    assert page.found == []
    assert EVIL not in text


def hostile_table():
    """Every name and value that people can choose, as bad as it may be."""
    return SmallTable(partition=(PartitionField(name="p", column="p"),), sort=("id",))


def test_no_name_or_value_is_ever_more_than_text():
    async def work():
        table = hostile_table()
        async with open_console(table) as rig:
            table.append(1, p=f"{EVIL}\"'><img src=x onerror=alert(1)>")
            table.append(2, p="javascript:alert(1)")
            table.stage_bytes(f'{{"{EVIL}": "\\"><img src=//evil.test>"}}'.encode())
            table.flush()
            create_tag(table.opened(), "q3", note=f'"><b onclick="x">{EVIL}')
            acquire_lease(table.opened(), ttl_ms=600_000, holder=f"{EVIL}")
            await read_all(rig)
            browser = rig.browser()
            page = await browser.get("/tables/t")
            assert page.status == 200
            assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page.text
            for path in (
                "/", "/tables/t", "/workers", "/query?table=%3Cscript%3E", f"/?q={EVIL}&sort={EVIL}",
                f"/query?sql={EVIL}", f"/tables/{EVIL}", f"/tables/t/do/{EVIL}", f"/tables/t/do/delete_tag?what={EVIL}",
                f"/tables/t/quarantine/{EVIL}", f"/{EVIL}", "/sign-in",
            ):  # fmt: skip
                check_page((await browser.get(path)).text)
            check_page((await browser.post("/query", {"sql": f"select '{EVIL}' from {EVIL}"})).text)

    run(work)


def test_every_answer_says_what_a_browser_may_do(table, tmp_path):
    async def work():
        async with open_console(table, folder=tmp_path) as rig:
            reader = rig.browser(READER)
            for path in ("/", "/nope", "/static/console.js", "/static/nope", "/tables/t", "/sign-in", "/query"):
                headers = (await reader.get(path)).headers
                policy = headers["content-security-policy"]
                assert policy.startswith("default-src 'none'")
                assert "unsafe" not in policy
                assert "frame-ancestors 'none'" in policy
                assert headers["x-content-type-options"] == "nosniff"

    run(work)


def test_a_page_that_the_browser_has_is_not_sent_again(table):
    async def work():
        async with open_console(table) as rig:
            table.append(1)
            await read_all(rig)
            first = await rig.browser().get("/")
            again = await rig.browser().get("/", if_none_match=first.headers["etag"])
            assert (again.status, again.text) == (304, "")
            table.append(2)
            await read_all(rig)
            assert (await rig.browser().get("/", if_none_match=first.headers["etag"])).status == 200

    run(work)


def test_files_are_kept_for_ever_by_their_digest(table):
    async def work():
        async with open_console(table) as rig:
            page = (await rig.browser().get("/")).text
            (path,) = set(re.findall(r'href="(/static/console\.css\?\w+)"', page))
            answer = await rig.browser().get(path)
            assert (answer.status, "immutable" in answer.headers["cache-control"]) == (200, True)
            assert "immutable" not in (await rig.browser().get("/static/console.css?old")).headers["cache-control"]
            assert (await rig.browser().get("/static/..%2fserver.py")).status == 404

    run(work)


def test_a_stream_tells_of_a_commit_and_ends_with_the_right_to_look(table, tmp_path, monkeypatch):
    monkeypatch.setattr("icedb_console.pages.LOOK_S", 0.01)

    async def work():
        async with open_console(table, folder=tmp_path) as rig:
            table.append(1)
            await read_all(rig)
            told = []

            def on_body(answer):
                told.append(answer.text)
                if "event: news" in answer.text and rig.document["grants"]:
                    rig.document["grants"] = []
                    rig.write()
                elif len(told) == 1:
                    table.append(2)
                table.clock.advance(2_000)

            answer = await asyncio.wait_for(
                rig.browser(READER).ask("GET", "/live?table=t", on_body=on_body), timeout=LIMIT_S
            )
            assert answer.headers["content-type"].startswith("text/event-stream")
            assert "event: news" in answer.text
            assert answer.text.rstrip().endswith("data: not allowed")

    run(work)


def test_a_stream_looks_more_often_than_figures_are_read(table, monkeypatch):
    """A round that ends is news: a stream that looked as rarely would never say that the page is the newest."""
    monkeypatch.setattr("icedb_console.pages.LOOK_S", 10**6)

    async def work():
        async with open_console(table, console_refresh_ms=500) as rig:

            def on_body(answer):
                if answer.text.count("event: ") == 2:
                    rig.parts.closing.set()

            await asyncio.wait_for(rig.browser().ask("GET", "/live", on_body=on_body), timeout=LIMIT_S)

    run(work)


async def first_event(rig, path):
    """Return the first event of a stream, and leave."""
    left, seen = asyncio.Event(), []

    def on_body(answer):
        seen[:] = re.findall(r"event: (\w+)", answer.text)[:1]
        if seen:
            rig.parts.closing.set()
            left.set()

    await asyncio.wait_for(rig.browser().ask("GET", path, left=left, on_body=on_body), timeout=LIMIT_S)
    rig.parts.closing.clear()
    return seen[0]


@pytest.mark.parametrize(
    ("most", "method", "path", "what"),
    [
        ({}, "GET", "/live?table=t", "pages that are kept up to date"),
        ({"http_max_connections": 2}, "POST", "/v1/query", "requests"),
        ({"http_max_connections": 2}, "GET", "/", "requests"),
    ],
)
def test_one_who_looks_leaves_half_of_the_streams_and_requests_to_others(
    table, tmp_path, monkeypatch, most, method, path, what
):
    monkeypatch.setattr("icedb_console.sessions.MAX_STREAMS", 2)

    async def work():
        async with open_console(table, folder=tmp_path, **most) as rig:
            left, begun = asyncio.Event(), asyncio.Event()

            def open_stream(token):
                ask = rig.browser(token).ask("GET", "/live?table=t", left=left, on_body=lambda _: begun.set())
                return asyncio.create_task(ask)

            first = open_stream(READER)
            await asyncio.wait_for(begun.wait(), LIMIT_S)
            refused = await rig.browser(READER).ask(method, path)
            assert refused.status == 429
            assert f"reader has 1 {what} here already" in refused.text
            assert ("retry-after" in refused.headers) == (path == "/v1/query")
            begun.clear()
            second = open_stream(KEEPER)
            await asyncio.wait_for(begun.wait(), LIMIT_S)
            left.set()
            await asyncio.gather(first, second)
            assert (await rig.browser(READER).get("/")).status == 200

    run(work)


def live_path(page):
    source = re.search(r'data-live="([^"]+)"', page)[1]
    mark = re.search(r'data-mark="(\w+)"', page)
    return f"{source}{'&' if '?' in source else '?'}mark={mark[1] if mark else ''}"


@pytest.mark.parametrize("path", ["/tables/t", "/", "/workers"])
def test_a_stream_begins_at_what_its_page_shows(table, path, monkeypatch):
    """Between a page and its stream everything may happen: the console reads on, and a commit lands."""
    monkeypatch.setattr("icedb_console.pages.LOOK_S", 0.01)

    async def work():
        async with open_console(table) as rig:
            table.append(1)
            await read_all(rig)
            page = (await rig.browser().get(path)).text
            assert await first_event(rig, live_path(page)) == "same"
            table.append(2)
            table.clock.advance(2_000)
            await rig.browser().get("/tables/t")  # another page has it read
            await read_all(rig)
            assert await first_event(rig, live_path(page)) == "news"

    run(work)


def test_a_page_of_what_could_not_be_read_again_is_not_called_live(table, monkeypatch):
    """A store that does not answer: the page is the newest there is, and old."""
    monkeypatch.setattr("icedb_console.pages.LOOK_S", 0.01)

    async def work():
        async with open_console(table) as rig:
            rig.parts.facts.patience_ms = 0
            table.append(1)
            await rig.parts.facts._keep("t")
            page = (await rig.browser().get("/tables/t")).text
            monkeypatch.setattr(rig.parts.facts, "_read", lambda _name: answers.wait(LIMIT_S))
            assert await first_event(rig, live_path(page)) == "same"
            table.clock.advance(60_000)
            assert await first_event(rig, live_path(page)) == "late"
            answers.set()

    answers = threading.Event()
    run(work)


def test_a_page_says_as_of_when_it_is_and_that_it_is_read_anew(table):
    """Nobody has looked for a while: what is known is as old as that."""

    async def work():
        async with open_console(table) as rig:
            table.append(1)
            await read_all(rig)
            read = f"{datetime.fromtimestamp(table.clock.now_ms() / 1000, UTC):%H:%M:%S}"
            table.clock.advance(1_000)
            for path in ("/", "/workers"):
                page = (await rig.browser().get(path)).text
                assert re.search(rf"as of <time[^>]*>{read} UTC<", page)
                assert "being read" not in page
            table.clock.advance(17 * 60_000)
            for path in ("/", "/workers"):
                page = (await rig.browser().get(path)).text
                assert re.search(rf"as of <time[^>]*>{read} UTC<", page)
                assert "being read" in page
            now = f"{datetime.fromtimestamp(table.clock.now_ms() / 1000, UTC):%H:%M:%S}"
            assert re.search(rf"as of <time[^>]*>{now} UTC<", (await rig.browser().get("/tables/t")).text)

    run(work)


def test_an_empty_console_says_whether_it_still_reads(table):
    async def work():
        async with open_console(table, warehouse=Warehouse(table.store, "nothing-here")) as rig:
            for path in ("/", "/workers"):
                page = (await rig.browser().get(path)).text
                assert "being read" in page
                assert "no table yet" not in page
                await read_all(rig)
                page = (await rig.browser().get(path)).text
                assert "being read" not in page
                assert "There is no table yet" in page
                table.clock.advance(17 * 60_000)

    run(work)


def test_streams_end_when_the_console_stops_and_are_bounded(table, monkeypatch):
    monkeypatch.setattr("icedb_console.pages.LOOK_S", 0.01)
    monkeypatch.setattr("icedb_console.pages.MAX_STREAMS", 1)

    async def work():
        async with open_console(table) as rig:
            begun = asyncio.Event()
            first = asyncio.create_task(rig.browser().ask("GET", "/live", on_body=lambda _: begun.set()))
            await asyncio.wait_for(begun.wait(), LIMIT_S)
            assert (await rig.browser().get("/live")).status == 429
            rig.parts.closing.set()
            assert (await asyncio.wait_for(first, LIMIT_S)).status == 200
            assert (await rig.browser().get("/live")).status == 200, "its place is free"

    run(work)


def test_nothing_is_read_while_nobody_looks(table):
    async def work():
        async with open_console(table) as rig:
            table.store.calls.clear()
            rig.parts.figures.start()
            await asyncio.sleep(0)
            assert table.store.calls == []
            await rig.browser().get("/")
            await until(lambda: rig.parts.figures.read_ms)

    run(work)


def test_a_console_without_access_file_answers_only_by_names_of_this_machine(table):
    async def work():
        async with open_console(table) as rig:
            assert (await rig.browser().get("/", host="evil.test")).status == 403
            assert (await rig.browser().get("/", host="localhost:8090")).status == 200
            assert (await rig.browser().get("/", host="[::1]:8090")).status == 200

    run(work)


@pytest.mark.parametrize("kind", ["GET", "POST"])
def test_what_nobody_thought_of_is_a_page_without_its_traceback(table, kind, monkeypatch):
    async def work():
        async with open_console(table) as rig:
            monkeypatch.setattr(rig.parts.names, "read", lambda: 1 / 0)
            ask = rig.browser().get if kind == "GET" else rig.browser().post
            answer = await ask("/query")
            assert answer.status == 500
            assert "division" not in answer.text

    run(work)
