"""Locks on three real Redis masters: what they survive, and what they notice."""

import threading
from contextlib import ExitStack

import pytest
from icedb_log.clock import SystemClock
from icedb_log.errors import Fenced, Unavailable
from icedb_service import redis_clients
from icedb_service.redis_clients import LockBusy, LockLost, TableLock, open_redis
from icedb_sim.fakes.manual_clock import ManualClock
from icedb_sim.rigs.redis_server import RedisServer
from waiting import LIMIT_MS, wait_until

pytestmark = pytest.mark.redis

CLOCK = SystemClock()
TTL_MS = 300_000
"""Of locks that have to last, on a machine however busy."""
RENEWAL_MS = 100
TIMEOUT_MS = 100
"""Of masters that never answer."""


@pytest.fixture(autouse=True)
def _often_renewed(monkeypatch):
    monkeypatch.setattr(redis_clients, "RENEWALS_PER_TTL", TTL_MS / RENEWAL_MS)


@pytest.fixture(scope="module")
def servers():
    with ExitStack() as stack:
        yield [stack.enter_context(RedisServer()) for _ in range(3)]


@pytest.fixture
def failures():
    """One for each request that a master did not answer."""
    return []


@pytest.fixture
def connect(servers, failures):
    """Connects to all masters."""
    clients = []

    def connect(*silent):
        """Each but the silent ones is waited for, however busy the machine is."""
        made = [
            open_redis(
                each.url,
                timeout_ms=TIMEOUT_MS if each in silent else LIMIT_MS,
                on_failure=lambda: failures.append(1),
            )
            for each in servers
        ]
        clients.extend(made)
        return made

    yield connect
    for client in clients:
        client.close()


@pytest.fixture
def masters(servers, connect):
    for server in servers:
        server.thaw()
        server.stop()
        server.start()
    return connect()


def make_lock(masters, name="merge:events", ttl_ms=TTL_MS):
    return TableLock(masters, name, ttl_ms=ttl_ms, clock=CLOCK)


def find_key(masters):
    """Return the key of the only lock once each master knows it: it is taken when most of them do."""
    return wait_until(lambda: all(master.dbsize() for master in masters) and masters[0].keys()[0])


def wait_for_renewals(lock, *, count=2):
    """Wait until the lock was renewed, however long that takes on a busy machine; it must not be lost meanwhile."""
    for _ in range(count):
        before_ms = lock._valid_until_ms
        wait_until(lambda before_ms=before_ms: lock.check_alive() or lock._valid_until_ms > before_ms, "a renewal")


def is_lost(lock):
    try:
        lock.check_alive()
    except LockLost:
        return True
    return False


def test_two_holders_exclude_each_other_and_hand_over(masters, connect):
    with make_lock(masters):
        others = connect()
        with pytest.raises(LockBusy), make_lock(others):
            pytest.fail("two holders")
        with make_lock(others, "merge:other"):
            pass
    with make_lock(others) as lock:
        lock.check_alive()


def test_of_many_that_ask_at_once_at_most_one_holds(masters):
    inside, most, lock = [0], [0], threading.Lock()
    start = threading.Barrier(8)

    def work():
        start.wait()
        try:
            with make_lock(masters):
                with lock:
                    inside[0] += 1
                    most[0] = max(most[0], inside[0])
                CLOCK.sleep_ms(50)
                with lock:
                    inside[0] -= 1
        except LockBusy:
            pass

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most[0] <= 1
    with make_lock(masters) as held:
        held.check_alive()


def test_the_lock_is_renewed_for_as_long_as_it_is_held(masters):
    """Whatever is left of it, a renewal gives it its whole time again."""
    with make_lock(masters) as lock:
        key = find_key(masters)
        for _ in range(3):
            for master in masters:
                master.pexpire(key, TTL_MS // 2)
            wait_until(lambda: all(master.pttl(key) > TTL_MS * 0.6 for master in masters), "it is renewed")
            with pytest.raises(LockBusy), make_lock(masters):
                pytest.fail("two holders")
        lock.check_alive()


def test_one_dead_master_of_three_does_not_matter(masters, servers):
    servers[1].stop()
    with make_lock(masters) as lock:
        wait_for_renewals(lock, count=4)
        lock.check_alive()
        with pytest.raises(LockBusy), make_lock(masters):
            pytest.fail("two holders")


def test_a_master_that_dies_while_the_lock_is_held_does_not_matter(masters, servers):
    with make_lock(masters) as lock:
        servers[0].stop()
        wait_for_renewals(lock, count=4)
        lock.check_alive()


@pytest.mark.parametrize("fate", ["stop", "freeze"])
@pytest.mark.usefixtures("masters")
def test_without_a_majority_no_run_starts_and_no_master_is_asked_again(servers, connect, fate, failures):
    masters = connect(*servers[:2])
    for server in servers[:2]:
        getattr(server, fate)()
    with pytest.raises(Unavailable, match="fewer than 2 of 3 Redis masters") as caught, make_lock(masters):
        pytest.fail("no majority")
    assert not isinstance(caught.value, LockBusy)
    # To take it, and to give back what was not taken: the answer comes after as many time-outs, whatever the machine.
    assert 2 <= len(failures) <= 4


def test_a_majority_that_restarts_empty_loses_the_lock_and_the_holder_notices(masters, servers):
    with make_lock(masters) as lock:
        for server in servers[:2]:
            server.stop()
            server.start()
        wait_until(lambda: is_lost(lock))
        with pytest.raises(Fenced, match="is lost: most Redis masters do not know it"):
            lock.check_alive()


def test_a_majority_that_dies_lets_the_lock_run_out_and_the_holder_notices(masters, servers, failures):
    clock = ManualClock()
    with TableLock(masters, "merge:events", ttl_ms=TTL_MS, clock=clock) as lock:
        for server in servers[:2]:
            server.stop()
        wait_until(lambda: failures, "a renewal is not answered")
        lock.check_alive()
        clock.advance(TTL_MS)
        with pytest.raises(LockLost, match=rf"ran out: it could not be renewed for {TTL_MS} ms"):
            lock.check_alive()


def test_a_short_outage_of_the_majority_is_ridden_out(masters, servers, connect, failures):
    with make_lock(masters) as lock:
        lock._lock.masters = frozenset(connect(*servers))
        for server in servers[:2]:
            server.freeze()
        failures.clear()
        wait_until(lambda: failures, "a renewal is not answered")
        for server in servers[:2]:
            server.thaw()
        lock._lock.masters = frozenset(masters)
        wait_for_renewals(lock)
        lock.check_alive()


def test_the_lock_of_a_holder_that_died_runs_out(masters, connect):
    lock = make_lock(masters)
    lock.__enter__()
    lock._ending.set()  # its process is gone: nobody renews, nobody releases
    lock._renewal.join()
    key = find_key(masters)
    for master in masters:
        assert 0 < master.pttl(key) <= TTL_MS
        master.pexpire(key, 1)  # its time goes by
    wait_until(lambda: not any(master.exists(key) for master in masters))
    with make_lock(connect()) as later:
        later.check_alive()
