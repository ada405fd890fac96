"""The fence: F1 to F4, W2, and the three outcomes of a commit, fault by fault."""

from dataclasses import replace

import orjson
import pytest
from icedb_log.commit.fence import MAX_ACQUIRE_ATTEMPTS, acquire_fence, settle_fence
from icedb_log.errors import (
    CorruptLog,
    Fenced,
    NotFound,
    Unavailable,
)
from icedb_log.store.table_store import TableStore
from icedb_sim.fakes.scripted_store import Crash, Effect, Fault
from icedb_sim.tables.small_table import SmallTable
from icedb_sim.tables.table_steps import FENCE, LOG, acquire, log_files, make_log, state_of

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
        acquire_fence(replace(table.known("me"), patience_ms=0), "ingest")
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
    for settle in (acquire, lambda table: settle_fence(table, "ingest")):
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
    settle_fence(table, "ingest")
    settle_fence(table, "merge")
    assert log_files(table) == {}
    table.store.script = [
        Fault(
            "put_if_absent",
            None,
            LOG,
            before=lambda: settle_fence(TableStore(table.store.inner, table.paths), "ingest"),
        )
    ]
    with pytest.raises(Fenced, match="sealed"):
        owner.commit(make_log(table))
    owner.commit(make_log(table, "y"))
    settle_fence(table, "ingest")
    assert [log.is_seal for log in log_files(table).values()] == [True, False]


# -- F3: commit
