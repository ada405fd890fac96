"""Settings of the S3 gateway and its Iceberg catalog, besides those that all services share."""

from typing import Annotated, Final, Literal, Self

from icedb_log.units import HOUR_MS, KIB, MINUTE_MS, SECOND_MS
from icedb_service.settings import MAX_PORT, HttpServiceSettings, ReaderSettings, matching
from pydantic import Field, SecretStr, model_validator

MAX_STALENESS_MS: Final = 10 * MINUTE_MS
MIN_SECRET_CHARS: Final = 32
_DEFAULT_REGION: Final = "us-east-1"

_BUCKET: Final = matching(
    r"(?!(healthz|readyz)$)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]",
    "is no name of a bucket; use 3 to 63 of a-z, 0-9, '.' and '-'",
)
_S3_URL: Final = matching(
    r"https?://[A-Za-z0-9.\-\[\]:]{1,300}", "is no address of an S3 endpoint; write https://s3.example.com"
)


class GatewaySettings(HttpServiceSettings, ReaderSettings):
    """What the S3 gateway and its Iceberg catalog need to know."""

    gateway_host: str = "127.0.0.1"
    """Address that the S3 endpoint listens on; `0.0.0.0` in containers. Another one than loopback needs
    `ICEDB_ACCESS_FILE`, or `ICEDB_OPEN_ACCESS`."""

    gateway_port: Annotated[int, Field(ge=0, le=MAX_PORT)] = 9010
    """Port of the S3 endpoint; 0 takes a free one (logged)."""

    gateway_bucket: Annotated[str, _BUCKET] = "icedb"
    """Name of the one bucket that holds all tables: `s3://icedb/<table>/…`; clients address it by path
    (`http://s3.example.com/icedb/events/…`)."""

    gateway_staleness_ms: Annotated[int, Field(ge=0, le=MAX_STALENESS_MS)] = SECOND_MS
    """How old the knowledge of a table's log may be when a listing begins, or when the Iceberg catalog answers,
    milliseconds. 0 reads the log each time; more saves requests to the store, and publishes a table that changes all
    the time less often: each time writes its new manifests. The list of all tables may be ten times as old."""

    gateway_part_kb: Annotated[int, Field(ge=64, le=64 * KIB)] = 4 * KIB
    """Largest part of a file that is fetched from the store at once, KiB. A body holds at most two in memory."""

    gateway_max_bodies: Annotated[int, Field(ge=1, le=10_000)] = 64
    """Files that are sent at once; more wait for 5 s, then are answered 503 (SlowDown). With the parts' size it bounds
    memory: 64 bodies of two parts of 4 MiB are 512 MiB at worst."""

    gateway_send_timeout_ms: Annotated[int, Field(ge=100)] = 2 * MINUTE_MS
    """How long a client may take to read the next 256 KiB of a file, milliseconds; then its connection is closed.
    Longer bears with slow networks, and lets clients that stand still keep others out."""

    gateway_iceberg_port: Annotated[int, Field(ge=0, le=MAX_PORT)] = 9011
    """Port of the Iceberg REST catalog, at the address of `ICEDB_GATEWAY_HOST`; 0 takes a free one (logged)."""

    gateway_iceberg_publish_interval_ms: Annotated[int, Field(ge=0, le=MAX_STALENESS_MS)] = 5 * SECOND_MS
    """How often tables that are set to `iceberg = on-commit` are looked at and published, milliseconds; 0: by this
    gateway never."""

    gateway_iceberg_credentials: Literal["none", "region", "vended"] = "none"
    """What the catalog tells engines of the way to a table's files: nothing (they have keys of their own); the bucket's
    region (`ICEDB_S3_REGION`); or this gateway's S3 endpoint with a key for this table alone that ends soon. Engines
    ask for the last (`X-Iceberg-Access-Delegation: vended-credentials`); who does not gets the region."""

    gateway_iceberg_secret: SecretStr | None = None
    """What vended keys are made with: 32 characters or more, the same at all replicas. A new one ends all keys. Needed
    where there is an access file and `ICEDB_GATEWAY_ICEBERG_CREDENTIALS=vended`."""

    gateway_iceberg_key_ttl_ms: Annotated[int, Field(ge=MINUTE_MS, le=12 * HOUR_MS)] = HOUR_MS
    """How long a vended key lasts at most, milliseconds; half of it at least. Engines ask for new ones by themselves,
    or have to end a query by then."""

    gateway_iceberg_s3_url: Annotated[str, _S3_URL] | None = None
    """Where engines reach the gateway's S3 endpoint, `https://s3.example.com`. Empty: the host by which they called the
    catalog, and the S3 port. Set it behind a proxy."""

    @model_validator(mode="after")
    def _check_vended_keys(self) -> Self:
        secret = self.gateway_iceberg_secret
        if secret is not None and len(secret.get_secret_value()) < MIN_SECRET_CHARS:
            raise ValueError(f"ICEDB_GATEWAY_ICEBERG_SECRET: use {MIN_SECRET_CHARS} characters or more")
        if self.gateway_iceberg_credentials == "vended" and self.access_file is not None and secret is None:
            raise ValueError(
                "ICEDB_GATEWAY_ICEBERG_CREDENTIALS=vended needs ICEDB_GATEWAY_ICEBERG_SECRET: keys are made "
                "with it, so it has to be the same at all replicas"
            )
        return self

    @property
    def region(self) -> str:
        """The region that engines are told; signatures of any are taken."""
        return self.s3_region or _DEFAULT_REGION

    @property
    def part_bytes(self) -> int:
        """Largest part of a file that is fetched at once."""
        return self.gateway_part_kb * KIB
