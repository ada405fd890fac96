"""What the log tells of a table's last commits, and how a table is in one word."""

from dataclasses import replace

from icedb_log.commit.fence import acquire_fence
from icedb_log.errors import CorruptLog, Unavailable
from icedb_log.feed.views import ViewLag
from icedb_log.holds.guards import Waiting, group_waiting
from icedb_log.ingest.pressure import Pressure
from icedb_log.log.history import CommitHistory, Volume
from icedb_log.serving.status import LATE_MS, VERY_LATE_MS, Health, find_health
from icedb_log.serving.statuses import StatusReader
from icedb_log.serving.table_cache import TableCache
from icedb_log.warehouse import Warehouse


def told(table, **given):
    return CommitHistory().read(table.view(), **given)


def counts(volume):
    return volume.file_count, volume.row_count


def test_each_commit_is_told_by_what_it_did_the_newest_first(table):
    table.append(1, 2)
    table.append(3)
    table.stage_bytes(b"nonsense")
    table.flush()
    table.append(4, p="b")
    table.merge(full=True)
    table.delete("id = 4")
    deleted, merged, other, refused, third, first = told(table)
    assert [each.what for each in (first, third, other)] == ["append"] * 3
    assert (counts(first.added), counts(third.added), counts(other.added)) == ((1, 2), (1, 1), (1, 1))
    assert (first.batch_count, first.removed, first.log_file_count) == (1, Volume(), 0)
    assert (refused.what, refused.refused_count, counts(refused.added)) == ("refusal", 1, (0, 0))
    assert (merged.what, counts(merged.added), counts(merged.removed)) == ("merge", (1, 3), (2, 3))
    assert merged.log_file_count >= 2
    assert (deleted.what, counts(deleted.added), counts(deleted.removed)) == ("delete", (0, 0), (1, 1))
    assert merged.added.size_bytes == table.snapshot().size_bytes
    assert told(table, limit=2) == (deleted, merged)
    assert told(table, limit=0) == ()


def test_what_a_merge_carries_is_none_of_its_own_doing(table):
    table.append(1, p="a")
    table.append(2, p="b")
    table.append(3, p="a")
    table.merge()
    merged = told(table)[0]
    assert (counts(merged.added), counts(merged.removed)) == ((1, 2), (2, 2))
    for number in range(4, 12):
        table.append(number, p=f"c{number}")
    table.merge()
    folded = told(table)[0]
    assert (folded.what, folded.added, folded.removed) == ("fold", Volume(0, 0, 0), Volume())
    assert folded.log_file_count >= 2


def test_what_the_log_does_not_tell_any_more_is_not_made_up(table):
    table.append(1)
    table.append(2)
    table.merge(full=True)
    history = CommitHistory()
    assert counts(history.read(table.view())[0].added) == (1, 2)
    table.clock.advance(300_000)
    for _ in range(3):
        table.vacuum()
    (cut,) = history.read(table.view())
    assert (cut.what, cut.added, cut.removed, cut.log_file_count) == ("merge", None, Volume(), 0)


def test_what_was_found_of_a_log_file_is_not_worked_out_again(table, monkeypatch):
    table.append(1)
    history = CommitHistory()
    first = history.read(table.view())
    monkeypatch.setattr("icedb_log.log.history.describe_commit", lambda file: file.key)
    assert history.read(table.view()) == first
    table.append(2)
    assert history.read(table.view()) == (table.view().files[-1].key, first[0])


def test_a_table_is_told_by_the_worst_there_is_to_say(table):
    status = table.status()
    assert find_health(status) == Health("ok", "ok")
    late = replace(status, merge_lag_ms=LATE_MS + 1, quarantined_batches=2)
    assert find_health(late) == Health(
        "warn", "lagging", ("merges wait: for 15 min now", "batches in quarantine wait for a person: 2")
    )
    assert find_health(replace(status, merge_lag_ms=LATE_MS)).level == "ok"
    assert find_health(replace(late, staged_lag_ms=VERY_LATE_MS + 1)).reasons[0].startswith("staged batches wait")
    assert find_health(replace(late, staged_lag_ms=VERY_LATE_MS + 1)).level == "bad"
    stopped = find_health(replace(late, pressure=Pressure("stop", 60.0, "3 log files"), lost_commits=("x",)))
    assert (stopped.level, stopped.word, len(stopped.reasons)) == ("bad", "lost", 4)
    assert find_health(replace(status, pressure=Pressure("slow", 2.0, "3 log files"))).word == "slow"
    assert find_health(replace(status, halted="no such column")) == Health("bad", "halted", ("no such column",))
    assert find_health(replace(status, view=ViewLag("t", "s", "broken", 0, 0, 0))).word == "broken"
    assert find_health(replace(status, view=ViewLag("t", "s", "active", 0, 0, 3))).word == "refused"
    assert find_health(CorruptLog("line 3")) == Health("bad", "halted", ("line 3",))
    assert find_health(Unavailable("no answer")).level == "warn"


def test_who_is_at_work_on_a_table_is_told_by_its_fences(table):
    assert table.status().workers == ()
    fence = acquire_fence(table.opened("merger@host:7"), "merge")
    (worker,) = table.status().workers
    assert (worker.owner, worker.role, worker.commit) == ("merger@host:7", "merge", None)
    assert worker.claimed_ms > 0
    fence.release()
    assert table.status().workers == ()


def test_figures_are_read_again_with_the_log_files_that_are_new(table):
    warehouse = Warehouse(table.store, "wh")
    tables = TableCache(warehouse, clock=table.clock, max_tables=10, wait_ms=1000, on_refresh=lambda _ms: None)
    reader = StatusReader(warehouse, tables, clock=table.clock)
    for number in range(3):
        table.append(number)
    assert reader.read("t").live_files == 3
    table.append(4)
    table.store.calls.clear()
    assert (reader.read("t").live_files, reader.read("t").live_rows) == (4, 4)
    assert len([key for key in table.store.keys_of("get") if "/_log/" in key]) == 1
    assert reader.read("t", log=reader.read_log("t")).live_files == 4
    reader.drop("t")
    assert reader.read("t").live_files == 4


def test_what_waits_is_grouped_by_what_keeps_it():
    some = [
        Waiting("a", "lease", 30, "one"),
        Waiting("b", "grace", 10),
        Waiting("c", "lease", 20, "one"),
        Waiting("d", "tag", None, "q3"),
    ]
    grace, lease, tag = group_waiting(some)
    assert (grace.guard, grace.count, grace.first_ms, grace.last_ms, grace.is_open) == ("grace", 1, 10, 10, False)
    assert (lease.held_by, lease.count, lease.first_ms, lease.last_ms) == ("one", 2, 20, 30)
    assert (tag.is_open, tag.last_ms) == (True, None)
