"""Back-pressure: a smooth and monotone measure, an object that runs out, and a gate that costs next to nothing."""

import threading

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from icedb_log.errors import CommitOutcomeUnknown, Overloaded, TableHalted, Unavailable
from icedb_log.ingest.pressure import (
    HALT_TTL_MS,
    HALTED,
    LEVELS,
    MAX_RETRY_AFTER_MS,
    MAX_STRETCH,
    PRESSURE_TTL_MS,
    Pressure,
    PressureGate,
    measure_pressure,
    publish_pressure,
    publish_trouble,
    read_pressure,
)
from icedb_log.table.table_config import TableConfig
from icedb_sim.fakes.scripted_store import Effect, Fault
from icedb_sim.tables.small_table import SmallTable
from waiting import LIMIT_S

STOP = Pressure("stop", 60.0, "812 log files: batches are refused from 800 on", 10_000)
SLOW = Pressure("slow", 3.0, "500 log files: flushes come less often from 400 on")
COUNTS = st.integers(min_value=0, max_value=30_000)


@pytest.fixture
def gate(table):
    return PressureGate(table.store, clock=table.clock)


def say(table, pressure):
    publish_pressure(table, pressure, clock=table.clock)
    table.store.calls.clear()


def refusal(gate, table):
    try:
        gate.check(table.paths)
    except Overloaded as error:
        return error
    return None


def measure(log_files=0, backlog_files=0):
    return measure_pressure(log_files=log_files, backlog_files=backlog_files)


def test_below_the_bounds_there_is_none():
    assert measure(399, 4999) == Pressure()


@pytest.mark.parametrize(
    ("counts", "level", "stretch"),
    [
        ((400, 0), "slow", 1.0),
        ((600, 0), "slow", MAX_STRETCH**0.5),
        ((799, 19_999), "slow", None),
        ((800, 0), "stop", MAX_STRETCH),
        ((0, 5000), "slow", 1.0),
        ((0, 20_000), "stop", MAX_STRETCH),
        ((99_999, 99_999), "stop", MAX_STRETCH),
        ((400, 20_000), "stop", MAX_STRETCH),
        ((800, 5000), "stop", MAX_STRETCH),
    ],
)
def test_levels_begin_at_their_bounds(counts, level, stretch):
    pressure = measure(*counts)
    assert pressure.level == level
    assert stretch is None or pressure.stretch == pytest.approx(stretch)


def test_the_reason_names_each_bound_that_was_passed():
    assert measure(500).reason == "500 log files: flushes come less often from 400 on"
    assert measure(900, 6000).reason == (
        "900 log files: batches are refused from 800 on; 6000 data files to merge: flushes come less often from 5000 on"
    )


def test_only_stop_has_a_retry_time_and_it_grows_to_its_limit():
    assert measure(799).retry_after_ms == 0
    assert [measure(count).retry_after_ms for count in (800, 1000, 99_999)] == [10_000, 12_000, MAX_RETRY_AFTER_MS]


@given(COUNTS, COUNTS, st.integers(0, 2000), st.integers(0, 2000))
def test_more_files_never_mean_less_pressure(log_files, backlog_files, more_log, more_backlog):
    less = measure(log_files, backlog_files)
    more = measure(log_files + more_log, backlog_files + more_backlog)
    assert 1 <= less.stretch <= more.stretch <= MAX_STRETCH
    assert LEVELS.index(less.level) <= LEVELS.index(more.level)
    assert less.retry_after_ms <= more.retry_after_ms
    for pressure in (less, more):
        assert bool(pressure.reason) == (pressure.level != "none")
        assert (pressure.retry_after_ms > 0) == (pressure.level == "stop")


@given(st.integers(0, 1000))
def test_one_file_more_never_jumps(log_files):
    before, after = measure(log_files), measure(log_files + 1)
    assert after.stretch / before.stretch <= MAX_STRETCH ** (1 / 400) * 1.000001


def test_a_table_that_always_commits_settles_below_what_alerts_at_a_light_stretch():
    """Defaults: a commit a second, one of a merge for each eight, a vacuum each 30 s, ten minutes of grace.

    The alert on log files: above 500 for five minutes.
    """
    config = TableConfig.create(name="t")
    log, now_s, stretches = [], 0.0, []
    vacuum_s = above_500_s = 0.0
    for number in range(4000):
        log += [now_s] * (2 if number % 8 == 0 else 1)
        if now_s >= vacuum_s:
            log = [at_s for at_s in log if at_s >= now_s - config.log_grace_ms / 1000 - 8]
            vacuum_s = now_s + 30
        pressure = measure(len(log))
        above_500_s += pressure.stretch if len(log) > 500 else 0
        assert pressure.stretch < 5
        stretches.append(pressure.stretch)
        now_s += pressure.stretch
    assert above_500_s < 300
    assert len(log) < 480
    assert max(stretches[2000:]) < 2


def test_what_was_published_is_read(table):
    assert read_pressure(table) is None
    say(table, STOP)
    said = read_pressure(table)
    assert (said.level, said.reason, said.retry_after_ms) == ("stop", STOP.reason, 10_000)
    assert (said.ttl_ms, said.written_ms) == (PRESSURE_TTL_MS, table.clock.now_ms())


def test_none_removes_what_was_said_and_costs_one_read_otherwise(table):
    say(table, STOP)
    say(table, Pressure())
    assert read_pressure(table) is None
    table.store.calls.clear()
    publish_pressure(table, Pressure(), clock=table.clock)
    assert [call.method for call in table.store.calls] == ["get"]


def test_the_same_is_written_again_only_after_half_its_time(table):
    say(table, STOP)
    table.clock.advance(PRESSURE_TTL_MS // 2 - 1)
    publish_pressure(table, Pressure("stop", 60.0, "813 log files", STOP.retry_after_ms), clock=table.clock)
    assert [call.method for call in table.store.calls] == ["get"]
    before = read_pressure(table)
    table.clock.advance(1)
    say(table, STOP)
    after = read_pressure(table)
    assert after.reason == before.reason
    assert after.etag != before.etag


@pytest.mark.parametrize("other", [SLOW, Pressure("stop", 60.0, "1200 log files", 15_000)])
def test_a_change_is_written_at_once(table, other):
    say(table, STOP)
    say(table, other)
    assert read_pressure(table).retry_after_ms == other.retry_after_ms


@pytest.mark.parametrize("ahead_ms", [HALT_TTL_MS, 3_600_000])
def test_a_halt_that_a_worker_with_a_clock_ahead_told_does_not_last_for_ever(table, ahead_ms):
    now_ms = table.clock.now_ms()
    table.clock.set_wall(now_ms + ahead_ms - 1)
    halt(table)
    table.clock.set_wall(now_ms)
    assert publish_pressure(table, STOP, clock=table.clock) is (ahead_ms == HALT_TTL_MS)
    table.clock.set_wall(now_ms - 1)
    assert not publish_pressure(table, STOP, clock=table.clock)
    assert read_pressure(table).level == "stop"


def test_the_words_of_a_worker_whose_clock_is_ahead_are_written_again(table):
    now_ms = table.clock.now_ms()
    table.clock.set_wall(now_ms + 3_600_000)
    say(table, STOP)
    table.clock.set_wall(now_ms)
    say(table, STOP)
    assert read_pressure(table).written_ms == now_ms


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"null", b'"stop"', b'{"level": "stop"}', b"\xff", b'{"level":"stop","reason":1,"retry_after_ms":[]}'],
)
def test_an_object_that_is_none_of_ours_stops_nobody_and_is_replaced(table, gate, body):
    table.store.put(table.paths.pressure_key, body)
    assert read_pressure(table).level == "none"
    gate.check(table.paths)
    say(table, STOP)
    assert read_pressure(table).level == "stop"


def test_an_unknown_level_and_a_boundless_time_to_live_keep_nobody_out_for_ever(table, gate):
    body = {"level": "panic", "reason": "", "retry_after_ms": 1, "ttl_ms": 1, "written_ms": 1}
    table.store.put(table.paths.pressure_key, orjson.dumps(body))
    gate.check(table.paths)
    body = {**body, "level": "stop", "retry_after_ms": 1 << 60, "ttl_ms": 1 << 60}
    table.store.put(table.paths.pressure_key, orjson.dumps(body))
    table.clock.advance(1000)
    assert refusal(gate, table).retry_after_ms == MAX_RETRY_AFTER_MS
    table.clock.advance(3_600_001)
    assert refusal(gate, table) is None


def test_the_gate_refuses_at_stop_and_says_when_to_come_back(table, gate):
    say(table, STOP)
    error = refusal(gate, table)
    assert error.retry_after_ms == 10_000
    assert str(error) == (
        "table t takes no batches just now: 812 log files: batches are refused from 800 on. Send the same batch again in 10 s; "
        "if this lasts, its merges or its vacuum do not keep up"
    )


def test_the_gate_is_open_without_pressure_and_when_slow(table, gate):
    gate.check(table.paths)
    say(table, SLOW)
    table.clock.advance(1000)
    gate.check(table.paths)


def test_an_absent_object_costs_one_read_for_each_table_and_second(table, gate):
    table.store.calls.clear()
    for _ in range(50):
        gate.check(table.paths)
        table.clock.advance(100)
    assert [(call.method, call.key) for call in table.store.calls] == [("get", table.paths.pressure_key)] * 5


def test_a_standing_stop_costs_no_more_and_each_new_one_a_listing(table, gate):
    say(table, STOP)
    for _ in range(20):
        assert refusal(gate, table)
        table.clock.advance(500)
    assert [call.method for call in table.store.calls] == ["get", "list_page"] + ["get"] * 9


def test_the_gate_opens_within_its_age_when_the_pressure_is_gone(table, gate):
    say(table, STOP)
    assert refusal(gate, table)
    say(table, Pressure())
    table.clock.advance(999)
    assert refusal(gate, table)
    table.clock.advance(1)
    assert refusal(gate, table) is None


def test_what_a_dead_worker_said_runs_out_and_what_a_living_one_repeats_does_not(table, gate):
    say(table, STOP)
    assert refusal(gate, table)
    for _ in range(3):
        table.clock.advance(PRESSURE_TTL_MS // 2)
        say(table, STOP)
        assert refusal(gate, table)
    table.clock.advance(PRESSURE_TTL_MS)
    assert refusal(gate, table)
    table.clock.advance(1)
    assert refusal(gate, table) is None
    table.clock.advance(60_000)
    assert refusal(gate, table) is None


def test_a_fresh_process_knows_how_old_the_words_are(table):
    say(table, STOP)
    table.clock.advance(PRESSURE_TTL_MS - 10_000)
    gate = PressureGate(table.store, clock=table.clock)
    assert refusal(gate, table)
    table.clock.advance(10_001)
    assert refusal(gate, table) is None
    assert refusal(PressureGate(table.store, clock=table.clock), table) is None


def test_a_wrong_wall_clock_changes_nothing(table, gate):
    say(table, STOP)
    assert refusal(gate, table)
    table.clock.set_wall(table.clock.now_ms() + 86_400_000)
    table.clock.advance(1000)
    assert refusal(gate, table)


def test_an_age_that_cannot_be_had_counts_from_now(table, gate):
    say(table, STOP)
    table.store.script = [Fault("list_page", Effect.UNAVAILABLE)]
    assert refusal(gate, table)
    table.clock.advance(PRESSURE_TTL_MS + 1)
    assert refusal(gate, table) is None


def test_a_store_that_does_not_answer_means_no_pressure_and_no_other_age(table, gate):
    table.clock.advance(500_000)
    say(table, STOP)
    assert refusal(gate, table)
    table.clock.advance(PRESSURE_TTL_MS - 1000)
    table.store.script = [Fault("get", Effect.UNAVAILABLE)]
    assert refusal(gate, table) is None
    table.clock.advance(1000)
    assert refusal(gate, table)
    table.clock.advance(1)
    assert refusal(gate, table) is None


@pytest.mark.parametrize("effect", [Effect.UNAVAILABLE, Effect.DROP])
def test_a_failed_writing_is_told_to_the_worker(table, effect):
    table.store.script = [Fault("put", effect, "pressure.json")]
    with pytest.raises((Unavailable, CommitOutcomeUnknown)):
        publish_pressure(table, STOP, clock=table.clock)


def test_tables_are_told_apart_and_the_memory_is_bounded(table):
    gate = PressureGate(table.store, clock=table.clock, max_tables=3)
    others = [SmallTable(store=table.store, name=f"other{number}") for number in range(5)]
    say(table, STOP)
    assert refusal(gate, table)
    for other in others:
        gate.check(other.paths)
    assert len(gate._tables) == 3
    assert refusal(gate, table)


class SlowStore:
    """Lets the first read begin, and answers when told."""

    def __init__(self, store):
        self.store = store
        self.begun = threading.Event()
        self.answer = threading.Event()
        self.gets = 0

    def get(self, key):
        self.gets += 1
        self.begun.set()
        assert self.answer.wait(LIMIT_S)
        return self.store.get(key)

    def list_page(self, *args, **kwargs):
        return self.store.list_page(*args, **kwargs)


def test_callers_of_one_table_share_one_read(table):
    say(table, STOP)
    store = SlowStore(table.store)
    gate = PressureGate(store, clock=table.clock)
    refused = []
    threads = [threading.Thread(target=lambda: refused.append(refusal(gate, table))) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert store.begun.wait(LIMIT_S)
    store.answer.set()
    for thread in threads:
        thread.join(LIMIT_S)
    assert store.gets == 1
    assert [error.retry_after_ms for error in refused] == [10_000] * 8


def test_while_one_caller_asks_the_others_go_by_the_answer_before(table):
    say(table, STOP)
    store = SlowStore(table.store)
    store.answer.set()
    gate = PressureGate(store, clock=table.clock)
    assert refusal(gate, table)
    say(table, Pressure())
    table.clock.advance(1000)
    store.begun.clear()
    store.answer.clear()
    asking = threading.Thread(target=lambda: refusal(gate, table))
    asking.start()
    assert store.begun.wait(LIMIT_S)
    assert refusal(gate, table)
    store.answer.set()
    asking.join(LIMIT_S)
    assert refusal(gate, table) is None


def halt(table, reason="'ts' has two types"):
    publish_trouble(table, HALTED, reason, clock=table.clock)


def halt_of(gate, table):
    try:
        gate.check(table.paths)
    except TableHalted as error:
        return str(error)
    return None


def test_a_halted_table_is_refused_with_the_reason_until_a_flush_ends_well(table, gate):
    halt(table)
    assert halt_of(gate, table) == (
        "table t is halted: it takes no batches, and commits none, until a person has looked: 'ts' has two types"
    )
    for pressure in (Pressure(), SLOW, STOP):  # measures go on meanwhile
        assert publish_pressure(table, pressure, clock=table.clock)
        table.clock.advance(1000)
        assert halt_of(gate, table)
    assert not publish_pressure(table, STOP, clock=table.clock, ends_trouble=True)
    table.clock.advance(1000)
    assert refusal(gate, table)
    halt(table)
    assert not publish_pressure(table, Pressure(), clock=table.clock, ends_trouble=True)
    table.clock.advance(1000)
    assert halt_of(gate, table) is None
    assert read_pressure(table) is None


def test_what_a_worker_said_of_a_halt_runs_out_unless_it_is_said_again(table, gate):
    halt(table)
    table.clock.advance(HALT_TTL_MS // 2 - 1)
    table.store.calls.clear()
    halt(table)
    assert table.store.keys_of("put") == []
    table.clock.advance(1)
    halt(table)
    halt(table, "another reason")
    assert len(table.store.keys_of("put")) == 2
    table.clock.advance(HALT_TTL_MS)
    fresh = PressureGate(table.store, clock=table.clock)
    said = read_pressure(table)
    assert said.find_halt(store_now_ms=table.clock.now_ms()) == "another reason"
    assert halt_of(fresh, table)
    table.clock.advance(1000)
    assert said.find_halt(store_now_ms=table.clock.now_ms()) == ""
    assert halt_of(fresh, table) is None
    assert halt_of(PressureGate(table.store, clock=table.clock), table) is None
    assert not publish_pressure(table, Pressure(), clock=table.clock)
    assert read_pressure(table) is None
