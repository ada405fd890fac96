"""An import: files exactly once, whatever fails, whoever else is at work (N1 to N3)."""

import contextlib

import pytest
from icedb_log.commit.commit import AppendCommit
from icedb_log.errors import CommitOutcomeUnknown, CorruptLog, Fenced, IceDBError, InvalidRequest, NotFound, Unavailable
from icedb_log.imports.import_records import read_records, settle_records
from icedb_log.imports.imports import ImportLimits
from icedb_log.keys import TablePaths
from icedb_log.log.fold import named_paths
from icedb_log.table.table_config import PartitionField
from icedb_sim.fakes.scripted_store import Crash, Effect, Fault, ScriptedStore
from icedb_sim.tables.row_files import encode_rows
from icedb_sim.tables.small_import import ImportTable
from icedb_sim.tables.small_table import try_each_call


@pytest.fixture
def table():
    return ImportTable()


def filled(count=3):
    table = ImportTable()
    for number in range(count):
        table.put_source(f"f{number}", number, 10 + number, p="ab"[number % 2])
    return table


ALL_IDS = [0, 1, 2, 10, 11, 12]


def test_files_become_live_in_one_commit_and_stay_where_they_were(table):
    keys = [table.put_source("x", 1, 2), table.put_source("y", 3, p="b", n=1.5)]
    result = table.run_import()
    assert (result.file_count, result.row_count, result.refused) == (2, 3, [])
    assert (len(result.committed_keys), dict(result.partitions)) == (1, {"p=a": 2, "p=b": 1})
    assert table.ids() == [1, 2, 3]
    (file,) = table.view().files
    assert file.log.schema == {"id": "BIGINT", "p": "VARCHAR", "n": "DOUBLE"}
    assert {table.paths.partition_of(marker.path) for marker in file.log.markers} == {"p=a", "p=b"}
    assert [marker.row_count for marker in file.log.markers] == [2, 1]
    assert [table.store.head(key).key for key in keys] == keys
    assert table.states() == ["committed"]


def test_an_import_that_is_repeated_finds_nothing_left_to_do(table):
    table.put_source("x", 1)
    table.run_import()
    table.put_source("y", 2)
    again = table.run_import()
    assert (again.file_count, again.imported_before_count) == (1, 1)
    calls = len(table.store.calls)
    assert (table.run_import().file_count, table.ids()) == (0, [1, 2])
    assert not [c for c in table.store.calls[calls:] if c.method.startswith("put")], "nothing was written"


def test_a_file_that_was_merged_and_vacuumed_is_still_known(table):
    table.put_source("x", 1)
    table.put_source("y", 2)
    table.run_import()
    table.merge(full=True)
    table.clock.advance(500_000)
    table.vacuum()
    assert table.run_import().imported_before_count == 2
    assert table.ids() == [1, 2]


def test_a_dry_run_says_the_same_and_touches_nothing(table):
    table.put_source("x", 1, 2)
    before = table.keys("")
    result = table.run_import(is_dry_run=True)
    assert (result.is_dry_run, result.file_count, result.row_count, result.committed_keys) == (True, 1, 2, [])
    assert table.keys("") == before
    assert table.ids() == []


def test_a_table_that_does_not_exist_is_not_found(table):
    table.put_source("x", 1)
    table.paths = TablePaths("ghost", "wh/ghost")
    with pytest.raises(NotFound, match="'ghost' does not exist"):
        table.run_import()


def test_files_that_do_not_fit_are_refused_and_the_others_imported(table):
    table.append(0)
    table.put_source("a", 1, n=1)
    table.put_source("b", 2, n="text")
    table.put_source("c", 3, N=1)
    table.put_source("d", 4)
    table.store.put("in/e.parquet", encode_rows([{"id": 5, "p": "a"}, {"id": 6, "p": "b"}]))
    table.store.put("in/f.parquet", b"")
    result = table.run_import()
    assert table.ids() == [0, 1, 4]
    reasons = {refused.url.rpartition("/")[2]: refused.reason for refused in result.refused}
    assert reasons.keys() == {"b.parquet", "c.parquet", "e.parquet"}
    assert "column 'n' is BIGINT in the table (or in a file before it) and VARCHAR in this file" in reasons["b.parquet"]
    assert "columns 'n' and 'N' differ only in case" in reasons["c.parquet"]
    assert result.empty_count == 1


def test_a_strict_table_takes_declared_columns_only():
    table = ImportTable(declared={"id": "BIGINT", "p": "VARCHAR"}, evolution="strict")
    table.put_source("a", 1)
    table.put_source("b", 2, n=1)
    (refused,) = table.run_import().refused
    assert "column 'n' is not declared" in refused.reason
    assert table.ids() == [1]


@pytest.mark.parametrize("name", ["id", "ID"])
def test_a_column_named_like_a_partition_of_another_column_is_refused(name):
    table = ImportTable(partition=(PartitionField(name=name, column="p"),))
    table.put_source("a", 1)
    (refused,) = table.run_import().refused
    assert f"named like the partition {name}=p" in refused.reason


def test_a_schema_that_grew_during_the_copies_counts(table):
    table.put_source("a", 1, n=1)

    def others():
        table.stage([{"id": 9, "p": "a", "n": "text"}])
        table.flush()

    table.store.script = [Fault("put", None, "/_data/", before=others)]
    result = table.run_import()
    assert "column 'n' is VARCHAR" in result.refused[0].reason
    assert (table.ids(), result.file_count, table.states()) == ([9], 0, [])


def test_a_changed_source_is_refused_until_the_caller_says_that_it_is_new(table):
    table.put_source("x", 1)
    table.run_import()
    table.put_source("x", 2)
    result = table.run_import()
    assert "--changed" in result.refused[0].reason
    assert table.ids() == [1]
    assert table.run_import(takes_changed=True).file_count == 1
    assert table.ids() == [1, 2]
    assert table.run_import(takes_changed=True).imported_before_count == 1


def test_a_large_import_makes_several_commits(table):
    for number in range(5):
        table.put_source(f"f{number}", number)
    result = table.run_import(limits=ImportLimits(max_files=2))
    assert (len(result.committed_keys), result.file_count, table.states()) == (3, 5, ["committed"] * 3)
    table.put_source("big", 9)
    assert table.run_import(limits=ImportLimits(max_bytes=1)).file_count == 1


def test_the_lock_is_held_around_the_commit_only(table):
    table.put_source("x", 1)
    held = []

    @contextlib.contextmanager
    def hold():
        start = len(table.store.calls)
        yield
        held.extend(table.store.calls[start:])

    table.run_import(hold=hold)
    assert any("/_log/" in call.key and call.method == "put_if_absent" for call in held)
    assert not any("/_data/" in call.key for call in held)


def test_own_data_files_are_not_copied_into_the_table_again(table):
    table.append(1)
    (marker,) = table.snapshot().live
    with pytest.raises(InvalidRequest, match="would double rows"):
        table.run_import(marker.path)


# Crashes, lost answers, other actors.


@pytest.mark.parametrize("effect", [Effect.CRASH_BEFORE, Effect.CRASH_AFTER, Effect.UNAVAILABLE, Effect.LOSE_ANSWER])
@pytest.mark.parametrize("later_ms", [1, 40_000, 90_000])
def test_whatever_fails_the_next_run_imports_each_file_once(effect, later_ms):
    tables = try_each_call(filled, ImportTable.run_import, effect)
    assert len(tables) > 15
    for number, table in enumerate(tables):
        table.clock.advance(later_ms)
        table.sweep()
        table.run_import()
        assert table.ids() == ALL_IDS, f"{effect} at call {number}"
        assert "pending" not in table.states() or later_ms == 1
        table.run_import()
        assert table.ids() == ALL_IDS


def test_writes_that_land_late_change_nothing():
    for table in try_each_call(filled, ImportTable.run_import, Effect.DELAY):
        table.run_import()
        table.store.land_delayed()
        assert table.ids() == ALL_IDS
        table.run_import()
        assert table.ids() == ALL_IDS


def test_a_client_whose_own_retry_is_refused_knows_that_it_wrote_it():
    for table in try_each_call(filled, ImportTable.run_import, Effect.TRY_TWICE):
        table.run_import()
        assert table.ids() == ALL_IDS


def test_a_crash_after_the_commit_is_settled_also_when_its_files_were_merged(table):
    table.put_source("x", 1)
    table.put_source("y", 2)
    table.store.script = [Fault("put_if_match", Effect.CRASH_BEFORE, "/imports/")]
    with pytest.raises(Crash):
        table.run_import()
    assert (table.states(), table.ids()) == (["pending"], [1, 2])
    table.merge(full=True)
    table.clock.advance(50_000)  # past the grace period of log files, not past that of data files
    table.vacuum()
    table.put_source("z", 3)
    assert table.run_import().imported_before_count == 2
    assert (table.states(), table.ids()) == (["committed"] * 2, [1, 2, 3])


def test_an_import_that_nobody_can_tell_of_any_more_is_left_to_a_person(table):
    table.put_source("x", 1)
    table.put_source("y", 2)
    table.store.script = [Fault("put_if_match", Effect.CRASH_BEFORE, "/imports/")]
    with pytest.raises(Crash):
        table.run_import()
    table.merge(full=True)
    table.clock.advance(100_000)
    table.vacuum()
    assert len(table.keys(table.paths.data_prefix)) == 1, "the imported files are merged, dead and deleted"
    with pytest.raises(InvalidRequest, match="--assume landed"):
        table.run_import()
    assert table.run_import(assumed="landed").imported_before_count == 2
    assert (table.states(), table.ids()) == (["committed"], [1, 2])


def test_what_a_person_says_is_lost_is_imported_again(table):
    table.put_source("x", 1)
    table.store.script = [Fault("put_if_absent", Effect.CRASH_BEFORE, "/_log/")]
    with pytest.raises(Crash):
        table.run_import()
    table.clock.advance(table.config.orphan_age_ms + 1)
    table.sweep()
    assert table.keys(table.paths.data_prefix) == []
    with pytest.raises(InvalidRequest, match=r"in/x.parquet.* too long ago to tell"):
        table.run_import()
    assert table.run_import(assumed="lost").file_count == 1
    assert (table.states(), table.ids()) == (["lost", "committed"], [1])


def test_an_old_import_whose_copies_are_still_there_and_in_no_log_file_never_landed(table):
    table.put_source("x", 1)
    table.store.script = [Fault("put_if_absent", Effect.CRASH_BEFORE, "/_log/")]
    with pytest.raises(Crash):
        table.run_import()
    table.clock.advance(table.config.data_grace_ms + 10_000)
    assert table.run_import().file_count == 1
    assert (table.states(), table.ids()) == (["lost", "committed"], [1])


@pytest.mark.parametrize("moment", ["/fence/", "/_log/", "/imports/", "/_data/"])
@pytest.mark.parametrize("method", ["get", "put", "put_if_absent", "put_if_match", "list_page"])
def test_two_imports_of_the_same_files_at_once(method, moment):
    table = filled()

    def rival():
        twin = ImportTable(store=table.store.inner, name="rival")
        twin.paths, twin.clock = table.paths, table.clock
        twin.run_import(*table.keys("in/"))

    table.store.script = [Fault(method, None, moment, before=rival)]
    with contextlib.suppress(IceDBError):
        table.run_import()
    table.store.script = []
    table.run_import()
    assert table.ids() == ALL_IDS


@pytest.mark.parametrize("takes_changed", [False, True])
def test_a_source_that_changes_and_is_imported_by_another_after_it_was_copied_is_refused(table, takes_changed):
    """Each of the two finds no record of the source when it begins; their versions differ."""
    table.put_source("x", 1)

    @contextlib.contextmanager
    def hold():
        table.put_source("x", 1, 2)
        table.run_import()
        yield

    result = table.run_import(hold=hold, takes_changed=takes_changed)
    assert table.ids() == ([1, 1, 2] if takes_changed else [1, 2])
    assert ["--changed" in refused.reason for refused in result.refused] == [True] * (not takes_changed)


def test_a_flush_that_takes_the_fence_makes_the_import_try_again_with_the_same_copies(table):
    table.put_source("x", 1)
    table.store.script = [Fault("put_if_absent", None, "/imports/", before=lambda: table.append(7))]
    result = table.run_import()
    assert (result.file_count, table.ids()) == (1, [1, 7])
    assert table.states() == ["lost", "committed"]
    assert len(table.keys(table.paths.data_prefix)) == 2, "copied once"


def test_an_import_that_always_meets_others_gives_up_and_is_fenced(table):
    table.put_source("x", 1)
    table.store.script = [Fault("put_if_absent", None, "/imports/", before=lambda: table.append(7)) for _ in range(3)]
    with pytest.raises(Fenced):
        table.run_import()
    assert table.ids() == [7, 7, 7]
    assert table.run_import().file_count == 1


def test_a_stalled_import_cannot_commit_what_others_have_imported(table):
    """It has read the records, and stalls; another run imports the same files; it wakes up and has lost the fence."""
    table.put_source("x", 1)
    rival = ImportTable(store=table.store.inner, name="rival")
    rival.paths, rival.clock = table.paths, table.clock
    table.store.script = [Fault("put_if_absent", None, "/imports/", before=lambda: rival.run_import("in/x.parquet"))]
    result = table.run_import()
    assert (result.file_count, result.imported_before_count, table.ids()) == (0, 1, [1])


def test_n3_who_has_lost_the_fence_settles_no_record(table):
    """It slept since it read the log; the record is that of the next owner, whose commit is about to land."""
    table.put_source("x", 1)
    rival = ImportTable(store=ScriptedStore(table.store.inner), name="rival")
    rival.paths, rival.clock = table.paths, table.clock
    with pytest.raises(Fenced), AppendCommit(table.opened("slow"), reads_whole_log=True) as commit:

        def settle():
            named = named_paths(commit.whole_log.files)
            with contextlib.suppress(Fenced):
                settle_records(table, read_records(table), named=named, confirm=commit.fence.confirm)

        rival.store.script = [Fault("put_if_absent", None, "/_log/", before=settle)]
        rival.run_import(*table.keys("in/"))
        commit.fence.confirm()
    assert rival.states() == ["committed"]
    table.run_import()
    assert table.ids() == [1]


def test_a_pending_record_of_a_stalled_import_that_lands_late_is_settled(table):
    table.put_source("x", 1)
    table.store.script = [
        Fault("put_if_absent", Effect.DELAY, "/imports/"),
        Fault("get", Effect.UNAVAILABLE, "/imports/"),
    ]
    with pytest.raises(CommitOutcomeUnknown, match="nothing was imported"):
        table.run_import()
    table.run_import()
    table.store.land_delayed()
    assert sorted(table.states()) == ["committed", "pending"]
    table.put_source("y", 2)
    table.run_import()
    assert table.ids() == [1, 2]
    assert sorted(table.states()) == ["committed", "committed", "lost"]


def test_w1_copies_come_before_the_record_and_the_record_before_the_commit(table):
    table.put_source("x", 1)
    table.store.calls.clear()
    table.run_import()
    written = [call.key for call in table.store.calls if call.method.startswith("put")]
    kinds = [key.split("/")[2] if "/_icedb/" not in key else key.split("/")[3] for key in written]
    assert kinds == ["_data", "fence", "imports", "fence", "_log", "fence", "imports"]


def test_f2_the_log_is_read_after_the_fence_and_the_records_after_the_log(table):
    table.put_source("x", 1)
    table.store.calls.clear()
    table.run_import()
    calls = [(call.method, call.key) for call in table.store.calls]
    fence = next(i for i, (method, key) in enumerate(calls) if method == "put_if_absent" and "/fence/" in key)
    reads = [key.split("/")[-2] for method, key in calls[fence:] if method == "list_page"]
    assert reads == ["_log", "imports"]


def test_w3_copies_that_are_too_old_are_not_committed(table):
    table.put_source("x", 1)
    limit_ms = table.config.orphan_age_ms // 2
    table.store.script = [Fault("put", None, "/_data/", before=lambda: table.clock.advance(limit_ms + 1))]
    with pytest.raises(Unavailable, match="more than half the orphan age"):
        table.run_import()
    assert table.ids() == []
    assert table.run_import().file_count == 1


def test_a_damaged_record_stops_imports(table):
    table.put_source("x", 1)
    table.store.put(table.paths.import_key("x"), b"{}")
    with pytest.raises(CorruptLog, match="imported twice"):
        table.run_import()


# In place.
