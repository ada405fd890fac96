"""A vacuum and the store's clock: it is checked before anything goes, and a jump ahead makes nothing old (J1)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from icedb_log.clean.vacuum import VacuumCaches, vacuum_table
from icedb_log.commit.table import Table
from icedb_log.errors import Unavailable, UnsupportedFormat
from icedb_log.holds.tags import create_tag
from icedb_log.store.store_clock import MAX_HOST_GAP_MS, SteadyTime
from icedb_sim.fakes.fake_clock import DEFAULT_START_MS
from icedb_sim.fakes.memory_store import MemoryObjectStore
from icedb_sim.tables.lease_steps import put_lease
from icedb_sim.tables.small_table import SmallTable

MINUTE_MS = 60_000
JUMP_MS = 14 * MINUTE_MS


class OffStore(MemoryObjectStore):
    """A store whose clock is off by as much as a test says, also backwards. Nothing moves it that moves the host's."""

    def __init__(self):
        super().__init__(lambda: DEFAULT_START_MS)
        self.clock = None
        self.off_ms = 0

    def _tick(self):
        return DEFAULT_START_MS + (self.clock.monotonic_ms() if self.clock else 0) + self.off_ms


class Janitor:
    """One process of the janitor: what it heard of the store's time lasts from run to run."""

    def __init__(self, table):
        self.table = table
        self.steady = SteadyTime(1)

    def vacuum(self):
        table = self.table
        result = vacuum_table(
            Table.open(table, clock=table.clock, reader=table.reader()),
            caches=VacuumCaches(steady=self.steady),
        )
        return len(result.deleted_logs), len(result.deleted_data), result.held_back_ms


def make_table():
    store = OffStore()
    table = SmallTable(store=store)
    store.clock = table.clock
    return table


@pytest.fixture
def table():
    """Two appends, merged just now."""
    table = make_table()
    table.append(1)
    table.append(2)
    table.merge()
    return table


def store_of(table):
    return table.store.inner


def test_the_dates_of_the_store_are_checked_before_anything_goes(table):
    store_of(table).off_ms = MAX_HOST_GAP_MS + MINUTE_MS
    before = table.keys(table.paths.prefix)
    with pytest.raises(Unavailable, match="minutes apart"):
        table.vacuum()
    assert table.keys(table.paths.prefix) == before
    store_of(table).off_ms = 0  # it is set right: the next run goes on, and nobody has to look
    table.clock.advance(table.config.data_grace_ms)
    assert len(table.vacuum().deleted_data) == 2


def test_a_host_that_is_far_off_deletes_nothing(table):
    table.clock.advance(table.config.data_grace_ms)
    truth_ms = table.clock.now_ms()
    for off_ms in (MAX_HOST_GAP_MS + MINUTE_MS, -MAX_HOST_GAP_MS - MINUTE_MS):
        table.clock.set_wall(truth_ms + off_ms)
        with pytest.raises(Unavailable, match="set the one"):
            table.vacuum()
    table.clock.set_wall(truth_ms - MAX_HOST_GAP_MS // 2)  # minutes are no reason to stop
    assert len(table.vacuum().deleted_data) == 2


def test_a_store_that_keeps_other_times_is_refused(table):
    """A gateway that gives objects the times of files below it: ages mean nothing, a person has to look."""
    table.clock.advance(table.config.data_grace_ms)
    store = store_of(table)
    store.list_page = lambda prefix, **options: _older(MemoryObjectStore.list_page(store, prefix, **options))
    with pytest.raises(UnsupportedFormat, match="LastModified"):
        table.vacuum()
    assert table.ids() == [1, 2]


def _older(page):
    return replace(page, objects=tuple(replace(info, modified_ms=info.modified_ms - 10**7) for info in page.objects))


def test_nothing_to_delete_costs_no_look_at_the_clock(table):
    store_of(table).off_ms = -10 * MAX_HOST_GAP_MS
    assert table.vacuum().deleted_logs == ()
    assert table.paths.clock_key not in table.keys("")


def test_a_log_that_takes_long_to_read_is_no_jump(table):
    """The log was read anew because it changed meanwhile: the answer that counts came late."""
    janitor, reader = Janitor(table), table.reader()
    janitor.vacuum()
    read = reader.read

    def read_twice():
        table.clock.advance(MINUTE_MS)
        return read()

    reader.read = read_twice
    result = vacuum_table(
        Table.open(table, clock=table.clock, reader=reader),
        caches=VacuumCaches(steady=janitor.steady),
    )
    assert result.held_back_ms == 0


def test_a_dry_run_leaves_no_trace(table):
    table.clock.advance(table.config.data_grace_ms)
    assert len(table.vacuum(dry_run=True).deleted_data) == 2
    assert table.paths.clock_key not in table.keys("")


def test_a_jump_ahead_ends_no_grace_period(table):
    janitor = Janitor(table)
    assert janitor.vacuum() == (0, 0, 0)
    store_of(table).off_ms = JUMP_MS  # not so far from the host that the run would stop
    table.clock.advance(table.config.log_grace_ms // 2)
    assert janitor.vacuum() == (0, 0, JUMP_MS)
    table.clock.advance(table.config.log_grace_ms)
    assert janitor.vacuum() == (2, 0, JUMP_MS)  # at its time, neither early nor late
    table.clock.advance(table.config.data_grace_ms)
    assert janitor.vacuum()[1] == 2


def test_after_a_window_the_store_is_believed_again(table):
    janitor = Janitor(table)
    janitor.vacuum()
    store_of(table).off_ms = JUMP_MS
    for _ in range(3):
        assert janitor.vacuum()[2] in (0, JUMP_MS)
        table.clock.advance(table.config.data_grace_ms)
    assert janitor.vacuum()[2] == 0


def test_without_what_earlier_runs_heard_the_store_is_taken_at_its_word(table):
    store_of(table).off_ms = JUMP_MS
    assert Janitor(table).vacuum() == (2, 2, 0)  # what the test above would do without it; see docs/gaps.md


def test_objects_written_while_the_stores_clock_was_behind_do_not_get_old_when_it_is_set_right():
    table = make_table()
    janitor = Janitor(table)
    store_of(table).off_ms = -JUMP_MS
    table.append(1)
    table.append(2)
    table.clock.set_wall(table.clock.now_ms() - JUMP_MS)  # the committer was behind as well: no second time helps
    table.merge()
    table.clock.set_wall(table.clock.now_ms() + JUMP_MS)
    store_of(table).off_ms = -JUMP_MS
    assert janitor.vacuum() == (0, 0, 0)
    store_of(table).off_ms = 0
    assert janitor.vacuum() == (0, 0, JUMP_MS)


def test_leases_hold_through_a_jump(table):
    janitor = Janitor(table)
    at_ms = table.clock.now_ms() - 2
    put_lease(table, at_ms=at_ms, ttl_ms=JUMP_MS // 2, clock=table.clock)
    table.clock.advance(table.config.data_grace_ms)
    assert janitor.vacuum()[:2] == (0, 0)
    store_of(table).off_ms = JUMP_MS  # by the store's word the lease has ended
    assert janitor.vacuum()[:2] == (0, 0)


def test_tags_hold_through_a_jump():
    table = make_table()
    table.append(1)
    table.append(2)
    create_tag(Table.open(table, clock=table.clock), "month", ttl_ms=MINUTE_MS)
    table.merge()
    table.clock.advance(table.config.data_grace_ms)
    janitor = Janitor(table)
    assert janitor.vacuum()[1] == 0
    store_of(table).off_ms = JUMP_MS
    assert janitor.vacuum()[1] == 0


def test_a_host_that_slept_deletes_late():
    """The monotonic clock stands still while a machine is suspended: ages are too small, never too great."""
    table = make_table()
    table.append(1)
    table.append(2)
    table.merge()
    janitor = Janitor(table)
    janitor.vacuum()
    store_of(table).off_ms = table.config.data_grace_ms
    table.clock.set_wall(table.clock.now_ms() + table.config.data_grace_ms)
    assert janitor.vacuum() == (0, 0, table.config.data_grace_ms)


@given(
    window_ms=st.integers(1_000, 50_000),
    steps=st.lists(
        st.tuples(st.integers(0, 20_000), st.integers(-200_000, 200_000), st.booleans()), min_size=1, max_size=40
    ),
)
def test_no_age_is_ever_overestimated_that_counts(window_ms, steps):
    """Whatever was written when a run had just heard the time is never held for older than it is, up to the window."""
    steady, passed_ms, written = SteadyTime(window_ms), 0, []
    for step_ms, off_ms, is_written in steps:
        passed_ms += step_ms
        store_now_ms = passed_ms + off_ms
        now_ms = steady.hold_back(store_now_ms, asked_ms=passed_ms)
        assert now_ms <= store_now_ms
        for modified_ms, at_ms in written:
            assert now_ms - modified_ms <= max(passed_ms - at_ms, 0) or passed_ms - at_ms >= window_ms
        if is_written:
            written.append((store_now_ms, passed_ms))


def test_a_jump_is_remembered_for_the_longer_of_both_grace_periods():
    """By the shorter one it would be believed long before the data files are old."""
    store = OffStore()
    table = SmallTable(store=store, data_grace_ms=600_000, log_grace_ms=20_000)
    store.clock = table.clock
    table.append(1)
    table.append(2)
    table.merge()
    janitor = Janitor(table)
    assert janitor.vacuum() == (0, 0, 0)
    store.off_ms = JUMP_MS
    gone = []
    for _ in range(11):
        table.clock.advance(50_000)
        gone.append(janitor.vacuum()[:2])
    assert gone == [(2, 0), *[(0, 0)] * 10]
    table.clock.advance(60_000)
    assert janitor.vacuum()[1] == 2
