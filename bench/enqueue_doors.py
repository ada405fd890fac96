"""One producer for each front end: sends batches of rows until all are acknowledged, and notes how long each took."""

import http.client
import itertools
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from time import perf_counter, sleep
from typing import Any, Final

import grpc
import icedb
import orjson
from icedb_client import Client
from icedb_log.clock import SystemClock, new_batch_id
from icedb_log.content import decode_parts
from icedb_log.ingest.staging import list_all_staged, read_staged
from icedb_log.names import INGEST_ENQUEUE
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import TableConfig
from icedb_proto import ingest_pb2 as pb
from icedb_proto import ingest_pb2_grpc
from icedb_service.celery_app import make_app
from icedb_service.settings import ServiceSettings

from bench.enqueue_stack import Doors
from bench.figures import Figure, TakesTurns, latency_figures

ROWS_PER_BATCH: Final = 100
STREAM_WINDOW: Final = 8
"""Batches of one stream without an answer, as many as the server stages side by side: a latency holds no queue."""
ANSWER_LIMIT_S: Final = 120
_CLOCK: Final = SystemClock()
_GOLDEN: Final = 0.618033988749895


@dataclass(frozen=True, slots=True)
class Load:
    """What one turn sends."""

    batch_count: int
    concurrency: int
    rows_per_batch: int = ROWS_PER_BATCH
    per_second: float = 0.0
    """Of all producers together; 0: each sends as soon as it has its answer."""


class Door(TakesTurns, ABC):
    """A system of the harness; each front end says how one producer sends a batch."""

    name = ""
    has_single_events = False
    """Whether a request has one event, whatever batches have elsewhere."""
    config: dict[str, Any] = {}  # noqa: RUF012 - nobody changes it
    """Fields of the table, besides its sort order."""

    def __init__(self, doors: Doors, load: Load) -> None:
        self._doors = doors
        self._load = load
        self._turn = 0
        self._warehouse = doors.store.open()
        self._latencies_s: list[float] = []
        self.acknowledged_s: list[float] = []
        """When each batch was, by the clock that never runs backwards."""
        self._tickets = itertools.count()
        self._begun_s = 0.0
        self.rows_per_request = 1 if self.has_single_events else load.rows_per_batch
        self.row_count = load.batch_count * self.rows_per_request
        self._rows = [
            {
                "ts": "2025-06-01T12:00:00.000Z", "event": "page_view", "user_id": f"u{number}", "path": "/pricing",
                "duration_ms": number, "price": 9.75,
            }
            for number in range(self.rows_per_request)
        ]  # fmt: skip
        self._body = b"".join(orjson.dumps(row) + b"\n" for row in self._rows)

    @property
    def table(self) -> str:
        """A fresh table for each turn."""
        return f"{self.name.replace('-', '_')}_{self._load.concurrency}_{self._turn}"

    @property
    def place(self) -> TableStore:
        """The table of this turn."""
        return self._warehouse.table(self.table)

    def prepare(self) -> None:
        """Make a table, and connect."""
        self._turn += 1
        create_table(self.place, TableConfig.create(name=self.table, sort=("event", "ts"), **self.config))
        self._latencies_s, self.acknowledged_s = [], []

    def run(self) -> None:
        """Let every producer send its share at once."""
        self._tickets, self._begun_s = itertools.count(), perf_counter()
        count, share = self._load.concurrency, self._load.batch_count // self._load.concurrency
        with ThreadPoolExecutor(count) as pool:
            for latencies_s in pool.map(self.send, [share] * count):
                self._latencies_s += latencies_s

    @abstractmethod
    def sender(self) -> AbstractContextManager[Callable[[], object]]:
        """Connect one producer: what comes out sends one batch, and returns when it is acknowledged."""

    def send(self, count: int) -> list[float]:
        """Send so many batches; return how long each took to be acknowledged, seconds."""
        with self.sender() as send:
            return [self._send_one(send) for _ in range(count)]

    def _send_one(self, send: Callable[[], object]) -> float:
        if self._load.per_second:
            number = next(self._tickets)
            due_s = self._begun_s + (number + number * _GOLDEN % 1) / self._load.per_second  # never in step
            sleep(max(0.0, due_s - perf_counter()))
        latency_s = _timed(send)
        self.acknowledged_s.append(perf_counter())
        return latency_s

    def latencies(self) -> tuple[Figure, ...]:
        """Return how long acknowledgements took."""
        return latency_figures(self._latencies_s)

    def disconnect(self) -> None:
        """Let go of what :meth:`prepare` has opened."""

    def check(self) -> Sequence[Figure]:
        """Count what is staged, row by row."""
        self.disconnect()
        store = self._warehouse.store
        batches = list_all_staged(self.place).batches
        row_count = sum(_count_rows(read_staged(store, each), each.format) for each in batches)
        if row_count != self.row_count:
            raise AssertionError(f"{self.name}: {row_count} rows are staged instead of {self.row_count}")
        keys = list({each.key for each in batches})
        store.delete(keys)
        return (
            Figure("acknowledged", "requests", len(self._latencies_s)),
            Figure("staged", "batches", len(batches)),
            Figure("objects", "", len(keys)),
            *self.latencies(),
        )


class ClientDoor(Door):
    """The Python client: ``enqueue``; threads that are at it at once share PUTs."""

    name = "client"

    def prepare(self) -> None:
        """Open a client."""
        super().prepare()
        self._client = Client(settings=_client_settings(self._doors))

    @contextmanager
    def sender(self) -> Iterator[Callable[[], object]]:
        """One call a batch."""
        yield lambda: self._client.enqueue(self.table, self._rows)

    def disconnect(self) -> None:
        """Close the client."""
        self._client.close()


class ProducerDoor(ClientDoor):
    """The buffered Producer, row by row, with as many senders as there are producers in the other cases."""

    name = "producer"

    def run(self) -> None:
        """Send all rows; a batch's latency is that of its 100 rows being taken in, not of the acknowledgement."""
        batch_count = self._load.batch_count
        max_rows = self._load.rows_per_batch
        with self._client.producer(self.table, max_rows=max_rows, senders=self._load.concurrency) as producer:
            for _ in range(batch_count):
                self._latencies_s.append(_timed(lambda: producer.send_rows(self._rows)))


class GrpcDoor(Door):
    """gRPC ``Append``, NDJSON, a batch id of the producer's own."""

    name = "grpc-append"

    def prepare(self) -> None:
        """Open a channel."""
        super().prepare()
        self._channel = grpc.insecure_channel(f"127.0.0.1:{self._doors.grpc_port}")
        self._stub: Any = ingest_pb2_grpc.IngestServiceStub(self._channel)

    @contextmanager
    def sender(self) -> Iterator[Callable[[], object]]:
        """One call a batch."""
        yield lambda: self._stub.Append(self._request(), timeout=ANSWER_LIMIT_S)

    def disconnect(self) -> None:
        """Close the channel."""
        self._channel.close()

    def _request(self) -> pb.AppendRequest:
        return pb.AppendRequest(
            table=self.table, batch_id=new_batch_id(_CLOCK), format=pb.FORMAT_NDJSON, data=self._body
        )


class GrpcStreamDoor(GrpcDoor):
    """gRPC ``AppendStream``: one stream a producer, eight batches without an answer at most."""

    name = "grpc-stream"

    def send(self, count: int) -> list[float]:
        """One stream."""
        room = threading.Semaphore(STREAM_WINDOW)
        sent_s: list[float] = []

        def requests() -> Iterator[pb.AppendRequest]:
            for _ in range(count):
                room.acquire()
                sent_s.append(perf_counter())
                yield self._request()

        latencies_s = []
        for number, _ in enumerate(self._stub.AppendStream(requests(), timeout=ANSWER_LIMIT_S)):
            latencies_s.append(perf_counter() - sent_s[number])
            room.release()
        return latencies_s


class HttpDoor(Door):
    """``POST /v1/tables/{table}/batches``, NDJSON, a UUIDv7 as Idempotency-Key, one connection a producer."""

    name = "http"
    content_type = "application/x-ndjson"
    accepted = 202

    @contextmanager
    def sender(self) -> Iterator[Callable[[], object]]:
        """One request a batch."""
        connection = http.client.HTTPConnection("127.0.0.1", self._doors.http_port, timeout=ANSWER_LIMIT_S)
        yield lambda: self._post(connection)
        connection.close()

    def _post(self, connection: http.client.HTTPConnection) -> None:
        path, body, headers = self._request()
        connection.request("POST", path, body, headers | {"Content-Type": self.content_type})
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != self.accepted:
            raise RuntimeError(f"{self.name}: {answer.status} {text[:300]!r}")

    def _request(self) -> tuple[str, bytes, dict[str, str]]:
        return f"/v1/tables/{self.table}/batches", self._body, {"Idempotency-Key": self._key()}

    def _key(self) -> str:
        return new_batch_id(_CLOCK)


class HttpKeyDoor(HttpDoor):
    """The same with a key of the producer's own, which is remembered for a day."""

    name = "http-keys"

    def _key(self) -> str:
        return f"order-{new_batch_id(_CLOCK)}"


class HttpRetryKeyDoor(HttpKeyDoor):
    """The same where keys are known for as long as retries come (``key_memory`` ``retry``)."""

    name = "http-retry-keys"
    config = {"key_memory": "retry"}  # noqa: RUF012 - nobody changes it


class WebhookDoor(HttpDoor):
    """Segment's path: one event a request, grouped by the front end."""

    name = "webhook"
    content_type = "application/json"
    accepted = 200
    has_single_events = True

    def _request(self) -> tuple[str, bytes, dict[str, str]]:
        event = {"type": "track", "event": "Order Completed", "userId": "u1", "properties": {"price": 9.75}}
        return f"/v1/tables/{self.table}/segment", json.dumps(event).encode(), {}


class CeleryDoor(Door):
    """Task ``icedb.ingest.enqueue``; a batch is acknowledged when its result is there."""

    name = "celery"

    def prepare(self) -> None:
        """Open an application, as a producer has it."""
        super().prepare()
        self._app = make_app(ServiceSettings(store=self._doors.store.url, redis_url=self._doors.redis_url))

    @contextmanager
    def sender(self) -> Iterator[Callable[[], object]]:
        """One message a batch."""
        yield self._call

    def _call(self) -> None:
        result = self._app.send_task(
            INGEST_ENQUEUE, kwargs={"table": self.table, "batch_id": new_batch_id(_CLOCK), "rows": self._rows}
        )
        answer = result.get(timeout=ANSWER_LIMIT_S)
        if answer["outcome"] != "accepted":
            raise RuntimeError(f"{self.name}: {answer}")

    def disconnect(self) -> None:
        """Close the application."""
        self._app.close()


class AppenderDoor(Door):
    """``appender()``: this process stages, and commits each second what it has staged."""

    name = "appender"

    def prepare(self) -> None:
        """Open the lake."""
        super().prepare()
        self._lake = icedb.connect(self._doors.store.url, warehouse=self._warehouse)

    def run(self) -> None:
        """Let all producers share one appender."""
        with self._lake.table(self.table).appender() as self._appender:
            super().run()

    @contextmanager
    def sender(self) -> Iterator[Callable[[], object]]:
        """One call a batch."""
        yield lambda: self._appender.append(self._rows)

    def disconnect(self) -> None:
        """Close the lake."""
        self._lake.close()


DOORS: Final[tuple[type[Door], ...]] = (
    ClientDoor, ProducerDoor, GrpcDoor, GrpcStreamDoor, HttpDoor, WebhookDoor, CeleryDoor,
)  # fmt: skip


def _timed(call: Any) -> float:
    started_s = perf_counter()
    call()
    return perf_counter() - started_s


def _count_rows(body: bytes, staging_format: str) -> int:
    compression = staging_format.partition(".")[2]
    if compression:
        body = b"".join(decode_parts(body, compression))
    return body.count(b"\n") + (not body.endswith(b"\n"))


def _client_settings(doors: Doors) -> Any:
    from icedb_client import ClientSettings  # noqa: PLC0415

    s3 = doors.store.s3
    more = {} if s3 is None else {"s3_endpoint": s3.endpoint_url}
    return ClientSettings(store=doors.store.url, redis_url=doors.redis_url, **more)
