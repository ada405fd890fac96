"""The task that changes rows, on a store in memory with data files of JSON lines."""

import pytest
from icedb_log.changes.row_changes import ChangeResult
from icedb_log.clock import new_batch_id
from icedb_log.errors import InvalidRequest
from icedb_log.names import MERGE_CHANGE
from icedb_log.table.table_config import PartitionField
from icedb_merger.metrics import MergeMetrics
from icedb_merger.settings import MergerSettings
from icedb_merger.tasks import MergeTasks
from icedb_service.redis_clients import LockBusy, LockLost
from icedb_sim.rigs.task_context import MemoryContext


@pytest.fixture
def context():
    context = MemoryContext(MergeMetrics())
    context.create_table("events", partition=(PartitionField(name="p", column="p"),))
    for number in range(4):
        context.commit([{"p": place, "n": number} for place in "ab"])
    return context


@pytest.fixture
def tasks(context):
    return MergeTasks(context, settings=MergerSettings(store="file:///tmp/w"), metrics=context.metrics)


def rows(context):
    return sorted((row["p"], row["n"]) for row in context.rows())


def test_a_deletion_says_which_rows_and_files_it_touched(context, tasks):
    planned = tasks.change("events", "delete", "n = 2", dry_run=True)
    assert len(rows(context)) == 8
    assert context.locked == [], "a dry run waits for nobody"
    work = tasks.change("events", "delete", "n = 2")
    assert rows(context) == [(place, number) for place in "ab" for number in (0, 1, 3)]
    figures = ("rows_removed", "rows_read", "files_scanned", "files_rewritten", "partitions", "paths", "bytes_in")
    assert [work.details[name] for name in figures[:-1]] == [2, 2, 8, 2, 2, ["p=a", "p=b"]]
    assert [planned.details[name] for name in figures] == [work.details[name] for name in figures]
    assert (planned.details["committed_key"], planned.details["dry_run"]) == (None, True)
    assert context.metric("icedb_merge_changes_total", kind="delete") == 1
    assert context.metric("icedb_merge_changed_rows_total", kind="delete") == 2
    assert context.metric("icedb_merge_files_total", direction="in") == 2
    assert context.locked == ["events"]
    assert tasks.change("events", "delete", "n = 2").is_idle


def test_values_of_a_rewrite_that_do_not_fit_a_promoted_column_are_counted(context):
    for key in ("k", None):
        context.metrics.record_change("rewrite", ChangeResult(committed_key=key, misfit_count=2))
    assert context.metric("icedb_merge_promoted_misfits_total") == 2


def test_a_rewrite_replaces_the_partitions_that_are_named(context, tasks):
    query = "select * from _rows where n > 2"
    assert tasks.change("events", "rewrite", query, ["p=a"], dry_run=True).details["files_rewritten"] == 4
    work = tasks.change("events", "rewrite", query, ["p=a"])
    assert [row for row in rows(context) if row[0] == "a"] == [("a", 3)]
    assert len(rows(context)) == 5
    assert (work.details["rows_removed"], work.details["files_written"], work.details["paths"]) == (3, 1, ["p=a"])
    assert "files_scanned" not in work.details
    assert context.metric("icedb_merge_changed_rows_total", kind="rewrite") == 3
    assert tasks.change("events", "rewrite", query, ["p=z"]).is_idle


def test_a_task_that_is_delivered_twice_changes_the_rows_once(context, tasks):
    request = {"table": "events", "kind": "rewrite", "sql": "select * from _rows where n > 2", "partitions": []}
    request["request_id"] = new_batch_id(context.clock)
    first = tasks.change(**request)
    context.commit([{"p": "a", "n": 1}])
    second = tasks.change(**request)
    assert second.details == {**first.details, "paths": [], "repeated": True}
    assert ("a", 1) in rows(context)
    assert context.metric("icedb_merge_changes_total", kind="rewrite") == 1
    with pytest.raises(InvalidRequest, match="the id of a request is a text"):
        tasks.change(**{**request, "request_id": 7})


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("merge_query", "select * from source_files"), "'delete' or 'rewrite'"),
        (("delete", None), "SQL as text"),
        (("delete", "n = 1", ["p=a"]), "partitions only for a rewrite"),
        (("rewrite", "select * from _rows"), "needs a list of partition filters"),
        (("rewrite", "select * from _rows", "p=a"), "needs a list of partition filters"),
        (("rewrite", "select * from _rows", ["q=a"]), "no partition field 'q'"),
        (("rewrite", "drop table x", ["p=a"]), "drop table x"),
        (("delete", "n in (select 1)"), "select 1"),
    ],
)
def test_a_request_that_is_wrong_changes_nothing(context, tasks, arguments, reason):
    with pytest.raises(InvalidRequest, match=reason):
        tasks.change("events", *arguments)
    assert len(rows(context)) == 8
    result = context.runner.run(
        lambda: tasks.change("events", *arguments), task=MERGE_CHANGE, task_id="1", table="events"
    )
    assert result["outcome"] == "refused"


def test_the_lock_is_held_and_watched(context, tasks):
    context.busy.add("events")
    with pytest.raises(LockBusy):
        tasks.change("events", "delete", "n = 2")
    context.busy.clear()
    context.held.failure = LockLost("gone")
    with pytest.raises(LockLost):
        tasks.change("events", "delete", "n = 2")
    assert len(rows(context)) == 8
