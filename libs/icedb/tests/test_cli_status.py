"""What ``icedb status`` shows of a table that pushes back and of what waits."""

import pytest
from icedb.cli.status import _format_leases, _print_all, _print_one, format_pressure, status_to_json
from icedb_log.clean.leases import acquire_lease
from icedb_log.log.fence import FenceState, acquire_fence, write_fence
from icedb_log.table.table import Table
from icedb_sim.tables.small_table import SmallTable


@pytest.fixture
def table():
    return SmallTable(log_files_slow=1, log_files_stop=3, on_bad_rows="quarantine_rows")


def show(table, capsys):
    _print_one(table.status())
    lines = capsys.readouterr().out.splitlines()
    return {line[:20].strip(): line[20:].strip() for line in lines}


def test_a_table_without_anything_says_so(table, capsys):
    shown = show(table, capsys)
    assert (shown["pressure"], shown["staged batches"], shown["quarantined batches"]) == ("none", "0", "0")
    _print_all({"t": table.status()})
    assert capsys.readouterr().out.splitlines()[-1].split()[-1] == "-"


def test_pressure_is_told_with_its_reason_and_effect(table, capsys):
    table.append(1)
    table.append(2)
    assert format_pressure(table.status()) == "slow: 2 log files, log_files_slow is 1 (flush interval × 7.7)"
    assert show(table, capsys)["pressure"].startswith("slow: 2 log files")
    table.append(3)
    assert format_pressure(table.status()).endswith("(flush interval × 60.0, front ends refuse batches)")
    _print_all({"t": table.status()})
    assert capsys.readouterr().out.splitlines()[-1].split()[-1] == "stop"
    assert status_to_json("t", table.status())["pressure"] == {
        "level": "stop",
        "stretch": pytest.approx(60),
        "reason": "3 log files, log_files_stop is 3",
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
    _print_all({"t": table.status()})
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
