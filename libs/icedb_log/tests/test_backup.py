"""Copies of tables: a state that was there, whatever goes on meanwhile, and exactly once after it was brought back."""

import contextlib

import pytest
from icedb_log.backup.backup import LEASE_MS, backup_warehouse
from icedb_log.backup.target import CopiedTable
from icedb_log.clean.pins import read_pinned
from icedb_log.clock import new_batch_id
from icedb_log.errors import InvalidRequest, NotFound
from icedb_log.ingest.idempotency import bind_key, mark_staged, read_binding
from icedb_log.ingest.quarantine import list_quarantined
from icedb_log.ingest.quarantine_ops import retry_quarantined
from icedb_log.repair.fsck import fsck_table
from icedb_log.store.object_store import list_all
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import read_table_config
from icedb_log.warehouse import Warehouse
from icedb_sim.fakes.memory_store import MemoryObjectStore
from icedb_sim.fakes.scripted_store import Crash, Effect, Fault, ScriptedStore
from icedb_sim.tables.small_table import SmallTable, at_each_call
from icedb_sim.tables.small_view import SmallView
from icedb_sim.tables.table_steps import pin, pinned_ids, state_of

URL = "s3://source/wh"


class CopiedSmallTable(SmallTable):
    """A table that is there already: a copy that is taken into use."""

    def __init__(self, table, target):
        self.clock, self._has_footers = table.clock, False
        self.store = ScriptedStore(target)
        self.paths = table.paths
        self.config = read_table_config(self)


class Backed(SmallTable):
    """A table with a target for its copies. Everything is done one after the other, so that calls can be counted."""

    def __init__(self, **given):
        super().__init__(**given)
        self.store.max_parallel_reads = 1
        self.target = ScriptedStore(MemoryObjectStore(self.clock.now_ms))
        self.target.max_parallel_reads = 1

    def backup(self):
        """Back up once; raise what kept the table from being copied."""
        (found,) = backup_warehouse(
            Warehouse(self.store, "wh"), Warehouse(self.target, "wh"), source_url=URL, clock=self.clock
        )
        self.clock.advance(1)
        assert not found.problem, found.problem
        return found

    def backup_all(self):
        """Back up a table and its views."""
        places = (Warehouse(self.store, "wh"), Warehouse(self.target, "wh"))
        for found in backup_warehouse(*places, source_url=URL, clock=self.clock):
            assert not found.problem, found.problem

    def copy(self):
        """Take a copy of the copy into use: what is done there is not done to the copy itself."""
        store = MemoryObjectStore(self.clock.now_ms)
        for info in list_all(self.target, "").objects:
            if not info.key.startswith("wh/_icedb/"):
                store.put(info.key, self.target.get(info.key).body)
        return CopiedSmallTable(self, store)


def make():
    table = Backed()
    table.append(1)
    table.append(2)
    table.stage_bytes(b"no json at all {")
    table.flush()
    table.stage([{"id": 3, "p": "a"}])
    return table


def everything(table):
    """Do all that may happen while a table is copied: what was staged is committed, merged, and its log file deleted."""
    table.flush()
    table.merge(full=True)
    table.clock.advance(table.config.data_grace_ms + table.config.log_grace_ms)
    table.vacuum()
    table.vacuum()


def retry(table):
    (entry,) = list_quarantined(table)
    retry_quarantined(table, entry.batch_id, clock=table.clock, force=True)
    table.clock.advance(1)


def send(table):
    table.append(9)


def send_and_delete(table):
    table.append(9)
    table.delete("id = 1")


def check(table, error, where, *, may_have=(9,)):
    """A copy is sound, and has what was accepted before it began, once; what came meanwhile, once or not at all."""
    assert error is None, where
    copy = table.copy()
    report = fsck_table(copy, clock=table.clock)
    assert report.is_sound, (where, report.findings)
    assert state_of(copy).landed, where  # F5: from now on it is told if the copy loses a commit
    paths = {info.key for info in list_all(copy.store, copy.paths.data_prefix).objects}
    assert paths.issuperset(copy.snapshot().live.paths()), where
    copy.flush()
    for entry in list_quarantined(copy):
        if entry.retry_id is not None:  # a retry that was cut off, as it stands: who repeats it ends it
            retry_quarantined(copy, entry.batch_id, clock=copy.clock)
            copy.flush()
        elif entry.is_doubtful:  # the switch stood still for longer than a retry window: I3 keeps it for a person
            retry_quarantined(copy, entry.batch_id, clock=copy.clock, force=True)
            copy.flush()
    assert len(list_quarantined(copy)) == 1, where
    ids = copy.ids()
    assert [i for i in ids if i not in may_have] == [1, 2, 3], (where, ids)
    assert len(set(ids)) == len(ids), (where, ids)
    copy.merge(full=True)
    everything(copy)
    assert copy.ids() == ids, where
    return copy


@pytest.mark.parametrize("rival", [Backed.flush, everything, send, retry])
def test_a_copy_is_a_state_that_was_there_whatever_happens_at_any_call(rival):
    tried = 0
    for table, error, where in at_each_call(make, Backed.backup, rival):
        check(table, error, where)
        table.backup()
        assert table.copy().ids() == table.ids(), where
        tried += 1
    assert tried > 30


def restore(table):
    """Bring a copy back to an empty place, and take that into use."""
    place = MemoryObjectStore(table.clock.now_ms)
    found = list(
        backup_warehouse(Warehouse(table.target, "wh"), Warehouse(place, "wh"), source_url="copy", clock=table.clock)
    )
    assert not [each.problem for each in found if each.problem]
    return CopiedSmallTable(table, place) if found else None


def changed():
    """Return a table with a copy of [1, 2] and 3 waiting, of which much has changed since."""
    table = make()
    table.backup()
    table.append(4)
    everything(table)
    table.stage([{"id": 5, "p": "a"}])
    return table


@pytest.mark.parametrize("effect", [Effect.CRASH_BEFORE, Effect.CRASH_AFTER, Effect.LOSE_ANSWER])
def test_a_run_that_is_cut_off_anywhere_leaves_the_old_state_or_the_new_one_and_is_ended_from_the_copy_alone(effect):
    old, new = [1, 2, 3], [1, 2, 3, 4, 5]
    table = changed()
    table.target.calls.clear()
    table.backup()
    for number in range(len(table.target.calls)):
        table = changed()
        table.target.calls.clear()
        table.target.fault_at = {number: effect}
        with contextlib.suppress(Crash, AssertionError):
            table.backup()
        table.target.fault_at = {}
        if list_all(table.target, table.paths.config_key).objects:  # who reads it as it stands sees no mixture
            assert table.copy().ids() in ([1, 2], [1, 2, 3, 4]), number
        back = restore(table)
        assert back is not None, number
        back.flush()
        assert back.ids() in (old, new), (number, back.ids())
        table.backup()
        again = table.copy()
        again.flush()
        assert again.ids() == new, number
        keys = [info.key for info in list_all(table.target, "wh/_icedb/").objects]
        assert keys == ["wh/_icedb/backup/t.json"], number


def test_a_second_run_copies_what_is_new_and_deletes_what_nobody_names():
    table = make()
    first = table.backup()
    assert (first.copied_files, first.file_count, first.row_count, first.waiting_batches) == (2, 2, 2, 1)
    again = table.backup()
    assert (again.copied_files, again.deleted_files, again.waiting_batches) == (0, 0, 1)
    everything(table)
    third = table.backup()
    assert (third.copied_files, third.file_count, third.waiting_batches) == (1, 1, 0)
    assert third.deleted_files == 2
    assert {info.key for info in list_all(table.target, table.paths.data_prefix).objects} == set(
        table.snapshot().live.paths()
    )
    assert not table.keys(table.paths.leases_prefix)


def test_what_left_quarantine_leaves_the_copy():
    table = make()
    table.backup()
    assert len(list_quarantined(table.copy())) == 1
    table.store.delete(table.keys(table.paths.quarantine_prefix))
    table.backup()
    assert not table.copy().keys(table.paths.quarantine_prefix)


def test_what_changed_after_its_copy_is_copied_again_though_the_clock_of_the_target_is_ahead():
    table = make()
    table.target = ScriptedStore(MemoryObjectStore(lambda: table.clock.now_ms() + 9 * 60_000))
    table.target.max_parallel_reads = 1
    table.backup()
    bodies = {key: table.store.get(key).body for key in table.keys(table.paths.quarantine_prefix)}
    (key,) = (key for key, body in bodies.items() if body == b"no json at all {")
    table.store.put(key, changed := b"no json at one {")
    table.backup()
    assert table.target.get(key).body == changed


def test_a_copy_in_which_somebody_commits_meanwhile_is_not_called_whole(monkeypatch):
    table = make()
    finish = CopiedTable.finish_switch

    def commit_then(copy):
        has_switched = finish(copy)
        if has_switched:
            CopiedSmallTable(table, table.target).append(8)
        return has_switched

    monkeypatch.setattr(CopiedTable, "finish_switch", commit_then)
    with pytest.raises(AssertionError, match=r"its copy is not whole \(it has other data files\)"):
        table.backup()


def test_a_batch_that_waited_for_long_is_committed_once_wherever_it_is_brought_back():
    table = make()
    table.clock.advance(table.config.retry_window_ms * 3)
    table.backup()
    table.clock.advance(table.config.retry_window_ms * 3)
    back = restore(table)
    back.flush()
    assert back.ids() == [1, 2, 3]
    assert not [entry for entry in list_quarantined(back) if entry.is_doubtful]
    table.flush()  # the source lives on: its next copy has the batch in the log, and not in staging
    table.backup()
    copy = table.copy()
    copy.flush()
    assert copy.ids() == [1, 2, 3]


def test_nothing_is_written_over_what_somebody_else_has_written():
    table = make()
    table.backup()
    back = CopiedSmallTable(table, table.target)
    staged = back.stage([{"id": 7, "p": "a"}])
    with pytest.raises(AssertionError, match="was written to since the last backup"):
        table.backup()
    back.store.delete([back.paths.staging_key(batch_id=staged, staging_format="ndjson")])
    table.backup()
    back.append(8)
    with pytest.raises(AssertionError, match="was written to since the last backup"):
        table.backup()
    assert back.ids() == [1, 2, 3, 8]
    stranger = Backed()
    stranger.append(1)
    stranger.target = ScriptedStore(stranger.store.inner)
    with pytest.raises(AssertionError, match="no copy that a backup made"):
        stranger.backup()


def test_a_copy_belongs_to_one_source_and_one_table_of_a_name():
    table = make()
    table.backup()
    with pytest.raises(InvalidRequest, match="prefix"):
        list(backup_warehouse(Warehouse(table.store, "wh"), Warehouse(table.target), source_url=URL, clock=table.clock))
    with pytest.raises(NotFound, match="ghost"):
        places = (Warehouse(table.store, "wh"), Warehouse(table.target, "wh"))
        list(backup_warehouse(*places, source_url=URL, clock=table.clock, tables=["ghost"]))
    (found,) = backup_warehouse(
        Warehouse(table.store, "wh"), Warehouse(table.target, "wh"), source_url="s3://other/wh", clock=table.clock
    )
    assert f"is a copy of {URL}, not of s3://other/wh" in found.problem


def test_a_damaged_source_leaves_the_copy_as_it_is():
    table = make()
    table.backup()
    newest = table.keys(table.paths.log_prefix)[-1]
    table.store.delete([newest])
    with pytest.raises(AssertionError, match="log files are lost"):
        table.backup()
    table.store.delete(table.keys(table.paths.log_prefix) + table.keys(table.paths.fences_prefix))
    with pytest.raises(AssertionError, match="its log is empty"):
        table.backup()
    back = restore(table)
    back.flush()
    assert back.ids() == [1, 2, 3]


def test_a_data_file_that_is_gone_from_the_source_stays_in_the_copy_and_is_told_when_it_was_never_there():
    table = make()
    table.backup()
    path = table.snapshot().live.paths()[0]
    table.store.delete([path])
    table.backup()
    assert table.copy().ids() == [1, 2]
    table.append(4)
    table.store.delete([max(table.snapshot().live, key=lambda marker: marker.created_ms).path])
    with pytest.raises(AssertionError, match="is not there; `icedb fsck t`"):
        table.backup()
    assert table.copy().ids() == [1, 2]


def test_j4_a_copy_that_takes_long_holds_what_it_copies():
    table = make()
    for number in range(10, 16):
        table.append(number)
    slow = Fault("get", None, "/_data/", before=lambda: table.clock.advance(LEASE_MS // 4 + 1))
    table.store.script += [slow] * 7
    table.store.script.append(Fault("get", None, "/_data/", before=lambda: everything(table)))
    assert table.backup().file_count == 8
    assert table.copy().ids() == [1, 2, 3, *range(10, 16)]


def test_j7_pins_last_in_a_copy_as_long_as_in_the_source_and_can_be_read():
    table = make()
    pin(table, "q3", ttl_ms=LEASE_MS * 10)
    pin(table, "gone", ttl_ms=1000)
    everything(table)
    table.clock.advance(LEASE_MS * 4)
    table.backup()
    back = restore(table)
    assert pinned_ids(back) == [1, 2]
    back.flush()
    everything(back)
    assert pinned_ids(back) == [1, 2]
    made, _ = read_pinned(back, "q3")
    assert made.ends_ms - back.clock.now_ms() < LEASE_MS * 6
    with pytest.raises(NotFound):
        read_pinned(back, "gone")


def send_by_key(table, key="new", number=9):
    batch_id = new_batch_id(table.clock)
    binding = bind_key(table, key=key, batch_id=batch_id, content_sha256="x")
    table.stage([{"id": number, "p": "a"}], batch_id=batch_id)
    mark_staged(table.store, binding)


def test_i7_a_key_is_in_the_copy_if_its_batch_is_and_only_then():
    seen = set()
    for table, error, where in at_each_call(make, Backed.backup, send_by_key):
        copy = check(table, error, where)
        is_known = read_binding(copy, key="new") is not None
        assert is_known == (9 in copy.ids()), where
        seen.add(is_known)
        table.clock.advance(table.config.log_grace_ms)
        table.backup()
        assert read_binding(table.copy(), key="new"), where
    assert seen == {True, False}


def with_view():
    """Return a source with a view that has taken one commit and has to take the next one, which is merged already."""
    table = make()
    view = SmallView(table)
    table.view_table = view
    table.append(4)
    view.feed()
    table.append(5)
    table.merge(full=True)
    table.clock.advance(table.config.data_grace_ms + table.config.log_grace_ms)
    return table


def feed_and_clean(table):
    table.append(9)
    table.view_table.feed_all()
    everything(table)


def feed(table):
    table.append(9)
    table.view_table.feed_all()


@pytest.mark.parametrize("rival", [feed, feed_and_clean])
def test_a_view_takes_each_commit_of_its_source_once_in_a_copy_of_both(rival):
    tried = 0
    for table, error, where in at_each_call(with_view, Backed.backup_all, rival):
        assert error is None, where
        copy = table.copy()
        view = SmallView(copy, is_created=False)
        for each in (copy, TableStore(copy.store, view.paths)):
            assert fsck_table(each, clock=table.clock).is_sound, where
        taken = view.ids()
        assert set(taken) <= set(copy.ids()), where
        copy.flush()
        view.feed_all()
        assert view.ids() == [number for number in copy.ids() if number > 2], where
        assert view.ids() in ([3, 4, 5], [3, 4, 5, 9]), where
        tried += 1
    assert tried > 60
