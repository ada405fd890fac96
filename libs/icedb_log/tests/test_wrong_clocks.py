"""Workers whose wall clocks are minutes off, stand still or go back, on one store: S1, J1, I3, and exact rows."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from icedb_log.clock import make_uuid7_hex
from icedb_log.keys import parse_log_key
from icedb_log.log.fold import fold
from icedb_sim.fakes.fake_clock import DEFAULT_START_MS
from icedb_sim.fakes.memory_store import MemoryObjectStore
from icedb_sim.tables.small_table import SmallTable

MINUTE_MS = 60_000
OFFSETS_MS = (-10 * MINUTE_MS, -1, 0, 1, 10 * MINUTE_MS)


class TrueStore(MemoryObjectStore):
    """A store whose clock goes as time does, whatever the hosts' clocks say; notes when which key was deleted."""

    def __init__(self):
        super().__init__(self.now)
        self.clock = None
        self.deleted = []

    def now(self):
        return DEFAULT_START_MS + (self.clock.monotonic_ms() if self.clock else 0)

    def delete(self, keys):
        report = super().delete(keys)
        self.deleted += [(key, self.now()) for key in report.deleted]
        return report


class Hosts:
    """One table; before each step the worker's clock is set to something else."""

    def __init__(self):
        self.store = TrueStore()
        self.table = SmallTable(store=self.store, data_grace_ms=30_000, log_grace_ms=10_000)
        self.store.clock = self.table.clock
        self.rows, self.died, self.live = [], {}, set()

    def set_clock(self, off_ms):
        self.table.clock.set_wall(self.store.now() + off_ms)

    def append(self):
        number = len(self.rows)
        value = make_uuid7_hex(self.store.now(), number)
        batch_id = f"{value[:8]}-{value[8:12]}-{value[12:16]}-{value[16:20]}-{value[20:]}"
        self.table.stage([{"id": number, "p": "a"}], batch_id=batch_id)
        assert self.table.flush().rejected == ()
        self.rows.append(number)

    def note(self):
        """Note what died in the last step, by the store's clock."""
        view = self.table.reader().read()
        live = {marker.path for marker in fold(view).live}
        logs = {file.key for file in view.files} - {t.path for file in view.files for t in file.log.log_tombstones}
        for path in self.live - live - logs:
            self.died.setdefault(path, self.store.now())
        self.live = live | logs

    def check(self):
        assert self.table.ids() == self.rows
        config = self.table.config
        for key, deleted_ms in self.store.deleted:
            if key in self.died:
                is_log = key.startswith(self.table.paths.log_prefix)
                grace_ms = config.log_grace_ms if is_log else config.data_grace_ms
                # What died within a step is noted after it: a few milliseconds.
                assert deleted_ms - self.died[key] >= grace_ms - 10, f"{key} went early"
        self.check_last_marker()

    def check_last_marker(self):
        """Readers that take the last marker in key order see the same (S1)."""
        last = {}
        view = self.table.reader().read()
        dead = {t.path for file in view.files for t in file.log.log_tombstones}
        for file in sorted((file for file in view.files if file.key not in dead), key=lambda file: file.key):
            for marker in file.log.markers:
                last[marker.path] = marker.tombstoned_ms is None
        assert {path for path, is_live in last.items() if is_live} == {m.path for m in fold(view).live}


steps = st.tuples(
    st.sampled_from(("append", "append", "merge", "merge", "vacuum", "wait")), st.sampled_from(OFFSETS_MS)
)


@settings(max_examples=40)
@given(st.lists(steps, min_size=8, max_size=25))
def test_hosts_with_any_clock_lose_nothing_and_delete_nothing_early(history):
    hosts = Hosts()
    for what, off_ms in history:
        hosts.set_clock(off_ms)
        if what == "append":
            hosts.append()
        elif what == "merge":
            hosts.table.merge(full=True)
        elif what == "vacuum":
            hosts.table.vacuum()
        else:
            hosts.table.clock.advance(hosts.table.config.log_grace_ms)
        hosts.note()
        hosts.check()


@pytest.mark.parametrize("off_ms", [-10 * MINUTE_MS, 0])
def test_s1_a_merge_of_a_host_that_is_behind_sorts_after_the_appends_of_one_that_is_ahead(off_ms):
    hosts = Hosts()
    for _ in range(3):
        hosts.set_clock(10 * MINUTE_MS)
        hosts.append()
    hosts.set_clock(off_ms)
    before = set(hosts.table.keys(hosts.table.paths.log_prefix))
    hosts.table.merge(full=True)
    merged = set(hosts.table.keys(hosts.table.paths.log_prefix)) - before
    assert min(merged) > max(before)
    hosts.check()


def test_commits_of_one_millisecond_do_not_meet_and_a_merge_sorts_last(monkeypatch):
    hosts = Hosts()
    clock = hosts.table.clock
    still_ms = clock.now_ms()
    monkeypatch.setattr(clock, "now_ms", lambda: still_ms)  # it stands still, or answers in whole seconds
    for _ in range(4):
        hosts.append()
    hosts.table.merge(full=True)
    keys = hosts.table.keys(hosts.table.paths.log_prefix)
    assert len({parse_log_key(key).time_ms for key in keys if not parse_log_key(key).is_merged}) == 1
    assert len(set(keys)) == 5
    assert parse_log_key(max(keys)).is_merged
    hosts.check()


def test_times_in_the_future_delay_deletions_and_nothing_else():
    """A committer that is ahead dates tombstones: they wait until its time has come (J1)."""
    hosts = Hosts()
    hosts.append()
    hosts.append()
    hosts.set_clock(10 * MINUTE_MS)
    hosts.table.merge(full=True)
    hosts.set_clock(0)
    hosts.table.clock.advance(hosts.table.config.data_grace_ms)
    assert hosts.table.vacuum().deleted_data == ()
    hosts.table.clock.advance(11 * MINUTE_MS)
    hosts.set_clock(0)
    assert len(hosts.table.vacuum().deleted_data) == 2
    hosts.check()
