"""A rebuild says where it went by clocks that disagree: hosts that were ahead, jobs out of order."""

import pytest
from icedb_log.clock import make_uuid7_hex, uuid7_hex_ms
from icedb_log.model import LogView
from icedb_log.parquet.footer import FileOrigin, Footer
from icedb_log.repair.rebuild_evidence import RebuildEvidence
from icedb_log.repair.rebuild_plan import plan_rebuild
from icedb_log.store.object_store import ObjectInfo
from icedb_log.store.store_clock import MAX_STORE_GAP_MS
from icedb_sim.fakes.fake_clock import DEFAULT_START_MS
from icedb_sim.fakes.memory_store import MemoryObjectStore
from icedb_sim.tables.small_table import SmallTable
from icedb_sim.tables.table_steps import lose_log

MINUTE_MS = 60_000
TABLE = SmallTable(has_footers=True)


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


def written(id_ms, written_ms, *, number, inputs=("a",)):
    """Return a data file of a merge's commit."""
    info = ObjectInfo(f"{TABLE.paths.data_prefix}{number}.parquet", "", 1, written_ms)
    return Footer(info, 1, {}, origin=FileOrigin("merge", "t", "", make_uuid7_hex(id_ms, number), inputs))


def odd(*footers):
    view = LogView("t", (), TABLE.clock.now_ms())
    evidence = RebuildEvidence(TABLE.paths, TABLE.config, view, (), {each.info.key: each for each in footers})
    notes = {note.kind: note.files for note in plan_rebuild(evidence).report.notes}
    return [key.rpartition("/")[2] for key in notes.get("clocks", ())]


def test_jobs_on_one_file_in_another_order_than_their_ids_are_said():
    first, second = written(1000, 2000, number=1), written(60_000, 61_000, number=2)
    assert odd(first, second) == []
    late = written(1000, 61_000 + MAX_STORE_GAP_MS + 1, number=1)
    assert odd(late, second) == ["1.parquet", "2.parquet"]
    assert odd(written(1000, 61_000 + MAX_STORE_GAP_MS, number=1), second) == []
    assert odd(late, written(60_000, 61_000, number=2, inputs=("b",))) == [], "on other files the order does not matter"


def test_an_id_with_the_stores_seconds_is_not_ahead():
    assert odd(written(5000 + MAX_STORE_GAP_MS, 5000, number=1)) == []
    assert odd(written(5001 + MAX_STORE_GAP_MS, 5000, number=1)) == ["1.parquet"]


@pytest.mark.parametrize("value", ["", "abc", "f" * 32, "x" * 32])
def test_ids_of_others_have_no_time(value):
    assert uuid7_hex_ms(value) is None
