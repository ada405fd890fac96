"""What a run is asked while its job works: the caller's check each time, the fence now and then (F3 decides)."""

from dataclasses import replace

import pytest
from icedb_log.clock import new_batch_id
from icedb_log.commit.fence import FENCE_LOOK_MS, FenceWatch, acquire_fence, read_fence
from icedb_log.commit.table import Table
from icedb_log.errors import Fenced, Unavailable
from icedb_log.ingest.flush import flush_table
from icedb_log.ingest.staging import stage_batch
from icedb_log.store.records import MAX_SETTLE_ATTEMPTS
from icedb_sim.fakes.scripted_store import Effect, Fault
from icedb_sim.tables.row_files import RowFileMerger, RowFileWriter, encode_rows


def make_watch(table, check_alive=lambda: None):
    fence = acquire_fence(table.known("me"), "merge")
    return FenceWatch(fence, check_alive=check_alive, clock=table.clock)


def overtake(table, role="merge"):
    acquire_fence(replace(table.known("other", store=table.store.inner), patience_ms=0), role)


def test_a_fence_that_passed_on_is_noticed_at_the_next_look(table):
    watch = make_watch(table)
    overtake(table)
    watch()  # not yet: a look costs a request
    table.clock.advance(FENCE_LOOK_MS)
    with pytest.raises(Fenced, match="another merge worker took the fence"):
        watch()


def test_a_fence_that_is_held_is_looked_at_no_more_often_than_that(table):
    watch = make_watch(table)
    table.clock.advance(FENCE_LOOK_MS)
    watch()
    overtake(table)
    table.clock.advance(FENCE_LOOK_MS - 1)
    watch()
    table.clock.advance(1)
    with pytest.raises(Fenced):
        watch()


def test_a_store_that_does_not_answer_stops_nothing(table):
    watch = make_watch(table)
    overtake(table)
    table.store.script = [
        Fault("put_if_match", Effect.DROP, "/fence/"),
        *(Fault("get", Effect.UNAVAILABLE, "/fence/") for _ in range(MAX_SETTLE_ATTEMPTS)),
    ]
    table.clock.advance(FENCE_LOOK_MS)
    watch()
    table.clock.advance(FENCE_LOOK_MS)
    with pytest.raises(Fenced):
        watch()


def test_the_callers_check_is_asked_each_time(table):
    answers = iter([None, Unavailable("the lock is lost")])

    def check_alive():
        if error := next(answers):
            raise error

    watch = make_watch(table, check_alive)
    watch()
    with pytest.raises(Unavailable, match="lock is lost"):
        watch()


def test_a_merge_job_can_ask_while_it_works(table):
    table.append(1)
    table.append(2)

    class AskingMerger(RowFileMerger):
        def merge_groups(self, job):
            job.check_alive()
            overtake(table)
            table.clock.advance(FENCE_LOOK_MS)
            job.check_alive()
            raise AssertionError("the job was not told")

    with pytest.raises(Fenced):
        table.merge(merger=AskingMerger(table.store, table.clock))
    assert len(table.view().files) == 2


def test_f6_a_run_that_is_told_to_stop_leaves_no_claim(table):
    stage_batch(
        table, body=encode_rows([{"id": 1, "p": "a"}]), staging_format="ndjson", batch_id=new_batch_id(table.clock)
    )

    class StoppedWriter(RowFileWriter):
        def write_batches(self, job):
            super().write_batches(job)
            raise Fenced("others have committed what was staged")

    with pytest.raises(Fenced):
        flush_table(Table.open(table, clock=table.clock, owner="me"), StoppedWriter(table.store, table.clock))
    state = read_fence(table.store, table.paths.fence_key("ingest"))[0]
    assert (state.claim_ms, bool(state.work)) == (0, True)


def test_a_flush_job_can_ask_while_it_works(table):
    stage_batch(
        table,
        body=encode_rows([{"id": 1, "p": "a"}]),
        staging_format="ndjson",
        batch_id=new_batch_id(table.clock),
    )

    class AskingWriter(RowFileWriter):
        def write_batches(self, job):
            overtake(table, "ingest")
            table.clock.advance(FENCE_LOOK_MS)
            job.check_alive()
            raise AssertionError("the job was not told")

    writer = AskingWriter(table.store, table.clock)
    with pytest.raises(Fenced, match="another ingest worker"):
        flush_table(Table.open(table, clock=table.clock, owner="me"), writer)
    assert table.view().files == ()
