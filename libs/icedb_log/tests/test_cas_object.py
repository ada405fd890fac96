"""One object that is changed by compare-and-set: what a change is made of, and what is called refused."""

import pytest
from icedb_log.errors import CommitConflict, CommitOutcomeUnknown, InvalidRequest, Unavailable
from icedb_log.store.records import MAX_CHANGE_ATTEMPTS, CasObject, put_over
from icedb_sim.fakes.scripted_store import Effect, Fault
from icedb_sim.tables.small_table import SmallTable

KEY = "wh/t/_icedb/record"


@pytest.fixture
def thing():
    store = SmallTable().store
    store.calls.clear()
    return CasObject(store, KEY, decode=lambda stored: int(stored.body), encode=lambda number: b"%d" % number)


def plus_one(now):
    return (now or 0) + 1


def test_a_change_is_made_of_what_is_there(thing):
    assert thing.read() is None
    assert (thing.update(plus_one).state, thing.update(plus_one).state, thing.read()) == (1, 2, 2)
    nothing = thing.update(lambda now: now)
    assert (nothing.state, nothing.is_new) == (2, False)


def test_who_was_slower_changes_what_the_other_one_has_written(thing):
    thing.update(plus_one)
    thing.store.script = [Fault("put_if_match", None, KEY, before=lambda: thing.store.inner.put(KEY, b"10"))]
    assert (thing.update(plus_one).state, thing.read()) == (11, 11)


@pytest.mark.parametrize("effect", [Effect.LOSE_ANSWER, Effect.TRY_TWICE])
def test_w2_what_landed_without_an_answer_is_not_written_again(thing, effect):
    thing.update(plus_one)
    thing.store.script = [Fault("put_if_match", effect, KEY)]
    done = thing.update(plus_one)
    assert (done.state, done.is_new, thing.read()) == (2, True, 2)


def test_w2_what_may_land_yet_is_not_called_refused(thing):
    """The change is made of the same state once more, and is not to be made any more by then."""
    thing.update(plus_one)

    def only_once(now):
        if asked:
            raise InvalidRequest("not any more")
        asked.append(now)
        return now + 1

    asked = []
    thing.store.script = [Fault("put_if_match", Effect.DELAY, KEY)]
    with pytest.raises(CommitOutcomeUnknown):
        thing.update(only_once)
    asked.clear()
    other = Fault("put_if_match", Effect.DELAY, KEY, before=lambda: thing.store.inner.put(KEY, b"10"))
    thing.store.script = [other]
    with pytest.raises(InvalidRequest):
        thing.update(only_once)  # the state that it was written over is gone: it never lands
    thing.store.land_delayed()
    assert thing.read() == 10


@pytest.mark.parametrize(("effect", "error"), [(Effect.REFUSE, Unavailable), (Effect.DROP, CommitOutcomeUnknown)])
def test_tries_are_bounded(thing, effect, error):
    thing.update(plus_one)
    thing.store.script = [Fault("put_if_match", effect, KEY) for _ in range(MAX_CHANGE_ATTEMPTS)]
    with pytest.raises(error):
        thing.update(plus_one, gave_up=Unavailable)
    assert (thing.store.script, thing.read()) == ([], 1)
    thing.store.script = [Fault("put_if_match", Effect.REFUSE, KEY) for _ in range(MAX_CHANGE_ATTEMPTS)]
    with pytest.raises(CommitConflict, match=f"{KEY}: others changed it {MAX_CHANGE_ATTEMPTS} times"):
        thing.update(plus_one)


def test_steps_go_on_until_a_look_finds_nothing_to_change(thing):
    done = thing.update(lambda now: min(plus_one(now), 3), in_steps=True)
    assert (done.state, done.is_new, thing.read()) == (3, True, 3)
    assert len(thing.store.keys_of("put_if_absent", "put_if_match")) == 3
    assert thing.store.calls[-1].method == "get"


def test_what_is_likely_new_costs_one_request(thing):
    thing.update(plus_one, is_likely_new=True)
    assert [call.method for call in thing.store.calls] == ["put_if_absent"]
    assert thing.update(lambda now: now or 7, is_likely_new=True).state == 1


@pytest.mark.parametrize(
    ("effect", "landed"), [(None, True), (Effect.LOSE_ANSWER, True), (Effect.TRY_TWICE, True), (Effect.REFUSE, False)]
)
@pytest.mark.parametrize("is_first", [True, False])
def test_w2_a_state_that_is_written_over_is_found_by_its_bytes(thing, effect, landed, is_first):
    store = thing.store
    etag = None if is_first else store.inner.put(KEY, b"1")
    call = "put_if_absent" if is_first else "put_if_match"
    store.script = [] if effect is None else [Fault(call, effect, KEY)]
    found = put_over(store, KEY, b"2", etag=etag)
    assert found == (store.get(KEY).info.etag if landed else None)
    if landed:
        assert put_over(store, KEY, b"3", etag=etag) is None  # another state is there by now


def test_w2_a_state_that_may_be_written_over_yet_is_not_called_another_one(thing):
    store = thing.store
    etag = store.inner.put(KEY, b"1")
    store.script = [Fault("put_if_match", Effect.DELAY, KEY)]
    with pytest.raises(CommitOutcomeUnknown):
        put_over(store, KEY, b"2", etag=etag)
    store.script = [
        Fault("put_if_match", Effect.DROP, KEY),
        Fault("get", None, KEY, before=lambda: store.inner.delete([KEY])),
    ]
    assert put_over(store, KEY, b"2", etag=etag) is None  # nothing is written over what is gone
    store.script = [Fault("put_if_absent", Effect.DELAY, KEY)]
    with pytest.raises(CommitOutcomeUnknown):
        put_over(store, KEY, b"2", etag=None)
