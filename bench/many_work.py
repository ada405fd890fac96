"""What is asked of services with many tables: watching them, calls beside it, the overview of all.

Where a figure is a number of requests, the store has counted them; times are those of a client in another process.
"""

import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.request import urlopen

from icedb_sim.rigs.redis_server import RedisServer

from bench.figures import MS, OURS, Figure, TakesTurns, latency_figures
from bench.many_clients import Crowds, Heard
from bench.many_tables import ManyTables, Server, committing

CALLS_S: Final = 200
MESSAGES_END_S: Final = 10.0
"""How long messages may come after the last commit."""
SETTLED_S: Final = 3.0
ROUNDS: Final = 6
_FIGURES: Final = "icedb_snapshot_exporter_tables"
_LOOKS: Final = "icedb_snapshot_watch_looks_total"
_HEARS: Final = "icedb_snapshot_hears_commits"


@dataclass(slots=True)
class Spent:
    """What a service has taken since something began.

    Attributes:
        server: The service.
        tables: Whose store counts.
    """

    server: Server
    tables: ManyTables
    _cpu_s: float = 0.0
    _begin_s: float = 0.0
    _looks: float = 0.0

    def begin(self) -> None:
        """Count from now on; first wait until all is known, and nothing is looked at for a while."""
        while self.server.read(_FIGURES) < len(self.tables.names):
            time.sleep(1)
        last = -1.0
        while (now := self.server.read(_LOOKS)) != last:
            last = now
            time.sleep(SETTLED_S)
        self.count()

    def count(self) -> None:
        """Count from now on."""
        self.tables.take_counts()
        self._cpu_s, self._begin_s, self._looks = self.server.cpu_s(), time.monotonic(), self.server.read(_LOOKS)

    def end(self) -> list[Figure]:
        """Return the figures."""
        seconds = time.monotonic() - self._begin_s
        counts, count = self.tables.take_counts(), len(self.tables.names)
        per_table = 60 / seconds / count
        return [
            Figure("cpu", "% of a core", 100 * (self.server.cpu_s() - self._cpu_s) / seconds),
            Figure("lists of a table a minute", "requests", counts.get("list", 0) * per_table),
            Figure("gets of a table a minute", "requests", counts.get("get", 0) * per_table),
            Figure("looks of watchers", "lists/s", (self.server.read(_LOOKS) - self._looks) / seconds),
            Figure("memory", "MiB", self.server.memory_mb()),
        ]


@dataclass(slots=True)
class Watched(TakesTurns):
    """Watchers, calls and commits at once, for a time.

    Attributes:
        spent: Of the service.
        crowds: Who watches and calls.
        redis: Where commits are announced.
        seconds: For how long.
        commits_s: Commits a second; 0: none.
        calls_s: Calls a second; 0: none.
        names: Which tables are committed to.
        name: Ours.
    """

    spent: Spent
    crowds: Crowds
    redis: RedisServer
    seconds: float
    commits_s: float
    calls_s: float
    names: Sequence[str]
    name: str = OURS
    _heard: Heard | None = None
    _figures: Sequence[Figure] = ()

    def run(self) -> None:
        """Let them."""
        self.crowds.take()
        self.spent.begin()
        if self.commits_s:
            with committing(self.spent.tables, self.names, self.redis.url, per_second=self.commits_s) as commits:
                self._rest()
            made = [Figure("commits", "commits/s", len(commits) / self.seconds)]
        else:
            self._rest()
            made = []
        self._figures = [*made, *self.spent.end()]

    def _rest(self) -> None:
        if self.calls_s:
            self._heard = self.crowds.call(self.seconds, self.calls_s)
        else:
            time.sleep(self.seconds)

    def check(self) -> Sequence[Figure]:
        """Return the figures. Raises if a stream or a call has failed."""
        time.sleep(1)  # what is on its way
        heard = self.crowds.take()
        if self._heard is not None:
            heard.add(self._heard)
        if heard.failed:
            raise AssertionError(f"{heard.failed} streams or calls failed")
        figures = [*_latencies("a call", heard.call_ms), *_latencies("a message after its commit", heard.late_ms)]
        return [*figures, Figure("messages", "messages/s", len(heard.late_ms) / self.seconds), *self._figures]


@dataclass(slots=True)
class Fanned(TakesTurns):
    """A commit to a table that all watch, while calls come.

    Attributes:
        spent: Of the service.
        crowds: Who watches; each names this table.
        callers: Who calls.
        redis: Where commits are announced.
        table: That table.
        watchers: How many watch it.
        seconds: For how long calls come.
        name: Ours.
    """

    spent: Spent
    crowds: Crowds
    callers: Crowds
    redis: RedisServer
    table: str
    watchers: int
    seconds: float
    name: str = OURS
    _heard: Heard | None = None
    _cpu_s: float = 0.0

    def run(self) -> None:
        """Commit once a second, and ask meanwhile."""
        self.crowds.take()
        self._cpu_s = self.spent.server.cpu_s()
        with committing(self.spent.tables, [self.table], self.redis.url, per_second=1 / 3):
            self._heard = self.callers.call(self.seconds, CALLS_S)
        time.sleep(MESSAGES_END_S)
        self._cpu_s = self.spent.server.cpu_s() - self._cpu_s

    def check(self) -> Sequence[Figure]:
        """Return the figures. Raises if a watcher missed the last commit."""
        heard, called = self.crowds.take(), self._heard
        assert called is not None
        if heard.failed or called.failed or len(heard.late_ms) < self.watchers:
            raise AssertionError(f"{len(heard.late_ms)} messages, {heard.failed} and {called.failed} failures")
        return [
            *_latencies("a call", called.call_ms),
            *_latencies("a message after its commit", heard.late_ms),
            Figure("messages", "messages/s", len(heard.late_ms) / self.seconds),
            Figure("cpu", "% of a core", 100 * self._cpu_s / (self.seconds + MESSAGES_END_S)),
        ]


@dataclass(slots=True)
class Churned(TakesTurns):
    """Calls that differ from each other, and watchers that come and go, in rounds: what memory they leave.

    Attributes:
        server: The service.
        callers: Who calls.
        count: Calls of a round, all callers together.
        name: Ours.
    """

    server: Server
    callers: Crowds
    count: int
    name: str = OURS
    _memory_mb: tuple[float, ...] = ()
    _failed: int = 0

    def run(self) -> None:
        """Let them call, and look at the memory after each round."""
        for _ in range(ROUNDS):
            self._failed += self.callers.churn(self.count).failed
            self._memory_mb = (*self._memory_mb, self.server.memory_mb())

    def check(self) -> Sequence[Figure]:
        """Return the figures. Raises if a call has failed."""
        if self._failed:
            raise AssertionError(f"{self._failed} calls failed")
        half = ROUNDS // 2
        grown_mb = self._memory_mb[-1] - self._memory_mb[half - 1]
        return [
            Figure("memory for 10,000 calls more", "MiB", grown_mb * 10_000 / (half * self.count)),
            *(Figure(f"memory after round {number + 1}", "MiB", each) for number, each in enumerate(self._memory_mb)),
        ]


@dataclass(slots=True)
class WithoutRedis(TakesTurns):
    """Nothing happens, and Redis is away: it is given back when this ends."""

    spent: Spent
    redis: RedisServer
    seconds: float
    name: str = OURS
    _figures: Sequence[Figure] = ()

    def run(self) -> None:
        """Look on."""
        self.spent.begin()
        self.redis.stop()
        while self.spent.server.read(_HEARS):
            time.sleep(1)
        self.spent.count()
        time.sleep(self.seconds)
        self._figures = self.spent.end()

    def check(self) -> Sequence[Figure]:
        """Return the figures."""
        return self._figures


@dataclass(slots=True)
class Command(TakesTurns):
    """``icedb status`` of all tables, in a process of its own.

    Attributes:
        tables: The tables.
        options: Its options.
        env: Its settings besides the store.
        name: Ours.
    """

    tables: ManyTables
    options: Sequence[str]
    env: dict[str, str]
    name: str = OURS
    _cpu_s: float = 0.0
    _said: str = ""

    def run(self) -> None:
        """Run it."""
        self.tables.take_counts()
        before_s = _children_s()
        command = [str(Path(sys.executable).with_name("icedb")), *self.options]
        self._said = subprocess.run(command, env=self.env, check=True, capture_output=True, text=True).stdout
        self._cpu_s = _children_s() - before_s

    def check(self) -> Sequence[Figure]:
        """Return the figures. Raises if a table is missing."""
        missing = [name for name in self.tables.names if name not in self._said]
        if missing:
            raise AssertionError(f"not shown: {missing[:5]}")
        return [Figure("cpu_time", "s", self._cpu_s), *_counted(self.tables)]


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@dataclass(slots=True)
class Overview(TakesTurns):
    """The console's page of all tables, opened again and again, its figures read behind it.

    Attributes:
        console: The console.
        tables: The tables.
        seconds: For how long it is looked at.
        name: Ours.
    """

    console: Server
    tables: ManyTables
    seconds: float
    name: str = OURS
    _took_s: list[float] | None = None
    _page_cpu_s: float = 0.0
    _cpu_s: float = 0.0

    def run(self) -> None:
        """Open it until all tables are known, then each second."""
        self._open()
        time.sleep(1)
        while "being read for the first time" in self._open():
            time.sleep(1)
        self._took_s = []
        begin_s, cpu_s = time.monotonic(), self.console.cpu_s()
        self.tables.take_counts()
        while time.monotonic() - begin_s < self.seconds:
            before_s = time.monotonic()
            self._open()
            self._took_s.append(time.monotonic() - before_s)
            time.sleep(1)
        self._cpu_s = (self.console.cpu_s() - cpu_s) / (time.monotonic() - begin_s)

    def _open(self) -> str:
        with urlopen(f"http://{self.console.address}/", timeout=60) as answer:
            return str(answer.read().decode())

    def check(self) -> Sequence[Figure]:
        """Return the figures."""
        counts = self.tables.take_counts()
        return [
            *_latencies("a page", [each * MS for each in self._took_s or [0.0]]),
            Figure("cpu", "% of a core", 100 * self._cpu_s),
            Figure("requests", "requests/s", sum(counts.values()) / self.seconds),
            Figure("memory", "MiB", self.console.memory_mb()),
        ]


def _latencies(what: str, values_ms: Sequence[float]) -> list[Figure]:
    if not values_ms:
        return []
    return [Figure(f"{each.metric} of {what}", each.unit, each.value / MS) for each in latency_figures(values_ms)]


def _counted(tables: ManyTables) -> list[Figure]:
    return [Figure("requests", "requests", sum(tables.take_counts().values()))]
