"""A retention run (M5): what it reads when, and that a plan without permission removes nothing."""

import pytest
from icedb_log.changes.retention import retain_table
from icedb_log.changes.table_changes import alter_table_config
from icedb_log.commit.table import Table
from icedb_log.errors import InvalidRequest, Unavailable
from icedb_log.store.table_store import TableStore
from icedb_log.table.table_config import PartitionField
from icedb_log.units import DAY_MS, HOUR_MS
from icedb_sim.fakes.scripted_store import Fault
from icedb_sim.tables.small_table import SmallTable

DAYS = ("2023-11-01", "2023-11-02", "2023-11-13")


@pytest.fixture
def table():
    """A table whose clock stands on 2023-11-14, with two days that have expired and hold most of its bytes."""
    table = SmallTable(partition=(PartitionField.parse("d=day(ts)"),), retention_ms=5 * DAY_MS)
    table.stage([{"id": number, "ts": day} for number, day in enumerate(DAYS)])
    table.flush()
    table.clock.advance(HOUR_MS)
    return table


def retain(table, **options):
    return retain_table(Table.open(table, clock=table.clock, owner="retain", reader=table.reader()), **options)


def test_a_refused_plan_takes_no_fence_and_a_forced_one_is_done(table):
    with pytest.raises(InvalidRequest, match="2 partitions of 2 time ranges at once"):
        retain(table)
    assert table.paths.fence_key("merge") not in table.keys(table.paths.prefix)
    result = retain(table, force=True)
    assert [one.info.path for one in result.plan.expired] == ["d=2023-11-01", "d=2023-11-02"]
    assert table.ids() == [2]
    assert retain(table).removal.committed_key is None


def test_a_dry_run_shows_the_refusal_and_writes_nothing(table):
    keys = table.keys()
    result = retain(table, dry_run=True)
    assert "allow it once" in result.plan.refusal
    assert len(result.removal.partitions) == 2
    assert table.keys() == keys


def test_a_retention_that_is_made_longer_while_the_run_waits_for_the_fence_counts(table):
    def lengthen():
        change = {"retention_ms": 12 * DAY_MS}
        alter_table_config(TableStore(table.store.inner, table.paths), change, clock=table.clock)

    table.store.script = [Fault("get", None, "/fence/merge", before=lengthen)]
    result = retain(table, force=True)
    assert [one.info.path for one in result.plan.expired] == ["d=2023-11-01"]
    assert table.ids() == [1, 2]


def test_rows_that_come_while_the_run_waits_for_the_fence_keep_their_partition(table):
    def append():
        rival = SmallTable(store=table.store.inner, name="rival")
        rival.paths, rival.clock = table.paths, table.clock
        rival.stage([{"id": 9, "ts": DAYS[0]}])
        rival.flush()

    table.store.script = [Fault("get", None, "/fence/merge", before=append)]
    result = retain(table, force=True)
    assert [one.info.path for one in result.plan.expired] == ["d=2023-11-02"]
    assert table.ids() == [0, 2, 9]


def test_the_stores_clock_decides_and_has_to_agree(table):
    # The store stands on its latest time; the host's clock falls back by a day.
    table.clock.set_wall(table.clock.now_ms() - DAY_MS)
    with pytest.raises(Unavailable, match="2023-11-13"):
        retain(table, force=True)
    assert table.ids() == [0, 1, 2]
