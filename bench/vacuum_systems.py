"""The competitors of the vacuum benchmark. Those that delete run in processes of their own, see :mod:`bench.processes`.

All tables have the same data files, in 30 partitions: all but one are dead, for 30 days. Data files hold no Parquet: a
vacuum opens none.
"""

import json
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from icedb_log.clean.deletion import AuditLog
from icedb_log.clean.vacuum import vacuum_table
from icedb_log.clock import SystemClock
from icedb_log.commit.table import Table
from icedb_log.keys import TablePaths
from icedb_log.store.object_store import ObjectStore, list_all
from icedb_log.store.table_store import TableStore
from icedb_log.units import MIB
from icedb_sim.growth.dead_table import DAY_MS, PARTITIONS, DeadTable, build_dead_table

from bench.counting_s3 import BUCKET
from bench.figures import OURS, Figure, TakesTurns
from bench.memory import sampled_memory
from bench.processes import PEERS_PYTHON, SystemInProcess
from bench.serve import Peer
from bench.servers import boto3_client
from bench.vacuum_places import Bucket, Directory, Place

FILE_BYTES: Final = 1000
DELETE_KEYS: Final = 1000
_COMMIT: Final = "{:020d}.json"


class _Vacuum:
    """What all have in common: a table of dead files for each turn, and a look at what is left."""

    name = ""

    def __init__(self, place: Place, *, count: int) -> None:
        self._place = place
        self._count = count
        self._store: ObjectStore | None = None

    @property
    def _prefix(self) -> str:
        return f"tables/{self.name}"

    def prepare(self) -> None:
        """Write the table anew."""
        self._place.clear(self._prefix)
        self._build()
        self._place.write(self._files(), size_bytes=FILE_BYTES)
        self._open()
        self._place.take_counts()

    def check(self) -> Sequence[Figure]:
        """Look that all dead files are gone, and the live one is not; say what it took."""
        counts = dict(self._place.take_counts())
        store = self._store = self._store or self._place.open()
        left = [info for info in list_all(store, f"{self._prefix}/").objects if info.key.endswith(".parquet")]
        if [(info.key, info.size_bytes) for info in left] != [(self._files()[-1], FILE_BYTES)]:
            raise AssertionError(f"{self.name}: {len(left)} data files are left, not the one that lives")
        if not counts:
            return ()
        total, deletes = sum(counts.values()), counts.get("delete_objects", 0)
        return (
            Figure("requests_per_1000", "requests", total * 1000 / self._count),
            Figure("delete_requests", "requests", deletes),
            Figure("other_requests", "requests", total - deletes),
        )

    def close(self) -> None:
        """Remove what is left."""
        self._place.clear(self._prefix)

    def _build(self) -> None:
        """Write the log."""

    def _open(self) -> None:
        """Open what stays open in a service, too."""

    def _files(self) -> list[str]:
        """Return the keys of all data files; the last one lives."""
        folder = f"{self._prefix}/data"
        return [f"{folder}/p=day-{n % PARTITIONS:02d}/{n:032x}.parquet" for n in range(self._count + 1)]


class IceDB(_Vacuum):
    """Ours: a vacuum as the janitor runs it: the log, what holds, the plan, the audit, deletes, the strip."""

    name = OURS
    _table: DeadTable

    def run(self) -> None:
        """One vacuum."""
        clock, store = SystemClock(), self._store
        assert store is not None
        audit = AuditLog(TableStore(store, self._table.paths), clock=clock, owner="bench")
        result = vacuum_table(Table.open(TableStore(store, self._table.paths), clock=clock), audit=audit)
        if (len(result.deleted_data), result.failed, result.has_more) != (self._count, (), False):
            raise AssertionError(
                f"{len(result.deleted_data)} deleted, {len(result.failed)} failed: {result.failed[:1]}"
            )

    def _build(self) -> None:
        died_ms = SystemClock().now_ms() - 30 * DAY_MS
        paths = TablePaths("dead", self._prefix)
        self._table = build_dead_table(TableStore(self._place.open(), paths), dead_count=self._count, died_ms=died_ms)

    def _open(self) -> None:
        self._store = self._store or self._place.open()

    def _files(self) -> list[str]:
        return [*self._table.dead_paths(), self._table.live_path]


class DeltaRs(_Vacuum):
    """delta-rs, in a process of the peers: open the table, then ``vacuum`` without retention."""

    name = "delta-rs"

    def __init__(self, place: Place, *, count: int) -> None:
        super().__init__(place, count=count)
        self._peer = SystemInProcess(Peer("bench.peers.vacuum:DeltaRs", *place.delta(self._prefix), count))

    def run(self) -> None:
        """One vacuum."""
        self._peer.run()

    def check(self) -> Sequence[Figure]:
        """Look at what is left, and say what the process took."""
        return (*super().check(), *self._peer.check())

    def close(self) -> None:
        """Remove what is left, and end the process."""
        super().close()
        self._peer.close()

    def _build(self) -> None:
        store = self._place.open()
        names = [file.removeprefix(f"{self._prefix}/") for file in self._files()]
        for number, lines in enumerate(delta_log(names)):
            store.put(f"{self._prefix}/_delta_log/{_COMMIT.format(number)}", "\n".join(lines).encode())


class Floor(_Vacuum):
    """What the place itself takes: the keys are known, one thread deletes them. No log, no plan, no audit."""

    name = "floor"

    def run(self) -> None:
        """Delete."""
        doomed = self._files()[:-1]
        if isinstance(self._place, Directory):
            for key in doomed:
                (self._place.root / key).unlink()
            return
        for start in range(0, len(doomed), DELETE_KEYS):
            objects = [{"Key": key} for key in doomed[start : start + DELETE_KEYS]]
            self._client.delete_objects(Bucket=BUCKET, Delete={"Objects": objects, "Quiet": True})

    def _open(self) -> None:
        if isinstance(self._place, Bucket):
            self._client = boto3_client(self._place.endpoint)


def delta_log(names: Sequence[str], *, live_count: int = 1) -> Iterator[Iterator[str]]:
    """Yield the lines of two commits: one adds all files, one removes all but the last ones."""
    old_ms = SystemClock().now_ms() - 30 * DAY_MS
    fields = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in (("id", "long"), ("p", "string"))]
    metadata = {
        "id": "vacuum",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": fields}),
        "partitionColumns": ["p"],
        "configuration": {},
        "createdTime": old_ms,
    }

    def describe(name: str) -> dict[str, Any]:
        partition = {"p": name.split("p=")[1].partition("/")[0]}
        return {"path": name, "partitionValues": partition, "size": FILE_BYTES, "dataChange": True}

    def added() -> Iterator[str]:
        yield json.dumps({"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}})
        yield json.dumps({"metaData": metadata})
        for name in names:
            yield json.dumps({"add": {**describe(name), "modificationTime": old_ms}})

    def removed() -> Iterator[str]:
        for name in names[:-live_count]:
            more = {"deletionTimestamp": old_ms, "extendedFileMetadata": True}
            yield json.dumps({"remove": {**describe(name), **more}})

    yield added()
    yield removed()


class FreshPlan(TakesTurns, ABC):
    """A plan in a process that does nothing else: interpreter, imports, log, plan. Nothing is deleted."""

    name = ""
    counted: str = "dead"

    def __init__(self, folder: Path, *, count: int, live_count: int = 1) -> None:
        self._folder = folder
        self._count = count
        self._live_count = live_count
        self._answer: dict[str, float] = {}
        self._peak_mb = 0.0
        self._build()

    def run(self) -> None:
        """Start the process, and wait for what it says."""
        process = subprocess.Popen(self._command(), stdout=subprocess.PIPE)
        with sampled_memory(process.pid) as peak:
            said, _ = process.communicate()
        self._peak_mb = peak.total_mb
        if process.returncode:
            raise AssertionError(f"{self.name}: the process ended with {process.returncode}")
        self._answer = json.loads(said)

    def check(self) -> Sequence[Figure]:
        """Look that the plan is whole."""
        wanted = self._live_count if self.counted == "live" else self._count
        if self._answer[self.counted] != wanted:
            raise AssertionError(f"{self.name}: found {self._answer[self.counted]} of {wanted} {self.counted} files")
        peak_mb = max(self._peak_mb, self._answer.get("peak_bytes", 0) / MIB)
        figures = [Figure("peak_memory", "MiB", peak_mb)]
        cpu = {"read_cpu": "read_cpu_s", "plan_cpu": "plan_cpu_s"}
        figures += [Figure(metric, "s", self._answer[said]) for metric, said in cpu.items()]
        figures.append(Figure("log_size", "MB", self._answer["log_bytes"] / 1e6))
        return figures

    @abstractmethod
    def _build(self) -> None:
        """Write the log."""

    @abstractmethod
    def _command(self) -> list[str]:
        """Return the process that plans, and prints figures as JSON."""


class IceDBPlan(FreshPlan):
    """Ours: what a vacuum plans from the log."""

    name = OURS
    _module: Final = "icedb_sim.growth.dead_table"

    def _build(self) -> None:
        command = [sys.executable, "-m", self._module, "build", str(self._folder), "--dead", str(self._count)]
        command += ["--live", str(self._live_count)]
        subprocess.run(command, check=True)

    def _command(self) -> list[str]:
        return [sys.executable, "-m", self._module, "plan", str(self._folder)]


class IceDBMergePlan(IceDBPlan):
    """Ours: what a merger that has just started plans from the same log, all of whose live files are small."""

    name = f"{OURS}, a merge"
    counted = "live"

    def _build(self) -> None:
        """Leave it to the plan of a vacuum, whose table this is."""

    def _command(self) -> list[str]:
        return [sys.executable, "-m", self._module, "merge", str(self._folder)]


class DeltaRsPlan(FreshPlan):
    """delta-rs: open the table, then ``vacuum(dry_run=True)``."""

    name = "delta-rs"

    def _build(self) -> None:
        log = self._folder / "_delta_log"
        log.mkdir(parents=True)
        count = self._count + self._live_count
        names = [f"p=day-{n % PARTITIONS:02d}/{n:032x}.parquet" for n in range(count)]
        for number, lines in enumerate(delta_log(names, live_count=self._live_count)):
            with (log / _COMMIT.format(number)).open("w") as file:
                file.writelines(f"{line}\n" for line in lines)

    def _command(self) -> list[str]:
        return [str(PEERS_PYTHON), "-m", "bench.peers.vacuum", str(self._folder)]
