"""The asynchronous client is the client, awaited: nothing of one is missing in the other, and nothing differs."""

import asyncio
import dataclasses
import inspect

import pytest
from icedb_client import AsyncClient, AsyncSnapshot, Client, Snapshot
from icedb_log.errors import NotFound

NOT_AWAITED = {"warehouse", "workers", "gate", "answerer", "wakes"}
"""Properties, and what the command line needs."""


def public(kind):
    return {name for name in dir(kind) if not name.startswith("_")}


@pytest.mark.parametrize(("waiting", "awaiting"), [(Client, AsyncClient), (Snapshot, AsyncSnapshot)])
def test_every_method_is_there_with_the_same_signature(waiting, awaiting):
    methods = {name for name in public(waiting) if inspect.isfunction(getattr(waiting, name))} - NOT_AWAITED
    assert len(methods) >= 8
    for name in methods:
        mine, theirs = getattr(awaiting, name), getattr(waiting, name)
        parameters = [list(inspect.signature(each).parameters.values())[1:] for each in (mine, theirs)]
        assert parameters[0] == parameters[1], name
        assert mine.__doc__, name
    extra = {name for name in public(awaiting) if inspect.isfunction(getattr(awaiting, name))} - methods
    assert extra <= {"ask"}


def test_attributes_of_a_snapshot_are_those_of_the_snapshot(client, create):
    create()

    async def read():
        async with AsyncClient(settings=client.settings, warehouse=client.warehouse, clock=client.clock) as found:
            return await found.snapshot("events")

    snapshot = asyncio.run(read())
    plain = client.snapshot("events")
    properties = {name for name in public(Snapshot) if not inspect.isfunction(getattr(Snapshot, name))}
    fields = properties | {field.name for field in dataclasses.fields(Snapshot)}
    assert {"files", "schema", "row_count", "lease"} <= fields
    for name in fields:
        if name != "answerer":
            assert getattr(snapshot, name) == getattr(plain, name), name
    with pytest.raises(AttributeError):
        snapshot.nothing


def test_enqueueing_is_awaited_too(client, create):
    create()

    async def run():
        async with AsyncClient(settings=client.settings, warehouse=client.warehouse, clock=client.clock) as found:
            found.wrapped._sender = client._sender
            batch = await found.enqueue("events", [{"ts": "2026-01-02T00:00:00Z"}])
            rows = [each async for each in found.enqueue_arrow("events", __import__("pyarrow").table({"a": [1]}))]
            report = await found.wait_committed("events", [batch.batch_id], timeout_ms=0)
            with pytest.raises(NotFound, match="did you mean events"):
                await found.snapshot("evnts")
            return batch, rows, report

    batch, rows, report = asyncio.run(run())
    assert report.waiting == (batch.batch_id,)
    assert rows[0].row_count == 1


def test_a_client_may_be_used_by_one_event_loop_after_the_other(client, create):
    create()
    found = AsyncClient(settings=client.settings, warehouse=client.warehouse, clock=client.clock)
    assert [asyncio.run(found.tables()) for _ in range(2)] == [("events",), ("events",)]


def test_an_iterator_that_is_left_is_closed(client, create):
    create()
    seen = []

    async def run():
        async with AsyncClient(settings=client.settings, warehouse=client.warehouse, clock=client.clock) as found:
            events = found.watch()
            async for event in events:
                seen.append(event.table)
                break
            await events.aclose()

    asyncio.run(run())
    assert seen == ["events"]
