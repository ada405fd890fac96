"""One producer for each front end: sends batches of rows until all are acknowledged, and notes how long each took."""

import http.client
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final

import grpc
import numpy as np
import orjson
import pyarrow as pa
from icedb_client import Client
from icedb_log.clock import SystemClock, new_batch_id
from icedb_log.names import INGEST_ENQUEUE
from icedb_log.store.object_store import list_all
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import TableConfig
from icedb_proto import ingest_pb2 as pb
from icedb_proto import ingest_pb2_grpc
from icedb_service.celery_app import make_app
from icedb_service.settings import ServiceSettings

from bench.enqueue_stack import Doors
from bench.figures import Figure, TakesTurns

ROWS_PER_BATCH: Final = 100
STREAM_WINDOW: Final = 8
"""Batches of one stream without an answer, as many as the server stages side by side: a latency holds no queue."""
ANSWER_LIMIT_S: Final = 120
_CLOCK: Final = SystemClock()


@dataclass(frozen=True, slots=True)
class Load:
    """What one turn sends."""

    batch_count: int
    concurrency: int


class Door(TakesTurns, ABC):
    """A system of the harness; each front end says how one producer sends its share."""

    name = ""
    rows_per_request = ROWS_PER_BATCH

    def __init__(self, doors: Doors, load: Load) -> None:
        self._doors = doors
        self._load = load
        self._turn = 0
        self._warehouse = doors.store.open()
        self._latencies_s: list[float] = []
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

    def prepare(self) -> None:
        """Make a table, and connect."""
        self._turn += 1
        paths = self._warehouse.table(self.table).paths
        create_table(
            TableStore(self._warehouse.store, paths), TableConfig.create(name=self.table, sort=("event", "ts"))
        )
        self._latencies_s = []

    def run(self) -> None:
        """Let every producer send its share at once."""
        count, share = self._load.concurrency, self._load.batch_count // self._load.concurrency
        with ThreadPoolExecutor(count) as pool:
            for latencies_s in pool.map(self.send, [share] * count):
                self._latencies_s += latencies_s

    @abstractmethod
    def send(self, count: int) -> list[float]:
        """Send so many batches; return how long each took to be acknowledged, seconds."""

    def check(self) -> Sequence[Figure]:
        """Count what is staged, row by row."""
        store, paths = self._warehouse.store, self._warehouse.table(self.table).paths
        keys = [info.key for info in list_all(store, paths.staging_prefix).objects]
        row_count = sum(_count_rows(store.get(key).body, key) for key in keys)
        if row_count != self.row_count:
            raise AssertionError(f"{self.name}: {row_count} rows are staged instead of {self.row_count}")
        store.delete(keys)
        p50_ms, p99_ms = (float(np.percentile(self._latencies_s, share)) * 1000 for share in (50, 99))
        return (
            Figure("acknowledged", "requests", len(self._latencies_s)),
            Figure("staged", "batches", len(keys)),
            Figure("latency_p50", "ms", p50_ms),
            Figure("latency_p99", "ms", p99_ms),
        )


class ClientDoor(Door):
    """The Python client: ``enqueue`` of 100 rows, one PUT, one wake-up."""

    name = "client"

    def prepare(self) -> None:
        """Open a client."""
        super().prepare()
        self._client = Client(settings=_client_settings(self._doors))

    def send(self, count: int) -> list[float]:
        """One call a batch."""
        return [_timed(lambda: self._client.enqueue(self.table, self._rows)) for _ in range(count)]

    def check(self) -> Sequence[Figure]:
        """Close the client, too."""
        self._client.close()
        return super().check()


class ProducerDoor(ClientDoor):
    """The buffered Producer, row by row, with as many senders as there are producers in the other cases."""

    name = "producer"

    def run(self) -> None:
        """Send all rows; a batch's latency is that of its 100 rows being taken in, not of the acknowledgement."""
        batch_count = self._load.batch_count
        with self._client.producer(self.table, max_rows=ROWS_PER_BATCH, senders=self._load.concurrency) as producer:
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

    def send(self, count: int) -> list[float]:
        """One call a batch."""
        return [_timed(lambda: self._stub.Append(self._request(), timeout=ANSWER_LIMIT_S)) for _ in range(count)]

    def check(self) -> Sequence[Figure]:
        """Close the channel, too."""
        self._channel.close()
        return super().check()

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

    def send(self, count: int) -> list[float]:
        """One request a batch."""
        connection = http.client.HTTPConnection("127.0.0.1", self._doors.http_port, timeout=ANSWER_LIMIT_S)
        latencies_s = [_timed(lambda: self._post(connection)) for _ in range(count)]
        connection.close()
        return latencies_s

    def _post(self, connection: http.client.HTTPConnection) -> None:
        path, body, headers = self._request()
        connection.request("POST", path, body, headers | {"Content-Type": self.content_type})
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != self.accepted:
            raise RuntimeError(f"{self.name}: {answer.status} {text[:300]!r}")

    def _request(self) -> tuple[str, bytes, dict[str, str]]:
        return f"/v1/tables/{self.table}/batches", self._body, {"Idempotency-Key": new_batch_id(_CLOCK)}


class WebhookDoor(HttpDoor):
    """Segment's path: one event a request, grouped by the front end."""

    name = "webhook"
    content_type = "application/json"
    accepted = 200
    rows_per_request = 1

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

    def send(self, count: int) -> list[float]:
        """One message a batch."""
        return [_timed(self._call) for _ in range(count)]

    def _call(self) -> None:
        result = self._app.send_task(
            INGEST_ENQUEUE, kwargs={"table": self.table, "batch_id": new_batch_id(_CLOCK), "rows": self._rows}
        )
        answer = result.get(timeout=ANSWER_LIMIT_S)
        if answer["outcome"] != "accepted":
            raise RuntimeError(f"{self.name}: {answer}")

    def check(self) -> Sequence[Figure]:
        """Close the application, too."""
        self._app.close()
        return super().check()


DOORS: Final[tuple[type[Door], ...]] = (
    ClientDoor, ProducerDoor, GrpcDoor, GrpcStreamDoor, HttpDoor, WebhookDoor, CeleryDoor,
)  # fmt: skip


def _timed(call: Any) -> float:
    started_s = perf_counter()
    call()
    return perf_counter() - started_s


def _count_rows(body: bytes, key: str) -> int:
    compression = {".gz": "gzip", ".zst": "zstd"}.get(key[key.rindex(".") :])
    if compression is not None:
        body = pa.CompressedInputStream(pa.BufferReader(body), compression).read()
    return body.count(b"\n") + (not body.endswith(b"\n"))


def _client_settings(doors: Doors) -> Any:
    from icedb_client import ClientSettings  # noqa: PLC0415

    s3 = doors.store.s3
    more = {} if s3 is None else {"s3_endpoint": s3.endpoint_url}
    return ClientSettings(store=doors.store.url, redis_url=doors.redis_url, **more)
