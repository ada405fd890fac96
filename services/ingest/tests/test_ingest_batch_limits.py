"""Deferred batches: parsed for nothing once, and then hardly again."""

from dataclasses import dataclass, replace

import pytest
from icedb_ingest.flush_choice import FlushChoice
from icedb_ingest.metrics import IngestMetrics
from icedb_ingest.settings import IngestSettings
from icedb_ingest.tasks import IngestTasks
from icedb_log.feed.feeds import FeedResult
from icedb_log.ingest.flush import FlushLimits, FlushResult
from icedb_log.jobs import FlushOutput, SizeClass
from icedb_sim.fakes.manual_clock import ManualClock
from icedb_sim.rigs.task_context import MemoryContext
from icedb_sim.tables.row_files import RowFileWriter


@dataclass
class DeferringWriter:
    """Takes so many batches of a job, parses all, and leaves the rest to the next."""

    writer: RowFileWriter
    batches_per_commit: int

    def __post_init__(self):
        self.offered = []

    def write_batches(self, job) -> FlushOutput:
        self.offered.append(len(job.batches))
        taken, left = job.batches[: self.batches_per_commit], job.batches[self.batches_per_commit :]
        return replace(self.writer.write_batches(replace(job, batches=taken)), deferred=left)


@pytest.fixture
def context():
    context = MemoryContext(IngestMetrics())
    context.create_table("events")
    context.engine.writer = DeferringWriter(context.engine.writer, batches_per_commit=3)
    return context


def make_tasks(context):
    return IngestTasks(context, settings=IngestSettings(store="file:///tmp/w"), metrics=context.metrics)


def flush(context, batch_count):
    for number in range(batch_count):
        context.stage([{"n": number}])
    details = make_tasks(context).flush("events").details
    assert sorted(row["n"] for row in context.rows()) == list(range(batch_count))
    return details


def test_after_a_deferral_the_next_commits_are_offered_about_twice_what_was_taken(context):
    details = flush(context, 20)
    assert context.engine.writer.offered == [20, 6, 6, 6, 6, 5, 2]
    assert details["commits"] == 7
    assert details["deferred"] == 17 + 4 * 3 + 2
    assert not details["has_more"]
    assert context.metric("icedb_ingest_deferred_batches_total") == details["deferred"]


def test_when_nothing_is_deferred_any_more_the_limit_grows_back_to_its_own():
    choice = FlushChoice(FlushLimits(max_batches=100, max_bytes=7), small=SizeClass("small", 1, 1), clock=ManualClock())
    committed = FlushResult(committed_key="k", batch_count=5)
    choice.record("t", "small", replace(committed, deferred_count=95))
    assert (choice.limits("t", "small").max_batches, choice.limits("t", "small").max_bytes) == (10, 7)
    assert choice.limits("other", "small").max_batches == 100
    seen = []
    for _ in range(5):
        choice.record("t", "small", committed)
        seen.append(choice.limits("t", "small").max_batches)
    assert seen == [20, 40, 80, 100, 100]
    choice.record("t", "small", FlushResult())
    assert choice.limits("t", "small").max_batches == 100


@pytest.mark.parametrize(("taken", "offered"), [(1, 2), (70, 100)])
def test_the_limit_is_at_least_one_and_at_most_the_setting(taken, offered):
    choice = FlushChoice(FlushLimits(max_batches=100, max_bytes=7), small=SizeClass("small", 1, 1), clock=ManualClock())
    choice.record("t", "small", FlushResult(committed_key="k", batch_count=taken, deferred_count=1))
    assert choice.limits("t", "small").max_batches == offered


def test_bad_rows_are_counted_and_told(context):
    context.create_table("loose", on_bad_rows="quarantine_rows")
    context.stage(table="loose", body=b'{"n": 1}\nnonsense\n{"n": 2}')
    details = make_tasks(context).flush("loose").details
    assert (details["batches"], details["rows"], details["bad_rows"], details["rejected"]) == (1, 2, 1, 0)
    assert context.metric("icedb_ingest_bad_rows_total") == 1


def test_values_that_do_not_fit_a_promoted_column_are_counted(context):
    context.metrics.record(FlushResult(misfit_count=2), duration_ms=1)
    context.metrics.record_feed(FeedResult(misfit_count=3), duration_ms=1)
    assert context.metric("icedb_ingest_promoted_misfits_total") == 5
