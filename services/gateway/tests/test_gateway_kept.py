"""What the gateway keeps in memory: snapshots that tokens name, and tags."""

import asyncio
from types import SimpleNamespace

import pytest
from icedb_gateway import views
from icedb_gateway.listing import SnapshotName, TableRef
from icedb_gateway.requests import GatewayParts
from icedb_gateway.settings import GatewaySettings
from icedb_gateway.views import TAG_AGE_MS, TableViews, make_kept
from icedb_log.warehouse import Warehouse
from icedb_sim.fakes.fake_clock import FakeClock
from icedb_sim.fakes.memory_store import MemoryObjectStore


def snapshot_of(file_count):
    return SimpleNamespace(live=[None] * file_count)


def name_of(number):
    return SnapshotName("events", str(number), number)


def test_snapshots_go_when_they_name_too_many_files_and_the_newest_stays():
    kept = make_kept(5)
    for number in (1, 2):
        kept[name_of(number)] = snapshot_of(2)
    assert kept.get(name_of(1)) is not None
    kept[name_of(3)] = snapshot_of(2)
    assert [kept.get(name_of(number)) is not None for number in (1, 2, 3)] == [True, False, True]
    kept[name_of(4)] = snapshot_of(100)
    assert [kept.get(name_of(number)) is not None for number in (1, 3, 4)] == [False, False, True]


@pytest.mark.parametrize("max_files", [0, 1])
def test_with_no_room_the_newest_is_kept_alone(max_files):
    kept = make_kept(max_files)
    kept[name_of(1)] = snapshot_of(3)
    kept[name_of(2)] = snapshot_of(0)
    assert [kept.get(name_of(number)) is not None for number in (1, 2)] == [False, True]


def test_a_tag_is_believed_for_a_while_and_looked_at_again(monkeypatch):
    clock, looks = FakeClock(), []
    monkeypatch.setattr(views, "read_tagged", lambda _table, name: (None, looks.append(name) or len(looks)))

    async def run_blocking(_table, function):
        return function()

    warehouse, settings = Warehouse(MemoryObjectStore(clock.now_ms)), GatewaySettings(store="file:///unused")
    reads = SimpleNamespace(work=SimpleNamespace(run_blocking=run_blocking))
    found = TableViews(GatewayParts(warehouse, settings, None, clock, None, reads, None))
    ref = TableRef("events", tag="eom")
    ask = lambda: asyncio.run(found._tagged(ref))  # noqa: E731
    assert (ask(), ask()) == (1, 1)
    clock.advance(TAG_AGE_MS - 1)
    assert ask() == 1
    clock.advance(2)
    assert ask() == 2
