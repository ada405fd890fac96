"""Where S3 is, and who asks: plain values, without boto3."""

from dataclasses import dataclass, field

from icedb_log.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class S3Options:
    """Where S3 is and who asks.

    What is ``None`` is found as boto3 does: environment, shared configuration, role of the machine.

    Attributes:
        endpoint_url: ``http://host:port`` of an S3-compatible server; ``None`` for AWS. With an endpoint the
            bucket stands in the path, and checksums are sent only where S3 requires them, as other servers want.
        region: Region of the bucket; ``us-east-1`` for an endpoint if it is not given.
        access_key_id: Access key; ``None``: ``AWS_ACCESS_KEY_ID`` and so on.
        secret_access_key: Its secret, given if and only if the access key is. Never shown.
        connect_timeout_s: Longest wait for a connection. Shorter notices a dead server sooner; longer survives a
            busy one.
        read_timeout_s: Longest wait for the next bytes of an answer. A conditional write that runs into it has
            an unknown outcome (W2), which costs the caller a read.
    """

    endpoint_url: str | None = None
    region: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = field(default=None, repr=False)
    connect_timeout_s: float = 3.0
    read_timeout_s: float = 20.0

    def __post_init__(self) -> None:
        """Check the values and their relations. Raises InvalidRequest."""
        if self.endpoint_url is not None and not self.endpoint_url.startswith(("http://", "https://")):
            raise InvalidRequest(
                f"S3 endpoint {self.endpoint_url!r}: give a URL with its scheme, such as http://127.0.0.1:9000"
            )
        if self.endpoint_url is not None and "@" in self.endpoint_url:
            raise InvalidRequest(
                "S3 endpoint: has a user in it, which would be shown; give AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY instead"
            )
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise InvalidRequest("S3 access key and secret go together: give both, or neither")
        if min(self.connect_timeout_s, self.read_timeout_s) <= 0:
            raise InvalidRequest(
                f"S3 timeouts must be positive: connect {self.connect_timeout_s} s, read {self.read_timeout_s} s"
            )
