"""The pool of threads: the worker's loop turns when a task has ended, so that it asks for the next message."""

import threading

from icedb_service.worker import WakingThreadPool
from waiting import LIMIT_S


class RecordingHub:
    """Notes what had happened when the loop was woken."""

    def __init__(self, seen):
        self.seen = seen
        self.woken = threading.Semaphore(0)
        self.at_wake = []

    def call_soon(self, callback):
        self.at_wake.append(list(self.seen))
        callback()
        self.woken.release()


def test_a_task_that_ended_wakes_the_loop_after_it_has_given_back_its_place():
    seen = []
    hub = RecordingHub(seen)
    pool = WakingThreadPool(2)
    pool.register_with_event_loop(hub)
    pool.on_apply(lambda: seen.append("ran"), (), {}, callback=lambda _: seen.append("place is free"))
    assert hub.woken.acquire(timeout=LIMIT_S)
    assert hub.at_wake == [["ran", "place is free"]]
    pool.on_stop()


def test_a_task_that_failed_wakes_the_loop_too():
    hub = RecordingHub([])
    pool = WakingThreadPool(1)
    pool.register_with_event_loop(hub)
    pool.on_apply(lambda: 1 // 0, callback=None)
    assert hub.woken.acquire(timeout=LIMIT_S)
    pool.on_stop()


def test_tasks_run_side_by_side_up_to_the_bound():
    pool = WakingThreadPool(2)
    seen = []
    together = threading.Barrier(2, timeout=LIMIT_S)
    results = [pool.on_apply(together.wait, (), callback=seen.append) for _ in range(2)]
    assert {result.f.exception(LIMIT_S) for result in results} == {None}
    pool.on_stop()
