"""The fence: F1 to F4, W2, and the three outcomes of a commit, fault by fault."""

import orjson
import pytest
from icedb_log.errors import (
    CommitConflict,
    CommitOutcomeUnknown,
    CorruptLog,
    Fenced,
    InvalidRequest,
    InvariantViolated,
    NotFound,
    Unavailable,
)
from icedb_log.log.codec import decode_log_file
from icedb_log.log.fence import MAX_ACQUIRE_ATTEMPTS, MAX_SETTLE_ATTEMPTS, acquire_fence, read_fence, seal, settle_fence
from icedb_log.model import LogFile
from icedb_log.testing.log_views import live
from icedb_log.testing.scripted_store import Crash, Effect, Fault
from icedb_log.testing.small_table import SmallTable

FENCE = "/_icedb/fence/"
LOG = "/_log/"


@pytest.fixture
def table():
    return SmallTable()


def acquire(table, role="ingest", owner="me"):
    return acquire_fence(table.store, table.paths, role, owner=owner, clock=table.clock)


def make_log(table, name="x"):
    return LogFile(table.clock.now_ms(), {}, (live(name),), commit_id=table.clock.new_id())


def state_of(table, role="ingest"):
    return read_fence(table.store.inner, table.paths.fence_key(role))[0]


def log_files(table):
    return {key: decode_log_file(key, body) for key, body in table.log_objects()}


# -- F1: acquire


def test_f1_the_first_owner_makes_the_fence(table):
    fence = acquire(table)
    assert (fence.epoch, state_of(table).commit) == (1, None)
    assert state_of(table).owner.startswith("me/")


def test_f1_each_acquisition_grows_the_epoch_and_names_another_owner(table):
    owners = set()
    for epoch in range(1, 5):
        assert acquire(table).epoch == epoch
        owners.add(state_of(table).owner)
    assert len(owners) == 4


def test_f1_roles_have_fences_of_their_own(table):
    ingest = acquire(table, "ingest")
    assert acquire(table, "merge").epoch == 1
    ingest.commit(make_log(table))


def test_f1_an_intent_whose_commit_never_came_is_sealed(table):
    old = acquire(table)
    log = make_log(table)
    table.store.script = [Fault("put_if_absent", Effect.CRASH_BEFORE, LOG)]
    with pytest.raises(Crash):
        old.commit(log)
    key = state_of(table).commit
    acquire(table)
    assert log_files(table)[key].is_seal
    assert state_of(table).commit is None
    # F4: the request that was still in flight is stopped by the seal.
    with pytest.raises(Exception, match="exists already"):
        table.store.put_if_absent(key, b"late")


def test_f1_an_intent_whose_commit_landed_is_left_as_it_is(table):
    old = acquire(table)
    log = make_log(table)
    table.store.script = [Fault("put_if_absent", Effect.CRASH_AFTER, LOG)]
    with pytest.raises(Crash):
        old.commit(log)
    acquire(table)
    assert list(log_files(table).values()) == [log]


def test_f1_the_intent_is_settled_before_the_fence_changes_hands(table):
    old = acquire(table)
    table.store.script = [Fault("put_if_absent", Effect.CRASH_BEFORE, LOG)]
    with pytest.raises(Crash):
        old.commit(make_log(table))
    key = state_of(table).commit
    table.store.calls.clear()
    acquire(table)
    written = table.store.keys_of("put_if_absent", "put_if_match")
    assert written == [key, table.paths.fence_key("ingest")]


def test_f1_an_intent_that_cannot_be_settled_is_not_passed_over(table):
    old = acquire(table)
    table.store.script = [Fault("put_if_absent", Effect.CRASH_BEFORE, LOG)]
    with pytest.raises(Crash):
        old.commit(make_log(table))
    before = state_of(table)
    table.store.script = [Fault("put_if_absent", Effect.DROP, LOG) for _ in range(MAX_ACQUIRE_ATTEMPTS)]
    with pytest.raises(Unavailable):
        acquire(table)
    assert state_of(table) == before
    assert acquire(table).epoch == before.epoch + 1


def test_f1_a_seal_whose_answer_got_lost_is_found_on_the_next_try(table):
    old = acquire(table)
    table.store.script = [Fault("put_if_absent", Effect.CRASH_BEFORE, LOG)]
    with pytest.raises(Crash):
        old.commit(make_log(table))
    table.store.script = [Fault("put_if_absent", Effect.LOSE_ANSWER, LOG)]
    assert acquire(table).epoch == 2
    assert [log.is_seal for log in log_files(table).values()] == [True]


def test_f1_whoever_loses_the_race_for_the_fence_starts_again(table):
    acquire(table)
    table.store.script = [Fault("put_if_match", None, FENCE, before=lambda: acquire(table, owner="other"))]
    assert acquire(table).epoch == 3


def test_f1_the_loser_of_a_race_settles_what_the_winner_began(table):
    acquire(table)
    taken = []

    def other_takes_it_and_dies():
        other = acquire(table, owner="other")
        table.store.script.append(Fault("put_if_absent", Effect.CRASH_BEFORE, LOG))
        with pytest.raises(Crash):
            other.commit(make_log(table))
        taken.append(state_of(table).commit)

    table.store.script = [Fault("put_if_match", None, FENCE, before=other_takes_it_and_dies)]
    assert acquire(table).epoch == 3
    assert log_files(table)[taken[0]].is_seal


def test_f1_two_first_owners_do_not_both_get_the_fence(table):
    table.store.script = [Fault("put_if_absent", None, FENCE, before=lambda: acquire(table, owner="other"))]
    assert acquire(table).epoch == 2


def test_f1_a_fence_that_others_keep_taking_is_unavailable_in_the_end(table):
    acquire(table)
    inner = SmallTable(store=table.store.inner, name="other")
    inner.paths = table.paths

    def steal():
        acquire(inner, owner="other")

    table.store.script = [Fault("put_if_match", None, FENCE, before=steal) for _ in range(99)]
    with pytest.raises(Unavailable, match="taken by others 20 times"):
        acquire(table)
    assert 99 - len(table.store.script) == MAX_ACQUIRE_ATTEMPTS


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("effect", [Effect.LOSE_ANSWER, Effect.TRY_TWICE, Effect.DROP, Effect.DELAY])
def test_w2_an_acquisition_whose_answer_got_lost_ends_with_one_owner(table, effect, is_first):
    if not is_first:
        acquire(table, owner="before")
    method = "put_if_absent" if is_first else "put_if_match"
    table.store.script = [Fault(method, effect, FENCE)]
    fence = acquire(table)
    assert state_of(table).owner.startswith("me/")
    assert state_of(table).epoch == fence.epoch
    table.store.land_delayed()
    assert state_of(table).epoch == fence.epoch
    fence.commit(make_log(table))


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b"x", b'{"epoch":"x","owner":"a"}', b'{"epoch":1,"owner":"a","commit":5}']
)
def test_a_fence_that_is_none_halts_and_is_not_overwritten(table, body):
    table.store.put(table.paths.fence_key("ingest"), body)
    with pytest.raises(CorruptLog, match=r"fence/ingest\.json: not a fence"):
        acquire(table)
    assert table.store.get(table.paths.fence_key("ingest")).body == body


def test_a_fence_that_names_no_log_file_of_the_table_seals_nothing(table):
    body = orjson.dumps({"epoch": 1, "owner": "a", "commit": "wh/other/_log/0000000000001_00.jsonl", "sequence": 1})
    table.store.put(table.paths.fence_key("ingest"), body)
    for settle in (acquire, lambda table: settle_fence(table.store, table.paths, "ingest")):
        with pytest.raises(CorruptLog, match="wh/other"):
            settle(table)
    with pytest.raises(NotFound):
        table.store.get("wh/other/_log/0000000000001_00.jsonl")


def test_an_unavailable_store_is_reported_by_acquire(table):
    table.store.script = [Fault("get", Effect.UNAVAILABLE, FENCE)]
    with pytest.raises(Unavailable):
        acquire(table)


def test_j5_settling_takes_only_the_commit_under_way_from_the_owner(table):
    owner = acquire(table)
    settle_fence(table.store, table.paths, "ingest")
    settle_fence(table.store, table.paths, "merge")
    assert log_files(table) == {}
    table.store.script = [
        Fault("put_if_absent", None, LOG, before=lambda: settle_fence(table.store.inner, table.paths, "ingest"))
    ]
    with pytest.raises(Fenced, match="sealed"):
        owner.commit(make_log(table))
    owner.commit(make_log(table, "y"))
    settle_fence(table.store, table.paths, "ingest")
    assert [log.is_seal for log in log_files(table).values()] == [True, False]


# -- F3: commit


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
    with pytest.raises(CommitOutcomeUnknown, match="whether the fence was written"):
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
