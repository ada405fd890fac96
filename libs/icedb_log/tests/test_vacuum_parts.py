"""A vacuum in parts: bounded, stopped and killed anywhere, it keeps what it has done and forgets nothing (J2, J3, J6)."""

import json
from collections import Counter
from dataclasses import replace

import pytest
from icedb_log.clean.deletion import AuditLog
from icedb_log.clean.vacuum import VacuumBounds, vacuum_table
from icedb_log.clean.vacuum_plan import STRIP_SHARE, cut_parts
from icedb_log.commit.table import Table
from icedb_log.errors import BelowHorizon, Unavailable
from icedb_log.holds.guards import DATA_GUARDS, LOG_GUARDS
from icedb_log.jobs import never_stop
from icedb_log.keys import TablePaths, log_name
from icedb_log.log.codec import encode_log_file
from icedb_log.log.fold import fold
from icedb_log.log.reader import LogReader
from icedb_log.model import FileMarker, LogFile
from icedb_log.store.object_store import DeleteReport, FailedDelete, list_all
from icedb_log.store.table_store import TableStore
from icedb_sim.fakes.fake_clock import FakeClock
from icedb_sim.fakes.memory_store import MemoryObjectStore
from icedb_sim.fakes.scripted_store import Effect, Fault, ScriptedStore
from icedb_sim.growth.dead_table import build_dead_table, main
from icedb_sim.tables.log_views import data, dead, kill, listed, live
from icedb_sim.tables.row_files import encode_rows
from icedb_sim.tables.small_table import SmallTable, at_each_call, try_each_call
from icedb_sim.tables.table_steps import rival_of

LIVE = [1, 2, 3, 4, 5, 6]


def make_table():
    """Two log files of merges, each naming three dead data files and the one that took their place; all expired."""
    table = SmallTable(merge_fan_in=8)
    for partition, ids in (("a", LIVE[:3]), ("b", LIVE[3:])):
        for number in ids:
            table.append(number, p=partition)
        table.merge(full=True)
    table.clock.advance(table.config.data_grace_ms)
    assert [len(file.log.markers) for file in table.view().files if file.log.log_tombstones] == [4, 4]
    return table


def vacuum(table, *, caches=None, audit=None, check_alive=never_stop, **options):
    """Run with parts as small as they can be."""
    bounds = VacuumBounds(**{"chunk_keys": 1, **options})
    done = vacuum_table(table.opened().watched_by(check_alive), bounds=bounds, caches=caches, audit=audit)
    table.clock.advance(1)
    return done


def assert_clean(table):
    snapshot = table.snapshot()
    assert table.keys(table.paths.data_prefix) == [marker.path for marker in snapshot.live]
    assert (snapshot.tombstoned_ms, snapshot.log_tombstoned_ms) == ({}, {})
    assert table.ids() == LIVE


def deleted_data_files(table):
    """Return how often the store was asked to delete each data file."""
    keys = [key for call in table.store.calls if call.method == "delete" for key in call.key.split()]
    return Counter(key for key in keys if key.startswith(table.paths.data_prefix))


class DenyingStore(ScriptedStore):
    """Refuses to delete some keys, as often as it is asked."""

    denied: frozenset[str] = frozenset()

    def delete(self, keys):
        done = super().delete([key for key in keys if key not in self.denied])
        refused = tuple(FailedDelete(key, "AccessDenied") for key in keys if key in self.denied)
        return DeleteReport(done.deleted, (*done.failed, *refused))


# -- progress


def test_j2_a_log_file_is_stripped_as_soon_as_a_part_of_what_it_names_is_gone():
    table = make_table()
    table.store.calls.clear()
    assert vacuum(table).stripped_count == 6
    steps = [call for call in table.store.calls if call.method in ("delete", "put_if_match")]
    kinds = ["strip" if call.method == "put_if_match" else call.key.split("/")[2] for call in steps]
    assert kinds == ["_log"] * 6 + ["_data", "strip"] * 6
    assert_clean(table)


@pytest.mark.parametrize("effect", [Effect.CRASH_BEFORE, Effect.CRASH_AFTER])
def test_j2_a_run_that_dies_at_any_call_has_kept_its_progress(effect):
    tables = try_each_call(make_table, vacuum, effect)
    assert len(tables) > 20
    for table in tables:
        assert table.ids() == LIVE
        asked = deleted_data_files(table)
        table.store.calls.clear()
        assert vacuum(table).failed == ()
        again = deleted_data_files(table)
        # What a part had deleted when it died is asked for once more; what was stripped is not.
        assert len(again & asked) <= 1
        assert sum((asked + again).values()) <= len(LIVE) + 1
        assert_clean(table)


def test_j2_whoever_reads_between_two_steps_sees_the_same_rows_and_the_past_or_an_error():
    table = make_table()
    past_ms = table.view().files[2].log.time_ms
    before = table.ids(as_of_ms=past_ms)
    run, answers = table.store._run, []

    def look_first(method, key, action):
        table.store._run = run
        assert table.ids() == LIVE
        try:
            answers.append(table.ids(as_of_ms=past_ms))
        except BelowHorizon:
            answers.append(None)
        table.store._run = look_first
        return run(method, key, action)

    table.store._run = look_first
    vacuum(table)
    table.store._run = run
    first_refusal = answers.index(None)
    assert answers == [before] * first_refusal + [None] * (len(answers) - first_refusal)
    assert_clean(table)


@pytest.mark.parametrize("what", ["vacuum", "merge", "append"])
def test_j3_another_actor_between_any_two_steps_is_harmless(what):
    act = {
        "vacuum": vacuum,
        "merge": lambda rival: rival.merge(full=True),
        "append": lambda rival: rival.append(7),
    }[what]
    for table, error, _ in at_each_call(make_table, vacuum, lambda table: act(rival_of(table)), step=3):
        assert error is None
        expected = [*LIVE, 7] if what == "append" else LIVE
        assert table.ids() == expected
        vacuum(table)
        assert table.ids() == expected
        assert table.snapshot().tombstoned_ms.keys() <= set(table.keys(table.paths.data_prefix))


def test_a_run_that_has_lost_its_lock_stops_before_the_next_chunk_and_has_kept_its_progress():
    table = make_table()
    looks = []

    def check_alive():
        looks.append(None)
        if len(looks) == 10:  # six log files, then three data files
            raise Unavailable("the lock is lost")

    with pytest.raises(Unavailable):
        vacuum(table, check_alive=check_alive)
    assert len(table.snapshot().tombstoned_ms) == 3
    assert table.ids() == LIVE
    table.store.calls.clear()
    assert len(vacuum(table).deleted_data) == 3
    assert_clean(table)


def test_a_run_that_is_stopped_within_a_part_keeps_what_it_has_done_of_it():
    """A part may take longer than a run may: otherwise no run would ever get further."""
    clock = FakeClock()
    store, paths = MemoryObjectStore(clock.now_ms), TablePaths("dead", "wh/dead")
    table = build_dead_table(TableStore(store, paths), dead_count=40, died_ms=clock.now_ms())
    clock.advance(table.config.data_grace_ms + 60_000)
    chunks = iter(range(100))

    def check_alive():
        if next(chunks) % 4 == 3:  # a part has six chunks
            raise Unavailable("the time is over")

    def run():
        return vacuum_table(
            Table.open(TableStore(store, paths), clock=clock).watched_by(check_alive), bounds=VacuumBounds(chunk_keys=1)
        )

    for left in range(37, 0, -3):
        with pytest.raises(Unavailable):
            run()
        assert len(fold(LogReader(TableStore(store, paths), clock=clock).read()).tombstoned_ms) == left
    assert len(run().deleted_data) == 1


def test_a_bounded_run_says_that_there_is_more():
    table = make_table()
    runs = [vacuum(table, max_objects=2) for _ in range(3)]
    assert [(len(done.deleted_data), done.has_more) for done in runs] == [(2, True), (2, True), (2, False)]
    assert_clean(table)
    assert not vacuum(table, max_objects=2).has_more


def test_j6_what_cannot_be_deleted_takes_no_place_in_a_bounded_run():
    """Otherwise a run would come back to it for ever, and never get to the others."""
    table = make_table()
    denying = DenyingStore(table.store.inner)
    denying.denied = frozenset(sorted(table.snapshot().tombstoned_ms)[:3])
    table.store = denying
    done = vacuum(table, max_objects=3)
    assert (len(done.failed), len(done.deleted_data), done.has_more) == (3, 3, False)


def test_j6_what_cannot_be_stripped_takes_no_place_in_a_bounded_run():
    """Otherwise a log file that is too large to be written again keeps the others waiting, and the runs never end."""
    table = make_table()
    first, second = [file for file in table.view().files if file.log.log_tombstones]
    for _ in range(2):
        table.store.script = [Fault("put_if_match", Effect.DROP, first.key)]
        done = vacuum(table, max_objects=3, chunk_keys=3)
        assert (done.contended_count, done.has_more) == (1, False)
    after = {file.key: len(file.log.markers) for file in table.view().files}
    assert (after[first.key], after[second.key]) == (4, 1)


def test_j3_a_log_file_that_changed_is_left_alone_and_the_others_go_on():
    table = make_table()
    first, second = [file for file in table.view().files if file.log.log_tombstones]
    table.store.script = [Fault("put_if_match", Effect.REFUSE, first.key)]
    done = vacuum(table)
    assert (done.contended_count, done.stripped_count) == (1, 3)
    after = {file.key: file for file in table.view().files}
    assert after[first.key].etag == first.etag
    assert len(after[second.key].log.markers) == 1
    # Its other data files were not even tried: whoever changed it is at it.
    assert len(done.deleted_data) == 1 + 3
    vacuum(table)
    assert_clean(table)


# -- what fails is kept


@pytest.mark.parametrize("kind", ["staged_batch", "log_file", "data_file"])
def test_j6_a_key_that_may_not_be_deleted_keeps_no_other_and_is_not_forgotten(kind):
    table = make_table()
    batch_id = table.view().files[0].log.batch_ids[0]
    table.stage_bytes(encode_rows([{"id": 1, "p": "a"}]), batch_id=batch_id)
    denied = {
        "staged_batch": next(key for key in table.keys(table.paths.staging_prefix) if batch_id in key),
        "log_file": table.view().files[0].key,
        "data_file": min(table.snapshot().tombstoned_ms),
    }[kind]
    table.store = DenyingStore(table.store.inner)
    table.store.denied = frozenset({denied})
    for _ in range(2):
        done = vacuum(table, chunk_keys=100)
        assert [(failed.key, failed.reason) for failed in done.failed] == [(denied, "AccessDenied")]
        assert denied in table.keys(table.paths.prefix + "/")
        assert table.ids() == LIVE
        left = table.snapshot().tombstoned_ms
        # Behind a log file, and behind the copy that keeps it, stands the data file that it lists as live.
        assert len(left) == 1
    table.store.denied = frozenset()
    assert vacuum(table).failed == ()
    assert_clean(table)
    assert table.keys(table.paths.staging_prefix) == []


def test_j10_each_delete_is_written_down_with_its_reason_and_the_guards_that_let_it_go():
    table = make_table()
    appended = table.view().files[0]
    table.stage_bytes(encode_rows([{"id": 1, "p": "a"}]), batch_id=appended.log.batch_ids[0])
    audit = AuditLog(table, clock=table.clock, owner="janitor@h")
    done = vacuum(table, audit=audit, chunk_keys=100)
    parts = [table.store.get(key).body.splitlines() for key in table.keys(table.paths.audit_prefix)]
    entries = {entry["key"]: entry for part in parts for entry in map(json.loads, part[1:])}
    assert entries.keys() == {*done.deleted_copies, *done.deleted_logs, *done.deleted_data}
    assert {entry["outcome"] for entry in entries.values()} == {"deleted"}
    (copy,) = done.deleted_copies
    assert entries[copy]["kind"] == "staged_batch"
    assert log_name(appended.key) in entries[copy]["why"]
    log_file = entries[appended.key]
    assert log_file["why"].startswith("merged away at 20")
    assert "_m_" in log_file["why"]
    assert (log_file["kind"], set(log_file["passed"])) == ("log_file", set(LOG_GUARDS))
    data_file = entries[appended.log.markers[0].path]
    assert data_file["why"].startswith("tombstoned at 20")
    assert (data_file["kind"], set(data_file["passed"])) == ("data_file", set(DATA_GUARDS))
    assert data_file["size_bytes"] == appended.log.markers[0].size_bytes
    assert data_file["died_ms"] >= appended.log.time_ms


# -- at scale


def test_a_vacuum_lists_no_data_and_asks_the_store_three_times_for_a_thousand_objects_at_most():
    clock = FakeClock()
    store, paths = ScriptedStore(MemoryObjectStore(clock.now_ms)), TablePaths("dead", "wh/dead")
    count, log_files = 8_000, 2  # so many that the listing of holds (J4), once a run, counts for little
    table = build_dead_table(TableStore(store, paths), dead_count=count, log_files=log_files, died_ms=clock.now_ms())
    clock.advance(table.config.data_grace_ms + 60_000)
    store.calls.clear()
    audit = AuditLog(TableStore(store, paths), clock=clock, owner="janitor@h")
    done = vacuum_table(Table.open(TableStore(store, paths), clock=clock), audit=audit)
    assert (len(done.deleted_data), done.stripped_count) == (count, log_files)
    batches = sum(-(-len(key.split()) // 1000) for key in store.keys_of("delete"))
    requests = batches + sum(1 for call in store.calls if call.method != "delete")
    assert requests <= 3 * count // 1000 + log_files
    listed_prefixes = store.keys_of("list_page", "list_folders")
    assert not [prefix for prefix in listed_prefixes if paths.data_prefix.startswith(prefix) or "_data" in prefix]
    assert listed_prefixes.count(paths.log_prefix) == 1
    assert [key for key in store.keys_of("get") if "_data" in key] == []


@pytest.mark.parametrize("bounds", [VacuumBounds(chunk_keys=3), VacuumBounds(chunk_keys=5, max_objects=11)])
def test_a_log_that_was_read_as_lines_is_vacuumed_as_one_that_was_decoded(bounds):
    """To the byte: statistics, unknown fields and proofs of landing of what stays included."""
    left = []
    for is_compact in (False, True):
        clock = FakeClock()
        store, paths = MemoryObjectStore(clock.now_ms), TablePaths("dead", "wh/dead")
        place = TableStore(store, paths)
        table = build_dead_table(place, dead_count=40, live_count=9, log_files=2, died_ms=clock.now_ms())
        own = FileMarker(f"{paths.data_prefix}p=a/{1:032x}.parquet", 7, 8, row_count=2, stats={"id": (1, 2, 0)})
        young = FileMarker(f"{paths.data_prefix}p=a/{2:032x}.parquet", 7, 8, clock.now_ms(), extra={"zz": [1]})
        log = LogFile(clock.now_ms(), {"id": "BIGINT"}, markers=(own, young), commit_id="f" * 32)
        key = paths.log_key(time_ms=log.time_ms, commit_id="f" * 32, is_merged=True)
        clock.advance(table.config.data_grace_ms - 1000)
        proven = (*log.markers, *(replace(young, path=path) for path in [*table.dead_paths()][:3]))
        store.put_if_absent(key, encode_log_file(replace(log, markers=proven)))
        clock.advance(61_000)
        reader = LogReader(place, clock=clock, is_compact=is_compact)
        results = []
        for _ in range(5):
            done = vacuum_table(Table.open(place, clock=clock, reader=reader), bounds=bounds)
            results.append(done)
            clock.advance(table.config.data_grace_ms)
        assert sum(len(done.deleted_data) for done in results) == 41
        snapshot = fold(LogReader(place, clock=clock).read())
        assert len(snapshot.live) == 10
        assert all(marker.stats for marker in snapshot.live)
        left.append((results, {info.key: store.get(info.key).body for info in list_all(store, "").objects}))
    assert left[0] == left[1]


def cut(*files, part_files, deletable=None):
    if deletable is None:
        deletable = {m.path for file in files for m in file.log.markers if m.tombstoned_ms is not None}
    return [[(p.log_key, len(p.markers)) for p in part] for part in cut_parts(files, deletable, part_files=part_files)]


def test_a_large_log_file_is_cut_so_that_its_strips_pay():
    file = listed(100, *[dead(f"d{number}", 100) for number in range(800)], merged=True)
    assert cut(file, part_files=10) == [[(file.key, 800 // STRIP_SHARE)]] * STRIP_SHARE
    assert cut(file, part_files=500) == [[(file.key, 500)], [(file.key, 300)]]


def test_small_log_files_share_a_part_and_each_has_a_portion():
    files = [listed(at, dead(f"x{at}", 9), dead(f"y{at}", 9), merged=True) for at in (1, 2, 3)]
    none = listed(4, live("z"), kills=[kill(1, 4)], merged=True)
    keys = [file.key for file in (*files, none)]
    assert cut(*files, none, part_files=4) == [[(keys[0], 2), (keys[1], 2)], [(keys[2], 2), (keys[3], 0)]]


def test_a_data_file_that_two_log_files_name_is_deleted_once():
    files = [listed(at, dead("x", 9), merged=True) for at in (1, 2)]
    assert cut(*files, part_files=9) == [[(files[0].key, 1), (files[1].key, 0)]]
    assert cut(*files, part_files=9, deletable={data("other")}) == [[(files[0].key, 0), (files[1].key, 0)]]


def test_what_a_plan_costs_can_be_measured(tmp_path, capsys):
    sizes = ["--dead", "50", "--log-files", "3"]
    assert main(["build", str(tmp_path), *sizes]) == 0
    assert main(["plan", str(tmp_path)]) == 0
    line = json.loads(capsys.readouterr().out)
    assert (line["dead"], line["waiting"], line["log_files"]) == (50, 0, 3)
    assert line["peak_bytes"] > 1 << 20
