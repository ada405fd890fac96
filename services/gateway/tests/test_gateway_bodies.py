"""Bodies that are sent part by part: an object that changes or shrinks meanwhile never becomes a whole answer."""

import asyncio
from types import SimpleNamespace

import pytest
from icedb_gateway.bodies import Bodies
from icedb_gateway.metrics import GatewayMetrics
from icedb_log.errors import IceDBError, PreconditionFailed, Unavailable
from icedb_sim.fakes.fake_clock import FakeClock
from icedb_sim.fakes.memory_store import MemoryObjectStore
from icedb_sim.fakes.scripted_store import Fault, ScriptedStore

SETTINGS = SimpleNamespace(
    part_bytes=4,
    gateway_max_bodies=1,
    read_wait_ms=60_000,
    gateway_send_timeout_ms=60_000,
    read_threads=2,
)


@pytest.fixture
def store():
    store = ScriptedStore(MemoryObjectStore(FakeClock().now_ms))
    store.put("key", b"0123456789")
    return store


async def receive_nothing():
    await asyncio.Event().wait()


def send_all(store, *, start=0, length=10):
    """Send a body to the end; return what came, and what broke it off."""
    got = []

    async def send(message):
        got.append(message["body"])

    async def run():
        bodies = Bodies(store, settings=SETTINGS, metrics=GatewayMetrics())
        try:
            body = await bodies.open("key", start=start, length=length)
            await bodies.send(body, send, receive_nothing)
        except IceDBError as error:
            return error
        finally:
            bodies.close()

    error = asyncio.run(run())
    return b"".join(got), error


@pytest.mark.parametrize(("start", "length"), [(0, 10), (3, 5), (9, 1), (0, 4), (0, 8)])
def test_every_byte_comes_once(store, start, length):
    assert send_all(store, start=start, length=length) == (b"0123456789"[start : start + length], None)


def test_an_object_that_is_replaced_meanwhile_is_broken_off(store):
    store.script = [
        Fault("get_range", None),
        Fault("get_range", None, before=lambda: store.inner.put("key", b"abcdefghij")),
    ]
    got, error = send_all(store)
    assert got == b"0123"
    assert isinstance(error, PreconditionFailed)


def test_an_object_that_ends_before_its_length_is_broken_off(store):
    got, error = send_all(store, length=11)
    assert got == b"0123456789"
    assert isinstance(error, Unavailable)
    assert "ends at byte 10, before 11" in str(error)
