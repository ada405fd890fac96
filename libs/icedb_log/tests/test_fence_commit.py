"""Commits under a fence: intent, log file, and what a lost answer means (F3, F4, W2, W3)."""

import pytest
from icedb_log.commit.fence import seal
from icedb_log.errors import (
    CommitConflict,
    CommitOutcomeUnknown,
    Fenced,
    InvalidRequest,
    InvariantViolated,
    Unavailable,
)
from icedb_log.model import LogFile
from icedb_log.store.records import MAX_SETTLE_ATTEMPTS
from icedb_sim.fakes.scripted_store import Effect, Fault
from icedb_sim.tables.log_views import live
from icedb_sim.tables.table_steps import FENCE, LOG, acquire, log_files, make_log, state_of


def test_f3_the_intent_is_written_before_the_log_file(table):
    fence = acquire(table)
    table.store.calls.clear()
    committed = fence.commit(make_log(table))
    assert table.store.keys_of("put_if_absent", "put_if_match") == [table.paths.fence_key("ingest"), committed.key]
    assert state_of(table).commit == committed.key


def test_f3_the_key_says_who_committed(table):
    log = make_log(table)
    assert acquire(table, "ingest").commit(log).key == table.paths.log_key(
        time_ms=log.time_ms, commit_id=log.commit_id, is_merged=False
    )
    assert "_m_" in acquire(table, "merge").commit(make_log(table)).key


def test_f3_an_owner_commits_as_often_as_it_likes(table):
    fence = acquire(table)
    for name in "abc":
        fence.commit(make_log(table, name))
    assert len(log_files(table)) == 3
    fence.release()
    assert state_of(table).commit is None
    fence.commit(make_log(table, "d"))


def test_f3_an_old_owner_is_fenced_at_its_intent(table):
    old = acquire(table)
    acquire(table, owner="new")
    with pytest.raises(Fenced, match="took the fence"):
        old.commit(make_log(table))
    assert log_files(table) == {}


def test_f3_an_old_owner_that_stalled_behind_its_intent_meets_the_seal(table):
    old = acquire(table)
    new = []
    table.store.script = [Fault("put_if_absent", None, LOG, before=lambda: new.append(acquire(table, owner="new")))]
    with pytest.raises(Fenced, match="sealed by a new owner"):
        old.commit(make_log(table, "old"))
    committed = new[0].commit(make_log(table, "new"))
    files = log_files(table)
    assert files[committed.key] == committed.log
    assert [log.is_seal for key, log in files.items() if key != committed.key] == [True]


def test_w2_a_commit_that_its_own_first_try_refuses_has_landed(table):
    table.store.script = [Fault("put_if_absent", Effect.TRY_TWICE, LOG)]
    committed = acquire(table).commit(make_log(table))
    assert log_files(table) == {committed.key: committed.log}


def test_w2_a_lost_answer_of_a_commit_that_landed_is_found_out(table):
    table.store.script = [Fault("put_if_absent", Effect.LOSE_ANSWER, LOG)]
    committed = acquire(table).commit(make_log(table))
    assert log_files(table) == {committed.key: committed.log}


@pytest.mark.parametrize("effect", [Effect.DROP, Effect.DELAY])
def test_w2_a_commit_that_did_not_arrive_is_sealed_and_certainly_refused(table, effect):
    table.store.script = [Fault("put_if_absent", effect, LOG)]
    fence = acquire(table)
    with pytest.raises(CommitConflict, match="did not reach the store and is sealed"):
        fence.commit(make_log(table))
    table.store.land_delayed()
    assert [log.is_seal for log in log_files(table).values()] == [True]
    fence.commit(make_log(table))  # the fence is still held


def test_w2_a_commit_that_lands_while_it_is_being_settled_has_landed(table):
    table.store.script = [
        Fault("put_if_absent", Effect.DELAY, LOG),
        Fault("put_if_absent", None, LOG, before=lambda: table.store.land_delayed()),
    ]
    committed = acquire(table).commit(make_log(table))
    assert log_files(table) == {committed.key: committed.log}


def test_w2_a_new_owner_may_settle_first(table):
    fence = acquire(table)
    table.store.script = [
        Fault("put_if_absent", Effect.DROP, LOG),
        Fault("get", None, LOG, before=lambda: acquire(table, owner="new")),
    ]
    with pytest.raises(Fenced, match="sealed by a new owner"):
        fence.commit(make_log(table))


def test_w2_without_any_answer_the_outcome_is_unknown(table):
    fence = acquire(table)
    table.store.script = [Fault("put_if_absent", Effect.LOSE_ANSWER, LOG)]
    table.store.script += [Fault("get", Effect.UNAVAILABLE, LOG) for _ in range(MAX_SETTLE_ATTEMPTS)]
    with pytest.raises(CommitOutcomeUnknown, match="no answer whether the commit"):
        fence.commit(make_log(table, "x"))
    # The next owner finds out: it landed.
    acquire(table)
    assert [log.markers for log in log_files(table).values()] == [(live("x"),)]


def test_w2_a_store_that_comes_back_while_settling_gives_the_answer(table):
    table.store.script = [Fault("put_if_absent", Effect.LOSE_ANSWER, LOG)]
    table.store.script += [Fault("get", Effect.UNAVAILABLE, LOG) for _ in range(MAX_SETTLE_ATTEMPTS - 1)]
    acquire(table).commit(make_log(table))


def test_w2_a_settling_seal_without_an_answer_leaves_the_outcome_unknown(table):
    fence = acquire(table)
    table.store.script = [Fault("put_if_absent", Effect.DROP, LOG) for _ in range(1 + MAX_SETTLE_ATTEMPTS)]
    with pytest.raises(CommitOutcomeUnknown):
        fence.commit(make_log(table))


def test_w2_a_settling_seal_whose_answer_got_lost_is_a_certain_refusal(table):
    fence = acquire(table)
    table.store.script = [Fault("put_if_absent", Effect.DROP, LOG), Fault("put_if_absent", Effect.LOSE_ANSWER, LOG)]
    with pytest.raises((CommitConflict, Fenced)):
        fence.commit(make_log(table))
    assert [log.is_seal for log in log_files(table).values()] == [True]


def test_w2_a_refused_commit_whose_key_is_empty_again_is_unknown(table):
    # It was refused, so something stood there; it is gone (merged and vacuumed, or a seal that grew old).
    fence = acquire(table)
    table.store.script = [Fault("put_if_absent", Effect.REFUSE, LOG)]
    with pytest.raises(CommitOutcomeUnknown):
        fence.commit(make_log(table))


@pytest.mark.parametrize("effect", [Effect.LOSE_ANSWER, Effect.TRY_TWICE])
def test_w2_an_intent_whose_answer_got_lost_is_found_out(table, effect):
    fence = acquire(table)
    table.store.script = [Fault("put_if_match", effect, FENCE)]
    committed = fence.commit(make_log(table))
    assert state_of(table).commit == committed.key
    fence.commit(make_log(table))


@pytest.mark.parametrize("effect", [Effect.DROP, Effect.DELAY])
def test_w2_an_intent_that_did_not_arrive_writes_no_log_file(table, effect):
    fence = acquire(table)
    table.store.script = [Fault("put_if_match", effect, FENCE)]
    with pytest.raises(CommitOutcomeUnknown, match=r"fence.*no answer whether it was written"):
        fence.commit(make_log(table))
    assert log_files(table) == {}
    table.store.land_delayed()
    assert acquire(table).epoch == 2
    acquire(table).commit(make_log(table))


def test_w2_a_lost_intent_under_a_new_owner_is_fenced(table):
    fence = acquire(table)
    table.store.script = [
        Fault("put_if_match", Effect.DROP, FENCE),
        Fault("get", None, FENCE, before=lambda: acquire(table, owner="new")),
    ]
    with pytest.raises(Fenced):
        fence.commit(make_log(table))
    assert log_files(table) == {}


def test_w2_an_intent_refused_without_a_reason_stops_the_owner(table):
    fence = acquire(table)
    table.store.script = [Fault("put_if_match", Effect.REFUSE, FENCE)]
    with pytest.raises(Fenced):
        fence.commit(make_log(table))
    assert log_files(table) == {}


def test_w2_an_intent_that_nobody_can_confirm_is_unknown(table):
    fence = acquire(table)
    table.store.script = [Fault("put_if_match", Effect.LOSE_ANSWER, FENCE)]
    table.store.script += [Fault("get", Effect.UNAVAILABLE, FENCE) for _ in range(MAX_SETTLE_ATTEMPTS)]
    with pytest.raises(CommitOutcomeUnknown):
        fence.commit(make_log(table))
    assert log_files(table) == {}


def test_a_fence_that_was_deleted_stops_the_owner(table):
    fence = acquire(table)
    table.store.delete([table.paths.fence_key("ingest")])
    with pytest.raises(Fenced):
        fence.commit(make_log(table))
    assert log_files(table) == {}


def test_no_two_fence_states_are_ever_equal(table):
    # An ETag follows from the content: an equal state would let an owner write over its successor's.
    bodies = []
    key = table.paths.fence_key("ingest")
    for _ in range(3):
        fence = acquire(table)
        bodies.append(table.store.get(key).body)
        for _ in range(2):
            fence.commit(make_log(table))
            bodies.append(table.store.get(key).body)
            fence.release()
            bodies.append(table.store.get(key).body)
    assert len(set(bodies)) == len(bodies)


def test_w3_the_last_check_comes_between_intent_and_put(table):
    fence = acquire(table)
    states = []

    def refuse():
        states.append(state_of(table).commit)
        raise Unavailable("too old")

    with pytest.raises(Unavailable, match="too old"):
        fence.commit(make_log(table), last_check=refuse)
    assert states[0].startswith(table.paths.log_prefix)
    assert log_files(table) == {}
    assert state_of(table).commit is None
    fence.commit(make_log(table), last_check=lambda: None)


def test_a_release_that_fails_is_harmless(table):
    fence = acquire(table)
    fence.commit(make_log(table))
    acquire(table, owner="new")
    fence.release()
    assert state_of(table).owner.startswith("new/")
    assert state_of(table).commit is None


def test_a_commit_without_an_id_is_refused_before_anything_is_written(table):
    fence = acquire(table)
    with pytest.raises(InvariantViolated, match="W2"):
        fence.commit(LogFile(1))
    assert state_of(table).commit is None


def test_a_time_beyond_thirteen_digits_is_refused_before_anything_is_written(table):
    fence = acquire(table)
    with pytest.raises(InvalidRequest, match="13 digits"):
        fence.commit(LogFile(10**13, commit_id="00"))
    assert state_of(table).commit is None


def test_f4_a_seal_is_an_empty_log_file_of_its_keys_time(table):
    key = table.paths.log_key(time_ms=5, commit_id="ab", is_merged=True)
    assert seal(table.store, key)
    assert not seal(table.store, key)
    assert log_files(table)[key] == LogFile(5, is_seal=True)
    assert len(table.view().files) == 1
