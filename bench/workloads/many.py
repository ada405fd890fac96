"""W=many: a thousand tables: the snapshot service with thousands of watchers, the console, ``icedb status``."""

import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Final

from icedb_local.ports import find_free_ports
from icedb_sim.rigs.redis_server import RedisServer

from bench.harness import ONE_TURN_S, Case, System, Workload
from bench.many_clients import Crowd, Crowds, crowds
from bench.many_tables import ManyTables, Server, many_tables, serving, set_keys
from bench.many_work import CALLS_S, Churned, Command, Fanned, Overview, Spent, Watched, WithoutRedis
from bench.servers import store_environment

WATCHING_PROCESSES: Final = 4
CALLING_PROCESSES: Final = 2
FAN_SHARE: Final = 2
"""Half of the watchers watch one table together, when all others have gone."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything.

    Attributes:
        tables: Tables.
        watchers: Streams, of five tables each.
        all_watchers: Streams that watch all tables.
        seconds: Of a case.
        commits_s: Commits a second.
        calls: Of a round of calls that differ.
    """

    tables: int
    watchers: int
    all_watchers: int
    seconds: float
    commits_s: float
    calls: int


SIZES: Final = {
    "small": Sizes(40, 100, 5, 5, 5, 600),
    "middle": Sizes(300, 1_500, 20, 15, 5, 3_000),
    "full": Sizes(1_000, 5_000, 50, 60, 5, 6_000),
}


class ManyWorkload(Workload):
    """One warehouse for all cases; a case starts what it needs."""

    description = "many tables on S3 at 15 ms a request, which counts; watchers and callers are other processes"

    def cases(self) -> Iterator[Case]:
        """Make one case after the other ready."""
        set_keys()
        sizes = SIZES[self.options.size]
        with many_tables(self.folder, count=sizes.tables) as tables, RedisServer() as redis:
            yield from self._watched(sizes, tables, redis)
            yield from self._fanned(sizes, tables, redis)
            yield from self._churned(sizes, tables, redis)
            yield from self._shown(sizes, tables, redis)

    def _case(self, name: str, system: System) -> Iterator[Case]:
        if self.wants(name):
            is_timed = isinstance(system, Command)
            yield Case(
                name, 1, [system], warm_turn_count=int(is_timed), is_timed=is_timed, unit="runs", patience_s=ONE_TURN_S
            )

    def _watched(self, sizes: Sizes, tables: ManyTables, redis: RedisServer) -> Iterator[Case]:
        kinds = {
            f"{sizes.watchers:,} watchers of five of {sizes.tables:,} tables": (sizes.watchers, 5),
            f"{sizes.all_watchers:,} watchers of all of {sizes.tables:,} tables": (sizes.all_watchers, 0),
        }
        for who, (watchers, tables_each) in kinds.items():
            names = [f"{who}, {what}" for what in ("at rest", f"{CALLS_S} calls, {sizes.commits_s:g} commits a second")]
            away = f"{who}, at rest without Redis"
            if not any(map(self.wants, (*names, away))):
                continue
            with ExitStack() as stack:
                server = stack.enter_context(self._serving(tables, redis, watchers=watchers))
                parts = _divide(server.address, tables, watchers, tables_each=tables_each)
                crowd = stack.enter_context(crowds(parts))
                spent = Spent(server, tables)
                yield from self._case(names[0], Watched(spent, crowd, redis, sizes.seconds, 0, 0, tables.names))
                work = Watched(spent, crowd, redis, sizes.seconds, sizes.commits_s, CALLS_S, tables.names)
                yield from self._case(names[1], work)
                if tables_each:
                    yield from self._case(away, WithoutRedis(spent, redis, min(sizes.seconds, 20)))
                    redis.start()

    def _fanned(self, sizes: Sizes, tables: ManyTables, redis: RedisServer) -> Iterator[Case]:
        count = sizes.watchers // FAN_SHARE
        name = f"{count:,} watchers of one table, {CALLS_S} calls a second"
        if self.wants(name):
            with ExitStack() as stack:
                server = stack.enter_context(self._serving(tables, redis, watchers=count))
                table, *others = tables.names
                parts = [
                    Crowd(server.address, others, first, count // WATCHING_PROCESSES, tables_each=0, always=table)
                    for first in range(WATCHING_PROCESSES)
                ]
                crowd = stack.enter_context(crowds(parts))
                callers = stack.enter_context(_calling(server, tables))
                fanned = Fanned(
                    Spent(server, tables), crowd, callers, redis, table, len(parts) * parts[0].watchers, sizes.seconds
                )
                yield from self._case(name, fanned)

    def _churned(self, sizes: Sizes, tables: ManyTables, redis: RedisServer) -> Iterator[Case]:
        name = "calls that differ, watchers that come and go"
        if self.wants(name):
            with ExitStack() as stack:
                server = stack.enter_context(self._serving(tables, redis, watchers=100))
                callers = stack.enter_context(_calling(server, tables))
                yield from self._case(name, Churned(server, callers, sizes.calls))

    def _shown(self, sizes: Sizes, tables: ManyTables, redis: RedisServer) -> Iterator[Case]:
        name = f"icedb status of {sizes.tables:,} tables, by the snapshot service"
        if self.wants(name):
            with self._serving(tables, redis, watchers=1) as server:
                while server.read("icedb_snapshot_exporter_tables") < sizes.tables:
                    time.sleep(1)
                env = {**os.environ, "ICEDB_SNAPSHOT_ADDRESS": server.address}
                yield from self._case(name, Command(tables, ("status", "-o", "json"), env))
        stores = {"S3": tables.bucket, "a directory": tables.directory}
        for where, store in stores.items():
            env = os.environ | store_environment(store)
            name = f"icedb status of {sizes.tables:,} tables, {where}"
            yield from self._case(name, Command(tables, ("status", "-o", "json"), env))
        name = f"console, {sizes.tables:,} tables"
        if self.wants(name):
            ports = find_free_ports(2)
            env = {"ICEDB_CONSOLE_PORT": str(ports[0])}
            with serving(
                "console", tables.bucket, self.folder / "console", ports=(ports[0], ports[1]), env=env
            ) as console:
                yield from self._case(name, Overview(console, tables, min(sizes.seconds, 30)))

    def _serving(self, tables: ManyTables, redis: RedisServer, *, watchers: int) -> AbstractContextManager[Server]:
        port, metrics_port = find_free_ports(2)
        env = {
            "ICEDB_REDIS_URL": redis.url,
            "ICEDB_SNAPSHOT_ADDRESS": f"127.0.0.1:{port}",
            "ICEDB_SNAPSHOT_MAX_WATCHERS": str(watchers),
            "ICEDB_SNAPSHOT_MAX_PENDING_CALLS": str(2 * watchers + 1000),
        }
        return serving("snapshot", tables.bucket, self.folder / "snapshot", ports=(port, metrics_port), env=env)


def _divide(address: str, tables: ManyTables, watchers: int, *, tables_each: int) -> list[Crowd]:
    each = watchers // WATCHING_PROCESSES
    return [Crowd(address, tables.names, first, each, tables_each) for first in range(WATCHING_PROCESSES)]


def _calling(server: Server, tables: ManyTables) -> AbstractContextManager[Crowds]:
    return crowds([Crowd(server.address, tables.names, 100 + first) for first in range(CALLING_PROCESSES)])
