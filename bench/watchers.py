"""What watching costs: a snapshot service with many tables and watchers, commits that are announced, calls beside them.

``python -m bench.watchers [--tables 1000] [--watchers 2000] [--seconds 30]`` prints one JSON object: memory and
processor time of the service, looks at watched tables (a LIST each), and how long messages and calls took; at rest, at
work, and at rest without Redis.
"""

import argparse
import asyncio
import json
import random
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final

import grpc
import psutil
from icedb_local.chaos.metric_history import read_metrics
from icedb_local.ports import find_free_ports
from icedb_log.clock import SystemClock, new_batch_id
from icedb_log.commit.table import Table
from icedb_log.ingest.flush import flush_table
from icedb_log.ingest.staging import stage_batch
from icedb_log.store_settings import StoreSettings
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import TableConfig
from icedb_log.units import MIB
from icedb_log.warehouse import Warehouse
from icedb_proto import snapshot_pb2 as pb
from icedb_proto import snapshot_pb2_grpc
from icedb_service.celery_app import make_app
from icedb_service.redis_clients import open_redis
from icedb_service.settings import ServiceSettings
from icedb_service.wakeup import Wakeups
from icedb_sim.rigs.redis_server import RedisServer
from icedb_sim.tables.row_files import RowFileWriter, encode_rows

from bench.servers import running

CHANNELS: Final = 20
WAVE: Final = 200
TABLES_A_WATCHER: Final = 5
COMMITS_S: Final = 5
CALLS_S: Final = 200
READS: Final = "icedb_snapshot_refresh_duration_seconds_count"
LOOKS: Final = "icedb_snapshot_watch_looks_total"
HEARS: Final = "icedb_snapshot_hears_commits"
POLL_S: Final = 0.1
LIMIT_S: Final = 600


@dataclass(slots=True)
class Tables:
    """The tables, and when each was committed to last, monotonic seconds."""

    store: StoreSettings
    names: list[str]
    committed_s: dict[str, float] = field(default_factory=dict)

    def create(self) -> None:
        """Create all, with one commit each."""
        for name in self.names:
            create_table(self._warehouse.table(name), TableConfig.create(name=name))
            self.commit(name)

    def commit(self, name: str) -> None:
        """Commit a row."""
        place, clock = self._warehouse.table(name), SystemClock()
        stage_batch(place, body=encode_rows([{"n": 1}]), staging_format="ndjson", batch_id=new_batch_id(clock))
        flush_table(Table.open(place, clock=clock, owner="bench"), RowFileWriter(place.store, clock))
        self.committed_s[name] = monotonic()

    @property
    def _warehouse(self) -> Warehouse:
        return self.store.open()


@dataclass(slots=True)
class Service:
    """The service, seen from outside."""

    process: psutil.Process
    address: str
    metrics_port: int

    def figure(self, name: str) -> float:
        """Return a metric, all its series together; 0 if it has none yet."""
        while (found := read_metrics(self.metrics_port, kept=(name,))) is None:
            sleep(POLL_S)  # the machine is busy
        return sum(found.values())

    def cpu_s(self) -> float:
        """Return the processor time that it has taken."""
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def memory_mb(self) -> float:
        """Return what it holds, MiB."""
        return float(self.process.memory_info().rss) / MIB


@contextmanager
def running_service(tables: Tables, folder: Path, *, redis_url: str, watchers: int) -> Iterator[Service]:
    """Run a snapshot service that takes so many watchers."""
    port, metrics_port = find_free_ports(2)
    log = folder / "snapshot.log"
    env = {
        "ICEDB_STORE": tables.store.url,
        "ICEDB_REDIS_URL": redis_url,
        "ICEDB_SNAPSHOT_ADDRESS": f"127.0.0.1:{port}",
        "ICEDB_SNAPSHOT_MAX_WATCHERS": str(watchers),
        "ICEDB_SNAPSHOT_MAX_PENDING_CALLS": str(2 * watchers + 1000),
        "ICEDB_READ_MAX_TABLES": str(2 * len(tables.names)),
        "ICEDB_METRICS_PORT": str(metrics_port),
    }
    find = lambda: "snapshot_served" in log.read_text() or None  # noqa: E731
    with running(["icedb_snapshot"], log, find=find, env=env) as server:
        yield Service(psutil.Process(server.process_id), f"127.0.0.1:{port}", metrics_port)


class Load:
    """Watchers and callers on one event loop."""

    def __init__(self, service: Service, tables: Tables, watchers: int) -> None:
        self._service = service
        self._tables = tables
        self._watchers = watchers
        self.message_ms: list[float] = []
        self.call_ms: list[float] = []
        self.message_count = 0

    async def watch(self, stub: Any, number: int) -> None:
        """Watch some tables, and note how late each message is."""
        rng = random.Random(number)
        names = rng.sample(self._tables.names, TABLES_A_WATCHER)
        async for event in stub.WatchSnapshots(pb.WatchSnapshotsRequest(tables=names)):
            self.message_count += 1
            self.message_ms.append(1000 * (monotonic() - self._tables.committed_s[event.table]))

    async def call(self, stub: Any, seconds: float) -> None:
        """Ask for snapshots at a steady pace."""
        rng = random.Random(0)
        end_s = monotonic() + seconds

        async def ask() -> None:
            begin_s = monotonic()
            await stub.GetSnapshot(pb.GetSnapshotRequest(table=rng.choice(self._tables.names)))
            self.call_ms.append(1000 * (monotonic() - begin_s))

        async with asyncio.TaskGroup() as group:
            while monotonic() < end_s:
                group.create_task(ask())
                await asyncio.sleep(1 / CALLS_S)


async def measure(
    service: Service, tables: Tables, wakeups: Wakeups, redis: RedisServer, options: Any
) -> dict[str, Any]:
    """Return the figures."""
    load = Load(service, tables, options.watchers)
    channels = [
        grpc.aio.insecure_channel(service.address, options=(("grpc.use_local_subchannel_pool", 1),))
        for _ in range(CHANNELS)
    ]
    stubs = [snapshot_pb2_grpc.SnapshotServiceStub(channel) for channel in channels]
    before_mb = service.memory_mb()
    watching: list[asyncio.Future[None]] = []
    while len(watching) < options.watchers:  # in waves: gRPC itself cancels some of a thousand new streams at once
        wave = range(len(watching), min(len(watching) + WAVE, options.watchers))
        watching.extend(asyncio.ensure_future(load.watch(stubs[each % CHANNELS], each)) for each in wave)
        await until(lambda: load.message_count >= len(watching) * TABLES_A_WATCHER)
    await until(lambda: service.figure(HEARS) == 1)
    await settle(service)
    found: dict[str, Any] = {"memory_mb": {"before": round(before_mb), "watched": round(service.memory_mb())}}
    found["at_rest"] = await spend(service, options.seconds)
    load.message_ms.clear()
    stopped = threading.Event()
    committer = threading.Thread(target=commit_always, args=(tables, wakeups, stopped))
    committer.start()
    found["at_work"], _ = await asyncio.gather(spend(service, options.seconds), load.call(stubs[0], options.seconds))
    stopped.set()
    await asyncio.to_thread(committer.join)
    found["at_work"] |= {"messages": len(load.message_ms), "calls": len(load.call_ms)}
    found["at_work"] |= {"message_ms": shares(load.message_ms), "call_ms": shares(load.call_ms)}
    redis.stop()
    await until(lambda: service.figure(HEARS) == 0)
    found["at_rest_without_redis"] = await spend(service, options.seconds)
    found["memory_mb"]["at_the_end"] = round(service.memory_mb())
    for task in watching:
        task.cancel()
    for channel in channels:
        await channel.close()
    return found


def commit_always(tables: Tables, wakeups: Wakeups, stopped: threading.Event) -> None:
    """Commit to one table after another, at a pace, and announce it."""
    rng = random.Random(1)
    while not stopped.wait(1 / COMMITS_S):
        name = rng.choice(tables.names)
        tables.commit(name)
        wakeups.announce_commit(name)


async def spend(service: Service, seconds: float) -> dict[str, float]:
    """Return what the service did in a time; reads of logs are also those for the figures of all tables."""
    reads, looks, cpu_s, begin_s = service.figure(READS), service.figure(LOOKS), service.cpu_s(), monotonic()
    await asyncio.sleep(seconds)
    took_s = monotonic() - begin_s
    return {
        "looks_s": round((service.figure(LOOKS) - looks) / took_s, 2),
        "log_reads_s": round((service.figure(READS) - reads) / took_s, 2),
        "cpu_percent": round(100 * (service.cpu_s() - cpu_s) / took_s, 1),
    }


async def settle(service: Service) -> None:
    """Wait until watched tables are not looked at for three seconds."""
    last = -1.0
    while (now := service.figure(LOOKS)) != last:
        last = now
        await asyncio.sleep(3)


async def until(is_met: Any) -> None:
    """Wait. Raises TimeoutError."""
    async with asyncio.timeout(LIMIT_S):
        while not is_met():  # noqa: ASYNC110 - of another process
            await asyncio.sleep(POLL_S)


def shares(values: list[float]) -> Mapping[str, float]:
    """Return median and 99th percentile."""
    ordered = sorted(values) or [0.0]
    return {f"p{share}": round(ordered[min(len(ordered) - 1, len(ordered) * share // 100)], 1) for share in (50, 99)}


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=int, default=1000)
    parser.add_argument("--watchers", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=30)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="icedb-watchers-") as path, RedisServer() as redis:
        folder = Path(path)
        (folder / "wh").mkdir()
        tables = Tables(StoreSettings(f"file://{folder / 'wh'}", None), [f"t{each}" for each in range(options.tables)])
        tables.create()
        settings = ServiceSettings(store=tables.store.url, redis_url=redis.url)
        wakeups = Wakeups(make_app(settings), open_redis(redis.url, timeout_ms=1000), settings=settings)
        with running_service(tables, folder, redis_url=redis.url, watchers=options.watchers) as service:
            found = asyncio.run(measure(service, tables, wakeups, redis, options))
    print(json.dumps({"tables": options.tables, "watchers": options.watchers, **found}, indent=1))


if __name__ == "__main__":
    main()
