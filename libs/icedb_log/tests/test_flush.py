"""A flush: I2 to I5, W1, W3, and exactly-once rows whatever fails."""

import contextlib
from dataclasses import replace

import pytest
from icedb_log.errors import Fenced, InvariantViolated, NotFound, SchemaConflict, Unavailable
from icedb_log.ingest.flush import FlushLimits, FlushResult
from icedb_log.ingest.quarantine import list_quarantined
from icedb_log.ingest.staging import list_staged
from icedb_log.keys import TablePaths
from icedb_log.log.codec import encode_log_file
from icedb_log.model import LogFile
from icedb_log.store.object_store import MAX_KEYS_PER_PAGE
from icedb_sim.fakes.scripted_store import Crash, Effect, Fault
from icedb_sim.tables.log_views import live
from icedb_sim.tables.row_files import RowFileWriter
from icedb_sim.tables.small_table import SmallTable, try_each_call
from icedb_sim.tables.table_steps import TamperingWriter, bad_rows_of, staged_ids


def test_nothing_staged_is_nothing_to_do_and_takes_no_fence(table):
    assert table.flush() == FlushResult()
    assert table.paths.fence_key("ingest") not in table.keys(table.paths.prefix)


def test_a_table_that_does_not_exist_is_not_found(table):
    table.paths = TablePaths("ghost", "wh/ghost")
    with pytest.raises(NotFound, match="'ghost' does not exist"):
        table.flush()


def test_i2_many_batches_become_one_log_file_that_names_their_ids(table):
    ids = [table.stage([{"id": number, "p": "ab"[number % 2]}]) for number in range(6)]
    result = table.flush()
    (file,) = table.view().files
    assert file.key == result.committed_key
    assert file.log.batch_ids == tuple(ids)
    assert (result.batch_count, result.row_count, result.file_count) == (6, 6, 2)
    assert table.ids() == [0, 1, 2, 3, 4, 5]
    assert staged_ids(table) == []


def test_i2_staged_objects_are_deleted_after_the_commit(table):
    table.stage([{"id": 1, "p": "a"}])
    table.store.script = [Fault("delete", Effect.CRASH_BEFORE, "/staging/")]
    with pytest.raises(Crash):
        table.flush()
    assert table.ids() == [1]
    assert len(staged_ids(table)) == 1
    assert table.flush().duplicate_count == 1  # I3
    assert (table.ids(), staged_ids(table)) == ([1], [])


def test_i2_the_log_is_read_before_staging_is_listed_and_after_the_fence(table):
    table.stage([{"id": 1, "p": "a"}])
    table.store.calls.clear()
    table.flush()
    calls = [(call.method, call.key) for call in table.store.calls]
    fence = next(i for i, (method, key) in enumerate(calls) if method == "put_if_absent" and "/fence/" in key)
    log = next(i for i, (method, key) in enumerate(calls) if method == "list_page" and "/_log/" in key)
    staging = [i for i, (method, key) in enumerate(calls) if method == "list_page" and "/staging/" in key]
    assert fence < log < staging[-1]


def test_i2_what_was_seen_in_staging_before_the_fence_does_not_count(table):
    """A batch is seen, then committed, merged and vacuumed by others: the log does not know its id any more."""
    table.stage([{"id": 1, "p": "a"}])

    def others():
        rival = SmallTable(store=table.store.inner, name="rival")
        rival.paths, rival.clock = table.paths, table.clock
        rival.flush()
        rival.append(2)
        rival.merge(full=True)
        table.clock.advance(100_000)
        assert len(rival.vacuum().deleted_logs) == 2
        rival.stage([{"id": 3, "p": "a"}])

    table.store.script = [Fault("get", None, "/fence/", before=others)]
    assert table.flush().batch_count == 1
    assert table.ids() == [1, 2, 3]


def test_w1_data_files_are_there_before_the_log_names_them(table):
    table.stage([{"id": 1, "p": "a"}])
    table.store.calls.clear()
    table.flush()
    written = [call.key for call in table.store.calls if call.method.startswith("put")]
    assert next(i for i, key in enumerate(written) if "/_data/" in key) < next(
        i for i, key in enumerate(written) if "/_log/" in key
    )


def test_w3_a_flush_that_takes_longer_than_half_the_orphan_age_is_not_committed(table):
    table.stage([{"id": 1, "p": "a"}])
    limit_ms = table.config.orphan_age_ms // 2
    table.store.script = [Fault("put", None, "/_data/", before=lambda: table.clock.advance(limit_ms + 1))]
    with pytest.raises(Unavailable, match="more than half the orphan age"):
        table.flush()
    assert table.view().files == ()
    table.store.script = [Fault("put", None, "/_data/", before=lambda: table.clock.advance(limit_ms))]
    assert table.flush().row_count == 1


def test_w3_a_wall_clock_that_stands_still_does_not_hide_the_time(table):
    table.stage([{"id": 1, "p": "a"}])
    wall_ms = table.clock.now_ms()

    def stall():
        table.clock.advance(table.config.orphan_age_ms)
        table.clock.set_wall(wall_ms)

    table.store.script = [Fault("put", None, "/_data/", before=stall)]
    with pytest.raises(Unavailable):
        table.flush()


def test_a_deferred_batch_waits_for_the_next_commit(table):
    ids = [table.stage([{"id": number, "p": "a"}]) for number in range(3)]

    class OneByOne(RowFileWriter):
        def write_batches(self, job):
            out = super().write_batches(replace(job, batches=job.batches[:1]))
            return replace(out, deferred=job.batches[1:])

    writer = OneByOne(table.store, table.clock)
    for number, left in ((0, 2), (1, 1), (2, 0)):
        result = table.flush(writer=writer)
        assert (result.batch_count, result.deferred_count, result.has_more) == (1, left, left > 0)
        assert table.view().files[-1].log.batch_ids == (ids[number],)
        assert staged_ids(table) == ids[number + 1 :]
    assert table.ids() == [0, 1, 2]


def test_the_result_counts_partitions(table):
    table.stage([{"id": 1, "p": "a"}, {"id": 2, "p": "b"}])
    table.stage([{"id": 3, "p": "a"}])
    assert (table.flush().partition_count, table.append(4).partition_count) == (2, 1)


def test_the_live_files_are_read_only_when_they_are_asked_for(table):
    table.append(1, 2)
    told = []

    class Asking(RowFileWriter):
        def write_batches(self, job):
            told.append(job.read_live())
            return super().write_batches(job)

    table.store.calls.clear()
    table.append(3)
    assert table.store.keys_of("get") == [key for key in table.store.keys_of("get") if "/_log/" not in key]
    assert len(table.store.keys_of("get_range")) == 1
    table.stage([{"id": 4, "p": "a"}])
    table.flush(writer=Asking(table.store, table.clock))
    assert [marker.row_count for marker in told[0]] == [2, 1]


def test_a_batch_without_rows_is_committed_and_its_id_is_known(table):
    batch_id = table.stage([])
    result = table.flush()
    assert (result.batch_count, result.row_count, result.file_count) == (1, 0, 0)
    assert table.view().files[0].log.batch_ids == (batch_id,)


def test_limits_are_respected_and_the_rest_waits(table):
    for number in range(5):
        table.stage([{"id": number, "p": "a"}])
    result = table.flush(limits=FlushLimits(max_batches=2))
    assert (result.batch_count, result.has_more) == (2, True)
    size_bytes = list_staged(table).batches[0].size_bytes
    result = table.flush(limits=FlushLimits(max_bytes=2 * size_bytes))
    assert (result.batch_count, result.has_more) == (2, True)
    result = table.flush(limits=FlushLimits(max_bytes=1))
    assert (result.batch_count, result.has_more) == (1, False)
    assert table.ids() == [0, 1, 2, 3, 4]


def test_one_commit_takes_more_batches_than_a_listing_has_on_a_page(table):
    ids = [table.stage([{"id": number, "p": "a"}]) for number in range(MAX_KEYS_PER_PAGE + 2)]
    result = table.flush(limits=FlushLimits(max_batches=MAX_KEYS_PER_PAGE + 1))
    assert (result.batch_count, result.has_more) == (MAX_KEYS_PER_PAGE + 1, True)
    assert table.view().files[0].log.batch_ids == tuple(ids[:-1])
    result = table.flush()
    assert (result.batch_count, result.has_more, result.duplicate_count) == (1, False, 0)
    assert table.ids() == list(range(MAX_KEYS_PER_PAGE + 2))


def test_a_new_column_grows_the_schema_and_old_ones_stay(table):
    table.append(1)
    table.stage([{"id": 2, "p": "a", "new": 1.5}])
    table.flush()
    assert dict(table.snapshot().schema) == {"id": "BIGINT", "p": "VARCHAR", "new": "DOUBLE"}


@pytest.mark.parametrize(
    ("tamper", "error"),
    [
        (lambda out: replace(out, accepted=()), InvariantViolated),
        (lambda out: replace(out, accepted=out.accepted * 2), InvariantViolated),
        (lambda out: replace(out, row_count=out.row_count + 1), InvariantViolated),
        (lambda out: replace(out, files=()), InvariantViolated),
        (lambda out: replace(out, files=out.files * 2, row_count=out.row_count * 2), InvariantViolated),
        (lambda out: replace(out, schema={**out.schema, "id": "DOUBLE"}), SchemaConflict),
        (lambda out: replace(out, schema={}), SchemaConflict),
        (lambda out: replace(out, files=tuple(replace(f, tombstoned_ms=5) for f in out.files)), InvariantViolated),
        (lambda out: replace(out, accepted=(), deferred=out.accepted, files=(), row_count=0), InvariantViolated),
        (lambda out: replace(out, deferred=out.accepted), InvariantViolated),
        (lambda out: replace(out, bad_rows=(bad_rows_of(out.accepted[0]),)), InvariantViolated),
        (
            lambda out: replace(out, accepted=(), missing=out.accepted),
            InvariantViolated,
        ),
        (
            lambda out: replace(out, files=tuple(replace(f, path="wh/u/_data/x.parquet") for f in out.files)),
            Exception,
        ),
    ],
    ids=[
        "lost",
        "twice",
        "count",
        "nofiles",
        "samefile",
        "retyped",
        "dropped",
        "dead",
        "all deferred",
        "deferred too",
        "bad rows by no policy",
        "files of nothing",
        "elsewhere",
    ],
)
def test_a_data_path_with_a_bug_commits_nothing_and_loses_nothing(table, tamper, error):
    schema = {"id": "BIGINT", "p": "VARCHAR"}
    key = table.paths.log_key(time_ms=1, commit_id="00", is_merged=False)
    table.store.put(key, encode_log_file(LogFile(1, schema, (live("old"),), commit_id="00")))
    batch_id = table.stage([{"id": 1, "p": "a"}])
    with pytest.raises(error):
        table.flush(writer=TamperingWriter(table, tamper))
    assert len(table.view().files) == 1
    assert staged_ids(table) == [batch_id]


# -- every crash and every lost answer


def make_flush_table():
    table = SmallTable()
    table.append(1, 2)
    table.stage([{"id": 3, "p": "a"}, {"id": 4, "p": "b"}])
    table.stage_bytes(b"broken")
    table.stage([{"id": 5, "p": "a"}])
    return table


@pytest.mark.parametrize(
    "effect", [Effect.CRASH_BEFORE, Effect.CRASH_AFTER, Effect.LOSE_ANSWER, Effect.UNAVAILABLE, Effect.DELAY]
)
def test_whatever_fails_at_whichever_call_rows_are_there_exactly_once(effect):
    tables = try_each_call(make_flush_table, SmallTable.flush, effect)
    assert len(tables) >= 15
    for table in tables:
        seen = table.ids()
        assert seen in ([1, 2], [1, 2, 3, 4, 5])
        while table.flush().has_more:
            pass
        assert table.ids() == [1, 2, 3, 4, 5]
        table.store.land_delayed()
        assert table.ids() == [1, 2, 3, 4, 5]
        assert staged_ids(table) == []
        assert len(list_quarantined(table)) == 1


def test_two_flushes_that_overlap_anywhere_give_rows_once():
    table = make_flush_table()
    table.store.calls.clear()
    table.flush()
    for number in range(len(table.store.calls)):
        table = make_flush_table()
        first = len(table.store.calls)
        rival = SmallTable(store=table.store.inner, name="rival")
        rival.paths, rival.clock = table.paths, table.clock

        def interrupt(method, key, action, table=table, rival=rival, at=first + number, run=table.store._run):
            if len(table.store.calls) == at:
                rival.flush()
            return run(method, key, action)

        table.store._run = interrupt
        with contextlib.suppress(Fenced):
            table.flush()
        while rival.flush().has_more:  # of one who seems to be lost, the next takes fewer (I5)
            pass
        assert table.ids() == [1, 2, 3, 4, 5]
        table.flush()
        assert table.ids() == [1, 2, 3, 4, 5]
        assert staged_ids(table) == []
