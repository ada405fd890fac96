"""Whether a loop comes round: told by one process, seen by its children, and never a matter of the store."""

import asyncio
import os
import threading

import pytest
from icedb_log.errors import Unavailable
from icedb_log.warehouse import Warehouse
from icedb_service import endpoints
from icedb_service.endpoints import LoopHealth
from icedb_service.main import look_at_store
from icedb_service.progress import LOOP_LIMIT_MS, START_LIMIT_MS, LoopProgress
from icedb_sim.fakes.fake_clock import FakeClock
from icedb_sim.fakes.memory_store import MemoryObjectStore
from icedb_sim.fakes.scripted_store import Effect, Fault, ScriptedStore
from waiting import LIMIT_S


def test_a_loop_that_stands_still_is_told_and_one_that_ends_is_not():
    clock = FakeClock()
    loop = LoopProgress("the loop", clock=clock)
    clock.advance(START_LIMIT_MS)
    loop.check()
    loop.tell()
    clock.advance(LOOP_LIMIT_MS)
    loop.check()
    clock.advance(1)
    with pytest.raises(Unavailable, match=f"the loop has not come round for {LOOP_LIMIT_MS + 1} ms"):
        loop.check()
    loop.tell()
    loop.check()
    clock.advance(LOOP_LIMIT_MS + 1)
    loop.end()
    loop.check()


def test_a_loop_that_never_began_is_told():
    clock = FakeClock()
    loop = LoopProgress("the loop", clock=clock)
    clock.advance(START_LIMIT_MS + 1)
    with pytest.raises(Unavailable):
        loop.check()


def test_a_child_sees_what_its_parent_tells():
    clock = FakeClock()
    loop = LoopProgress("the loop", clock=clock)
    to_child, to_parent = os.pipe(), os.pipe()
    child = os.fork()
    if not child:
        os.read(to_child[0], 1)  # the parent has told by now
        clock.advance(START_LIMIT_MS + LOOP_LIMIT_MS)
        try:
            loop.check()
            os.write(to_parent[1], b"y")
        finally:
            os._exit(0)
    clock.advance(START_LIMIT_MS + LOOP_LIMIT_MS)
    loop.tell()
    os.write(to_child[1], b"x")
    assert os.read(to_parent[0], 1) == b"y"
    os.waitpid(child, 0)


def test_a_store_that_hangs_changes_readiness_and_not_liveness(monkeypatch):
    """The look is waited for as long as it takes; meanwhile the loop comes round, and says that it is not ready."""
    monkeypatch.setattr(endpoints, "LOOK_LIMIT_S", LIMIT_S)
    monkeypatch.setattr(endpoints, "LOOK_EVERY_S", 0.01)
    hangs, told = threading.Event(), []
    clock = FakeClock()
    warehouse = Warehouse(MemoryObjectStore(clock.now_ms), "wh")

    def look(_warehouse):
        if seen == [True]:
            hangs.wait(LIMIT_S)

    seen: list[bool] = []
    monkeypatch.setattr(endpoints, "look_at_store", look)

    async def watch():
        away, back = asyncio.Event(), asyncio.Event()

        async def on_change(is_ready):
            seen.append(is_ready)
            # Only the look that hangs is given up soon: others may take long on a busy machine.
            monkeypatch.setattr(endpoints, "LOOK_LIMIT_S", 0.01 if seen == [True] else LIMIT_S)
            if seen == [True, False]:
                away.set()
            if seen == [True, False, True]:
                back.set()

        health = LoopHealth(warehouse, clock=clock, on_change=on_change)
        running = asyncio.create_task(health.run())
        await away.wait()
        clock.advance(endpoints.LONGEST_PAUSE_MS)
        await asyncio.sleep(0)
        told.append(health.checks().run(with_ready=True))
        hangs.set()
        await back.wait()
        told.append(health.checks().run(with_ready=True))
        running.cancel()

    asyncio.run(watch())
    assert told[0]["loop"] == "ok"
    assert "has not answered" in told[0]["store"]
    assert set(told[1].values()) == {"ok"}


def test_to_see_whether_a_store_answers_costs_no_listing():
    store = ScriptedStore(MemoryObjectStore(FakeClock().now_ms))
    look_at_store(Warehouse(store, "wh"))
    store.inner.put("wh/_icedb_probe/clock", b"x")
    look_at_store(Warehouse(store, "wh"))
    look_at_store(Warehouse(store))
    assert [(call.method, call.key) for call in store.calls] == [
        ("get", "wh/_icedb_probe/clock"),
        ("get", "wh/_icedb_probe/clock"),
        ("get", "_icedb_probe/clock"),
    ]
    store.script = [Fault("get", Effect.UNAVAILABLE)]
    with pytest.raises(Unavailable):
        look_at_store(Warehouse(store, "wh"))
