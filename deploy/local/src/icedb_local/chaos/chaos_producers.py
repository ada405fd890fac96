"""Producers that go on whatever happens: one for each door, each batch under one id until it is acknowledged.

A batch that is not acknowledged in time is *unknown*: after the table's retry window nobody may send it again (I1, I3).
"""

import http.client
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from typing import Final

import grpc
from icedb_client import Client
from icedb_log.clock import Clock, new_batch_id
from icedb_log.errors import CommitOutcomeUnknown, IceDBError, Unavailable
from icedb_proto import ingest_pb2 as pb
from icedb_proto import ingest_pb2_grpc

from icedb_local.background import BackgroundThread
from icedb_local.chaos.batches import MAX_ROWS, BatchEntry, BatchLedger, encode_batch
from icedb_local.chaos.content_checker import ContentChecker
from icedb_local.chaos.outages import Outages
from icedb_local.ports import LOOPBACK

CALL_TIMEOUT_S: Final = 10.0
RETRY_PAUSE_S: Final = 0.2
RETRYABLE_STATUS: Final = (408, 429, 500, 502, 503, 504)
RETRYABLE_CODES: Final = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.UNKNOWN,  # the connection ended in the middle of an answer
)

Send = Callable[[BatchEntry, bytes], None]
"""Sends a batch once; returns when it is acknowledged. Raises Unavailable if it may be sent again."""


class ChaosProducer(BackgroundThread):
    """A thread that sends batches through one door; use as a context manager.

    Args:
        door: Its name.
        send: The door.
        ledger: Where batches are noted.
        checker: Told of refusals: none of these batches gives a reason for one.
        tables: Which get them, in turn.
        retry_ms: How long one batch is tried.
        pause_s: Between batches.
        seed: Of the rows.
        clock: For ids and times.
        max_rows: Of a batch.
        at_once: So many batches of one table are sent side by side, so that a front end may stage them as a group.
    """

    def __init__(
        self,
        door: str,
        send: Send,
        *,
        ledger: BatchLedger,
        checker: ContentChecker,
        tables: Sequence[str],
        retry_ms: int,
        pause_s: float,
        seed: int,
        clock: Clock,
        max_rows: int = MAX_ROWS,
        at_once: int = 1,
    ) -> None:
        super().__init__(f"producer-{door}")
        self.outages = Outages(f"producer {door}", now_ms=clock.monotonic_ms())
        self._door = door
        self._send = send
        self._ledger = ledger
        self._checker = checker
        self._tables = tables
        self._retry_ms = retry_ms
        self._pause_s = pause_s
        self._seed = seed
        self._max_rows = max_rows
        self._at_once = at_once
        self._clock = clock

    def _run(self) -> None:
        tables = cycle(self._tables)
        with ThreadPoolExecutor(self._at_once, self._door) as pool:
            while not self._stop.wait(self._pause_s):
                list(pool.map(self._send_one, [next(tables)] * self._at_once))

    def _send_one(self, table: str) -> None:
        entry = self._ledger.record_sent(
            table=table, door=self._door, batch_id=new_batch_id(self._clock), now_ms=self._clock.monotonic_ms()
        )
        try:
            self._deliver(entry)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            self._ledger.record_settled(entry.number, "unknown")
            words = f"batch {entry.number} was refused: {type(error).__name__}: {error}"
            self._checker.note(words, table=table, reader=self.outages.name)

    def _deliver(self, entry: BatchEntry) -> None:
        body = encode_batch(self._seed, entry.number, self._max_rows, crash=entry.crash)
        while True:
            try:
                self._send(entry, body)
            except (Unavailable, CommitOutcomeUnknown) as error:
                self._ledger.record_try(entry.number, error=str(error)[:300])
                self.outages.record_failure(type(error).__name__)
                if self._clock.monotonic_ms() - entry.sent_ms > self._retry_ms:
                    self._ledger.record_settled(entry.number, "unknown")
                    return
                self._clock.sleep_ms(int(RETRY_PAUSE_S * 1000))
            else:
                now_ms = self._clock.monotonic_ms()
                self._ledger.record_try(entry.number)
                self._ledger.record_settled(entry.number, "acknowledged")
                self.outages.record_success(now_ms=now_ms)
                return


def make_staging_door(client: Client) -> Send:
    """Return the client's own door: one PUT to the store."""

    def send(entry: BatchEntry, body: bytes) -> None:
        client.enqueue(entry.table, body, batch_id=entry.batch_id)

    return send


def make_http_door(port: int) -> Send:
    """Return the front end's HTTP door."""

    def send(entry: BatchEntry, body: bytes) -> None:
        connection = http.client.HTTPConnection(LOOPBACK, port, timeout=CALL_TIMEOUT_S)
        try:
            connection.request(
                "POST",
                f"/v1/tables/{entry.table}/batches",
                body=body,
                headers={"Content-Type": "application/x-ndjson", "Idempotency-Key": entry.batch_id},
            )
            answer = connection.getresponse()
            text = answer.read()[:300].decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"{type(error).__name__}: {error}") from error
        finally:
            connection.close()
        if answer.status in RETRYABLE_STATUS:
            raise Unavailable(f"{answer.status} {text}")
        if answer.status != http.HTTPStatus.ACCEPTED:
            raise IceDBError(f"{answer.status} {text}")

    return send


def make_grpc_door(address: str) -> Send:
    """Return the front end's gRPC door."""
    options = (("grpc.max_reconnect_backoff_ms", 1000), ("grpc.enable_http_proxy", 0))
    stub = ingest_pb2_grpc.IngestServiceStub(grpc.insecure_channel(address, options=options))

    def send(entry: BatchEntry, body: bytes) -> None:
        request = pb.AppendRequest(table=entry.table, format=pb.FORMAT_NDJSON, data=body, batch_id=entry.batch_id)
        try:
            stub.Append(request, timeout=CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            if error.code() in RETRYABLE_CODES:
                raise Unavailable(f"{error.code().name}: {error.details()}") from error
            raise

    return send
