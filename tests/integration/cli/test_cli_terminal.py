"""The command at a real pseudo terminal: the pager, the shell, Ctrl-C, and progress that is not there in a pipe."""

import os
import re
import sys

import pexpect
import psutil
import pytest
from icedb_log.store_settings import open_warehouse
from icedb_sim.rigs.parquet_warehouse import ParquetWarehouse
from waiting import LIMIT_S, wait_until

ENDLESS = "select count(*) from range(3000000) a, range(3000000) b where (a.range * b.range) % 7 = 3"
STYLES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]")
BUSY_S = 1
"""Of processor time, once DuckDB is loaded: what comes before a query takes less, and an endless one takes all there is."""


@pytest.fixture
def start(tmp_path):
    """Starts the command at a terminal of some columns and 12 lines."""
    url = f"file://{tmp_path}/warehouse"
    parquet = ParquetWarehouse(open_warehouse(url))
    parquet.create("events", "d=day(ts)")
    rows = (
        "select timestamp '2026-01-02' + to_seconds(i::bigint) as ts, repeat('word ', 40) as event from range(50) t(i)"
    )
    parquet.commit("events", rows, partition="d=2026-01-02")
    started = []

    def start(*arguments, columns=80, **more):
        env = {name: value for name, value in os.environ.items() if not name.startswith("ICEDB_") and name != "COLUMNS"}
        env |= {
            "ICEDB_STORE": url,
            "TERM": "xterm",
            "PAGER": "cat",
            "PROMPT_TOOLKIT_NO_CPR": "1",
            "XDG_STATE_HOME": str(tmp_path / "state"),
            **more,
        }
        program = "from icedb.cli import main; main()"
        process = pexpect.spawn(
            sys.executable,
            ["-c", program, *arguments],
            env=env,
            dimensions=(12, columns),
            encoding="utf-8",
            timeout=LIMIT_S,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.close(force=True)


def wait_until_busy(process):
    """Wait until a query is running for certain, however slowly the command has started."""
    found = psutil.Process(process.pid)

    def burnt_s():
        times = found.cpu_times()
        return times.user + times.system

    wait_until(lambda: any("duckdb" in each.path for each in found.memory_maps()), "DuckDB is loaded")
    loaded_s = burnt_s()
    wait_until(lambda: burnt_s() > loaded_s + BUSY_S, "the query runs")


def read_all(process):
    process.expect(pexpect.EOF)
    process.close()
    return STYLES.sub("", process.before).replace("\r", "").splitlines()


@pytest.mark.parametrize("columns", [80, 200])
def test_a_table_is_as_wide_as_the_terminal(start, columns):
    lines = read_all(start("query", "from events limit 3", columns=columns))
    assert max(map(len, lines)) == columns
    assert lines[1].startswith("2026-01-02 00:00:00  word word ")
    assert lines[1].rstrip().endswith("null  2026-01-02")
    assert "…" in lines[1]


def test_what_is_longer_than_the_screen_goes_to_the_pager(start):
    shown = read_all(start("query", "from events", PAGER="sed 's/^/paged: /'"))
    assert sum(line.startswith("paged: ") for line in shown) == 51
    for options in (["--no-pager"], ["--limit", "3"]):
        assert not any(
            "paged" in line for line in read_all(start("query", "from events", *options, PAGER="sed s/^/paged/"))
        )


def test_no_color_is_heeded(start):
    process = start("query", "select 1 as one", NO_COLOR="1")
    process.expect(pexpect.EOF)
    assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", process.before)


def test_ctrl_c_ends_a_running_query(start):
    process = start("query", f"select * from events where 0 = ({ENDLESS})")
    wait_until_busy(process)
    process.sendintr()
    lines = read_all(process)
    assert process.exitstatus == 130
    assert not any("Traceback" in line or "error" in line for line in lines)


def test_a_shell_asks_answers_is_interrupted_and_ends(start, tmp_path):
    process = start("query", columns=120)
    process.expect("icedb>")
    process.send("select count(*) as number\r")
    process.send("from events;\r")
    process.expect(r"events: snapshot [0-9a-f]{32}")
    process.expect(r"number\W.*50\W.* s\W")
    process.expect("icedb>")
    process.send(f"{ENDLESS};\r")
    wait_until_busy(process)
    process.sendintr()
    process.expect("interrupted")
    process.expect("icedb>")
    process.send("select 6 * 7 as answer;\r")
    process.expect(r"answer\W.*42\W")
    process.send("select * from nope;\r")
    process.expect("table 'nope' does not exist")
    process.expect("icedb>")
    process.sendeof()
    process.expect(pexpect.EOF)
    process.close()
    assert process.exitstatus == 0
    history = tmp_path / "state" / "icedb" / "shell_history"
    assert "+from events;" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0


def see(process, *patterns):
    """Wait until a whole picture shows something. Only what changes is drawn, but all of it for another size."""
    for number in range(LIMIT_S):
        process.setwinsize(24, 100 + number % 2)
        for pattern in patterns:
            if process.expect([pattern, pexpect.TIMEOUT], timeout=1):
                break
        else:
            return
    pytest.fail(f"never seen: {patterns}")


def test_a_watched_status_is_live_and_ends_by_ctrl_c(start, tmp_path):
    status = start("status", "--watch", NO_COLOR="1", columns=40)
    see(status, "events .*50 ")
    drawn = status.before
    ParquetWarehouse(open_warehouse(f"file://{tmp_path}/warehouse")).create("later")
    see(status, "events ", "later ")
    status.send("\x03")
    status.expect(pexpect.EOF)
    status.close()
    assert status.exitstatus == 130
    assert "\x1b[?1049l" in status.before, "the screen of before is back"
    assert not re.search(r"\x1b\[[0-9;]*3[1-7]m", drawn), "no colour"
