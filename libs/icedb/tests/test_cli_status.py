"""What ``icedb status`` shows of a table that pushes back and of what waits."""

import io
from urllib.parse import unquote_plus

import orjson
import pytest
from icedb.cli import output, status_watch, table_cost
from icedb.cli.status_figures import _format_leases, _print_one, format_pressure, print_all
from icedb_log.commit.fence import FenceState, acquire_fence, write_fence
from icedb_log.commit.table import Table
from icedb_log.holds.leases import acquire_lease
from icedb_log.ingest import pressure
from icedb_log.ingest.pressure import Bounds
from icedb_log.serving.status import status_to_json
from icedb_sim.fakes.scripted_store import Effect, Fault
from icedb_sim.tables.small_table import SmallTable


@pytest.fixture
def table(monkeypatch):
    monkeypatch.setattr(pressure, "LOG_FILES", Bounds(1, 3))
    return SmallTable(on_bad_rows="quarantine_rows")


def show(table, capsys, cost=None):
    _print_one(table.status(), cost)
    lines = capsys.readouterr().out.splitlines()
    return {line[:20].strip(): line[20:].strip() for line in lines}


def test_a_table_without_anything_says_so(table, capsys):
    shown = show(table, capsys)
    assert (shown["pressure"], shown["staged batches"], shown["quarantined batches"]) == ("none", "0", "0")
    print_all([status_to_json("t", table.status())])
    assert capsys.readouterr().out.splitlines()[-1].split()[-1] == "-"


def answer_as_prometheus(monkeypatch, body):
    asked = []

    def urlopen(address, *, timeout):
        asked.append(unquote_plus(address))
        if isinstance(body, Exception):
            raise body
        return io.BytesIO(body)

    monkeypatch.setattr(table_cost, "urlopen", urlopen)
    monkeypatch.setenv("ICEDB_PROMETHEUS_URL", "http://prometheus:9090/")
    return asked


def test_what_a_table_costs_is_asked_of_prometheus(lend, table, said_by_icedb, monkeypatch):
    result = [
        {"metric": {"table": "t", "cause": cause}, "value": [1, dollars]}
        for cause, dollars in (("stored", "0.0123"), ("staging", "1.5"))
    ]
    asked = answer_as_prometheus(monkeypatch, orjson.dumps({"status": "success", "data": {"result": result}}))
    lend(table)
    assert "1.51 $: staging 1.50, stored 0.012" in said_by_icedb("status", "t").out
    assert asked == [
        'http://prometheus:9090/api/v1/query?query=icedb:table_cost_dollars:per_day{table="t"}',
    ]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"status":"success","data":{"result":[]}}', "not known: Prometheus has no figures"),
        (b'{"status":"error"}', "not known: Prometheus at http://prometheus:9090/ does not say"),
        (b"<html>", "check ICEDB_PROMETHEUS_URL"),
        (OSError("refused"), "does not say (refused)"),
    ],
)
def test_a_prometheus_that_does_not_say_hides_nothing_else(lend, table, said_by_icedb, monkeypatch, body, words):
    answer_as_prometheus(monkeypatch, body)
    lend(table)
    told = " ".join(said_by_icedb("status", "t").out.split())
    assert words in told
    assert "data files" in told


def test_without_a_prometheus_nothing_is_said_of_costs(lend, table, said_by_icedb):
    lend(table)
    assert "cost" not in said_by_icedb("status", "t").out


def test_pressure_is_told_with_its_reason_and_effect(table, capsys):
    table.append(1)
    table.append(2)
    assert (
        format_pressure(table.status()) == "slow: 2 log files: flushes come less often from 1 on (flush interval × 7.7)"
    )
    assert show(table, capsys)["pressure"].startswith("slow: 2 log files")
    table.append(3)
    assert format_pressure(table.status()).endswith("(flush interval × 60.0, front ends refuse batches)")
    print_all([status_to_json("t", table.status())])
    assert capsys.readouterr().out.splitlines()[-1].split()[-1] == "stop"
    assert status_to_json("t", table.status())["pressure"] == {
        "level": "stop",
        "stretch": pytest.approx(60),
        "reason": "3 log files: batches are refused from 3 on",
        "retry_after_ms": 10_000,
    }


def test_what_waits_is_told_with_its_age_and_bad_rows_apart(table, capsys):
    table.stage_bytes(b'{"id": 1, "p": "a"}\nnonsense')
    table.flush()
    table.stage_bytes(b'{"id": 1, "p": "a"}')
    table.clock.advance(4_999)
    shown = show(table, capsys)
    assert shown["staged batches"] == "1, 19 B; the oldest for 5 s"
    assert shown["quarantined batches"] == "1, 1 of them only some bad rows"


def test_who_holds_the_table_is_told(table, capsys):
    assert show(table, capsys)["leases"] == "none"
    lease = acquire_lease(Table.open(table, clock=table.clock), ttl_ms=60_000, holder="ipv6:[::1]:4321")
    table.clock.advance(5_000)
    assert show(table, capsys)["leases"].startswith("1, the oldest time 5 s ago:")
    told = _format_leases(table.status())
    assert told.startswith(f"1, the oldest time 5 s ago: {lease.lease_id} (ipv6:[::1]:4321) until ")
    assert status_to_json("t", table.status())["leases"] == [
        {
            "lease_id": lease.lease_id,
            "at_ms": lease.at_ms,
            "expires_ms": lease.expires_ms,
            "holder": "ipv6:[::1]:4321",
        }
    ]
    for _ in range(6):
        acquire_lease(Table.open(table, clock=table.clock), ttl_ms=60_000)
    assert _format_leases(table.status()).endswith("; 2 more")


def test_lost_commits_are_told_of_one_table_and_of_all(table, capsys):
    assert "lost commits" not in show(table, capsys)
    name = f"{table.clock.now_ms():013d}_{'ab' * 16}"
    state = FenceState(9, "me", None, landed=(name,))
    write_fence(table.store, table.paths.fence_key("merge"), state, etag=None, clock=table.clock)
    assert show(table, capsys)["lost commits"].startswith("1, the first is")
    print_all([status_to_json("t", table.status())])
    shown = capsys.readouterr()
    header, row = (line.split() for line in shown.out.splitlines())
    assert row[header.index("lost") + 1] == "1", "a size has two words"
    assert f"table t: lost commits: 1, the first is {name}" in " ".join(shown.err.split())


def test_who_is_at_work_is_told(table, capsys):
    assert show(table, capsys)["at work"] == "nobody"
    fence = acquire_fence(table.opened("merger@host:7"), "merge")
    assert show(table, capsys)["at work"] == "merger@host:7 replaces data files"
    (worker,) = status_to_json("t", table.status())["workers"]
    assert worker == {
        "owner": "merger@host:7",
        "role": "merge",
        "claimed_ms": pytest.approx(8000, abs=10),
        "commit": None,
    }
    fence.release()
    assert status_to_json("t", table.status())["workers"] == []


def watch(table, said_by_icedb, *arguments, rounds, code=130):
    """Run the command with ``--watch``; before each look but the first something happens, then somebody interrupts."""
    left, pauses = list(rounds), []

    def sleep(duration_ms):
        pauses.append(duration_ms)
        if not left:
            raise KeyboardInterrupt
        left.pop(0)()

    table.clock.sleep_ms = sleep
    return said_by_icedb("status", *arguments, "--watch", code=code), pauses


def test_watching_reads_again_after_each_pause_until_somebody_interrupts(lend, table, said_by_icedb):
    table.append(1)
    lend(table)
    shown, pauses = watch(table, said_by_icedb, "t", "-o", "json", rounds=[lambda: table.append(2)])
    first, second = (orjson.loads(line) for line in shown.out.splitlines())
    assert [each["tables"][0]["live_rows"] for each in (first, second)] == [1, 2]
    assert first["at_ms"] < second["at_ms"]
    assert pauses == [2000] * 2
    shown, _ = watch(table, said_by_icedb, rounds=[lambda: table.append(3)])
    assert [line.split()[:3] for line in shown.out.splitlines() if line.startswith("t ")] == [
        ["t", "2", "2"],
        ["t", "3", "3"],
    ]


def test_watching_a_terminal_keeps_what_was_read_when_the_store_goes_away(lend, table, said_by_icedb, monkeypatch):
    table.append(1)
    lend(table)
    drawn = []
    monkeypatch.setattr(type(output.out), "is_terminal", True)
    monkeypatch.setattr(status_watch.Live, "update", lambda _, picture, **__: drawn.append(picture.plain))

    def go_away():
        table.store.script = [Fault("list_page", Effect.UNAVAILABLE) for _ in range(9)]

    def come_back():
        table.store.script = []
        table.append(2)

    watch(table, said_by_icedb, "t", rounds=[go_away, come_back])
    assert [("rows" in picture, "error:" in picture) for picture in drawn] == [
        (True, False),
        (True, True),
        (True, False),
    ]


def test_watching_a_table_that_is_not_there_ends_at_once(lend, table, said_by_icedb):
    lend(table)
    shown, pauses = watch(table, said_by_icedb, "nothing", rounds=[], code=3)
    assert "does not exist" in shown.err
    assert pauses == []


@pytest.mark.parametrize("is_terminal", [False, True])
def test_many_rows_look_as_few_do(monkeypatch, capsys, is_terminal):
    columns = ("table", ">files", "note", "<>more", ">lag")
    rows = [
        (f"t{number}", number * 999, None if number % 2 else "[b] x", "y" * (number % 7), None) for number in range(200)
    ]
    drawn = []
    for most in (10, 10_000):
        monkeypatch.setattr(output, "MANY_ROWS", most)
        monkeypatch.setattr(output.out, "_force_terminal", is_terminal)
        output.print_table(columns, rows)
        drawn.append(capsys.readouterr().out)
    assert drawn[0] == drawn[1]
    odd = [rows[:-1], [*rows[:-1], ("ä", 1, "", "", None)], [*rows[:-1], (output.Markup("[red]x[/]"),)]]
    assert [output._lay_out([(name, False) for name in columns], each) is not None for each in odd] == [
        True,
        False,
        False,
    ]
