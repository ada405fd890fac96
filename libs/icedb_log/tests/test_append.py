"""Appends: one commit for files that somebody else wrote, once, whoever is in the way (rules A1 to A3)."""

import pytest
from icedb_log.clock import new_batch_id
from icedb_log.commit import commit as commits
from icedb_log.commit.fence import CLAIM_MS, acquire_fence
from icedb_log.commit.table import Table
from icedb_log.errors import InvalidRequest, Overloaded, Unavailable
from icedb_log.ingest import append
from icedb_log.ingest.append import AppendJob, append_files, check_columns, make_batch_id
from icedb_log.log.reader import LogReader
from icedb_sim.fakes.scripted_store import Crash, Effect, Fault
from icedb_sim.tables.row_files import write_rows
from icedb_sim.tables.small_table import SmallTable


def write(table, *ids, batch_id=None, begun_ms=None, columns=None, commit_id=None):
    rows = [{"id": number, "p": "a"} for number in ids]
    begun_ms = table.clock.now_ms() if begun_ms is None else begun_ms
    files = ()
    if rows:
        files = (
            write_rows(
                table,
                partition="p=a",
                rows=rows,
                config=table.config,
                clock=table.clock,
                time_ms=table.clock.now_ms(),
            ),
        )
    return AppendJob(
        files,
        columns or {"id": "BIGINT", "p": "VARCHAR"},
        batch_id or new_batch_id(table.clock),
        commit_id or table.clock.new_id(),
        begun_ms,
    )


def commit(table, job, **options):
    result = append_files(Table.open(table, clock=table.clock, owner="test"), job, **options)
    table.clock.advance(1)
    return result


def ids(table):
    return sorted(table.ids())


def test_files_become_live_in_one_commit(table):
    table.append(1)
    result = commit(table, write(table, 2, 3))
    assert ids(table) == [1, 2, 3]
    assert result.committed_key is not None
    assert not result.is_duplicate
    assert table.store.keys_of("put_if_absent").count(result.committed_key) == 1


def test_the_same_id_counts_once_whatever_the_files(table):
    job = write(table, 1)
    commit(table, job)
    again = commit(table, write(table, 1, batch_id=job.batch_id))
    assert again.is_duplicate
    assert again.committed_key is None
    assert ids(table) == [1]


def test_a_commit_that_is_merged_away_is_still_known(table):
    job = write(table, 1)
    commit(table, job)
    table.append(2)
    table.merge(full=True)
    assert commit(table, write(table, 1, batch_id=job.batch_id)).is_duplicate
    assert ids(table) == [1, 2]


def test_an_id_that_the_log_may_have_forgotten_is_refused(table):
    job = write(table, 1)
    commit(table, job)
    table.append(2)
    table.merge(full=True)
    table.clock.advance(table.config.log_grace_ms + 1)
    table.vacuum()
    with pytest.raises(InvalidRequest, match="nobody can tell any more whether an earlier try landed"):
        commit(table, write(table, 1, batch_id=job.batch_id))
    assert ids(table) == [1, 2]


def test_an_id_grows_old_while_the_log_is_read(table, monkeypatch):
    job = write(table, 1)
    commit(table, job)
    table.append(2)
    table.merge(full=True)
    late = write(table, 1, batch_id=job.batch_id)
    read_heads = LogReader.heads.func

    class Sleepy:
        def __init__(self, reader):
            self.reader = reader

        def read(self):
            table.clock.advance(table.config.log_grace_ms + 1)
            table.vacuum()
            return read_heads(self.reader).read()

    monkeypatch.setattr(LogReader, "heads", property(Sleepy))
    with pytest.raises(InvalidRequest, match="nobody can tell"):
        commit(table, late)


def test_an_id_from_the_future_is_refused(table):
    late = make_batch_id(table.clock, store_now_ms=table.clock.now_ms() + table.config.id_skew_ms + 1000)
    with pytest.raises(InvalidRequest, match="in the store's future"):
        commit(table, write(table, 1, batch_id=late))


def test_a_fresh_id_has_the_stores_time(table):
    commit(table, write(table, 1, batch_id=make_batch_id(table.clock, store_now_ms=table.clock.now_ms())))
    assert ids(table) == [1]


def test_files_that_are_too_old_are_not_committed(table):
    job = write(table, 1, begun_ms=table.clock.now_ms() - table.config.orphan_age_ms)
    with pytest.raises(Unavailable, match="more than half the orphan age"):
        commit(table, job)
    assert ids(table) == []


def test_a_write_without_rows_commits_nothing(table):
    assert commit(table, write(table)).committed_key is None


def test_a_lost_answer_is_no_second_commit(table):
    job = write(table, 1)
    table.store.script = [Fault("put_if_absent", Effect.LOSE_ANSWER, key="_log/")]
    assert commit(table, job).committed_key is not None
    assert ids(table) == [1]


def test_an_unknown_outcome_is_settled_by_the_next_call(table):
    job = write(table, 1)
    table.store.script = [Fault("put_if_absent", Effect.CRASH_AFTER, key="_log/")]
    with pytest.raises(Crash):
        commit(table, job)
    table.store.script = []
    assert commit(table, write(table, 1, batch_id=job.batch_id), wait_ms=0).is_duplicate
    assert ids(table) == [1]


def test_who_loses_the_fence_tries_again_under_another_key(table, monkeypatch):
    job = write(table, 1)
    taken = []
    real = commits.acquire_fence

    def acquire(*args, **kwargs):
        fence = real(*args, **kwargs)
        if len(taken) < 2:
            taken.append(real(*args, **kwargs))
        return fence

    monkeypatch.setattr(commits, "acquire_fence", acquire)
    assert commit(table, job).committed_key is not None
    assert ids(table) == [1]


def test_who_loses_the_fence_for_ever_gives_up(table, monkeypatch):
    real = commits.acquire_fence

    def acquire(*args, **kwargs):
        fence = real(*args, **kwargs)
        real(*args, **kwargs)
        return fence

    monkeypatch.setattr(commits, "acquire_fence", acquire)
    with pytest.raises(append.Fenced):
        commit(table, write(table, 1))
    assert ids(table) == []


def test_a_flush_at_work_is_waited_for_as_long_as_the_caller_says(table):
    acquire_fence(table.known("flush"), "ingest")
    before_ms = table.clock.now_ms()
    commit(table, write(table, 1), wait_ms=0)
    assert table.clock.now_ms() - before_ms < 1000
    acquire_fence(table.known("flush"), "ingest")
    before_ms = table.clock.now_ms()
    commit(table, write(table, 2), wait_ms=5000)
    assert 5000 <= table.clock.now_ms() - before_ms < CLAIM_MS
    before_ms = table.clock.now_ms()
    commit(table, write(table, 3), wait_ms=5000)  # the one before ended well
    assert table.clock.now_ms() - before_ms < 1000


def test_a_full_log_takes_nothing(table, monkeypatch):
    table.append(1)
    monkeypatch.setattr("icedb_log.commit.commit.MAX_LOG_FILES", 1)
    with pytest.raises(Overloaded, match="takes no more than 1"):
        commit(table, write(table, 2))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"id": "VARCHAR"}, "column 'id' is VARCHAR in this write, and the table has 'id' as BIGINT"),
        ({"ID": "BIGINT"}, "the table has 'id' as BIGINT"),
        ({f"c{number}": "BIGINT" for number in range(2000)}, "2000 at most"),
    ],
)
def test_columns_that_do_not_fit_are_refused(table, columns, message):
    table.append(1)
    with pytest.raises(InvalidRequest, match=message):
        commit(table, write(table, 2, columns=columns))
    assert ids(table) == [1]


def test_a_strict_table_takes_declared_columns_only():
    table = SmallTable(evolution="strict", declared={"id": "BIGINT", "p": "VARCHAR", "x": "DOUBLE"})
    commit(table, write(table, 1))
    with pytest.raises(InvalidRequest, match="takes declared columns only"):
        commit(table, write(table, 2, columns={"id": "BIGINT", "new": "BIGINT"}))
    with pytest.raises(InvalidRequest, match="'x' as DOUBLE"):
        check_columns(table.known(), {"x": "BIGINT"}, known={})


def test_new_columns_are_added(table):
    commit(table, write(table, 1, columns={"id": "BIGINT", "p": "VARCHAR", "extra": "DOUBLE"}))
    assert dict(table.snapshot().schema) == {"id": "BIGINT", "p": "VARCHAR", "extra": "DOUBLE"}


def test_the_log_is_read_under_the_fence(table, monkeypatch):
    job = write(table, 1)
    rival = write(table, 1, batch_id=job.batch_id)
    real = commits.acquire_fence
    rivals = [rival]

    def acquire(*args, **kwargs):
        if rivals:
            commit(table, rivals.pop())  # between this one's look around and its fence
        return real(*args, **kwargs)

    monkeypatch.setattr(commits, "acquire_fence", acquire)
    assert commit(table, job).is_duplicate
    assert ids(table) == [1]
