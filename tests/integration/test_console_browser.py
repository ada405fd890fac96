"""The console's pages in a real browser: no error, nothing that its policy forbids, live, readable on a phone."""

import urllib.request

import pytest
from chromium_rig import MISSING, find_chromium, open_chromium
from console_lake import fill_lake, running_console
from waiting import wait_until

pytestmark = [
    pytest.mark.skipif(find_chromium() is None, reason=MISSING),
]

PAGES = (
    "/", "/tables/events", "/tables/events/columns", "/workers", "/query?table=events", "/tables/events/do/merge",
    "/sign-in",
)  # fmt: skip
CHECK = """
const problems = [];
const all = (selector) => [...document.querySelectorAll(selector)];
if (all("h1").length !== 1) problems.push("not one h1");
if (all("main").length !== 1 || !all("header nav[aria-label]").length) problems.push("no landmarks");
all("input:not([type=hidden]), select, textarea").forEach((each) => {
  if (!each.labels.length) problems.push("no label: " + each.outerHTML);
});
all("table").forEach((each) => { if (!each.caption) problems.push("no caption: " + each.outerHTML.slice(0, 99)); });
all("th").forEach((each) => { if (!each.scope) problems.push("no scope: " + each.outerHTML); });
all("svg:not([aria-hidden]), figure").forEach((each) => {
  if (!each.getAttribute("aria-label")) problems.push("a picture without words");
});
const ids = all("[id]").map((each) => each.id);
if (new Set(ids).size !== ids.length) problems.push("an id twice: " + ids);
const wide = document.documentElement.scrollWidth - innerWidth;
if (wide > 0) problems.push("wider than the screen by " + wide);
return problems;
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("lake")


@pytest.fixture(scope="module")
def lake(folder):
    return fill_lake(folder, days=6, commits=6)


@pytest.fixture(scope="module")
def address(folder, lake):
    with running_console(folder) as (_, address):
        urllib.request.urlopen(address).read()
        yield address


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with open_chromium(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture(autouse=True)
def _without_a_complaint(browser):
    browser.complaints()
    yield
    assert browser.complaints() == []


@pytest.mark.parametrize(("width", "is_dark"), [(1280, False), (360, True)])
def test_pages_are_in_order(browser, address, width, is_dark):
    browser.shape(width, 844, is_dark=is_dark)
    for path in PAGES:
        browser.open(address + path)
        assert browser.run(CHECK) == [], path


def test_a_page_shows_a_commit_without_a_reload(browser, address, lake):
    browser.shape(1280, 900)
    browser.open(f"{address}/tables/sessions")
    browser.run("window.stayed = true")
    browser.wait("document.getElementById('state').textContent === 'live'")
    commit_to(lake, 3)
    browser.wait("document.getElementById('partitions').textContent.includes('d=2026-03-03')")
    assert browser.run("return window.stayed") is True


def commit_to(lake, day):
    """Commit one row of a day to the table of sessions."""
    row = {"ts": f"2026-03-{day:02}T00:00:00Z", "event": "view", "user_id": "u1", "amount": 1.0}
    lake.create_table("sessions", exist_ok=True, partition=["d=day(ts)"], sort=["ts"]).append([row])


def wait_for_another_row(browser, before):
    browser.wait(f"document.querySelector('a[href=\"/tables/sessions\"]').closest('tr').textContent !== {before!r}")


def row_of_sessions(browser):
    return browser.run("return document.querySelector('a[href=\"/tables/sessions\"]').closest('tr').textContent")


def test_a_list_goes_on_where_one_of_its_links_has_the_focus(browser, address, lake):
    """A link that was opened in another tab keeps the focus for as long as somebody looks."""
    browser.open(address)
    browser.wait("document.getElementById('state').textContent === 'live'")
    browser.run("document.querySelector('a[href=\"/tables/sessions\"]').focus()")
    before = row_of_sessions(browser)
    commit_to(lake, 4)
    wait_for_another_row(browser, before)
    assert browser.run("return document.activeElement.getAttribute('href')") == "/tables/sessions"


def test_a_page_that_somebody_comes_back_to_is_live_again(browser, address, lake):
    """Browsers keep a page that is left, and show it again as it was, without loading it."""
    browser.open(address)
    browser.wait("document.getElementById('state').textContent === 'live'")
    browser.run("window.stayed = true; location.href = '/sign-in'")
    browser.wait("document.title.startsWith('Sign in')")
    browser.run("history.back()")
    browser.wait("document.querySelector('a[href=\"/tables/sessions\"]')")
    before = row_of_sessions(browser)
    commit_to(lake, 5)
    wait_for_another_row(browser, before)
    assert browser.run("return window.stayed") is True, "the browser has kept the page: else this test tells nothing"


def test_a_page_that_becomes_another_kind_of_page_is_loaded_anew(browser, address, folder, lake):
    """A table whose log is damaged has a page of its own; repaired, it is itself again."""

    def shows(text):  # asked again and again: a script that waits is lost where its page is loaded anew
        return lambda: text in browser.run("return document.querySelector('main').innerText")

    lake.create_table("broken").append([{"n": 1}])
    browser.open(f"{address}/tables/broken")
    browser.wait("document.getElementById('state').textContent === 'live'")
    log = next((folder / "broken" / "_log").glob("*.jsonl"))
    bad = log.with_name(log.name.replace(".jsonl", "x.jsonl"))
    bad.write_bytes(b"nonsense")
    wait_until(shows("halted"), "the page says that the table halts")
    bad.unlink()
    wait_until(shows("Partitions"), "the page is that of a table again")


def write_query(browser, sql):
    """Write into the editor in place of what is there, as somebody types."""
    browser.run("document.querySelector('.editor').shadowRoot.querySelector('.cm-content').focus()")
    browser.tell("Input.dispatchKeyEvent", type="keyDown", commands=["selectAll"])
    browser.tell("Input.insertText", text=sql)
    assert browser.run("return document.getElementById('sql').value") == sql


def press(browser, selector):
    """Press a button wherever it is: a page that scrolls to it smoothly moves while the driver aims."""
    browser.run("document.querySelector(arguments[0]).click()", selector)


def test_a_query_is_answered_by_a_table_and_a_chart_and_is_remembered(browser, address):
    browser.open(f"{address}/query")
    sql = "select event, count(*) as many from events group by event order by event"
    write_query(browser, sql)
    browser.click("button.main")
    browser.wait("document.querySelector('table.rows')")
    assert browser.run("return document.querySelectorAll('table.rows tbody tr').length") >= 2
    assert browser.run("return document.querySelectorAll('figure.chart canvas').length") == 1
    assert browser.run(CHECK) == []
    assert browser.run("return new URL(location).searchParams.get('sql')") == sql, "the address can be shared"
    browser.open(f"{address}/query?table=events")
    assert browser.run("return document.querySelector('#history li').textContent") == sql
    press(browser, "#history li button")
    assert browser.run("return document.getElementById('sql').value") == sql
    press(browser, "[data-table=events] [data-insert=user_id]")
    assert "user_id" in browser.run("return document.getElementById('sql').value")
    press(browser, "#forget")
    assert browser.run("return localStorage.length") == 0


def test_a_chart_has_a_bar_over_its_word_and_a_scale_for_each_dimension(browser, address):
    browser.shape(1280, 900)
    browser.open(f"{address}/tables/events")
    browser.wait("document.querySelector('#partitions canvas')")
    keys = browser.run("return [...document.querySelectorAll('#partitions .key')].map((each) => each.className)")
    assert "key bars" in keys
    assert "key points" in keys
    over = "document.querySelector('#partitions .u-over')"
    browser.run(
        f"const box = {over}.getBoundingClientRect();"
        f"const at = {{ clientX: box.left + 30, clientY: box.top + 9, bubbles: true }};"
        f"['mouseenter', 'mousemove'].forEach((name) => {over}.dispatchEvent(new MouseEvent(name, at)));"
    )
    browser.wait("document.querySelector('#partitions output').textContent.startsWith('d=2026-01-01: size ')")


def test_a_policy_that_forbids_is_seen_by_this_test(browser, address):
    browser.open(f"{address}/sign-in")
    browser.run(
        "const s = document.createElement('script'); s.textContent = 'window.bad = 1'; document.body.append(s);"
    )
    assert browser.run("return window.bad || null") is None
    assert any("Content Security Policy" in message for message in browser.complaints())
