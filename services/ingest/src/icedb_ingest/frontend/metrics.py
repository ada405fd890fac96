"""What the front end counts."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Literal

from icedb_log.clock import Clock
from icedb_log.units import SECOND_MS
from icedb_service.metrics import WAKE_OUTCOMES, ProcessMetrics

from icedb_ingest.frontend.errors import MEANINGS, meaning_of

Endpoint = Literal["grpc", "http", "webhook", "celery"]
ENDPOINTS: Final[tuple[Endpoint, ...]] = ("grpc", "http", "webhook", "celery")

OUTCOMES: Final = ("accepted", *dict.fromkeys(each.outcome for each in MEANINGS))
GROUP_BUCKETS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1000)
WAIT_BUCKETS_S: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1, 2.5)
ACK_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class FrontendMetrics(ProcessMetrics):
    """Counters of offered batches and their outcomes."""

    def __init__(self) -> None:
        super().__init__("frontend", package="icedb-ingest")
        make = self.make
        self.batches = make.counter(
            "icedb_frontend_batches_total",
            "Batches offered (webhook: requests); overloaded: back-pressure of the table; busy: this process is full; "
            "abandoned: the producer went away first",
            door=ENDPOINTS,
            outcome=OUTCOMES,
        )
        self.ack_time = make.histogram(
            "icedb_frontend_ack_seconds",
            "Time from a whole batch to its acknowledgement, accepted ones only",
            buckets=ACK_BUCKETS_S,
            door=ENDPOINTS,
        )
        self.staged_batches = make.histogram(
            "icedb_frontend_staged_object_batches", "Batches of one staged object", buckets=GROUP_BUCKETS
        )
        self.linger_time = make.histogram(
            "icedb_frontend_linger_seconds",
            "Time that a batch waited for others of its table, or for a PUT to end, before its own began",
            buckets=WAIT_BUCKETS_S,
        )
        self.accepted_bytes = make.counter(
            "icedb_frontend_accepted_bytes_total", "Bytes of accepted batches, as sent", door=ENDPOINTS
        )
        self.in_flight = make.gauge(
            "icedb_frontend_in_flight_batches", "Batches being read or staged now", door=ENDPOINTS
        )
        self.held_bytes = make.gauge("icedb_frontend_held_bytes", "Bodies held in memory now")
        self.streams = make.gauge("icedb_frontend_streams", "gRPC streams open now")
        self.wakes = make.counter(
            "icedb_frontend_wakes_total",
            "Wake-ups sent to the ingest worker; collapsed: the same one was on its way",
            outcome=WAKE_OUTCOMES,
        )

        self._of = {
            each: (
                self.in_flight.labels(each),
                self.batches.labels(each, "accepted"),
                self.ack_time.labels(each),
                self.accepted_bytes.labels(each),
            )
            for each in ENDPOINTS
        }
        """What each accepted batch touches: to find it by its labels takes longer than to count."""

    def note_staged(self, waits_ms: Sequence[int]) -> None:
        """Count a group that leaves for the store, by what each of its batches has waited."""
        self.staged_batches.observe(len(waits_ms))
        for waited_ms in waits_ms:
            self.linger_time.observe(waited_ms / SECOND_MS)

    @contextmanager
    def offered(self, endpoint: Endpoint) -> Iterator[None]:
        """Count the outcome of one offered batch: accepted, unless an error passes."""
        gauge, accepted, _, _ = self._of[endpoint]
        gauge.inc()
        try:
            yield
        except BaseException as error:
            self.batches.labels(endpoint, meaning_of(error).outcome).inc()
            raise
        else:
            accepted.inc()
        finally:
            gauge.dec()

    def observe_ack(self, endpoint: Endpoint, *, started_ms: int, size_bytes: int, clock: Clock) -> None:
        """Count an acknowledgement."""
        _, _, ack_time, accepted_bytes = self._of[endpoint]
        ack_time.observe((clock.monotonic_ms() - started_ms) / SECOND_MS)
        accepted_bytes.inc(size_bytes)
