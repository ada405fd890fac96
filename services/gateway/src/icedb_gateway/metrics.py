"""What the S3 gateway counts."""

from typing import Final, Literal, get_args

from icedb_log.units import SECOND_MS
from icedb_service.metrics import ProcessMetrics, outcome_of

Operation = Literal[
    "list_buckets", "bucket", "list", "head", "get", "other",
    "iceberg_config", "iceberg_token", "iceberg_list", "iceberg_load", "iceberg_other",
]  # fmt: skip
OPERATIONS: Final[tuple[Operation, ...]] = get_args(Operation)

OUTCOMES: Final = (
    "ok",
    "not_modified",
    "denied",
    "not_found",
    "bad_request",
    "not_allowed",
    "precondition",
    "range",
    "slow_down",
    "unavailable",
    "failed",
    "abandoned",
)
_BY_STATUS: Final = {
    304: "not_modified",
    401: "denied",
    403: "denied",
    404: "not_found",
    405: "not_allowed",
    412: "precondition",
    416: "range",
    429: "slow_down",
    501: "not_allowed",
}
PUBLICATIONS: Final = ("published", "same", "held_back", "refused", "failed")
REFUSALS: Final = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "RequestTimeTooSkewed", "AccessDenied", "malformed")
TIME_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class GatewayMetrics(ProcessMetrics):
    """Counters of requests and their outcomes."""

    def __init__(self) -> None:
        super().__init__("gateway", package="icedb-gateway")
        make = self.make
        self.requests = make.counter(
            "icedb_gateway_requests_total",
            "Requests by what they asked for (bucket: HeadBucket, location, versioning; iceberg_load: a table of the "
            "Iceberg catalog, or its keys) and outcome; "
            "slow_down: too many at once, or the caller's rate; abandoned: the client went away or stood still",
            operation=OPERATIONS,
            outcome=OUTCOMES,
        )
        self.request_time = make.histogram(
            "icedb_gateway_request_seconds",
            "Time from a request to the first byte of its answer",
            buckets=TIME_BUCKETS_S,
            operation=OPERATIONS,
        )
        self.sent_bytes = make.counter("icedb_gateway_sent_bytes_total", "Bytes of files that were sent")
        self.bodies = make.gauge("icedb_gateway_open_bodies", "Files that are being sent now")
        self.broken_bodies = make.counter(
            "icedb_gateway_broken_bodies_total",
            "Files whose sending was broken off because the store failed in the middle",
        )
        self.refusals = make.counter(
            "icedb_gateway_refused_signatures_total",
            "Requests whose sender was not recognised, by S3's code; malformed: any other",
            code=REFUSALS,
        )
        self.missing_files = make.counter(
            "icedb_gateway_missing_files_total",
            "Requests for a live file that was not in the store: the table is damaged",
        )
        self.refresh_time = make.histogram(
            "icedb_gateway_refresh_seconds", "Time of one read of a table's log", buckets=TIME_BUCKETS_S
        )
        self.publications = make.counter(
            "icedb_gateway_publications_total",
            "Checks of the Iceberg catalog for a newer table state to publish, by outcome; "
            "held_back: an older state is shown, for the newest has files that engines would read wrongly; refused: "
            "the table cannot be shown as it is; failed: its log is halted, or the store failed",
            outcome=PUBLICATIONS,
        )
        self.publication_time = make.histogram(
            "icedb_gateway_publication_seconds",
            "Duration of a check for a newer state to publish",
            buckets=TIME_BUCKETS_S,
        )

    def count_refusal(self, code: str) -> None:
        """Count a request whose sender was not recognised."""
        self.refusals.labels(code if code in REFUSALS else "malformed").inc()

    def observe_refresh(self, duration_ms: int) -> None:
        """Count a read of a log."""
        self.refresh_time.observe(duration_ms / SECOND_MS)

    def count_publication(self, outcome: str, *, duration_ms: int) -> None:
        """Count a look of the Iceberg catalog at a table."""
        self.publications.labels(outcome).inc()
        self.publication_time.observe(duration_ms / SECOND_MS)

    def count_request(self, operation: Operation, outcome: str, *, duration_ms: int) -> None:
        """Count an answered request."""
        self.requests.labels(operation, outcome).inc()
        self.request_time.labels(operation).observe(duration_ms / SECOND_MS)


def outcome_of_s3(status: int, code: str = "") -> str:
    """Return what an answer's status and S3 code make of its request."""
    if code in ("SlowDown", "ServiceUnavailable"):
        return "slow_down" if code == "SlowDown" else "unavailable"
    return outcome_of(status, _BY_STATUS)
