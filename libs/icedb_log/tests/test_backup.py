"""Copies of tables: a state that was there, whatever goes on meanwhile, and exactly once after it was brought back."""

import contextlib
from dataclasses import replace

import orjson
import pytest
from icedb_log.backup.backup import LEASE_MS, backup_warehouse
from icedb_log.backup.copy import TableCopy
from icedb_log.batch_ids import make_keyed_id, name_of, parse_batch_id_ms
from icedb_log.clock import new_batch_id, parse_uuid7_ms
from icedb_log.content import hash_content
from icedb_log.errors import InvalidRequest, NotFound, Unavailable
from icedb_log.feed.feeds import FeedLimits
from icedb_log.feed.follower import Follower, PositionLost
from icedb_log.imports.import_records import read_records
from icedb_log.ingest.flush import GROUP_AGE_MS, FlushLimits
from icedb_log.ingest.groups import OfferedBatch
from icedb_log.ingest.idempotency import bind_key, mark_staged, read_binding
from icedb_log.ingest.quarantine import list_quarantined
from icedb_log.ingest.quarantine_ops import retry_quarantined
from icedb_log.ingest.staging import list_all_staged, stage_batch, stage_group
from icedb_log.keys import parse_staged_key
from icedb_log.log.fold import MAX_LANDED
from icedb_log.repair.fsck import fsck_table
from icedb_log.store.object_store import list_all
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import create_table, read_table_config
from icedb_log.table.table_config import TableConfig
from icedb_log.units import HOUR_MS
from icedb_log.warehouse import Warehouse
from icedb_sim.fakes.memory_store import MemoryObjectStore
from icedb_sim.fakes.scripted_store import Crash, Effect, Fault, ScriptedStore
from icedb_sim.tables.row_files import encode_rows
from icedb_sim.tables.small_import import ImportTable
from icedb_sim.tables.small_table import SmallTable, at_each_call
from icedb_sim.tables.small_view import SmallView
from icedb_sim.tables.table_steps import create_again, drop, purge, state_of

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


def test_of_a_copy_no_fence_is_missing_that_its_table_never_had():
    table = Backed()
    table.append(1)
    table.backup()
    assert fsck_table(table.copy(), clock=table.clock).findings == ()
    table.merge(full=True)
    table.backup()
    copy = table.copy()
    assert fsck_table(copy, clock=table.clock).findings == ()
    copy.append(2)
    copy.merge(full=True)
    copy.store.delete([copy.paths.fence_key("merge")])
    assert [each.code for each in fsck_table(copy, clock=table.clock).findings] == ["fence-missing"]


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
def test_a_run_that_is_cut_off_anywhere_leaves_a_copy_with_all_that_the_last_one_had(effect):
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
        assert set(old) <= set(back.ids()) <= set(new), (number, back.ids())  # 5 may be staged before 4 is there
        assert len(back.ids()) == len(set(back.ids())), number
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
    assert not table.keys(table.paths.holds_of("lease"))


def test_a_copy_is_one_log_file_that_names_what_is_live_and_nothing_else():
    table = make()
    everything(table)
    table.append(4)
    for _ in range(2):
        table.backup()
        copy = table.copy()
        assert len(copy.log_objects()) == 1
        (file,) = copy.view().files
        assert {marker.path for marker in file.log.markers} == set(table.snapshot().live.paths())
        assert (file.log.log_tombstones, file.log.horizon_ms) == ((), file.log.time_ms)
        assert {*file.log.batch_ids} >= {each for one in table.view().files for each in one.log.batch_ids}
        assert file.log.rebuilt == file.log.commit_id
    assert set(copy.keys(copy.paths.data_prefix)) == set(table.snapshot().live.paths())


def test_a_batch_that_is_sent_again_after_the_copy_was_brought_back_counts_once():
    table = Backed()
    batch_id = table.stage([{"id": 1, "p": "a"}])
    table.flush()
    table.backup()
    back = restore(table)
    back.stage([{"id": 1, "p": "a"}], batch_id=batch_id)
    assert back.flush().duplicate_count == 1
    assert back.ids() == [1]


def test_an_empty_table_is_copied_as_often_as_one_likes():
    table = Backed()
    table.backup()
    table.backup()
    table.append(1)
    table.backup()
    assert table.copy().ids() == [1]


@pytest.mark.parametrize("prefix", ["_data/", "_log/", "_icedb/staging/", "_icedb/quarantine/", "_icedb/fence/"])
def test_what_is_cut_short_in_the_copy_is_copied_again(prefix):
    table = make()
    table.backup()
    whole = {info.key: info.size_bytes for info in list_all(table.target, f"{table.paths.prefix}/{prefix}").objects}
    for key in whole:
        table.target.put(key, table.target.get(key).body[:-1])
    table.backup()
    there = {info.key: info.size_bytes for info in list_all(table.target, f"{table.paths.prefix}/{prefix}").objects}
    if prefix != "_log/":  # where one log file takes the place of another
        assert there == whole
    check(table, None, prefix)


def test_followers_begin_anew_in_a_table_that_was_brought_back():
    """The appends that their position names are folded there: what came between would be missed."""
    table = make()
    position = Follower(table.opened("follower"), lease_ms=0).begin()
    table.flush()
    table.backup()
    back = restore(table)
    with pytest.raises(PositionLost, match="made anew"):
        Follower(back.opened("follower"), lease_ms=0).look(position)


@pytest.mark.parametrize("effect", [Effect.CRASH_BEFORE, Effect.CRASH_AFTER])
@pytest.mark.parametrize("has_copy", [False, True])
def test_n3_imports_are_in_the_copy_as_its_log_says(effect, has_copy):
    table = ImportTable()
    target = MemoryObjectStore(table.clock.now_ms)

    def copy_to(source, place, url):
        (found,) = backup_warehouse(Warehouse(source, "wh"), Warehouse(place, "wh"), source_url=url, clock=table.clock)
        assert not found.problem, found.problem

    if has_copy:
        copy_to(table.store, target, URL)
    table.put_source("one", 10, 11)
    table.store.script = [Fault("put_if_absent", effect, "_log/")]
    with pytest.raises(Crash):
        table.run_import()
    copy_to(table.store, target, URL)
    records = read_records(TableStore(target, table.paths))
    state = "committed" if effect is Effect.CRASH_AFTER else "lost"
    assert [each.state for each in records] == [state]


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
    save = TableCopy.write_record

    def commit_then(copy, **changes):
        save(copy, **changes)
        if "point_ms" in changes:
            CopiedSmallTable(table, table.target).append(8)

    monkeypatch.setattr(TableCopy, "write_record", commit_then)
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


@pytest.mark.parametrize("is_late", [False, True])
def test_a_batch_gets_a_fresh_id_in_the_copy_once_half_of_its_retry_window_is_over(is_late):
    """The other half is left to the copy, the clocks, and whoever takes the copy into use."""
    table = Backed()
    table.append(1)
    batch_id = table.stage([{"id": 2, "p": "a"}])
    age_ms = table.clock.now_ms() - parse_uuid7_ms(batch_id)
    table.clock.advance(table.config.retry_window_ms // 2 - age_ms - (not is_late))
    table.backup()
    (copied,) = list_all(table.target, table.paths.staging_prefix).objects
    assert (parse_staged_key(copied.key).batch_id != batch_id) == is_late
    back = restore(table)
    back.flush()
    assert back.ids() == [1, 2]


def test_a_table_whose_fence_has_forgotten_the_commits_of_its_copy_is_copied_on():
    """A fence names its last commits only: of older ones it says nothing, and the log has been merged and vacuumed."""
    table = Backed()
    table.append(1)
    table.backup()
    for number in range(MAX_LANDED):
        table.append(2 + number)
    everything(table)
    table.backup()
    assert table.copy().ids() == table.ids()


def test_what_only_a_view_keeps_is_copied_before_what_is_live():
    table = Backed()
    view = SmallView(table)
    table.append(1)
    view.feed()
    table.append(2, p="a")
    table.append(3, p="a")
    waiting = set(table.snapshot().live.paths())
    table.merge(full=True)
    table.append(4)
    live = set(table.snapshot().live.paths())
    table.store.calls.clear()
    table.backup_all()
    asked = [key for key in table.store.keys_of("get", "download") if key in live | waiting]
    places = [key in live for key in asked]
    assert set(places) == {False, True}
    assert places == sorted(places)


def test_a_batch_that_somebody_takes_away_by_hand_while_it_is_copied_does_not_wait_in_the_copy():
    table = Backed()
    table.append(1)
    table.stage([{"id": 2, "p": "a"}])
    (key,) = table.keys(table.paths.staging_prefix)
    table.store.script = [Fault("get", None, "/staging/", before=lambda: table.store.inner.delete([key]))]
    done = table.backup()
    assert (table.store.script, done.waiting_batches) == ([], 0)
    assert restore(table).ids() == [1]


def test_a_batch_that_waited_for_long_and_was_refused_is_refused_under_its_id_in_the_copy_too():
    """A copy that is brought back from between two writes has it staged still: it goes to quarantine, not away."""
    table = Backed()
    table.append(1)
    table.stage_bytes(b"no json at all {")
    table.clock.advance(table.config.retry_window_ms * 3)
    table.backup()
    (key,) = (info.key for info in list_all(table.target, table.paths.staging_prefix).objects)
    staged, body = parse_staged_key(key), table.target.get(key).body
    table.flush()
    table.backup()
    copy = table.copy()
    (file,) = copy.view().files
    assert (staged.batch_id in file.log.refused_ids, staged.batch_id in file.log.batch_ids) == (True, False)
    copy.store.put(key, body)
    copy.flush()
    assert staged.batch_id in [entry.batch_id for entry in list_quarantined(copy)]
    assert copy.ids() == [1]


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


def test_t4_a_later_table_of_a_name_is_copied_to_the_same_prefix_and_found_by_its_name():
    table = Backed()
    table.append(1)
    drop(table, force=True)
    purge(table)
    create_again(table)
    table.append(7)
    for _ in range(2):
        table.backup()
        place = Warehouse(table.target, "wh").table("t")
        assert (place.paths.prefix, CopiedSmallTable(table, table.target).ids()) == ("wh/t.2", [7])
    drop(table, force=True)
    purge(table)
    create_again(table)
    table.append(8)
    places = (Warehouse(table.store, "wh"), Warehouse(table.target, "wh"))
    (found,) = backup_warehouse(*places, source_url=URL, clock=table.clock)
    assert "is a copy of another table of this name" in found.problem


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


def fail(error):
    raise error


@pytest.mark.parametrize("error", [Unavailable("no answer"), ZeroDivisionError("nobody foresaw this")], ids=str)
@pytest.mark.parametrize("key", ["wh/v/_icedb/table.json", "wh/u/_icedb/table.json", "wh/u/_log/"])
@pytest.mark.parametrize("times", [1, 100])
def test_a_table_that_cannot_be_read_is_named_and_the_others_are_copied(key, error, times):
    """A view that can be read again a moment later is not copied either: nobody knew of what it is one."""
    table = with_view()
    other = Warehouse(table.store, "wh").table("u")
    create_table(other, TableConfig.create(name="u"))
    name = key.split("/")[1]
    listing = [Fault("", None, key)] if key.endswith("table.json") else []
    table.store.script = [*listing, *[Fault("", None, key, before=lambda: fail(error))] * times]
    places = (Warehouse(table.store, "wh"), Warehouse(table.target, "wh"))
    found = {each.table: each.problem for each in backup_warehouse(*places, source_url=URL, clock=table.clock)}
    assert found.keys() == {"t", "v", "u"}
    assert str(error) in found.pop(name)
    assert set(found.values()) == {""}
    table.store.script = []
    table.backup_all()


def feed(table):
    table.append(9)
    table.view_table.feed_all()


@pytest.mark.parametrize("has_copy", [False, True])
def test_a_run_over_a_view_and_its_source_that_is_cut_off_takes_nothing_twice(has_copy):
    def make_changed():
        table = with_view()
        if has_copy:
            table.backup_all()
            table.append(6)
            feed_and_clean(table)
        return table

    table = make_changed()
    table.target.calls.clear()
    table.backup_all()
    for number in range(len(table.target.calls)):
        table = make_changed()
        table.target.calls.clear()
        table.target.fault_at = {number: Effect.CRASH_AFTER}
        with contextlib.suppress(Crash, AssertionError):
            table.backup_all()
        table.target.fault_at = {}
        if has_copy:
            copy = table.copy()
            view = SmallView(copy, is_created=False)
            copy.flush()
            view.feed_all()
            assert len(view.ids()) == len(set(view.ids())), number
            assert set(view.ids()) <= set(copy.ids()), number
        table.backup_all()
        copy = table.copy()
        view = SmallView(copy, is_created=False)
        copy.flush()
        view.feed_all()
        assert view.ids() == [each for each in copy.ids() if each > 2], number


def test_a_view_that_is_being_filled_is_filled_in_the_copy():
    table = make()
    for number in (4, 5, 6):
        table.append(number)
    view = SmallView(table, view_backfill="on")
    view.feed(limits=FeedLimits(max_commits=1))
    table.merge(full=True)
    everything(table)
    table.backup_all()
    table.backup_all()
    copy = table.copy()
    filled = SmallView(copy, is_created=False)
    copy.merge(full=True)
    copy.clock.advance(table.config.data_grace_ms + table.config.log_grace_ms)
    copy.vacuum()
    filled.feed_all()
    assert filled.ids() == copy.ids() == table.ids()


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


def test_a_backup_has_each_batch_of_a_group_in_an_object_of_its_own():
    table = make()
    batches = []
    for number in (701, 702, 703):
        table.clock.advance(1)
        body = encode_rows([{"id": number, "p": "a"}])
        batches.append(OfferedBatch(new_batch_id(table.clock), "ndjson", body, hash_content(body, "ndjson")))
    stage_group(table, batches)
    table.flush(limits=FlushLimits(max_batches=2))
    before = table.ids()
    for _ in range(2):
        assert table.backup().waiting_batches == 2
    copy = table.copy()
    assert len({each.key for each in list_all_staged(copy).batches}) == 2
    copy.flush()
    assert (copy.ids(), list_quarantined(copy)) == (sorted([*before, 702, 703]), list_quarantined(table))
    table.flush()  # and in the source, after which its copy is asked to commit what it has
    table.backup()
    copy = table.copy()
    copy.flush()
    assert copy.ids() == table.ids() == sorted([*before, 702, 703])


def stage_by_key(table, body, *, made_ms=None):
    """Stage a batch as a front end does whose table has `key_memory=retry`; return its id."""
    table.clock.advance(1)
    batch_id = make_keyed_id("order 7", table.clock.now_ms() if made_ms is None else made_ms)
    stage_batch(table, body=body, staging_format="ndjson", batch_id=batch_id)
    return batch_id


def row(number):
    return encode_rows([{"id": number, "p": "a"}])


def copy_staged_in(table):
    """Return a copy that is brought back from between the switch and the delete of what was staged before it."""
    table.target.script = [Fault("delete", Effect.CRASH_BEFORE, "/staging/")]
    with pytest.raises(Crash):
        table.backup()
    copy = table.copy()
    assert list_all_staged(copy).batches
    return copy


@pytest.mark.parametrize(("again", "kept"), [(row(2), []), (row(3), ["conflict"])])
def test_i8_a_retry_of_a_key_is_compared_with_its_batch_in_the_copy_too(again, kept):
    table = Backed()
    stage_by_key(table, row(2))
    table.flush()
    stage_by_key(table, again)
    copy = copy_staged_in(table)
    copy.flush()
    assert (copy.ids(), [entry.kind for entry in list_quarantined(copy)]) == ([2], kept)
    assert not list_all_staged(copy).batches


def test_i5_a_retry_of_a_key_that_was_refused_is_refused_in_the_copy_too():
    table = Backed()
    first = stage_by_key(table, b"no json at all {")
    table.flush()
    again = stage_by_key(table, b"no json at all {")
    (file,) = copy_staged_in(table).view().files
    assert (file.log.batch_ids, file.log.refused_ids) == ((), (first, again))


@pytest.mark.parametrize("is_late", [False, True])
def test_i7_a_key_stays_a_key_in_the_copy(is_late):
    """It may be staged within S of its time: after half of that the copy has it with another time."""
    table = Backed()
    table.append(1)
    first = stage_by_key(table, row(2))
    second = stage_by_key(table, row(2))
    age_ms = table.clock.now_ms() - parse_batch_id_ms(first)
    table.clock.advance(table.config.id_skew_ms // 2 - age_ms - (not is_late))
    table.backup()
    copied = [parse_staged_key(info.key) for info in list_all(table.target, table.paths.staging_prefix).objects]
    assert {name_of(each.batch_id) for each in copied} == {name_of(first)}
    assert ({each.batch_id for each in copied} == {first, second}) == (not is_late)
    assert len(copied) == 2, "each of them was accepted, maybe with other content"
    back = restore(table)
    stage_by_key(back, row(2))
    back.flush()
    back.flush()
    assert (back.ids(), list_quarantined(back)) == ([1, 2], ())


def test_i7_a_key_that_waited_for_long_is_committed_wherever_it_is_brought_back():
    table = Backed()
    table.append(1)
    stage_by_key(table, row(2))
    table.clock.advance(table.config.id_skew_ms)
    table.backup()
    copy = table.copy()
    table.clock.advance(table.config.log_grace_ms)
    table.backup()
    for there in (copy, restore(table)):
        there.flush()
        assert (there.ids(), list_quarantined(there)) == ([1, 2], ())
    table.flush()
    table.backup()
    copy = table.copy()
    copy.flush()
    assert (copy.ids(), list_quarantined(copy)) == ([1, 2], ())


def stage_copies(table, *bodies):
    """Stage a batch alone, and once more in a group with another one: as two front ends do of a retry. Returns its id.

    A third body comes in a second group.
    """
    table.clock.advance(1)
    batch_id, *others = (new_batch_id(table.clock) for _ in range(len(bodies)))
    stage_batch(table, body=bodies[0], staging_format="ndjson", batch_id=batch_id)
    for number, (body, other) in enumerate(zip(bodies[1:], others, strict=True)):
        table.clock.advance(1)
        offered = [(batch_id, body), (other, row(900 + number))]
        stage_group(table, [OfferedBatch(each, "ndjson", it, hash_content(it, "ndjson")) for each, it in offered])
    return batch_id


@pytest.mark.parametrize("waited_ms", [0, HOUR_MS])
@pytest.mark.parametrize(
    ("bodies", "conflicts"), [((2, 2), 0), ((2, 3), 1), ((2, 2, 2), 0), ((2, 3, 3), 1), ((2, 3, 4), 2)]
)
def test_i8_copies_of_one_id_are_one_batch_in_the_copy_too(bodies, conflicts, waited_ms):
    table = Backed()
    stage_copies(table, *map(row, bodies))
    table.clock.advance(waited_ms)
    others = [900 + number for number in range(len(bodies) - 1)]
    for _ in range(2):
        table.backup()
    copy = table.copy()
    copy.flush()
    copy.flush()
    entries = [entry for entry in list_quarantined(copy) if entry.kind == "conflict"]
    kept = sorted(copy.store.get(entry.payload_key).body for entry in entries)
    (live,) = set(copy.ids()) - {*others}
    assert (sorted(copy.ids()), len(entries)) == (sorted([live, *others]), conflicts)
    assert {live, *(orjson.loads(body)["id"] for body in kept)} == {*bodies}
    assert not list_all_staged(copy).batches
    table.flush()
    table.flush()
    assert len(table.ids()) == len(copy.ids())
    table.backup()
    copy = table.copy()
    copy.flush()
    assert copy.ids() == table.ids(), "what the source has decided since counts"
    assert not list_all_staged(copy).batches


def test_a_batch_that_left_its_group_still_waits_in_the_copy():
    table = Backed(log_grace_ms=HOUR_MS, data_grace_ms=HOUR_MS, orphan_age_ms=24 * HOUR_MS)
    offered = []
    for number in (2, 3):
        table.clock.advance(1)
        offered.append(OfferedBatch(new_batch_id(table.clock), "ndjson", row(number), ""))
    stage_group(table, [replace(each, sha256=hash_content(each.body, "ndjson")) for each in offered])
    table.backup()
    table.clock.advance(GROUP_AGE_MS)
    table.flush(limits=FlushLimits(max_batches=1))
    assert [each.is_grouped for each in list_all_staged(table).batches] == [False]
    table.backup()
    copy = table.copy()
    copy.flush()
    assert (copy.ids(), list_quarantined(copy)) == ([2, 3], ())
    assert not list_all_staged(copy).batches
