"""A rebuild says where it went by clocks that disagree: hosts that were ahead, jobs out of order."""

import pytest
from icedb_log.clock import make_uuid7_hex, uuid7_hex_ms
from icedb_log.parquet.footer import FileOrigin, Footer
from icedb_log.repair.rebuild_commits import Attempt, find_odd_times
from icedb_log.store.object_store import ObjectInfo
from icedb_log.store.store_clock import MAX_STORE_GAP_MS
from icedb_sim.fakes.fake_clock import DEFAULT_START_MS
from icedb_sim.fakes.memory_store import MemoryObjectStore
from icedb_sim.tables.small_table import SmallTable
from icedb_sim.tables.table_steps import lose_log

MINUTE_MS = 60_000


class TrueStore(MemoryObjectStore):
    """A store whose clock goes as time does, whatever the hosts' clocks say."""

    def __init__(self):
        super().__init__(lambda: DEFAULT_START_MS + (self.clock.monotonic_ms() if self.clock else 0))
        self.clock = None


@pytest.mark.parametrize("off_ms", [0, 10 * MINUTE_MS])
def test_a_host_that_was_ahead_is_said(off_ms):
    table = SmallTable(store=TrueStore(), has_footers=True)
    table.store.inner.clock = table.clock
    table.append(1)
    table.append(2)
    table.clock.set_wall(table.clock.now_ms() + off_ms)
    table.merge()
    live = [marker.path for marker in table.snapshot().live]
    lose_log(table)
    notes = {note.kind: note for note in table.rebuild().report.notes}
    assert ("clocks" in notes) == bool(off_ms)
    if off_ms:
        assert [name.rpartition("/")[2] for name in notes["clocks"].files] == [path.rpartition("/")[2] for path in live]
    assert table.ids() == [1, 2]


def attempt(id_ms, written_ms, *, number, inputs=("a",)):
    commit_id = make_uuid7_hex(id_ms, number)
    info = ObjectInfo(f"out{number}", "", 1, written_ms)
    origin = FileOrigin("merge", "t", "", commit_id, inputs)
    return Attempt(commit_id, (Footer(info, 1, {}, origin=origin),))


def odd(*attempts):
    return find_odd_times({each.commit_id: each for each in attempts})


def test_jobs_on_one_file_in_another_order_than_their_ids_are_said():
    first, second = attempt(1000, 2000, number=1), attempt(60_000, 61_000, number=2)
    assert odd(first, second) == []
    late = attempt(1000, 61_000 + MAX_STORE_GAP_MS + 1, number=1)
    assert odd(late, second) == ["out1", "out2"]
    assert odd(attempt(1000, 61_000 + MAX_STORE_GAP_MS, number=1), second) == []
    assert odd(late, attempt(60_000, 61_000, number=2, inputs=("b",))) == [], "on other files the order does not matter"


def test_an_id_with_the_stores_seconds_is_not_ahead():
    assert odd(attempt(5000 + MAX_STORE_GAP_MS, 5000, number=1)) == []
    assert odd(attempt(5001 + MAX_STORE_GAP_MS, 5000, number=1)) == ["out1"]


@pytest.mark.parametrize("value", ["", "abc", "f" * 32, "x" * 32])
def test_ids_of_others_have_no_time(value):
    assert uuid7_hex_ms(value) is None
