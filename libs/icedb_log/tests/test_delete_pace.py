"""How fast deletes go, which keys are sent again, and when a call gives up."""

import threading
from collections import Counter
from itertools import pairwise

import pytest
from icedb_log.errors import InvalidRequest, Unavailable
from icedb_log.store.deletes import (
    FIRST_PAUSE_MS,
    MAX_IN_FLIGHT,
    MAX_PAUSE_MS,
    MAX_TRIES,
    START_IN_FLIGHT,
    BatchAnswer,
    DeletePace,
    delete_in_batches,
)
from icedb_log.store.object_store import FailedDelete
from icedb_log.store.s3_quirks import read_delete_answer
from icedb_sim.fakes.fake_clock import FakeClock
from icedb_sim.fakes.store_acceptance import expect
from waiting import LIMIT_S

KEYS = [f"key/{number:06}" for number in range(20_000)]


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def pace(clock):
    return DeletePace(clock)


def climb(pace, answers):
    for _ in range(answers):
        pace.note_answer(pace.generation)
    return pace.limit


def test_a_pace_rises_by_one_a_round_and_stops_at_its_bound(pace):
    assert pace.limit == START_IN_FLIGHT
    limits = [climb(pace, 1) for _ in range(40)]
    assert limits[-1] == MAX_IN_FLIGHT
    assert all(0 <= later - earlier <= 1 for earlier, later in pairwise(limits))
    assert [limits.count(limit) for limit in range(3, MAX_IN_FLIGHT)] == sorted(
        limits.count(limit) for limit in range(3, MAX_IN_FLIGHT)
    )
    assert pace.wait_ms() == 0


def test_a_sign_of_overload_halves_the_pace_and_pauses_it(pace, clock):
    climb(pace, 100)
    sent = pace.generation
    assert pace.note_overload(sent)
    assert pace.limit == MAX_IN_FLIGHT // 2
    assert FIRST_PAUSE_MS // 2 <= pace.wait_ms() <= FIRST_PAUSE_MS
    # What was on its way already is the same sign, and its answers say nothing of the store as it is now.
    assert not pace.note_overload(sent)
    for _ in range(20):
        pace.note_answer(sent)
    assert pace.limit == MAX_IN_FLIGHT // 2
    clock.advance(FIRST_PAUSE_MS)
    assert pace.wait_ms() == 0


def test_pauses_double_up_to_a_bound_and_shrink_with_answers(pace, clock):
    pauses = []
    for _ in range(12):
        pace.note_overload(pace.generation)
        pauses.append(pace.wait_ms())
        clock.advance(pauses[-1])
    assert pace.limit == 1
    for number, pause_ms in enumerate(pauses):
        whole_ms = min(FIRST_PAUSE_MS << number, MAX_PAUSE_MS)
        assert whole_ms // 2 <= pause_ms <= whole_ms
    assert len(set(pauses[-4:])) > 1  # processes that were refused together come back apart
    climb(pace, 20)
    pace.note_overload(pace.generation)
    assert pace.wait_ms() <= FIRST_PAUSE_MS


class Store:
    """Answers requests by a rule; knows how many there were, and how many at once."""

    def __init__(self, rule=lambda number, batch: None):
        self.rule = rule
        self.sizes = []
        self.sent = Counter()
        self.most_at_once = self.at_once = 0
        self._lock = threading.Lock()

    def send(self, batch):
        with self._lock:
            self.sizes.append(len(batch))
            self.sent.update(batch)
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            answer = self.rule(len(self.sizes), batch)
        with self._lock:
            self.at_once -= 1
        return answer or BatchAnswer(())


def refuse(batch, kind="throttled", *, is_final=False):
    overload = kind if kind in ("throttled", "unanswered") else None
    return BatchAnswer([FailedDelete(key, f"says {kind}", kind) for key in batch], overload=overload, is_final=is_final)


def test_all_keys_go_by_as_few_requests_as_there_can_be(pace, clock):
    store = Store()
    report = delete_in_batches(KEYS, store.send, pace=pace, clock=clock)
    assert (report.deleted, report.failed) == (tuple(KEYS), ())
    assert store.sizes == [1000] * 20
    assert store.most_at_once <= MAX_IN_FLIGHT
    assert clock.monotonic_ms() == 0
    assert pace.limit > START_IN_FLIGHT


def test_requests_are_on_their_way_at_once(pace, clock):
    meeting = threading.Barrier(START_IN_FLIGHT)

    def send(batch):
        meeting.wait(LIMIT_S)
        return BatchAnswer(())

    assert delete_in_batches(KEYS, send, pace=pace, clock=clock).failed == ()


def test_nothing_to_delete_sends_nothing(pace, clock):
    store = Store()
    assert delete_in_batches([], store.send, pace=pace, clock=clock).deleted == ()
    assert store.sizes == []


def test_a_store_that_asks_for_patience_gets_it_and_then_everything_goes(pace, clock):
    climb(pace, 100)
    limits = []

    def rule(number, batch):
        limits.append(pace.limit)
        return refuse(batch) if clock.monotonic_ms() < 3000 else None

    store = Store(rule)
    report = delete_in_batches(KEYS, store.send, pace=pace, clock=clock)
    assert (report.deleted, report.failed) == (tuple(KEYS), ())
    assert clock.monotonic_ms() >= 3000
    assert len(store.sizes) <= 20 + MAX_IN_FLIGHT + MAX_TRIES["throttled"]
    assert (max(limits[:3]), min(limits)) == (MAX_IN_FLIGHT, 1)
    assert pace.limit > 1


def test_the_next_call_begins_as_slowly_as_the_last_one_ended(pace, clock):
    climb(pace, 100)
    store = Store(lambda number, batch: refuse(batch) if number <= 3 else None)
    assert delete_in_batches(KEYS[:10], store.send, pace=pace, clock=clock).failed == ()
    slow = pace.limit
    assert slow < MAX_IN_FLIGHT // 2
    at_first = []
    store = Store(lambda number, batch: at_first.append(pace.limit))
    delete_in_batches(KEYS, store.send, pace=pace, clock=clock)
    assert at_first[0] == slow


@pytest.mark.parametrize("kind", ["throttled", "unanswered"])
@pytest.mark.parametrize("count", [10, 20_000])
def test_a_store_that_never_answers_is_given_up_soon(pace, clock, kind, count):
    climb(pace, 100)
    store = Store(lambda number, batch: refuse(batch, kind))
    keys = KEYS[:count]
    if kind == "unanswered":
        assert "says unanswered" in str(
            expect(Unavailable, lambda: delete_in_batches(keys, store.send, pace=pace, clock=clock))
        )
    else:
        report = delete_in_batches(keys, store.send, pace=pace, clock=clock)
        assert report.deleted == ()
        assert [(each.key, each.kind) for each in report.failed] == [(key, kind) for key in keys]
    assert MAX_TRIES[kind] <= len(store.sizes) <= MAX_TRIES[kind] + 2 * MAX_IN_FLIGHT
    assert clock.monotonic_ms() <= FIRST_PAUSE_MS << MAX_TRIES[kind]


def test_single_keys_are_sent_again_a_few_times_and_keep_no_other_from_going(pace, clock):
    bad = {
        KEYS[5]: "throttled",
        KEYS[1005]: "unanswered",
        KEYS[2005]: "ignored",
        KEYS[2006]: "denied",
        KEYS[7]: "other",
    }

    def rule(number, batch):
        failed = [FailedDelete(key, "why", bad[key]) for key in batch if key in bad]
        return BatchAnswer(failed, overload="throttled" if KEYS[5] in batch else None)

    store = Store(rule)
    report = delete_in_batches(KEYS[:3000], store.send, pace=pace, clock=clock)
    assert {each.key: each.kind for each in report.failed} == bad
    assert len(report.deleted) == 3000 - len(bad)
    assert {key: count for key, count in store.sent.items() if count > 1} == {
        key: MAX_TRIES[kind] for key, kind in bad.items() if kind in MAX_TRIES
    }


def test_keys_that_go_at_the_second_try_are_deleted(pace, clock):
    seen = set()

    def rule(number, batch):
        fresh = [key for key in batch if key not in seen]
        seen.update(batch)
        return BatchAnswer([FailedDelete(key, "not yet", "ignored") for key in fresh[::100]])

    report = delete_in_batches(KEYS[:5000], Store(rule).send, pace=pace, clock=clock)
    assert (report.deleted, report.failed) == (tuple(KEYS[:5000]), ())


def test_after_a_final_answer_nothing_more_is_sent(pace, clock):
    store = Store(lambda number, batch: refuse(batch, "denied", is_final=True))
    report = delete_in_batches(KEYS, store.send, pace=pace, clock=clock)
    assert len(store.sizes) <= START_IN_FLIGHT
    assert [each.kind for each in report.failed] == ["denied"] * len(KEYS)
    store = Store(lambda number, batch: refuse(batch, "denied", is_final=True) if number == 5 else None)
    report = delete_in_batches(KEYS, store.send, pace=pace, clock=clock)
    assert len(report.deleted) >= 4000
    assert len(report.deleted) + len(report.failed) == len(KEYS)


def test_what_was_on_its_way_when_the_call_gave_up_is_not_sent_again(pace, clock):
    has_ended = threading.Event()

    def rule(number, batch):
        return refuse(batch, "denied", is_final=True) if KEYS[0] in batch else refuse(batch, "ignored")

    class SlowPace(DeletePace):
        def note_answer(self, generation):
            has_ended.set()

    def send(batch):
        if KEYS[0] not in batch:
            assert has_ended.wait(LIMIT_S)
        return store.send(batch)

    store = Store(rule)
    report = delete_in_batches(KEYS[:2000], send, pace=SlowPace(clock), clock=clock)
    assert store.sizes == [1000, 1000]
    assert Counter(each.kind for each in report.failed) == {"denied": 1000, "ignored": 1000}


def test_an_error_of_the_call_itself_comes_through(pace, clock):
    def rule(number, batch):
        raise InvalidRequest("no such address")

    for keys in (KEYS[:1], KEYS):
        expect(InvalidRequest, lambda keys=keys: delete_in_batches(keys, Store(rule).send, pace=pace, clock=clock))


def entries(*keys, **more):
    return [{"Key": key, **more} for key in keys]


def kinds(answer):
    return {each.key: each.kind for each in answer.failed}


def test_only_a_key_that_the_answer_names_is_gone():
    read = read_delete_answer(["a", "b"], {"Deleted": entries("a")}, where="bucket x")
    assert kinds(read) == {"b": "ignored"}
    assert "bucket x" in read.failed[0].reason
    assert read.overload is None
    assert kinds(read_delete_answer(["a", "b"], {}, where="")) == {"a": "ignored", "b": "ignored"}
    marked = {"Deleted": entries("a", DeleteMarker=True, DeleteMarkerVersionId="7")}
    assert kinds(read_delete_answer(["a"], marked, where="")) == {}


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("AccessDenied", "denied"),
        ("SlowDown", "throttled"),
        ("ServiceUnavailable", "throttled"),
        ("InternalError", "unanswered"),
        ("MalformedXML", "other"),
        ("", "other"),
    ],
)
def test_the_error_of_a_key_has_a_kind(code, kind):
    answer = {"Deleted": entries("a", "c"), "Errors": entries("c", Code=code, Message="words")}
    read = read_delete_answer(["a", "c"], answer, where="")
    assert kinds(read) == {"c": kind}
    assert "words" in read.failed[0].reason
    assert read.overload == ("throttled" if kind == "throttled" else None)


def test_what_is_not_there_is_gone_and_an_error_without_a_key_is_everybodys():
    assert kinds(read_delete_answer(["a"], {"Errors": entries("a", Code="NoSuchKey")}, where="")) == {}
    answer = {"Deleted": entries("a"), "Errors": entries("", Code="ServiceUnavailable")}
    assert kinds(read_delete_answer(["a", "b"], answer, where="")) == {"b": "throttled"}
