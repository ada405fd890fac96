"""Leases around reads: when one is taken, how it is renewed, when it counts as lost."""

from dataclasses import replace

import pytest
from icedb_client.read_leases import (
    SLOW_BYTES_PER_S,
    ReadLease,
    hold_while_reading,
    may_take_long,
    take_hold,
    take_lease,
)
from icedb_client.requests import LeaseInfo, TableInfo
from icedb_log.errors import BelowHorizon, NotFound, PermissionDenied, Unavailable

MINUTE_MS = 60_000


class Answers:
    """Answers requests about leases, or raises what it is told to."""

    def __init__(self, clock, *, data_grace_ms=10 * MINUTE_MS):
        self.clock = clock
        self.asked = []
        self.failure = None
        self.data_grace_ms = data_grace_ms
        self.newest = None
        self.held_ms = []

    def __getattr__(self, name):
        def answer(table, *given, **more):
            self.asked.append(name)
            if self.failure is not None:
                raise self.failure
            return getattr(self, f"_{name}")(table, *given, **more)

        return answer

    def _table(self, table):
        return TableInfo(table, {}, (), (), self.data_grace_ms, self.data_grace_ms)

    def _acquire_lease(self, table, *, ttl_ms, at_ms):
        self.held_ms.append(at_ms)
        return LeaseInfo(table, "l1", at_ms or self.clock.ms, self.clock.ms + ttl_ms)

    def _renew_lease(self, table, lease_id, *, ttl_ms):
        return LeaseInfo(table, lease_id, 0, self.clock.ms + ttl_ms)

    def _release_lease(self, table, lease_id):
        return None

    def _snapshot(self, request):
        return self.newest


@pytest.fixture
def answers(clock):
    return Answers(clock)


@pytest.fixture
def lease(answers, clock):
    info = answers.acquire_lease("events", ttl_ms=MINUTE_MS, at_ms=None)
    return ReadLease(answers, info, ttl_ms=MINUTE_MS, asked_ms=clock.monotonic_ms(), clock=clock)


def test_a_lease_is_good_until_its_time_is_over(lease, clock):
    clock.ms += MINUTE_MS - 1
    lease.check()
    lease.renew()
    clock.ms += MINUTE_MS - 1
    lease.check()
    clock.ms += 1
    for _ in range(2):
        with pytest.raises(Unavailable, match=r"lease l1.*lost \(it could not be renewed in time\).*read again"):
            lease.check()
    lease.renew()
    with pytest.raises(Unavailable):
        lease.check()  # what was lost once stays lost: files may have gone meanwhile


def test_the_time_of_a_lease_counts_from_when_it_was_asked_for(answers, clock, monkeypatch):
    acquire = answers._acquire_lease

    def acquire_slowly(table, **how):
        clock.ms += 10_000
        return acquire(table, **how)

    monkeypatch.setattr(answers, "_acquire_lease", acquire_slowly)
    lease = take_lease(answers, "events", at_ms=None, ttl_ms=MINUTE_MS, clock=clock)
    clock.ms += MINUTE_MS - 10_000
    with pytest.raises(Unavailable, match="could not be renewed in time"):
        lease.check()
    lease.close()


def test_a_store_that_is_away_for_a_while_loses_nothing(lease, answers, clock):
    answers.failure = Unavailable("away")
    clock.ms += MINUTE_MS // 2
    lease.renew()
    lease.check()
    answers.failure = None
    lease.renew()
    clock.ms += MINUTE_MS // 2 + 1
    lease.check()


def test_a_lease_that_has_ended_is_lost_at_once(lease, answers):
    answers.failure = NotFound("it has ended")
    lease.renew()
    with pytest.raises(Unavailable, match="it has ended"):
        lease.check()


def test_it_is_renewed_in_the_background_and_released_once(answers, clock):
    lease = take_lease(answers, "events", at_ms=None, ttl_ms=30, clock=clock)
    while "renew_lease" not in answers.asked:
        lease._ended.wait(0.001)
    lease.close()
    lease.close()
    assert not lease._thread.is_alive()
    assert answers.asked.count("release_lease") == 1
    assert answers.asked[-1] == "release_lease"


def test_a_lease_that_cannot_be_released_ends_by_itself(answers, clock):
    lease = take_lease(answers, "events", at_ms=None, clock=clock)
    answers.failure = Unavailable("away")
    lease.close()


@pytest.fixture
def snapshot(client, create, answers):
    create()

    class Files:
        size_bytes = 0

    answers.newest = replace(client.snapshot("events"), answerer=answers, files=Files(), last_commit_ms=5)
    return answers.newest


def test_short_reads_take_none(snapshot, answers):
    with take_hold(snapshot) as hold:
        assert hold is None
    assert answers.asked == []


@pytest.mark.parametrize(("minutes", "takes"), [(2, False), (4, False), (6, True), (600, True)])
def test_reads_that_may_outlast_half_the_grace_period_take_one(snapshot, answers, minutes, takes):
    snapshot.files.size_bytes = minutes * 60 * SLOW_BYTES_PER_S
    assert may_take_long(snapshot) is takes
    with hold_while_reading(snapshot):
        assert ("acquire_lease" in answers.asked) is takes
    assert ("release_lease" in answers.asked) is takes


def test_a_commit_of_long_ago_is_held_from_now_on_and_one_that_was_overtaken_from_its_own_time(snapshot, answers):
    snapshot.files.size_bytes = 600 * 60 * SLOW_BYTES_PER_S
    with hold_while_reading(snapshot):
        assert answers.held_ms == [None]
    answers.newest = replace(snapshot, snapshot_id="another")
    with hold_while_reading(snapshot):
        assert answers.held_ms == [None, None, 5]
    assert answers.asked.count("release_lease") == answers.asked.count("acquire_lease")


@pytest.mark.parametrize("failure", [BelowHorizon("too late"), PermissionDenied("no"), Unavailable("away")])
def test_a_lease_that_cannot_be_had_does_not_stop_a_read(snapshot, answers, failure):
    snapshot.files.size_bytes = 600 * 60 * SLOW_BYTES_PER_S
    answers.failure = failure
    with hold_while_reading(snapshot):
        assert "acquire_lease" in answers.asked


def test_a_read_goes_by_the_lease_that_its_snapshot_has(snapshot, lease, answers, clock):
    held = replace(snapshot, hold=lease)
    with hold_while_reading(held):
        pass
    assert "release_lease" not in answers.asked
    with pytest.raises(Unavailable), hold_while_reading(held):
        clock.ms += MINUTE_MS  # while it is read: what was read may not be all
    with pytest.raises(Unavailable), hold_while_reading(held):
        raise AssertionError("not reached")
