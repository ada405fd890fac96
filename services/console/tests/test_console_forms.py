"""Signing in, and what changes something: only from our own pages, with the right for it, after it was confirmed."""

import asyncio
import base64
import hashlib

import pytest
from cryptography.fernet import Fernet
from icedb_console.actions import ACTIONS
from icedb_console.sessions import FORM_COOKIE, FORM_FIELD, SESSION_COOKIE
from icedb_log.clock import SystemClock
from icedb_log.holds.leases import acquire_lease, read_leases
from icedb_log.holds.tags import create_tag, find_lasting, list_tags
from icedb_log.ingest.quarantine import list_quarantined
from icedb_sim.rigs.access_rig import token_entry
from icedb_sim.rigs.console_rig import ERASER, KEEPER, READER, STRANGER, open_console
from icedb_sim.tables.small_table import SmallTable


@pytest.fixture
def table():
    return SmallTable()


def run(work):
    return asyncio.run(work())


def test_who_is_not_known_is_led_to_the_door_and_a_token_opens_it(table, tmp_path):
    async def work():
        async with open_console(table, folder=tmp_path) as rig:
            browser = rig.browser()
            answer = await browser.get("/")
            assert (answer.status, answer.headers["location"]) == (303, "/sign-in")
            assert (await browser.get("/live")).status == 401
            await browser.get("/sign-in")
            wrong = await browser.post("/sign-in", {"token": "icedb_alpha-token-wrong"})
            assert (wrong.status, SESSION_COOKIE in wrong.cookies) == (401, False)
            right = await browser.post("/sign-in", {"token": READER})
            assert (right.status, right.headers["location"]) == (303, "/")
            cookie = right.cookies[SESSION_COOKIE].lower()
            assert "httponly" in cookie
            assert "samesite=strict" in cookie
            assert "path=/" in cookie
            assert READER.lower() not in cookie, "who gets hold of it has a session, and no token"
            assert (await browser.get("/")).status == 200
            assert "reader" in (await browser.get("/")).text
            await browser.post("/sign-out")
            assert (await browser.get("/")).status == 303

    run(work)


@pytest.mark.parametrize(
    ("has_certificate", "proxied", "is_secure"),
    [(False, None, False), (True, None, True), (False, "https", True), (False, "http", False), (True, "http", True)],
)
def test_what_the_browser_keeps_goes_over_tls_alone_where_it_speaks_it(
    table, tmp_path, has_certificate, proxied, is_secure
):
    """The console has a certificate, or a proxy before it that says so."""
    settings = {"tls_cert_file": "cert.pem", "tls_key_file": "key.pem"} if has_certificate else {}
    headers = {} if proxied is None else {"x_forwarded_proto": proxied}

    async def work():
        async with open_console(table, folder=tmp_path, **settings) as rig:
            browser = rig.browser()
            answers = [
                await browser.get("/sign-in", **headers),
                await browser.post("/sign-in", {"token": READER}, **headers),
                await browser.post("/sign-out", **headers),
            ]
            for answer in answers:
                assert answer.cookies
                assert all(("; secure" in each.lower()) == is_secure for each in answer.cookies.values())

    run(work)


@pytest.mark.parametrize("is_shared", [False, True])
def test_a_session_counts_at_each_replica_that_has_the_secret(table, tmp_path, is_shared):
    async def work():
        secrets = [{"console_secret": "s" * 32} if is_shared else {} for _ in range(2)]
        async with (
            open_console(table, folder=tmp_path, **secrets[0]) as first,
            open_console(table, folder=tmp_path, **secrets[1]) as second,
        ):
            browser, other = first.browser(), second.browser()
            await browser.get("/sign-in")
            await browser.post("/sign-in", {"token": READER})
            other.cookies.update(browser.cookies)
            assert (await other.get("/")).status == (200 if is_shared else 303)

    run(work)


def test_a_session_ends_and_a_cookie_of_somebody_elses_making_is_nobody(table, tmp_path):
    secret = "s" * 32
    key = base64.urlsafe_b64encode(hashlib.sha256(f"icedb console session 1:{secret}".encode()).digest())

    async def work():
        async with open_console(table, folder=tmp_path, console_secret=secret) as rig:
            now_s = SystemClock().now_ms() // 1000
            hours = 12 * 3600
            for made_s, status in ((now_s - hours + 600, 200), (now_s - hours - 600, 303)):
                browser = rig.browser()
                browser.cookies[SESSION_COOKIE] = Fernet(key).encrypt_at_time(READER.encode(), made_s).decode()
                assert (await browser.get("/")).status == status
            for made_up in (READER, "x", "%", Fernet(Fernet.generate_key()).encrypt(READER.encode()).decode()):
                browser = rig.browser()
                browser.cookies[SESSION_COOKIE] = made_up
                assert (await browser.get("/")).status == 303

    run(work)


def test_a_token_that_was_withdrawn_counts_no_longer(table, tmp_path):
    async def work():
        async with open_console(table, folder=tmp_path) as rig:
            browser = rig.browser()
            await browser.post("/sign-in", {"token": READER})
            assert (await browser.get("/")).status == 200
            rig.document["identities"]["reader"]["tokens"] = [token_entry(READER.replace("alpha", "gamma"))]
            rig.write()
            table.clock.advance(2_000)
            assert (await browser.get("/")).status == 303

    run(work)


@pytest.mark.parametrize("token", ["x" * 4000, "a;b", "a b", "ä", ""])
def test_no_browser_is_given_what_it_would_not_keep(table, tmp_path, token):
    async def work():
        async with open_console(table, folder=tmp_path) as rig:
            answer = await rig.browser().post("/sign-in", {"token": token})
            assert (answer.status, SESSION_COOKIE in answer.cookies) == (401, False)

    run(work)


@pytest.mark.parametrize(
    ("fields", "headers", "cookies"),
    [
        pytest.param({FORM_FIELD: ""}, {}, {}, id="no key"),
        pytest.param({FORM_FIELD: "x" * 43}, {}, {}, id="another browser's key"),
        pytest.param({}, {"sec_fetch_site": "cross-site"}, {}, id="from elsewhere"),
        pytest.param({}, {"sec_fetch_site": "same-site"}, {}, id="from a neighbour"),
        pytest.param({}, {"origin": "https://evil.test"}, {}, id="of another origin"),
        pytest.param({}, {"origin": "null"}, {}, id="of no origin"),
        pytest.param({FORM_FIELD: ""}, {}, {FORM_COOKIE: ""}, id="no cookie"),
    ],
)
@pytest.mark.parametrize("path", ["/query", "/tables/t/do/delete_tag", "/sign-in", "/sign-out"])
def test_a_form_from_elsewhere_does_nothing(table, path, fields, headers, cookies):
    async def work():
        async with open_console(table) as rig:
            table.append(1)
            create_tag(table.opened(), "q3")
            browser = rig.browser()
            browser.cookies.update(cookies)
            given = {"what": "q3", "sql": "select 1", **fields}
            assert (await browser.post(path, given, **headers)).status == 403
            assert find_lasting(list_tags(table))

    run(work)


def test_a_form_has_bounds(table):
    async def work():
        async with open_console(table) as rig:
            assert (await rig.browser().post("/query", {"sql": "x" * 300_000})).status == 400
            many = {f"f{number}": "" for number in range(100)}
            assert (await rig.browser().post("/query", many)).status == 400

    run(work)


def test_asking_does_nothing_and_confirming_does(table):
    async def work():
        async with open_console(table) as rig:
            table.append(1)
            create_tag(table.opened(), "q3")
            lease = acquire_lease(table.opened(), ttl_ms=60_000)
            browser = rig.browser()
            asked = await browser.get("/tables/t/do/delete_tag?what=q3")
            assert "End tag q3 of table t?" in asked.text
            assert find_lasting(list_tags(table))
            done = await browser.post("/tables/t/do/delete_tag", {"what": "q3"})
            assert (done.status, "Done: tag q3 has ended" in done.text) == (200, True)
            assert not find_lasting(list_tags(table))
            assert (await browser.post("/tables/t/do/release", {"what": lease.lease_id})).status == 200
            assert read_leases(table) == ()
            assert (await browser.post("/tables/t/do/delete_tag")).status == 409

    run(work)


def test_a_batch_in_quarantine_is_tried_again_or_deleted(table):
    async def work():
        async with open_console(table) as rig:
            first, second = (table.stage_bytes(f"nonsense {number}".encode()) for number in range(2))
            table.flush()
            browser = rig.browser()
            answer = await browser.post("/tables/t/do/drop", {"what": first})
            assert "is deleted" in answer.text
            assert [entry.batch_id for entry in list_quarantined(table)] == [second]
            woken = []
            rig.parts.actions.__dict__["_wakeups"] = type("W", (), {"try_wake": lambda _, *args: woken.append(args)})()
            assert "is staged as" in (await browser.post("/tables/t/do/retry", {"what": second})).text
            assert list_quarantined(table) == ()
            assert [name for _, name in woken] == ["t"]

    run(work)


@pytest.mark.parametrize("action", ACTIONS)
def test_nothing_is_done_without_the_right_for_it(table, tmp_path, action):
    async def work():
        async with open_console(table, folder=tmp_path) as rig:
            table.append(1)
            done = []
            rig.parts.actions.run = lambda *args: done.append(args) or "it"
            path = f"/tables/t/do/{action}"
            expected = {READER: 403, STRANGER: 404, KEEPER: 403 if action == "drop" else 200, ERASER: 200, None: 401}
            for token, status in expected.items():
                browser = rig.browser(token)
                page = await browser.get(path)
                assert page.status == (303 if token is None else status)
                done.clear()
                assert (await browser.post(path, {"what": "x"})).status == status
                assert done == ([(action, "t", "x")] if status == 200 else [])

    run(work)


def test_workers_are_woken_by_the_tasks_that_the_command_wakes(table):
    async def work():
        async with open_console(table) as rig:
            table.append(1)
            woken = []

            class Wakeups:
                def wake(self, task, name):
                    woken.append((task, name))
                    return True

            rig.parts.actions.__dict__["_wakeups"] = Wakeups()
            for action in ("flush", "merge", "vacuum"):
                assert "woken" in (await rig.browser().post(f"/tables/t/do/{action}")).text
            names = [task for task, _ in woken]
            assert names == ["icedb.ingest.flush", "icedb.merge.merge", "icedb.janitor.vacuum"]

    run(work)


def test_an_action_is_not_done_where_the_table_is_not(table):
    async def work():
        async with open_console(table) as rig:
            answer = await rig.browser().post("/tables/nothing/do/delete_tag", {"what": "q3"})
            assert answer.status == 409
            assert (await rig.browser().get("/tables/t/do/nonsense")).status == 404

    run(work)
