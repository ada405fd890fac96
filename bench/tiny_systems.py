"""Ours in the benchmark of tiny batches, and what the store alone takes. Each runs in a process of its own."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from icedb_client import Client, ClientSettings
from icedb_client.bodies import encode_rows
from icedb_log.clock import SystemClock
from icedb_log.log.fold import fold
from icedb_log.log.reader import LogReader
from icedb_log.store.table_store import TableStore
from icedb_log.store_settings import StoreSettings
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import PartitionField, TableConfig
from icedb_sim.rigs.redis_server import RedisServer

from bench.figures import MS, OURS, Figure, TakesTurns, latency_figures
from bench.ingest_systems import SparkWork
from bench.memory import read_cpu_by_role
from bench.processes import Remote
from bench.servers import find_word, running, store_environment
from bench.tiny_work import ROWS_PER_BATCH, WARM_SHARE, make_rows, sum_durations

PROCESSES: Final = 4
FLUSH_INTERVAL_S: Final = 1.0
"""The ingest worker's default: least time between two commits of a table."""
_IDLE_S: Final = 0.01
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TinyLoad:
    """What one turn sends.

    Attributes:
        store: Where to.
        batch_count: How many batches; a multiple of the producers.
        producer_count: Threads that send at once, shared out among processes.
    """

    store: StoreSettings
    batch_count: int
    producer_count: int

    def count_in(self, turn: int) -> int:
        """Return how many batches a turn has, counted from 1; a multiple of the producers."""
        count = self.batch_count // WARM_SHARE if turn == 1 else self.batch_count
        return max(self.producer_count, count // self.producer_count * self.producer_count)


def _share(load: TinyLoad, work: Callable[[int], T], first: int, count: int) -> list[T]:
    """Do what is to be done for some batches, in the threads of one process; return what that gives, in any order."""
    thread_count = load.producer_count // PROCESSES
    numbers = range(first, first + count)

    def work_off(own: range) -> list[T]:
        return [work(number) for number in own]

    with ThreadPoolExecutor(thread_count) as pool:
        return [
            *chain.from_iterable(pool.map(work_off, [numbers[place::thread_count] for place in range(thread_count)]))
        ]


def require_rows(place: TableStore, batch_count: int) -> None:
    """Count the rows of a snapshot, and add them up. Raises AssertionError if it has not those of so many batches."""
    snapshot = fold(LogReader(place, clock=SystemClock()).read())
    bodies = [place.store.get(marker.path).body for marker in snapshot.live]
    durations = pa.chunked_array(
        [pq.read_table(pa.BufferReader(body))["duration_ms"].combine_chunks() for body in bodies]
    )
    found = (len(durations), pc.sum(durations).as_py())
    if found != (batch_count * ROWS_PER_BATCH, sum_durations(batch_count)):
        raise AssertionError(f"table {place.name}: rows and their sum are {found}")


class Producers:
    """Producers of one process: each enqueues one batch after the other, by one client."""

    name = "producers"

    def __init__(self, load: TinyLoad, redis_url: str) -> None:
        self._load = load
        self._redis_url = redis_url

    def connect(self) -> None:
        """Make the client: it does not travel."""
        s3 = self._load.store.s3
        more: dict[str, Any] = {} if s3 is None else {"s3_endpoint": s3.endpoint_url}
        settings = ClientSettings(store=self._load.store.url, redis_url=self._redis_url, **more)
        self._client = Client(settings=settings)

    def send(self, table: str, first: int, count: int) -> int:
        """Enqueue some batches; all are acknowledged when this returns. Returns how many objects these are."""
        sent = _share(self._load, lambda number: self._client.enqueue(table, make_rows(number)), first, count)
        return len({each.key for each in sent})


class StoreAlone(TakesTurns):
    """What the store takes: the same objects by PUT, GET and DELETE, nothing else; no log, no rows read."""

    name = "store ceiling"

    def __init__(self, load: TinyLoad) -> None:
        self._load = load
        self._elapsed_s = 0.0
        self._turn = 0

    def prepare(self) -> None:
        """Begin a fresh folder."""
        self._store = self._load.store.open().store
        self._turn += 1
        self._count = self._load.count_in(self._turn)

    def run(self) -> None:
        """Write, read and delete as many objects as there are batches."""
        body, started_s = encode_rows(make_rows(1)).body, perf_counter()
        store, keys = self._store, [f"ceiling/{self._turn}/{number:08}" for number in range(self._count)]
        with ThreadPoolExecutor(self._load.producer_count) as pool:
            list(pool.map(lambda key: store.put_if_absent(key, body), keys))
            list(pool.map(store.get, keys))
        store.delete(keys)
        self._elapsed_s = perf_counter() - started_s

    def check(self) -> Sequence[Figure]:
        """Return the rate."""
        return (Figure("visible", "batches/s", self._count / self._elapsed_s), Figure("batches", "", self._count))


class IceDB:
    """Ours: producers in processes of their own, and flushes as the ingest worker makes them, at most one a second."""

    name = OURS

    def __init__(self, load: TinyLoad) -> None:
        self._load = load
        self._work = SparkWork(load.store)
        self._redis: RedisServer | None = None
        self._producers: list[Remote] = []
        self._table = ""
        self._turn = 0
        self._acknowledged_s = self._visible_s = 0.0
        self._commit_count = self._object_count = 0

    def prepare(self) -> None:
        """Make a fresh table."""
        self._work.open_session()
        if self._redis is None:
            self._redis = RedisServer()
            self._redis.__enter__()
            for _ in range(PROCESSES):
                remote = Remote()
                self._producers.append(remote)
                remote.take(Producers(self._load, self._redis.url))
                remote.ask("connect")
        self._turn += 1
        self._table, self._count = f"tiny_{self._turn}", self._load.count_in(self._turn)
        place = self._load.store.open().table(self._table)
        create_table(place, TableConfig.create(name=self._table, sort=("event", "ts")))

    def run(self) -> None:
        """Send all batches, and flush until all are visible."""
        count = self._count // PROCESSES
        started_s = perf_counter()
        self._acknowledged_s, self._commit_count = 0.0, 0
        with ThreadPoolExecutor(PROCESSES) as pool:
            for place, remote in enumerate(self._producers):
                remote.send("send", self._table, place * count, count)
            sent = [pool.submit(remote.receive) for remote in self._producers]
            is_all_visible = False
            while not is_all_visible:
                is_all_sent = all(each.done() for each in sent)
                if is_all_sent and not self._acknowledged_s:
                    self._acknowledged_s = perf_counter() - started_s
                began_s = perf_counter()
                taken_count = self._work.flush(self._table).batch_count
                is_all_visible = is_all_sent and not taken_count
                self._commit_count += bool(taken_count)
                self._visible_s = began_s - started_s if is_all_visible else 0.0
                if taken_count:
                    sleep(max(0.0, FLUSH_INTERVAL_S - (perf_counter() - began_s)))
                elif not is_all_visible:
                    sleep(_IDLE_S)
            self._object_count = sum(each.result() for each in sent)

    def check(self) -> Sequence[Figure]:
        """Count the rows of a snapshot, and add them up."""
        count = self._count
        require_rows(self._load.store.open().table(self._table), count)
        return (
            Figure("visible", "batches/s", count / self._visible_s),
            Figure("batches", "", count),
            Figure("acknowledged", "batches/s", count / self._acknowledged_s),
            Figure("commits", "", self._commit_count),
            Figure("staged objects", "", self._object_count),
        )

    def close(self) -> None:
        """End producers, Redis and Spark."""
        for remote in self._producers:
            remote.close()
        if self._redis is not None:
            self._redis.__exit__(None, None, None)
        self._work.close()


WARM_BATCHES: Final = 50
_LOOK_S: Final = 0.005


class WarmWorker:
    """Ours: the ingest worker as a stack runs it, warm. A batch is sent when a snapshot has the one before.

    Args:
        folder: For the store and the worker's log.
        partition: Of the table.
    """

    name = OURS

    def __init__(self, folder: Path, *, partition: tuple[str, ...]) -> None:
        self._folder = folder
        self._store = StoreSettings(f"file://{folder / 'warehouse'}")
        self._partition = partition
        self._stack = ExitStack()
        self._client: Client | None = None
        self._worker_id = self._turn = 0
        self._latencies_s: list[float] = []
        self._cpu_s: dict[str, float] = {}

    def prepare(self) -> None:
        """Make a fresh table; the first time start Redis and the worker, and wait for its engine."""
        if self._client is None:
            self._folder.mkdir(parents=True)
            redis, log = self._stack.enter_context(RedisServer()), self._folder / "worker.log"
            env = store_environment(self._store) | {
                "ICEDB_REDIS_URL": redis.url,
                "ICEDB_METRICS_PORT": "0",
                "ICEDB_FLUSH_INTERVAL_MS": "0",
                "ICEDB_SPARK_MASTER": "local[2]",
            }
            found = running(["icedb_ingest"], log, find=lambda: find_word(log, "engine_opened"), env=env)
            self._worker_id = self._stack.enter_context(found).process_id
            self._client = Client(settings=ClientSettings(store=self._store.url, redis_url=redis.url))
        self._turn += 1
        config = TableConfig.create(
            name=f"warm_{self._turn}", partition=tuple(map(PartitionField.parse, self._partition)), sort=("event", "ts")
        )
        self._place = self._store.open().table(config.name)
        create_table(self._place, config)

    def run(self) -> None:
        """Send one batch after the other, each when the last one is visible."""
        assert self._client is not None
        before = read_cpu_by_role(self._worker_id)
        reader, self._latencies_s = LogReader(self._place, clock=SystemClock()), []
        for number in range(WARM_BATCHES):
            began_s = perf_counter()
            self._client.enqueue(self._place.name, make_rows(number))
            while sum(marker.row_count or 0 for marker in fold(reader.read()).live) <= number * ROWS_PER_BATCH:
                sleep(_LOOK_S)
            self._latencies_s.append(perf_counter() - began_s)
        after = read_cpu_by_role(self._worker_id)
        self._cpu_s = {role: (after[role] - before[role]) / WARM_BATCHES for role in after}

    def check(self) -> Sequence[Figure]:
        """Count the rows; return how long batches took, and the worker's processor time for each."""
        require_rows(self._place, WARM_BATCHES)
        taken = [Figure(f"cpu_{role}", "ms", cpu_s * MS) for role, cpu_s in self._cpu_s.items()]
        return *latency_figures(self._latencies_s, tail=95), *taken

    def close(self) -> None:
        """End the worker and Redis."""
        self._stack.close()
