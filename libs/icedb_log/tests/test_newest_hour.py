"""The newest hour of a bucket is lost: what readers, fsck, a rebuild and a backup make of it (docs/backup.md).

Either the store is set back by an hour, all objects alike, or what was written in that hour is gone and what was
deleted in it stays so. Real clients, a store in memory, LastModified by its clock.
"""

import pytest
from icedb_log.backup.backup import backup_warehouse
from icedb_log.clock import new_batch_id
from icedb_log.ingest.quarantine import list_quarantined
from icedb_log.ingest.quarantine_ops import retry_quarantined
from icedb_log.log.fold import MAX_LANDED
from icedb_log.repair.fsck import fsck_table
from icedb_log.store.object_store import list_all
from icedb_log.table.stored_config import read_table_config
from icedb_log.units import DAY_MS, HOUR_MS, MINUTE_MS
from icedb_log.warehouse import Warehouse
from icedb_sim.fakes.memory_store import MemoryObjectStore
from icedb_sim.fakes.scripted_store import ScriptedStore
from icedb_sim.tables.fsck_tables import codes
from icedb_sim.tables.small_table import SmallTable

BEFORE, IN_THE_HOUR = [1, 2, 3, 4], [5, 6]
"""What was committed before that hour, and in it; 5 was staged before."""


class Hourly(SmallTable):
    """A table with grace periods as they are used, and a copy."""

    def __init__(self, *, store=None, like=None, **config):
        if like is None:
            grace = {"data_grace_ms": 6 * HOUR_MS, "log_grace_ms": 10 * MINUTE_MS, "orphan_age_ms": DAY_MS}
            super().__init__(has_footers=True, **{**grace, "seal_age_ms": 7 * DAY_MS, **config})
            self.target = MemoryObjectStore(self.clock.now_ms)
            return
        self.clock, self._has_footers, self.paths, self.target = like.clock, True, like.paths, like.target
        self.store = ScriptedStore(store)
        self.config = read_table_config(self)

    def backup(self):
        """Back up; return what is wrong, if anything is."""
        places = (Warehouse(self.store, "wh"), Warehouse(self.target, "wh"))
        (found,) = backup_warehouse(*places, source_url="s3://source/wh", clock=self.clock)
        self.clock.advance(1)
        return found.problem

    def copied_ids(self):
        return Hourly(store=self.target, like=self).ids()

    def bring_back(self):
        """Copy the copy to an empty place, and return the table that is there."""
        place = MemoryObjectStore(self.clock.now_ms)
        places = (Warehouse(self.target, "wh"), Warehouse(place, "wh"))
        (found,) = backup_warehouse(*places, source_url="copy", clock=self.clock)
        assert found.problem == ""
        return Hourly(store=place, like=self)

    def send_again(self, batch_id, *ids):
        self.stage([{"id": number, "p": "a"} for number in ids], batch_id=batch_id)
        self.flush()


def live_until_the_hour(**config):
    """1 to 4 are committed, of these 1 to 3 merged; 5 waits. Then nothing happens for some hours."""
    table = Hourly(**config)
    for number in BEFORE[:3]:
        table.append(number)
    table.merge(full=True)
    table.append(BEFORE[3])
    table.first_id = table.stage([{"id": 5, "p": "a"}])
    table.clock.advance(2 * HOUR_MS)
    return table


def live_on(table, *, merges, cleans):
    """What happens in the hour: 5 and 6 are committed, files merged, dead ones deleted."""
    since_ms = table.clock.now_ms()
    table.flush()
    table.second_id = new_batch_id(table.clock)
    table.send_again(table.second_id, 6)
    if merges:
        table.merge(full=True)
    for _ in range(2 * cleans):
        table.clock.advance(20 * MINUTE_MS)
        table.vacuum()
    assert table.ids() == BEFORE + IN_THE_HOUR
    return since_ms


def lose_since(table, since_ms):
    """Delete what was written from then on."""
    store = table.store.inner
    lost = [info.key for info in list_all(store, "").objects if info.modified_ms >= since_ms]
    store.delete(lost)
    table.clock.advance(MINUTE_MS)


def findings(table):
    return codes(fsck_table(table, clock=table.clock))


def kept(table):
    """The objects of a store, as they are."""
    store = table.store.inner
    return [store.get(info.key) for info in list_all(store, "").objects]


def set_back(table, then, *, keeps_times):
    """Return the table in a store with the objects of an earlier time, with LastModified of then, or of today."""
    now_ms = [0]
    store = MemoryObjectStore(lambda: now_ms[0])
    for stored in sorted(then, key=lambda each: each.info.modified_ms):
        now_ms[0] = stored.info.modified_ms if keeps_times else table.clock.now_ms()
        store.put(stored.info.key, stored.body)
    store._now_ms = table.clock.now_ms
    return Hourly(store=store, like=table)


@pytest.mark.parametrize("keeps_times", [True, False])
@pytest.mark.parametrize(("merges", "cleans"), [(False, False), (True, False), (True, True)])
def test_a_store_that_was_set_back_is_a_table_of_that_time_and_goes_on(merges, cleans, keeps_times):
    table = live_until_the_hour()
    then = kept(table)
    live_on(table, merges=merges, cleans=cleans)
    assert table.backup() == ""
    back = set_back(table, then, keeps_times=keeps_times)
    assert back.ids() == BEFORE
    assert findings(back) == ({"staging-old"} if keeps_times else set())
    back.flush()  # what was staged then is committed again, once
    if not keeps_times:  # it seems to have been staged today, long after its id was made (I3)
        (entry,) = list_quarantined(back)
        assert entry.is_doubtful
        retry_quarantined(back, entry.batch_id, clock=back.clock, force=True)
        back.clock.advance(1)
        back.flush()
    assert back.ids() == [*BEFORE, 5]
    back.send_again(new_batch_id(back.clock), 6)  # the old id is older than the retry window
    assert back.ids() == BEFORE + IN_THE_HOUR
    # The copy has commits that this table has not: it is not replaced by it, whatever comes.
    back.clock.advance(HOUR_MS)
    assert "knows nothing of" in back.backup()
    assert back.copied_ids() == BEFORE + IN_THE_HOUR


@pytest.mark.parametrize("merges", [False, True])
def test_without_the_newest_objects_and_nothing_deleted_the_table_is_that_of_an_hour_ago(merges):
    table = live_until_the_hour()
    since_ms = live_on(table, merges=merges, cleans=False)
    lose_since(table, since_ms)
    assert table.ids() == BEFORE
    # Fences are among the newest objects, so nothing knows of what was lost.
    assert findings(table) == {"fence-missing"}
    assert not table.rebuild().has_committed
    table.append(7)
    assert table.ids() == [*BEFORE, 7]


@pytest.mark.parametrize("since_then", [(), (7, 8)])
def test_where_the_log_was_merged_and_cleaned_in_that_hour_a_rebuild_brings_back_what_was_before(since_then):
    """As on every busy table: no log file is older than the last merge and the log's grace period."""
    table = live_until_the_hour()
    since_ms = live_on(table, merges=True, cleans=True)
    lose_since(table, since_ms)
    assert table.ids() == []
    assert findings(table) == {"log-lost"}
    for number in since_then:  # workers go on, and fsck has but young files that no log file names
        table.append(number)
        assert findings(table) == set()
    assert table.rebuild(take=("*",)).has_committed
    assert table.ids() == [*BEFORE, *since_then]
    assert findings(table) == set()
    table.append(9)
    assert table.ids() == [*BEFORE, *since_then, 9]


def test_with_a_data_grace_period_below_an_hour_only_a_copy_has_what_was_merged():
    table = live_until_the_hour(data_grace_ms=15 * MINUTE_MS)
    assert table.backup() == ""
    since_ms = live_on(table, merges=True, cleans=True)
    lose_since(table, since_ms)
    assert table.ids() == []
    assert findings(table) == set(), "nothing is left that could tell"
    assert not table.rebuild().has_committed
    assert "its log is empty" in table.backup()
    back = table.bring_back()
    back.flush()
    assert back.ids() == [*BEFORE, 5]


@pytest.mark.parametrize(("merges", "cleans"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("goes_on", ["not", "appends", "appends for long", "appends and cleans"])
def test_a_copy_from_within_the_hour_is_not_replaced_by_what_is_left(goes_on, merges, cleans):
    """Workers do not notice, and a backup runs every hour: it would delete the last rows that there are."""
    table = live_until_the_hour()
    since_ms = live_on(table, merges=merges, cleans=cleans)
    assert table.backup() == ""
    lose_since(table, since_ms)
    for number in range(7, {"not": 7, "appends for long": 7 + MAX_LANDED}.get(goes_on, 10)):
        table.append(number)
    if goes_on == "appends and cleans":  # the horizon passes what was lost
        table.merge(full=True)
        for _ in range(2):
            table.clock.advance(6 * HOUR_MS)
            table.vacuum()
    problem = table.backup()
    assert "its log is empty" in problem or "knows nothing of" in problem
    assert "its copy is left as it is" in problem.lower()
    assert table.copied_ids() == BEFORE + IN_THE_HOUR
    back = table.bring_back()
    back.append(7)
    assert back.ids() == [*BEFORE, *IN_THE_HOUR, 7]


def test_a_copy_from_before_the_hour_is_continued_where_nothing_of_it_is_missing():
    table = live_until_the_hour()
    assert table.backup() == ""
    lose_since(table, live_on(table, merges=False, cleans=False))
    table.append(7)
    assert table.backup() == ""
    assert table.copied_ids() == [*BEFORE, 7]


def test_a_copy_is_continued_whatever_merges_the_janitor_and_a_rebuild_do():
    table = Hourly()
    for number in range(MAX_LANDED + 20):  # more than a fence remembers
        table.append(number)
        if number % 10 == 0:
            table.merge(full=True)
            table.clock.advance(table.config.log_grace_ms)
            table.vacuum()
            assert table.backup() == "", number
    table.rebuild(is_forced=True)
    assert table.backup() == ""
    assert table.copied_ids() == list(range(MAX_LANDED + 20))
