"""What a fence and ids of commits tell a rebuild of owners that died, failed, or took the fence back (B1)."""

import pytest
from icedb_log.errors import Unavailable
from icedb_log.keys import ROLES
from icedb_log.log.fence import FENCE_LOOK_MS
from icedb_log.merge.exchange import ExchangeCommit
from icedb_sim.fakes.scripted_store import Crash, Effect, Fault, ScriptedStore
from icedb_sim.tables.row_files import RowFileChanger, RowFileWriter
from icedb_sim.tables.small_table import SmallTable
from icedb_sim.tables.table_steps import lose_log, rival_of


def make_merged():
    table = SmallTable(has_footers=True)
    table.append(9, p="b")
    table.append(10, p="b")
    table.merge(full=True)  # there is a fence of merges
    table.append(1, 2, p="a")
    table.append(3, p="a")
    return table


def race(table, theirs, ours):
    """Another owner takes the fence between our look at it and our write, writes files and dies; we take it back."""

    def other():
        table.clock.advance(1)
        rival = rival_of(table)
        rival._has_footers = True
        rival.store = ScriptedStore(rival.store)
        rival.store.script = [Fault("put_if_absent", Effect.CRASH_BEFORE, "_m_")]
        with pytest.raises(Crash):
            theirs(rival)
        table.clock.advance(1)

    table.store.script = [Fault("put_if_match", None, "_icedb/fence/merge", before=other)]
    ours(table)
    table.clock.advance(1)


def lose_fences(table):
    table.store.inner.delete([table.paths.fence_key(role) for role in ROLES])


def test_the_later_owner_has_the_later_id():
    table = make_merged()
    first = ExchangeCommit(table.opened("first"))
    table.clock.advance(5)
    with ExchangeCommit(table.opened("second")) as second:
        pass
    with first:
        assert first.fence.epoch > second.fence.epoch
        assert first.commit_id > second.commit_id


def test_who_takes_the_fence_back_has_committed_and_the_owner_in_between_has_not():
    table = make_merged()
    race(table, lambda rival: rival.merge(full=True), lambda table: table.delete("id = 2"))
    assert table.ids() == [1, 3, 9, 10]
    lose_log(table)
    lose_fences(table)
    table.rebuild(decision="likely")
    assert table.ids() == [1, 3, 9, 10]


class SlowFailure:
    """What is written is written; then the store goes away."""

    def fail(self, job):
        self.clock.advance(2000)
        if self.is_watched:
            self.clock.advance(FENCE_LOOK_MS)
            job.check_alive()  # writes the fence, behind the data files (F6)
            self.clock.advance(1)
        raise self.error


class FailingWriter(SlowFailure, RowFileWriter):
    def write_batches(self, job):
        self.clock.advance(2000)
        super().write_batches(job)
        self.fail(job)


class FailingChanger(SlowFailure, RowFileChanger):
    def merge_groups(self, job):
        self.clock.advance(2000)
        super().merge_groups(job)
        self.fail(job)


def failing(kind, table, error, *, is_watched):
    made = kind(table.store, table.clock, True)
    object.__setattr__(made, "error", error)
    object.__setattr__(made, "is_watched", is_watched)
    return made


@pytest.mark.parametrize("is_watched", [False, True])
@pytest.mark.parametrize("error", [Unavailable("gone"), Crash()], ids=["Unavailable", "Crash"])
def test_files_of_a_flush_that_failed_are_not_taken_for_committed(error, is_watched):
    table = SmallTable(has_footers=True)
    table.append(1)
    table.append(2)
    table.stage([{"id": 5, "p": "a"}])
    with pytest.raises(type(error)):
        table.flush(writer=failing(FailingWriter, table, error, is_watched=is_watched))
    table.clock.advance(1)
    lose_log(table)
    assert len(table.rebuild(is_dry_run=True, decision="likely").report.choices) == 1, "a person is asked"
    table.rebuild(decision="likely")
    table.flush()
    assert table.ids() == [1, 2, 5]


@pytest.mark.parametrize("is_watched", [False, True])
def test_a_deletion_that_failed_is_not_taken_for_committed(is_watched):
    table = SmallTable(has_footers=True)
    table.append(9, p="b")
    table.append(10, p="b")
    table.merge(full=True)
    table.append(1, 2, 3)
    with pytest.raises(Unavailable):
        changer = failing(FailingChanger, table, Unavailable("gone"), is_watched=is_watched)
        table.delete("id = 2", changer=changer)
    table.clock.advance(1)
    lose_log(table)
    table.rebuild(decision="likely")
    assert table.ids() == [1, 2, 3, 9, 10]
