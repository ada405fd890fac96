"""Settings of the front end, and those that it shares with the workers of ingest: how large a batch may be."""

from typing import Annotated, Self

from icedb_log.units import MIB, SECOND_MS
from icedb_service.settings import MAX_PORT, CommaSeparated, HttpServiceSettings, ServiceSettings
from pydantic import Field, SecretStr, model_validator


class BatchBoundSettings(ServiceSettings):
    """What is too large to be taken at all. The same for all services of ingest."""

    batch_max_decoded_mb: Annotated[int, Field(ge=1, le=512)] = 256
    """Largest batch after decompression, MiB: endpoints refuse it (413, INVALID_ARGUMENT), what comes by another way
    goes to quarantine. Larger saves cutting; one task holds a whole batch, in up to twice its size besides what it
    spills: the ingest workers need four times as much in `ICEDB_TASK_MEMORY_MB`."""

    batch_max_rows: Annotated[int, Field(ge=1, le=100_000_000)] = 10_000_000
    """Most rows of a batch, which very short rows reach before the bound of bytes. More takes more memory for each,
    however short it is."""

    @property
    def batch_max_decoded_bytes(self) -> int:
        """Largest batch after decompression, bytes."""
        return self.batch_max_decoded_mb * MIB


class FrontendSettings(HttpServiceSettings, BatchBoundSettings):
    """What the front end, and the Celery worker of the queue `enqueue`, need to know."""

    frontend_host: str = "127.0.0.1"
    """Address that HTTP and gRPC listen on; `0.0.0.0` in containers."""

    frontend_http_port: Annotated[int, Field(ge=0, le=MAX_PORT)] = 8088
    """Port of HTTP; 0 takes a free one (logged)."""

    frontend_grpc_port: Annotated[int, Field(ge=0, le=MAX_PORT)] = 50052
    """Port of gRPC; 0 takes a free one (logged)."""

    frontend_max_batch_mb: Annotated[int, Field(ge=1, le=512)] = 64
    """Largest batch that any endpoint takes, MiB as sent. Larger saves requests; one batch is one unit of a flush."""

    frontend_memory_mb: Annotated[int, Field(ge=1)] = 512
    """Bodies held at once by all requests, MiB; more wait, then are refused with a retry time. A compressed webhook
    counts with its content, hence at least twice the largest batch. A gRPC message counts once it is read, so each
    running call may hold one more."""

    frontend_max_calls: Annotated[int, Field(ge=1, le=100_000)] = 256
    """gRPC calls and streams at once; those above it are refused (RESOURCE_EXHAUSTED)."""

    frontend_store_threads: Annotated[int, Field(ge=1, le=256)] = 16
    """Requests to the store at once. Durable batches per second are about this, divided by the latency of a PUT."""

    frontend_ack_timeout_ms: Annotated[int, Field(ge=100)] = 30 * SECOND_MS
    """How long a producer waits for the store before it gets 503 or UNAVAILABLE, milliseconds. The
    batch may be durable all the same."""

    frontend_body_timeout_ms: Annotated[int, Field(ge=100)] = 60 * SECOND_MS
    """How long a request's body may take to come, milliseconds."""

    frontend_linger_ms: Annotated[int, Field(ge=0, le=SECOND_MS)] = 100
    """How long a batch waits at most for others of its table, to become durable with them by one PUT, milliseconds.
    Longer makes fewer requests, which are nine tenths of what small batches cost, and later answers. A sender who is
    alone does not wait. 0: each batch is staged by a PUT of its own."""

    frontend_table_cache_ms: Annotated[int, Field(ge=0)] = 30 * SECOND_MS
    """How long a table is assumed to exist after a look, milliseconds."""

    frontend_segment_secret: SecretStr | None = None
    """Shared secret of webhooks: requests to `…/segment` must carry `X-Signature`, the HMAC-SHA1 of the body in hex.
    Not set, and no write key either: everybody may send."""

    frontend_segment_write_key: SecretStr | None = None
    """Write key of Segment SDKs: requests to `…/segment` must carry it, as user of basic authentication or as
    `writeKey` in the body. With a secret set, too, either will do."""

    frontend_cors_origins: CommaSeparated = ()
    """Web pages that may send events from browsers, comma separated, e.g. `https://shop.example`; `*` for all."""

    enqueue_threads: Annotated[int, Field(ge=1, le=64)] = 4
    """Messages of the queue `enqueue` that are staged at once."""

    @model_validator(mode="after")
    def _check_frontend(self) -> Self:
        self._require(
            "frontend_max_batch_mb", "<=", "frontend_memory_mb", factor=2, why=" (a compressed body and its content)"
        )
        return self

    @property
    def max_batch_bytes(self) -> int:
        """Largest batch, bytes."""
        return self.frontend_max_batch_mb * MIB
