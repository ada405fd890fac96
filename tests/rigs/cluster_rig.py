"""A Spark cluster on machines of its own, a store with latency before it, three Redis masters, and drivers."""

import io
import json
import os
import random
import re
import subprocess
import sys
from base64 import b64encode
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
from icedb_local.chaos.fault_proxy import FaultProxy, ProxyFault
from icedb_log.clean.orphans import OrphanPolicy, sweep_orphans
from icedb_log.clock import SystemClock, new_batch_id
from icedb_log.commit.table import Table
from icedb_log.errors import NotFound
from icedb_log.ingest.staging import stage_batch
from icedb_log.log.fold import fold
from icedb_log.log.reader import LogReader
from icedb_log.store.object_store import list_all
from icedb_log.store.table_store import TableStore
from icedb_log.store_settings import StoreSettings
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import PartitionField, TableConfig
from icedb_sim.fakes.fake_clock import FakeClock
from icedb_sim.fakes.memory_store import MemoryObjectStore
from icedb_sim.rigs.cluster_nodes import running_nodes
from icedb_sim.rigs.redis_server import RedisServer
from icedb_sim.rigs.spark_cluster import SparkCluster
from waiting import LIMIT_MS, LIMIT_S, wait_until

CLOCK = SystemClock()
DRIVER = Path(__file__).parents[1] / "integration" / "cluster" / "cluster_driver_process.py"
LATENCY_MS = 15
DAYS, BATCHES, ROWS = 3, 3, 600
APPLICATION = {
    "spark.cores.max": "3",
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.rolling.enabled": "false",
    "spark.eventLog.compress": "false",
    "spark.network.timeout": "40s",
    "spark.network.timeoutInterval": "5s",
    "spark.executor.heartbeatInterval": "4s",
}


def make_row(n):
    pad = b64encode(random.Random(n).randbytes(1500)).decode()
    properties = {"country": ("DE", "FR", "IT")[n % 3], "pad": pad}
    return {
        "ts": f"2026-01-0{1 + n % DAYS}T00:00:00Z",
        "event": f"e{n % 5}",
        "n": n,
        "properties": json.dumps(properties),
    }


def make_rows(numbers):
    """Return rows as :meth:`ClusterTable.rows` does."""
    made = [make_row(n) for n in numbers]
    return [(datetime.fromisoformat(row["ts"][:-1]), row["event"], row["n"], row["properties"]) for row in made]


class Traffic:
    """Bytes of data files and staged batches that went through the store's door, by the machine that moved them."""

    def __init__(self):
        self.by_machine, self.names = Counter(), {}

    def note(self, request, answer_bytes):
        if ".parquet" in request.path or "/staging/" in request.path:
            moved_bytes = answer_bytes if request.method == "GET" else len(request.body)
            self.by_machine[find_machine(request.client, self.names)] += moved_bytes


def find_machine(client, names):
    """Return the name of who sent a request: by the address if machines have addresses, else by what it calls itself."""
    address, _, agent = client.partition(" ")
    called = re.search(r"app/(\S+)", agent)
    return names.get(address, "driver") if names else called[1] if called else ""


@dataclass(frozen=True)
class RanTask:
    host: str
    executor: str
    is_speculative: bool
    is_ok: bool
    result_bytes: int


class Driver:
    """A process that runs operations on the cluster."""

    def __init__(self, rig, name, options):
        self._events = rig.folder / f"events-{name}"
        self._events.mkdir()
        self._log = rig.folder / f"{name}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(DRIVER)],
                env=rig.driver_env(name, {"spark.eventLog.dir": f"file://{self._events}", **options}),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        self.application = ""

    def wait_open(self):
        self.application = self.answer()["application"]

    def begin(self, what, **question):
        self.process.stdin.write(json.dumps({"do": what, **question}) + "\n")
        self.process.stdin.flush()

    def answer(self):
        line = self.process.stdout.readline()
        assert line, self._log.read_text()[-4000:]
        return json.loads(line)

    def ask(self, what, **question):
        self.begin(what, **question)
        return self.answer()

    def do(self, what, **question):
        answer = self.ask(what, **question)
        assert "ok" in answer, answer
        return answer["ok"]

    def count_events(self):
        return len(self._read())

    def tasks(self, since=0):
        """Return the tasks that have ended since the event log had so many lines."""
        lines = [json.loads(line) for line in self._read()[since:]]
        return [
            RanTask(
                each["Task Info"]["Host"],
                each["Task Info"]["Executor ID"],
                each["Task Info"]["Speculative"],
                each["Task End Reason"]["Reason"] == "Success",
                (each.get("Task Metrics") or {}).get("Result Size", 0),
            )
            for each in lines
            if each["Event"] == "SparkListenerTaskEnd"
        ]

    def events(self, kind, since=0):
        return [event for line in self._read()[since:] if (event := json.loads(line))["Event"] == kind]

    def _read(self):
        return [line for file in sorted(self._events.iterdir()) for line in file.read_text().splitlines()]

    def kill(self):
        """End it as a machine does that loses its power. Idempotent."""
        self.process.kill()
        self.process.wait(LIMIT_S)
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()

    def close(self):
        """End it as a worker ends: its session is closed."""
        self.process.stdin.close()
        assert self.process.wait(LIMIT_S) == 0, self._log.read_text()[-4000:]


class ClusterTable:
    """A table, looked at past the proxy."""

    def __init__(self, rig, name, **options):
        self.name, self.inside = name, rig.warehouse.table(name)
        self.store, self.paths = self.inside.store, self.inside.paths
        config = TableConfig.create(
            name=name, partition=(PartitionField.parse("d=day(ts)"),), sort=("event", "n"), **options
        )
        create_table(self.inside, config)

    def stage(self, numbers, batches=BATCHES):
        numbers = list(numbers)
        for part in range(batches):
            body = "".join(f"{json.dumps(make_row(n))}\n" for n in numbers[part::batches]).encode()
            stage_batch(self.inside, body=body, staging_format="ndjson", batch_id=new_batch_id(CLOCK))

    def live(self):
        return fold(LogReader(self.inside, clock=CLOCK).read()).live

    def read(self):
        tables = [pq.read_table(io.BytesIO(self.store.get(each.path).body), partitioning=None) for each in self.live()]
        return pa.concat_tables(tables, promote_options="default").sort_by("n") if tables else pa.table({"n": []})

    def rows(self):
        return [(row["ts"], row["event"], row["n"], row["properties"]) for row in self.read().to_pylist()]

    def data_keys(self):
        return {info.key for info in list_all(self.store, self.paths.data_prefix).objects}

    def sweep(self):
        """Have the janitor's sweep look at a copy of the table two days later; return what it deletes.

        What it leaves must be what the log names, and rows must be the same.
        """
        clock = FakeClock(CLOCK.now_ms())
        copy = MemoryObjectStore(clock.now_ms)
        for info in list_all(self.store, self.paths.data_prefix.removesuffix("_data/")).objects:
            copy.put(info.key, self.store.get(info.key).body)
        clock.advance(2 * 86_400_000)
        table = Table.open(TableStore(copy, self.paths), clock=clock, owner="janitor")
        result = sweep_orphans(table, policy=OrphanPolicy(is_forced=True))
        assert not result.failed
        left = {info.key for info in list_all(copy, self.paths.data_prefix).objects}
        view = table.read_log()
        named = {marker.path for file in view.files for marker in file.log.markers}
        assert left <= named, "an orphan was left"
        assert {each.path for each in self.live()} <= left, "a live file was taken for an orphan"
        return result.deleted


class ClusterRig:
    """Everything. Use as a context manager."""

    def __init__(self, folder, s3_server):
        self.folder, self._s3, self._stack = folder, s3_server, ExitStack()
        self.traffic = Traffic()
        self.store_url = f"s3://{s3_server.bucket}/cluster-{CLOCK.new_id()}"
        self.warehouse = StoreSettings(self.store_url, s3_server.options).open()
        self._count = 0
        self._recovery = folder / "recovery"

    def __enter__(self):
        with self._stack as stack:
            self.nodes = stack.enter_context(running_nodes(self.folder / "nodes"))
            if self.nodes.are_isolated:
                self.traffic.names |= {node.address: node.name for node in self.nodes.all}
            port = int(self._s3.endpoint_url.rpartition(":")[2])
            self.proxy = stack.enter_context(
                FaultProxy(
                    port,
                    {"store": 0},
                    clock=CLOCK,
                    on_done=self.traffic.note,
                    host=self.nodes.hub,
                    latency_ms=LATENCY_MS,
                )
            )
            self.redis = [stack.enter_context(RedisServer(node)) for node in self.nodes.all]
            self.cluster = stack.enter_context(
                SparkCluster(
                    self.folder / "spark",
                    nodes=self.nodes.all,
                    worker_cores=2,
                    host=self.nodes.hub,
                    env=self._keys,
                    master_options={
                        "spark.worker.timeout": "20",
                        "spark.deploy.recoveryMode": "FILESYSTEM",
                        "spark.deploy.recoveryDirectory": str(self._recovery),
                    },
                )
            )
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error):
        self._stack.close()

    @property
    def _keys(self):
        options = self._s3.options
        return {"AWS_ACCESS_KEY_ID": options.access_key_id, "AWS_SECRET_ACCESS_KEY": options.secret_access_key}

    def driver_env(self, name, options):
        kept = {each: value for each, value in os.environ.items() if not each.startswith(("AWS_", "ICEDB_", "SPARK_"))}
        hub = {"spark.driver.host": self.nodes.hub, "spark.driver.bindAddress": self.nodes.hub}
        return kept | self._keys | {
            "ICEDB_STORE": self.store_url,
            "ICEDB_S3_ENDPOINT": f"http://{self.nodes.hub}:{self.proxy.ports['store']}",
            "ICEDB_REDLOCK_URLS": ",".join(redis.url for redis in self.redis),
            "ICEDB_LOCK_TTL_MS": "20000",
            "ICEDB_SPARK_MASTER": self.cluster.url,
            "ICEDB_SPARK_OPTIONS": json.dumps({**APPLICATION, **hub, **options}),
            "ICEDB_SPARK_MEMORY_MB": "512",
            "ICEDB_TASK_MEMORY_MB": "256",
            "AWS_SDK_UA_APP_ID": name,
            "SPARK_LOCAL_IP": self.nodes.hub,
            "SPARK_LOCAL_DIRS": str(self.folder),
        }  # fmt: skip

    @contextmanager
    def running_driver(self, **options):
        """Run a driver, from when it has warmed up its executors until it has closed its session, or is killed."""
        self._count += 1
        driver = Driver(self, f"driver-{self._count}", options)
        try:
            driver.wait_open()
            yield driver
            if driver.process.poll() is None:
                driver.close()
        finally:
            driver.kill()

    def restart_master(self, *, forgets=False):
        """Restart the master, with what it knows of its applications, or without."""
        self.cluster.kill_master()
        for known in self._recovery.iterdir() if forgets else ():
            known.unlink()
        self.cluster.restart_master()

    def table(self, name, **options):
        return ClusterTable(self, name, **options)

    def gate(self, table, target, *, client="app/node", action="slow"):
        """Hold the next PUT of a kind at the store's door, until it is released: forwarded then, or refused (hold)."""
        fault = ProxyFault(
            action, frozenset({"PUT"}), target=f"/{table.name}/{target}", client=client, limit=1, delay_ms=LIMIT_MS
        )
        return self.proxy.begin(fault)

    def find_client(self, hits):
        """Wait until a gate holds a request; return the machine that sent it, or ``None``: a driver."""
        wait_until(lambda: hits.total, "a request is at the gate")
        name = find_machine(hits.clients[0], self.traffic.names)
        return next((node for node in self.nodes.all if node.name == name), None)

    def wait_landed(self, hits):
        """Wait until the write that a gate has held lies in the store, whoever still waits for its answer."""
        ((write,),) = hits.requests.values()
        key = unquote(urlsplit(write.partition(" ")[2]).path).split("/", 2)[2]
        wait_until(lambda: has_object(self.warehouse.store, key), f"{key} has landed")


def has_object(store, key):
    try:
        return bool(store.head(key))
    except NotFound:
        return False
