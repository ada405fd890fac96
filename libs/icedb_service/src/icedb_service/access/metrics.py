"""What is counted of access: refusals, never with the name of a caller or a table, and the state of the access file."""

from typing import Final, Literal

from prometheus_client import CollectorRegistry, Counter, Gauge

Door = Literal["grpc", "http", "webhook", "task", "s3"]
Reason = Literal["no_credentials", "bad_credentials", "not_granted", "hidden", "rate"]

DOORS: Final[tuple[Door, ...]] = ("grpc", "http", "webhook", "task", "s3")
REASONS: Final[tuple[Reason, ...]] = ("no_credentials", "bad_credentials", "not_granted", "hidden", "rate")


class AccessMetrics:
    """Counters and gauges of one process.

    Args:
        registry: Where they live.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.denied = Counter(
            "icedb_access_denied_total",
            "Calls that were refused; hidden: of a table that the caller may not know of; rate: called too often",
            ("door", "reason"),
            registry=registry,
        )
        for door in DOORS:
            for reason in REASONS:
                self.denied.labels(door, reason)
        self.enforced = Gauge(
            "icedb_access_enforced", "1 while an access file says who may do what; 0: everybody may", registry=registry
        )
        self.broken = Gauge(
            "icedb_access_file_broken",
            "1 while the access file, or one that it names, cannot be used; what was read before goes on",
            registry=registry,
        )
        self.loaded = Gauge(
            "icedb_access_file_loaded_timestamp_seconds",
            "When the access file was taken up last, unix time",
            registry=registry,
        )
        self.certificate_expiry = Gauge(
            "icedb_access_certificate_expiry_timestamp_seconds",
            "When the certificate that this process serves ends, unix time; 0: no TLS, or its file cannot be read",
            registry=registry,
        )
