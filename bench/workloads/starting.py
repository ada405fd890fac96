"""W=starting: how long it takes until a command has answered, a library is imported, a service or ``make up`` is ready.

Each turn is a new process, with its files in the page cache. The bound is Python itself, which does nothing.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import psutil
from icedb_log.store_settings import StoreSettings

from bench.figures import OURS, Figure, TakesTurns
from bench.harness import Case, System, Workload
from bench.memory import MIB, read_cpu_s
from bench.processes import PEERS_PYTHON
from bench.snapshot_callers import uri_of
from bench.snapshot_service import running_service
from bench.snapshot_tables import build_icedb
from bench.snapshot_work import Shape

IDLE_S: Final = 70
"""Spark ends its Python workers when they have had nothing to do for a minute."""
CPU_S: Final = 10
STACK_WARM_TURNS: Final = 1
"""Of ``make up``: a turn takes half a minute, and the first timed one 80 s more, while it is idle."""


class Started(TakesTurns):
    """A command, from its start to its end.

    Args:
        name: What it is called.
        command: Program and arguments.
        env: Beside what this process has.
    """

    def __init__(self, name: str, command: Sequence[str], **env: str) -> None:
        self.name = name
        self._command = command
        self._env = env
        self._cpu_s = 0.0

    def run(self) -> None:
        """Run it."""
        before = os.times()
        subprocess.run(self._command, check=True, stdout=subprocess.DEVNULL, env=os.environ | self._env)
        after = os.times()
        self._cpu_s = after.children_user + after.children_system - before.children_user - before.children_system

    def check(self) -> Sequence[Figure]:
        """Return the processor time."""
        return (Figure("cpu_time", "s", self._cpu_s),)


class StartedService:
    """The snapshot service, from its start until it is served."""

    name = OURS

    def __init__(self, store: StoreSettings, folder: Path) -> None:
        self._store = store
        self._folder = folder
        self._stack = ExitStack()

    def prepare(self) -> None:
        """End the one before."""
        self._stack.close()

    def run(self) -> None:
        """Start one."""
        self._service = self._stack.enter_context(running_service(self._store, self._folder))

    def check(self) -> Sequence[Figure]:
        """Return the processor time, and end it."""
        cpu_s = read_cpu_s(self._service.process_id)
        self._stack.close()
        return (Figure("cpu_time", "s", cpu_s),)


class StartedStack(TakesTurns):
    """What ``make up`` runs, from its start until it takes batches and answers queries."""

    name = OURS

    def __init__(self, folder: Path) -> None:
        self._command = [sys.executable, "-m", "icedb_local.up", "--run-dir", str(folder)]
        self._turn = 0

    def run(self) -> None:
        """Start one."""
        self._turn += 1
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        self._wait_for("The stack is up")

    def check(self) -> Sequence[Figure]:
        """Return when Spark was ready, and of the first timed turn what all of it takes while it is idle; end it."""
        begin = time.monotonic()
        self._wait_for("Spark is ready")
        figures = [Figure("spark_ready_after", "s", time.monotonic() - begin)]
        if self._turn == STACK_WARM_TURNS + 1:
            figures += self._look_while_idle()
        self._process.terminate()
        self._process.communicate()
        return figures

    def _look_while_idle(self) -> Iterator[Figure]:
        time.sleep(IDLE_S)
        root = psutil.Process(self._process.pid)
        tree = [root, *root.children(recursive=True)]
        before_s = sum(_cpu_s(process) for process in tree)
        time.sleep(CPU_S)
        busy = (sum(_cpu_s(process) for process in tree) - before_s) / CPU_S
        memory = [process.memory_full_info() for process in tree]
        yield Figure("idle_memory", "MiB", sum(each.pss for each in memory) / MIB)
        yield Figure("idle_resident", "MiB", sum(each.rss for each in memory) / MIB)
        yield Figure("idle_cpu", "% of a core", 100 * busy)
        yield Figure("processes", "processes", len(tree))

    def _wait_for(self, words: str) -> None:
        assert self._process.stdout is not None
        said = []
        for line in self._process.stdout:
            said.append(line)
            if words in line:
                return
        raise RuntimeError(f"make up ended: {''.join(said)}")


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


class StartingWorkload(Workload):
    """Commands, imports, a service, the local stack."""

    description = "a new process each turn, until it has answered, imported, or is ready; all in the page cache"

    def cases(self) -> Iterable[Case]:
        """Make one case after the other ready."""
        build_icedb(self.folder / "wh", Shape(100, 10))
        store = uri_of(self.folder / "wh")
        icedb = str(Path(sys.executable).with_name("icedb"))
        yield from self._case("icedb --help", [Started(OURS, [icedb, "--help"])])
        yield from self._case("icedb version", [Started(OURS, [icedb, "--version"])])
        status = Started(OURS, [icedb, "status", "events"], ICEDB_STORE=store)
        yield from self._case("icedb status of a directory", [status])
        query = Started(OURS, [icedb, "query", "select 1"], ICEDB_STORE=store)
        yield from self._case("icedb query 'select 1' of a directory", [query])
        imports = [_importing(sys.executable, "icedb_client", OURS)]
        imports += [_importing(str(PEERS_PYTHON), name, peer) for name, peer in _PEERS]
        yield from self._case("import icedb_client", imports)
        service = StartedService(StoreSettings(store), self.folder / "service")
        yield from self._case("snapshot service", [service])
        yield from self._case("make up", [StartedStack(self.folder / "stack")], warm_turn_count=STACK_WARM_TURNS)

    def _case(self, name: str, systems: Sequence[System], *, warm_turn_count: int = 2) -> Iterator[Case]:
        if self.wants(name):
            bound = Started("bound: python -c pass", [sys.executable, "-c", "pass"])
            yield Case(name, 1, [*systems, bound], warm_turn_count=warm_turn_count, unit="starts")


_PEERS = (("deltalake", "delta-rs"), ("pyiceberg.catalog.sql", "pyiceberg"), ("polars", "polars"))


def _importing(python: str, module: str, name: str) -> Started:
    return Started(name, [python, "-c", f"import {module}"])
