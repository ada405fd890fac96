"""A batch that crashes who reads it (I5): by an error that nobody foresaw, or by the end of the process."""

import contextlib
import errno
from dataclasses import replace

import pytest
from icedb_log.commit.fence import CLAIM_MS, read_fence
from icedb_log.commit.losses import NO_LOSSES
from icedb_log.errors import CommitOutcomeUnknown, Fenced, JobCrashed, SchemaConflict, Unavailable
from icedb_log.ingest.flush import MAX_LOST_ALONE, FlushLimits, flush_table
from icedb_log.ingest.quarantine import list_quarantined
from icedb_log.jobs import SizeClass
from icedb_sim.fakes.scripted_store import Crash, Effect, Fault
from icedb_sim.tables.row_files import RowFileWriter
from icedb_sim.tables.table_steps import staged_ids


class CrashingWriter(RowFileWriter):
    """Raises over a job with certain batches.

    Attributes:
        deadly: Ids of these batches.
        error: What it raises.
        jobs: The ids of each job.
    """

    def __init__(self, table, *deadly, error=None, **more):
        super().__init__(table.store, table.clock)
        self.__dict__.update(deadly=set(deadly), error=error or ValueError("nobody foresaw this"), jobs=[], **more)

    def write_batches(self, job):
        ids = [batch.batch_id for batch in job.batches]
        self.jobs.append(ids)
        if self.deadly.intersection(ids):
            raise self.error
        return super().write_batches(job)


def stage(table, count, *, first=0):
    return [table.stage([{"id": first + number, "p": "a"}]) for number in range(count)]


def flush_all(table, writer, limits=None):
    results = [table.flush(writer=writer, limits=limits)]
    while results[-1].has_more:
        results.append(table.flush(writer=writer, limits=limits))
    return results


@pytest.mark.parametrize("place", range(7))
def test_i5_a_batch_that_crashes_its_reader_goes_to_quarantine_and_the_others_commit(table, place):
    ids = stage(table, 7)
    writer = CrashingWriter(table, ids[place])
    results = flush_all(table, writer)
    assert table.ids() == [number for number in range(7) if number != place]
    assert staged_ids(table) == []
    (entry,) = list_quarantined(table)
    assert entry.batch_id == ids[place]
    assert "reading it failed twice, alone" in entry.reason
    assert "ValueError: nobody foresaw this" in entry.reason
    assert writer.jobs.count([ids[place]]) == 2  # alone, and once more
    assert len(writer.jobs) <= 20
    assert [error for result in results for error in result.crashes]
    assert ids[place] in [batch for file in table.view().files for batch in file.log.refused_ids]


def test_i5_as_many_as_there_are(table):
    ids = stage(table, 9)
    deadly = ids[::2]
    flush_all(table, CrashingWriter(table, *deadly))
    assert table.ids() == [1, 3, 5, 7]
    assert sorted(entry.batch_id for entry in list_quarantined(table)) == deadly


def test_i5_one_that_crashes_only_beside_others_is_committed(table):
    """Together they take too much memory, say."""
    stage(table, 4)

    class Full(RowFileWriter):
        def write_batches(self, job):
            if len(job.batches) > 1:
                raise MemoryError
            return super().write_batches(job)

    flush_all(table, Full(table.store, table.clock))
    assert table.ids() == [0, 1, 2, 3]
    assert list_quarantined(table) == ()


def test_i5_one_that_crashes_once_is_committed(table):
    (batch_id,) = stage(table, 1)
    writer = CrashingWriter(table, batch_id)

    class Once(RowFileWriter):
        def write_batches(self, job):
            try:
                return writer.write_batches(job)
            finally:
                writer.deadly.clear()

    assert table.flush(writer=Once(table.store, table.clock)).row_count == 1


def test_a_machine_that_reads_nothing_refuses_nothing(table):
    """A job without batches crashes as well: the batches are not to blame."""
    stage(table, 3)

    class Broken(RowFileWriter):
        def write_batches(self, job):
            raise ImportError("libarrow.so: cannot open shared object file")

    with pytest.raises(JobCrashed, match="a flush of 0 batches: ImportError: libarrow"):
        table.flush(writer=Broken(table.store, table.clock))
    assert len(staged_ids(table)) == 3
    assert table.flush().row_count == 3


@pytest.mark.parametrize("sound", [1, 3])
def test_a_machine_that_breaks_while_a_batch_is_read_alone_refuses_nothing(table, sound):
    """After each crash a job without batches says whether the batch is to blame: `sound` jobs still go well."""
    ids = stage(table, 1)
    jobs = []

    class Breaking(CrashingWriter):
        def write_batches(self, job):
            jobs.append(len(job.batches))
            if len(jobs) > sound:
                raise ImportError("libarrow.so: cannot open shared object file")
            return super().write_batches(job)

    with pytest.raises(JobCrashed, match="a flush of 0 batches"):
        table.flush(writer=Breaking(table, *ids))
    assert jobs == [1, 0] if sound == 1 else [1, 0, 1, 0]
    assert len(staged_ids(table)) == 1
    assert table.flush().row_count == 1


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (Unavailable("the store"), Unavailable),
        (Fenced("another"), Fenced),
        (CommitOutcomeUnknown("no answer"), CommitOutcomeUnknown),
        (SchemaConflict("a person"), SchemaConflict),
        (OSError(errno.ENOSPC, "No space left on device"), Unavailable),
        (PermissionError(errno.EACCES, "Permission denied"), Unavailable),
    ],
    ids=str,
)
def test_trouble_of_the_surroundings_refuses_nothing_and_is_not_tried_again(table, error, expected):
    ids = stage(table, 3)
    writer = CrashingWriter(table, *ids, error=error)
    with pytest.raises(expected) as raised:
        table.flush(writer=writer)
    assert not isinstance(raised.value, JobCrashed)
    assert len(writer.jobs) == 1
    assert len(staged_ids(table)) == 3


def test_an_error_of_reading_that_has_no_number_of_the_system_is_of_the_content(table):
    ids = stage(table, 2)
    flush_all(table, CrashingWriter(table, ids[0], error=OSError("Corrupt snappy compressed data")))
    assert table.ids() == [1]


def test_i6_large_batches_are_isolated_too(table):
    ids = stage(table, 3)
    writer = CrashingWriter(table, ids[1])
    limits = FlushLimits(sizes=SizeClass("large", 0, 1 << 40))
    flush_all(table, writer, limits)
    assert table.ids() == [0, 2]
    assert [entry.batch_id for entry in list_quarantined(table)] == [ids[1]]


def flush_in_a_process(table, writer, limits=None):
    """Flush under a name that no other process has."""
    return flush_table(table.opened(f"ingest@host:1-{table.clock.new_id()}"), writer, limits=limits)


def die(table, writer):
    """Flush in a process that ends, and let the claim that it leaves behind run out."""
    with pytest.raises(Crash):
        flush_in_a_process(table, writer)
    table.clock.advance(CLAIM_MS + 1)


def survive(table, writer, *, processes=60):
    """Flush in one process after the other until nothing is left; return how many have died."""
    died = 0
    for _ in range(processes):
        try:
            if not flush_in_a_process(table, writer).has_more:
                return died
        except Crash:
            died += 1
            table.clock.advance(CLAIM_MS + 1)
    raise AssertionError(f"batches wait after {processes} processes: {staged_ids(table)}")


@pytest.mark.parametrize(("count", "place"), [(1, 0), (2, 0), (2, 1), (40, 0), (40, 23), (40, 39)])
def test_i5_a_batch_that_ends_the_process_is_refused_by_a_later_one(table, count, place):
    ids = stage(table, count)
    writer = CrashingWriter(table, ids[place], error=Crash())
    died = survive(table, writer)
    assert table.ids() == [number for number in range(count) if number != place]
    (entry,) = list_quarantined(table)
    assert entry.batch_id == ids[place]
    assert "processes ended without a word while they read this batch, and nothing else" in entry.reason
    assert writer.jobs.count([ids[place]]) >= MAX_LOST_ALONE
    assert died <= MAX_LOST_ALONE + 3
    assert len(writer.jobs) <= 20
    state, _ = read_fence(table.store, table.paths.fence_key("ingest"))
    assert state is not None
    assert state.losses == NO_LOSSES


def test_i5_all_other_batches_commit_after_the_first_death(table):
    """Newer ones go first, so that the oldest, which was there when the first process died, waits for them all."""
    ids = stage(table, 700)
    writer = CrashingWriter(table, ids[0], error=Crash())
    die(table, writer)
    stage(table, 24, first=700)
    while table.ids() != list(range(1, 724)):
        assert flush_in_a_process(table, writer).has_more
    assert table.view().files[-1].log.batch_ids
    assert survive(table, writer) == MAX_LOST_ALONE
    assert [entry.batch_id for entry in list_quarantined(table)] == [ids[0]]
    assert len(writer.jobs) <= 32


@pytest.mark.parametrize("deaths", [1, 2])
def test_i5_what_came_after_a_death_is_committed_before_the_next(table, deaths):
    """Also while one batch is read alone: nobody who died has read what was staged later."""
    (deadly,) = stage(table, 1)
    writer = CrashingWriter(table, deadly, error=Crash())
    for _ in range(deaths):
        die(table, writer)
    late = stage(table, 9, first=1)
    assert flush_in_a_process(table, writer).batch_count == 9
    assert writer.jobs[-1] == late
    assert survive(table, writer) == MAX_LOST_ALONE + 1 - deaths


def test_i5_all_but_the_part_that_ended_a_process_commits_after_the_second_death(table):
    ids = stage(table, 40)
    writer = CrashingWriter(table, ids[20], error=Crash())
    die(table, writer)
    with pytest.raises(Crash):
        while True:
            flush_in_a_process(table, writer)
    table.clock.advance(CLAIM_MS + 1)
    assert writer.jobs[-1] == ids[18:23]
    assert flush_in_a_process(table, writer).batch_count == 18
    assert table.ids() == [*range(18), *range(23, 40)]
    assert survive(table, writer) == MAX_LOST_ALONE
    assert [entry.batch_id for entry in list_quarantined(table)] == [ids[20]]


def test_i5_few_commits_until_it_is_alone(table):
    ids = stage(table, 640)
    writer = CrashingWriter(table, ids[320], error=Crash())
    assert survive(table, writer) == MAX_LOST_ALONE + 3
    assert len(writer.jobs) <= 30, "and all that is left at once when it is refused"


@pytest.mark.parametrize("places", [(3, 4), (3, 30), (0, 39), (10, 20, 30)])
def test_i5_several_that_end_processes(table, places):
    ids = stage(table, 40)
    writer = CrashingWriter(table, *(ids[place] for place in places), error=Crash())
    assert survive(table, writer) <= len(places) * (MAX_LOST_ALONE + 4)
    assert len(writer.jobs) <= 31
    assert table.ids() == [number for number in range(40) if number not in places]
    assert {entry.batch_id for entry in list_quarantined(table)} == {ids[place] for place in places}


def test_i5_new_batches_do_not_keep_older_ones_waiting(table):
    """They go first once for each process that was lost: otherwise a table that is never idle would never get on."""
    ids = stage(table, 3)
    writer = CrashingWriter(table, error=Crash())
    writer.deadly.update(ids)
    die(table, writer)
    writer.deadly.clear()
    for number in range(4):
        stage(table, 1, first=3 + number)
        assert flush_in_a_process(table, writer).batch_count == 1
    assert [job[0] for job in writer.jobs[2:]] == ids[::-1]


def test_i5_a_second_batch_of_that_kind_among_the_new_ones(table):
    first = stage(table, 10)
    writer = CrashingWriter(table, first[4], error=Crash())
    die(table, writer)
    second = stage(table, 10, first=10)
    writer.deadly.add(second[3])
    assert survive(table, writer) <= 2 * (MAX_LOST_ALONE + 3)
    assert table.ids() == [number for number in range(20) if number not in {4, 13}]
    assert {entry.batch_id for entry in list_quarantined(table)} == {first[4], second[3]}


def test_i5_who_ends_over_newer_batches_says_nothing_of_the_one_that_was_read_alone(table):
    (good,) = stage(table, 1)
    writer = CrashingWriter(table, good, error=Crash())
    for _ in range(MAX_LOST_ALONE):
        die(table, writer)  # something else ended these
    (bad,) = stage(table, 1, first=1)
    writer.deadly.symmetric_difference_update({good, bad})
    die(table, writer)
    assert writer.jobs[-1] == [bad]
    assert survive(table, writer) >= MAX_LOST_ALONE
    assert table.ids() == [0]
    assert [entry.batch_id for entry in list_quarantined(table)] == [bad]


def test_a_process_that_was_killed_leaves_nothing_behind(table):
    """It was no batch: the next flushes take parts, and all is as before."""
    ids = stage(table, 40)
    writer = CrashingWriter(table, ids[0], error=Crash())
    die(table, writer)
    writer.deadly.clear()
    assert table.flush(writer=writer).batch_count == 10
    assert survive(table, writer) == 0
    assert table.ids() == list(range(40))
    state, _ = read_fence(table.store, table.paths.fence_key("ingest"))
    assert state is not None
    assert state.losses == NO_LOSSES
    stage(table, 40, first=40)
    assert table.flush(writer=writer).batch_count == 40


def lose(table, *, count):
    """Lose owners of the fence in a row, each over everything, without a batch that is to blame."""
    writer = CrashingWriter(table, error=Crash())
    for number in range(count):
        stage(table, 1, first=10_000 + number)  # it goes first, and so nobody reads a part
        writer.deadly.update(staged_ids(table))
        die(table, writer)


@pytest.mark.parametrize("count", [1, 3, 8])
def test_i5_few_commits_however_many_were_lost(table, count):
    """Machines that stop are no sign of a batch: each commit takes twice as many, and at most a quarter of what is left."""
    ids = stage(table, 400)
    lose(table, count=count)
    state, _ = read_fence(table.store, table.paths.fence_key("ingest"))
    assert state is not None
    assert state.losses.count == count - 1, "the last one is counted by who comes next"
    results = [flush_in_a_process(table, RowFileWriter(table.store, table.clock))]
    while results[-1].has_more:
        results.append(flush_in_a_process(table, RowFileWriter(table.store, table.clock)))
    assert staged_ids(table) == []
    assert sum(result.batch_count for result in results) == len(ids) + count
    assert len(results) <= 32


def test_i5_a_loss_begins_with_few_batches_again(table):
    ids = stage(table, 100)
    lose(table, count=3)
    writer = CrashingWriter(table, error=Crash())
    sizes = [flush_in_a_process(table, writer).batch_count for _ in range(5)]
    assert sizes == [1, 2, 4, 8, 16]
    writer.deadly.add(ids[70])
    with pytest.raises(Crash):
        while True:
            flush_in_a_process(table, writer)
    table.clock.advance(CLAIM_MS + 1)
    assert survive(table, writer) <= MAX_LOST_ALONE + 1
    assert [entry.batch_id for entry in list_quarantined(table)] == [ids[70]]


def test_another_batch_alone_begins_to_count_anew(table):
    """Processes that die whatever they read refuse no batch, as long as they do not die at one again and again."""
    ids = stage(table, 4)
    writer = CrashingWriter(table, ids[3], error=Crash())
    for _ in range(MAX_LOST_ALONE):
        die(table, writer)
    writer.deadly.symmetric_difference_update(ids[2:])
    die(table, writer)  # over the others, which go first
    assert table.flush(writer=writer).batch_count == 1  # the last one is read, though so many have died at it
    for _ in range(MAX_LOST_ALONE - 1):
        die(table, writer)
    writer.deadly.clear()
    assert survive(table, writer) == 0
    assert list_quarantined(table) == ()
    assert table.ids() == [0, 1, 2, 3]


def test_a_batch_counts_its_own_deaths_alone(table):
    ids = stage(table, 4)
    writer = CrashingWriter(table, error=Crash())
    for deadly in (ids[3], ids[3], ids[2], ids[3], ids[2]):  # all, alone, the others, alone, and after it that one
        writer.deadly.clear()
        writer.deadly.add(deadly)
        while True:
            try:
                flush_in_a_process(table, writer)
            except Crash:
                table.clock.advance(CLAIM_MS + 1)
                break
    assert [job for job in writer.jobs if len(job) == 1] == [[ids[3]], [ids[3]], [ids[3]], [ids[2]]]
    writer.deadly.clear()
    assert survive(table, writer) == 0
    assert list_quarantined(table) == ()


def test_i5_a_small_and_a_large_batch_that_end_processes_in_turn_are_both_refused(table):
    """Each size has workers of its own, which take the fence from each other's lost ones."""
    lanes = {takes: FlushLimits(sizes=SizeClass(takes, 100, 1 << 40)) for takes in ("small", "large")}
    deadly = {
        "large": table.stage([{"id": 0, "p": "a" * 150}]),
        "small": table.stage([{"id": 1, "p": "a"}]),
    }
    for number in range(2, 9):
        table.stage([{"id": number, "p": "a"}])
    writer = CrashingWriter(table, *deadly.values(), error=Crash())
    deaths = 0
    while staged_ids(table):
        for takes in ("large", "small"):
            try:
                flush_in_a_process(table, writer, lanes[takes])
            except Crash:
                deaths += 1
                table.clock.advance(CLAIM_MS + 1)
        assert deaths < 20
    assert {entry.batch_id for entry in list_quarantined(table)} == set(deadly.values())
    assert sorted(table.ids()) == list(range(2, 9))


def test_who_died_while_it_committed_is_no_sign_of_a_batch(table):
    stage(table, 20)
    table.store.script = [Fault("put_if_absent", Effect.CRASH_BEFORE, "/_log/")]
    with pytest.raises(Crash):
        table.flush()
    table.clock.advance(CLAIM_MS + 1)
    assert table.flush().batch_count == 20


def test_who_takes_a_fence_without_patience_does_not_call_its_owner_lost(table):
    """He may be at work: three of these at one batch would refuse it. As soon as a claim runs out, it counts."""
    (batch_id,) = stage(table, 1)
    writer = CrashingWriter(table, batch_id, error=Crash())
    for number in range(MAX_LOST_ALONE + 2):
        impatient = replace(table.opened(f"appender-{number}"), patience_ms=0)
        with pytest.raises(Crash):
            flush_table(impatient, writer)
        state, _ = read_fence(table.store, table.paths.fence_key("ingest"))
        assert state is not None
        assert state.losses == NO_LOSSES
    table.clock.advance(CLAIM_MS + 1)
    assert survive(table, writer) == MAX_LOST_ALONE
    assert [entry.batch_id for entry in list_quarantined(table)] == [batch_id]


def test_two_threads_of_one_process_do_not_call_each_other_lost(table):
    """Neither waits for its own name (F6): each takes the fence from the other, who reads a good batch all the time."""
    (batch_id,) = stage(table, 1)
    writer = CrashingWriter(table, batch_id, error=Crash())
    for _ in range(MAX_LOST_ALONE + 3):
        with pytest.raises(Crash):
            flush_table(table.opened("ingest@host:1-5eed"), writer)
        state, _ = read_fence(table.store, table.paths.fence_key("ingest"))
        assert state is not None
        assert state.losses == NO_LOSSES
    writer.deadly.clear()
    assert flush_table(table.opened("ingest@host:1-5eed"), writer).batch_count == 1
    assert list_quarantined(table) == ()


def test_an_orderly_error_is_no_sign_of_a_batch(table):
    ids = stage(table, 20)
    writer = CrashingWriter(table, ids[3], error=Unavailable("the store"))
    with pytest.raises(Unavailable):
        table.flush(writer=writer)
    writer.deadly.clear()
    assert table.flush(writer=writer).batch_count == 20


def test_a_job_without_batches_writes_nothing(table):
    job_of = []

    class Keeping(RowFileWriter):
        def write_batches(self, job):
            job_of.append(job)
            return super().write_batches(job)

    stage(table, 1)
    table.flush(writer=Keeping(table.store, table.clock))
    output = RowFileWriter(table.store, table.clock).write_batches(replace(job_of[0], batches=()))
    assert (output.files, output.accepted, output.row_count) == ((), (), 0)


@pytest.mark.parametrize("deadly", ["large", "small"])
def test_i5_flushes_of_the_other_size_do_not_forget_who_was_lost(table, deadly):
    """Two kinds of workers share the fence: each takes all there was for it, and leaves the others."""
    bodies = {"small": "", "large": "a" * 150}
    lanes = {takes: FlushLimits(sizes=SizeClass(takes, 100, 1 << 40)) for takes in ("small", "large")}
    batch_id = table.stage([{"id": 0, "p": "a" + bodies[deadly]}])
    writer = CrashingWriter(table, batch_id, error=Crash())
    other = "small" if deadly == "large" else "large"
    skip = frozenset({batch_id}) if deadly == "large" else frozenset()
    deaths = 0
    for number in range(1, 20):
        with contextlib.suppress(Crash):
            flush_in_a_process(table, writer, lanes[deadly])
        if list_quarantined(table):
            break
        deaths += 1
        table.clock.advance(CLAIM_MS + 1)
        table.stage([{"id": number, "p": "a" + bodies[other]}])
        found = flush_in_a_process(table, writer, replace(lanes[other], skip=skip))
        assert found.batch_count == 1, (
            number,
            deaths,
            found.rejected,
            read_fence(table.store, table.paths.fence_key("ingest"))[0].losses,
        )
    assert [entry.batch_id for entry in list_quarantined(table)] == [batch_id]
    assert deaths <= MAX_LOST_ALONE + 2
