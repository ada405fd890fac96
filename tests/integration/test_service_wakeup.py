"""Wake-ups over a real Redis: duplicates collapse, lost ones come again."""

from contextlib import closing
from datetime import datetime

import orjson
import pytest
from icedb_log.clock import SystemClock
from icedb_log.errors import Unavailable
from icedb_log.names import INGEST_FLUSH, INGEST_SWEEP, MERGE_MERGE, wake_key
from icedb_log.store.store_clock import MAX_HOST_GAP_MS
from icedb_service.celery_app import make_app
from icedb_service.metrics import WAKE_OUTCOMES, MetricMaker, make_registry
from icedb_service.redis_clients import open_redis
from icedb_service.settings import ServiceSettings
from icedb_service.wakeup import LOOK_PREFIX, TABLE_PREFIX, Wakeups
from icedb_sim.rigs.redis_server import RedisServer
from waiting import LIMIT_MS, wait_until

pytestmark = pytest.mark.redis

EXPIRY_MS = 60_000


@pytest.fixture
def server():
    with RedisServer() as running:
        yield running


@pytest.fixture
def redis(server, request):
    client = open_redis(server.url, timeout_ms=getattr(request, "param", LIMIT_MS))
    yield client
    client.close()


@pytest.fixture
def counter():
    return MetricMaker(make_registry()).counter("icedb_ingest_wakes_total", "x", outcome=WAKE_OUTCOMES)


@pytest.fixture
def wakeups(server, redis, counter):
    settings = ServiceSettings(
        store="file:///tmp/w",
        redis_url=server.url,
        message_expiry_ms=EXPIRY_MS,
        ingest_sweep_interval_ms=500,
        merge_sweep_interval_ms=500,
        janitor_sweep_interval_ms=500,
    )
    app = make_app(settings)
    yield Wakeups(app, redis, settings=settings, counter=counter)
    app.close()


def counted(counter):
    return {value: counter.labels(value)._value.get() for value in WAKE_OUTCOMES}


def test_a_wake_up_is_one_message_in_its_queue_and_duplicates_collapse(wakeups, redis, counter):
    assert wakeups.wake(INGEST_FLUSH, "events") is True
    assert wakeups.wake(INGEST_FLUSH, "events") is False
    assert wakeups.wake(INGEST_FLUSH, "other") is True
    assert wakeups.wake(INGEST_SWEEP) is True
    assert redis.llen("ingest") == 3
    assert counted(counter) == {"sent": 3, "collapsed": 1, "failed": 0}


def test_after_the_task_began_the_next_wake_up_goes_through(wakeups, redis):
    wakeups.wake(INGEST_FLUSH, "events")
    wakeups.release(INGEST_FLUSH, "events")
    assert wakeups.wake(INGEST_FLUSH, "events") is True
    assert redis.llen("ingest") == 2


def test_a_wake_up_that_nobody_took_in_expires_with_its_message(wakeups, redis):
    wakeups.wake(INGEST_FLUSH, "events")
    assert 0 < redis.pttl(wake_key(INGEST_FLUSH, "events")) <= EXPIRY_MS
    redis.pexpire(wake_key(INGEST_FLUSH, "events"), 1)  # its time is over
    wait_until(lambda: wakeups.wake(INGEST_FLUSH, "events"), "the next one is sent")


def test_a_worker_whose_clock_is_minutes_ahead_takes_a_wake_up(wakeups, redis):
    """When a message ends is a time of the sender's clock, and Celery compares it with the worker's own."""
    before_ms = SystemClock().now_ms()
    wakeups.wake(INGEST_FLUSH, "events")
    message = orjson.loads(redis.lindex("ingest", 0))
    expires_ms = datetime.fromisoformat(message["headers"]["expires"]).timestamp() * 1000
    assert expires_ms >= before_ms + EXPIRY_MS + MAX_HOST_GAP_MS


def test_a_message_that_could_not_be_sent_does_not_hold_back_the_next(wakeups, server, redis):
    with RedisServer() as broken:
        broker_url = broken.url
    settings = ServiceSettings(store="file:///tmp/w", redis_url=broker_url)
    app = make_app(settings)
    with pytest.raises(Unavailable):
        Wakeups(app, redis, settings=settings).wake(INGEST_FLUSH, "events")
    app.close()
    assert wakeups.wake(INGEST_FLUSH, "events") is True


@pytest.mark.parametrize("redis", [1000], indirect=True)
def test_a_key_that_a_frozen_redis_sets_late_holds_back_nothing(wakeups, server, redis):
    """What was sent to it before it was given up is carried out when it goes on: seen as a minute without sweeps."""
    server.freeze()
    with pytest.raises(Unavailable):
        wakeups.wake(INGEST_SWEEP)
    wakeups.release(INGEST_FLUSH, "events")
    server.thaw()
    with closing(open_redis(server.url, timeout_ms=LIMIT_MS)) as patient:
        wakeups._redis = patient  # it answers again, however late
        for late in (wake_key(INGEST_SWEEP, None), wake_key(INGEST_FLUSH, "events")):
            patient.set(late, "1", px=60_000)
        assert wakeups.wake(INGEST_SWEEP) is True
        assert wakeups.wake(INGEST_SWEEP) is False
        wakeups.release(INGEST_SWEEP)
        assert wakeups.wake(INGEST_FLUSH, "events") is True
        assert wakeups.wake(INGEST_FLUSH, "events") is False


def test_a_worker_that_starts_frees_what_a_killed_one_held_back(wakeups):
    wakeups.wake(INGEST_FLUSH, "events")
    wakeups.wake(INGEST_SWEEP)
    wakeups.wake(MERGE_MERGE, "events")
    assert wakeups.release_queue("ingest") == 2
    assert wakeups.release_queue("ingest") == 0
    assert wakeups.wake(INGEST_FLUSH, "events") is True
    assert wakeups.wake(MERGE_MERGE, "events") is False


def test_workers_tell_each_other_when_the_next_commit_of_a_table_is_due(wakeups):
    assert wakeups.turn_in_ms("events") == 0
    wakeups.note_turn("events", next_in_ms=60_000)
    assert 0 < wakeups.turn_in_ms("events") <= 60_000
    assert wakeups.turn_in_ms("other") == 0


def test_without_redis_the_caller_is_told_and_may_go_on(wakeups, server, redis, counter):
    server.stop()
    with pytest.raises(Unavailable, match=rf"Redis at redis://127.0.0.1:{server.port}/0 does not answer"):
        wakeups.wake(INGEST_FLUSH, "events")
    assert wakeups.try_wake(INGEST_FLUSH, "events") is False
    wakeups.release(INGEST_FLUSH, "events")
    wakeups.announce_commit("events")
    wakeups.note_turn("events", next_in_ms=60_000)
    assert wakeups.turn_in_ms("events") == 0
    server.start()
    assert wakeups.wake(INGEST_FLUSH, "events") is True
    assert redis.llen("ingest") == 1
    assert counted(counter) == {"sent": 1, "collapsed": 0, "failed": 2}


def test_workers_share_looks_and_what_they_know_of_tables(wakeups, server, redis):
    assert wakeups.claim_look("icedb.ingest.flush:events", 60_000) is True
    assert wakeups.claim_look("icedb.ingest.flush:events", 60_000) is False
    assert wakeups.claim_look("icedb.ingest.flush:other", 60_000) is True
    redis.pexpire(f"{LOOK_PREFIX}icedb.ingest.flush:events", 1)
    wait_until(lambda: wakeups.claim_look("icedb.ingest.flush:events", 60_000), "the pause is over")
    wakeups.note_tables(["a", "b"], for_ms=60_000)
    assert wakeups.find_tables(["a", "b", "c"]) == ["a", "b"]
    wakeups.forget_table("a")
    assert wakeups.find_tables(["a", "b", "c"]) == ["b"]
    assert 0 < redis.pttl(f"{TABLE_PREFIX}b") <= 60_000
    server.stop()
    assert wakeups.claim_look("icedb.ingest.flush:more", 60_000) is None
    wakeups.note_tables(["c"], for_ms=60_000)
    wakeups.forget_table("c")
    assert not wakeups.find_tables(["b"])
