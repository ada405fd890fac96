"""The settings of the client and of the ``icedb`` command, read from the same ``ICEDB_…`` variables as the services."""

from typing import Annotated, Final
from urllib.parse import urlsplit

from icedb_log.errors import InvalidRequest
from icedb_log.storage.stores import S3Options, StoreSettings
from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

SECOND_MS: Final = 1000
MINUTE_MS: Final = 60 * SECOND_MS
DEFAULT_REDIS_URL: Final = "redis://127.0.0.1:6379/0"


class ClientSettings(BaseSettings):
    """Where everything is. Each value may also be given to :class:`icedb_client.Client` by name."""

    model_config = SettingsConfigDict(
        env_prefix="ICEDB_", frozen=True, extra="ignore", env_ignore_empty=True, use_attribute_docstrings=True
    )

    store: str | None = None
    """Where the warehouse lies: `file:///absolute/folder` or `s3://bucket/prefix`. Needed to enqueue; not needed to
    read snapshots from a snapshot service."""

    s3_endpoint: str | None = None
    """URL of an S3-compatible server; empty for AWS. Credentials are taken from `AWS_ACCESS_KEY_ID` and
    `AWS_SECRET_ACCESS_KEY`."""

    s3_region: str | None = None
    """Region of the bucket; empty: what boto3 finds."""

    snapshot_address: str | None = None
    """`host:port` of the snapshot service; empty: snapshots are read straight from the store."""

    redis_url: str = DEFAULT_REDIS_URL
    """Redis that wakes the workers. Without it nothing is lost: the workers' periodic sweep finds what is staged."""

    redis_timeout_ms: Annotated[int, Field(ge=50, le=10_000)] = 300
    """How long one Redis request may take, milliseconds."""

    message_expiry_ms: Annotated[int, Field(ge=SECOND_MS)] = MINUTE_MS
    """How long a wake-up may wait in a queue, milliseconds. The services should have the same value."""

    snapshot_timeout_ms: Annotated[int, Field(ge=100)] = 30 * SECOND_MS
    """How long a call of the snapshot service may take, milliseconds."""

    @field_validator("redis_url")
    @classmethod
    def _check_redis_url(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("redis", "rediss") or not parts.hostname:
            raise ValueError("not a Redis address; write redis://host:6379/0")
        return url

    @field_validator("snapshot_address")
    @classmethod
    def _check_address(cls, address: str | None) -> str | None:
        host, _, port = (address or "x:1").rpartition(":")
        if not host or "/" in host or not port.isdigit():
            raise ValueError(f"{str(address)[:80]!r} is not an address; write host:port, e.g. 127.0.0.1:50051")
        return address

    @property
    def s3(self) -> S3Options | None:
        """How to reach S3; ``None`` when the store is a directory."""
        if self.store is not None and not self.store.startswith("s3:"):
            return None
        return S3Options(endpoint_url=self.s3_endpoint, region=self.s3_region)

    @property
    def store_settings(self) -> StoreSettings:
        """What is needed to open the warehouse. Raises InvalidRequest if no store is set."""
        if self.store is None:
            raise InvalidRequest(
                "no store is set: give ICEDB_STORE (or --store), e.g. file:///var/lib/icedb or s3://bucket/prefix"
            )
        return StoreSettings(self.store, self.s3)


def load_client_settings(**given: object) -> ClientSettings:
    """Read settings from the environment; values that are given (not ``None``) win.

    Raises:
        InvalidRequest: One message that names every value that is wrong, and why.
    """
    chosen = {name: value for name, value in given.items() if value is not None}
    try:
        return ClientSettings(**chosen)  # type: ignore[arg-type]  # pydantic checks them
    except ValidationError as error:
        problems = (
            f"ICEDB_{str(problem['loc'][0]).upper()}: {str(problem['msg']).removeprefix('Value error, ')}"
            for problem in error.errors(include_url=False, include_input=False)
        )
        raise InvalidRequest("settings: " + "; ".join(problems)) from error


def redact_url(url: str) -> str:
    """Return a URL without its user and password, fit for messages."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
