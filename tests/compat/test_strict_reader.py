"""The strict reader refuses what the text forbids, and agrees with the library on everything the library writes."""

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from icedb_log.clock import SystemClock
from icedb_log.errors import CorruptLog, IceDBError, SchemaConflict
from icedb_log.log.codec import decode_log_file, encode_log_file
from icedb_log.log.fold import fold
from icedb_log.model import LogFile
from icedb_log.store.local_store import LocalObjectStore
from icedb_sim.fakes.scripted_store import Crash, Effect, Fault
from icedb_sim.tables.log_views import data, dead, kill, listed, live, log_key, view
from icedb_sim.tables.small_table import SmallTable

GOLDEN = Path(__file__).with_name("golden")
HOUR_MS = 3_600_000

GOOD = [
    {"v": 1, "t": 7, "sch": 1, "tmb": 2, "f": 3},
    {"c": "VARCHAR"},
    {"p": "wh/t/_log/0000000000001_00.jsonl", "t": 5},
    {"p": "wh/t/_data/d=1/a.parquet", "b": 1, "t": 1},
    {"p": "wh/t/_data/d=1/b.parquet", "b": 1, "t": 1, "tmb": 5},
]


def encode_lines(lines):
    return b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)


def changed(number, **fields):
    lines = [dict(line) for line in GOOD]
    lines[number].update(fields)
    lines[number] = {name: value for name, value in lines[number].items() if value is not ...}
    return encode_lines(lines)


def test_a_good_table_is_read(strict_reader):
    table = strict_reader.read_strict("wh/t", [(log_key(7), encode_lines(GOOD))])
    assert table.live == {"wh/t/_data/d=1/a.parquet"}
    assert table.dead == {"wh/t/_data/d=1/b.parquet"}
    assert table.schema == {"c": "VARCHAR"}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        encode_lines(GOOD) + b"\n",
        encode_lines(GOOD[:2]),
        encode_lines([*GOOD[:3], b"", *GOOD[3:]]),
        b"\xef\xbb\xbf" + encode_lines(GOOD),
        changed(0, v=2),
        changed(0, v="1"),
        changed(0, v=True),
        changed(0, v=1.0),
        changed(0, t=8),
        changed(0, t="7"),
        changed(0, sch=0),
        changed(0, f=...),
        changed(0, f=9),
        changed(0, f=2),
        changed(0, tmb=0),
        changed(0, tmb=None),
        changed(0, tmb=3),
        changed(0, tmb=...),
        changed(0, T=7),
        changed(0, SCH=1),
        changed(1, c=1),
        changed(1, c={"type": "VARCHAR"}),
        changed(2, p="wh/t/_data/x.parquet"),
        changed(2, t=...),
        changed(3, p="/wh/t/_data/d=1/a.parquet"),
        changed(3, p="wh/u/_data/d=1/a.parquet"),
        changed(3, p="wh/t/_data/d=a%20b/a.parquet"),
        changed(3, p="wh/t/_data/a/a.parquet"),
        changed(3, b=-1),
        changed(3, b=1.5),
        changed(3, b=...),
        changed(3, P="x"),
        changed(3, B=1),
        changed(4, tmb=0),
        changed(4, tmb=None),
        changed(4, TMB=5),
    ],
)
def test_what_the_text_forbids_is_refused(strict_reader, body):
    with pytest.raises(strict_reader.WireError):
        strict_reader.read_strict("wh/t", [(log_key(7), body)])


@pytest.mark.parametrize("name", ["_log", "_log/", "_log/x", "_logs/0000000000007_00.jsonl", "_log/sub/7_00.jsonl"])
def test_nothing_else_may_begin_like_the_log(strict_reader, name):
    with pytest.raises(strict_reader.WireError):
        strict_reader.read_strict("wh/t", [(log_key(7), encode_lines(GOOD)), (f"wh/t/{name}", encode_lines(GOOD))])


def test_a_thousand_log_files_are_too_many(strict_reader):
    body = [{"v": 1, "t": 7, "sch": 1, "f": 2}, {}]
    objects = [(log_key(7, commit_id=f"{number:04x}"), encode_lines(body)) for number in range(1000)]
    assert strict_reader.read_strict("wh/t", objects[:999]).live == frozenset()
    with pytest.raises(strict_reader.WireError, match="1000 objects"):
        strict_reader.read_strict("wh/t", objects)


def test_the_last_marker_in_key_order_wins(strict_reader):
    first = (log_key(1), encode_log_file(LogFile(1, markers=(dead("x", 1),))))
    second = (log_key(2), encode_log_file(LogFile(2, markers=(live("x"),))))
    assert strict_reader.read_strict("wh/t", [second, first]).live == {data("x")}


def test_two_types_of_a_column_are_refused_by_both(strict_reader):
    logs = {log_key(1): LogFile(1, {"c": "BIGINT"}), log_key(2): LogFile(2, {"c": "DOUBLE"})}
    with pytest.raises(strict_reader.WireError, match="column c"):
        strict_reader.read_strict("wh/t", [(key, encode_log_file(log)) for key, log in logs.items()])
    with pytest.raises(SchemaConflict):
        fold(view(listed(1, schema={"c": "BIGINT"}), listed(2, schema={"c": "DOUBLE"})))


@pytest.mark.parametrize("name", ["append", "append_without_markers", "merge", "seal", "widened", "refused", "fed"])
def test_golden_log_files_are_read_alike(strict_reader, name):
    body = (GOLDEN / f"{name}.jsonl").read_bytes()
    log = decode_log_file(name, body)
    key = f"wh/events/_log/{log.time_ms:013}_00.jsonl"
    table = strict_reader.read_strict("wh/events", [(key, body)])
    assert table.live == {marker.path for marker in log.markers if marker.is_live}
    assert table.schema == dict(log.schema)


@settings(max_examples=500)
@given(st.lists(st.tuples(st.integers(0, 10**6), st.binary(max_size=2), st.integers(0, 3)), min_size=1, max_size=3))
def test_bytes_that_both_accept_mean_the_same_to_both(strict_reader, edits):
    body = encode_lines(GOOD)
    for position, inserted, removed in edits:
        at = position % (len(body) + 1)
        body = body[:at] + inserted + body[at + removed :]
    try:
        table = strict_reader.read_strict("wh/t", [(log_key(7), body)])
        log = decode_log_file(log_key(7), body)
    except (strict_reader.WireError, IceDBError):
        return
    tombstoned = {marker.path for marker in log.markers if not marker.is_live}
    assert table.live == {marker.path for marker in log.markers} - tombstoned
    assert table.schema == dict(log.schema)


def assert_read_alike(strict_reader, table):
    strict = strict_reader.read_strict(table.paths.prefix, table.log_objects())
    snapshot = table.snapshot()
    assert strict.live == {marker.path for marker in snapshot.live}
    assert strict.schema == dict(snapshot.logged_schema)
    assert strict.row_count == snapshot.row_count
    assert strict.dead == set(snapshot.tombstoned_ms)


STEPS = {
    "append": lambda table, n: table.append(n, n + 1),
    "append elsewhere": lambda table, n: table.append(n, p="São Paulo/%"),
    "append nothing": lambda table, n: (table.stage([]), table.flush()),
    "append a new column": lambda table, n: (table.stage([{"id": n, "p": "b", f"c{n % 3}": 1.5}]), table.flush()),
    "append a wider column": lambda table, n: (
        table.stage([{"id": n, "p": "b", "w": n if n % 2 else n / 2}]),
        table.flush(),
    ),
    "refuse": lambda table, n: (table.stage_bytes(b"{"), table.flush()),
    "append and crash before the commit": lambda table, n: crash(table, n, Effect.CRASH_BEFORE),
    "append and crash after the commit": lambda table, n: crash(table, n, Effect.CRASH_AFTER),
    "merge": lambda table, n: table.merge(),
    "merge all": lambda table, n: table.merge(full=True),
    "vacuum": lambda table, n: table.vacuum(),
    "a second passes": lambda table, n: table.clock.advance(1_000),
    "a minute passes": lambda table, n: table.clock.advance(60_000),
    "the clock jumps ahead": lambda table, n: table.clock.set_wall(table.clock.now_ms() + HOUR_MS),
    "the clock jumps back": lambda table, n: table.clock.set_wall(table.clock.now_ms() - HOUR_MS),
}


def crash(table, number, effect):
    table.stage([{"id": number, "p": "a"}])
    table.store.script = [Fault("put_if_absent", effect, "/_log/")]
    with contextlib.suppress(Crash):  # unless an earlier crash left an intent, whose seal meets the fault
        table.flush()


@settings(max_examples=120)
@given(st.lists(st.sampled_from(sorted(STEPS)), min_size=5, max_size=30))
def test_every_history_is_read_alike_at_every_step(strict_reader, history):
    grace = {"log_grace_ms": 4 * HOUR_MS, "data_grace_ms": 4 * HOUR_MS} if "clock" in str(history) else {}
    table = SmallTable(evolution="widen", **grace)
    for number, step in enumerate(history):
        STEPS[step](table, number)
        table.store.script = []
        assert_read_alike(strict_reader, table)


def test_a_directory_is_read_alike_also_by_the_command(strict_reader, tmp_path):
    now_ms = SystemClock().now_ms()  # the directory's times are the file system's
    table = SmallTable(store=LocalObjectStore(tmp_path), start_ms=now_ms, log_grace_ms=HOUR_MS, data_grace_ms=HOUR_MS)
    for number in range(5):
        table.append(number, p="ab"[number % 2])
    table.merge()
    table.append(9)
    assert_read_alike(strict_reader, table)
    strict = strict_reader.read_strict_directory(tmp_path, table.paths.prefix)
    assert strict.live == {marker.path for marker in table.snapshot().live}
    command = [sys.executable, strict_reader.__file__, str(tmp_path), table.paths.prefix]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {"live": sorted(strict.live), "schema": strict.schema, "rows": 6}
    (tmp_path / table.paths.prefix / "_log" / "lock").touch()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "not named like one" in done.stderr
    with pytest.raises(CorruptLog):
        table.view()


def test_a_widened_column_keeps_its_first_type_in_every_schema_line(strict_reader):
    table = SmallTable(evolution="widen")
    for value in (1, 1.5, 2):
        table.stage([{"id": 1, "p": "a", "n": value}])
        table.flush()
        assert_read_alike(strict_reader, table)
    table.merge(full=True)
    assert_read_alike(strict_reader, table)
    strict = strict_reader.read_strict(table.paths.prefix, table.log_objects())
    assert strict.schema["n"] == "BIGINT"
    assert table.snapshot().schema["n"] == "DOUBLE"


def test_a_table_merged_by_hand_is_read_alike(strict_reader):
    table = SmallTable()
    logs = [
        (log_key(10), LogFile(10, {"c": "BIGINT"}, (live("x"), live("y")), commit_id="00")),
        (
            log_key(20, merged=True),
            LogFile(20, {"c": "BIGINT"}, (live("z"), dead("x", 20), live("y")), (kill(10, 20),), commit_id="00"),
        ),
    ]
    for key, log in logs:
        table.store.put(key, encode_log_file(log))
    assert_read_alike(strict_reader, table)
