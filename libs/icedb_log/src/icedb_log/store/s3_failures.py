"""Reports each try of a request to S3 that failed, whatever boto3 makes of it afterwards.

Also of a body that breaks off while it is read: a download in parts asks again then, and says so to nobody.
"""

from typing import Any, Final

from botocore.exceptions import (
    BotoCoreError,
    ConnectTimeoutError,
    EndpointConnectionError,
    ProxyConnectionError,
    ReadTimeoutError,
)
from botocore.response import StreamingBody
from urllib3.exceptions import ConnectTimeoutError as PlainConnectTimeoutError
from urllib3.exceptions import NewConnectionError
from urllib3.exceptions import ReadTimeoutError as PlainReadTimeoutError

from icedb_log.store.request_failures import Operation, Reason, reason_of_status, report_failure
from icedb_log.store.s3_errors import names_no_error

_BY_VERB: Final[tuple[tuple[str, Operation], ...]] = (
    ("List", "list"),
    ("Delete", "delete"),
    ("Get", "read"),
    ("Head", "read"),
)
_UNREACHABLE: Final = (EndpointConnectionError, ProxyConnectionError, NewConnectionError)
_TIMEOUTS: Final = (ConnectTimeoutError, ReadTimeoutError, PlainConnectTimeoutError, PlainReadTimeoutError)


def report_failed_tries(client: Any) -> None:
    """Make a client of boto3 report each of its tries that failed."""
    client.meta.events.register("needs-retry.s3", _look)
    client.meta.events.register("after-call.s3.GetObject", _watch_body)


def reason_of(error: BaseException) -> Reason:
    """Return what kind of failure an exception on the way to S3 is."""
    if isinstance(error, _TIMEOUTS):
        return "timeout"
    return "unreachable" if isinstance(error, _UNREACHABLE) else "broken"


def _look(*, operation: Any, response: Any = None, caught_exception: Any = None, **_: Any) -> None:
    """Botocore calls it after each try; what it returns says nothing about a retry."""
    reason = reason_of(caught_exception) if caught_exception is not None else None
    if reason is None and response is not None:
        reason = reason_of_status(response[0].status_code)
        if reason is None and operation.name != "HeadObject" and names_no_error(response[1]):
            reason = "broken"
    if reason is not None:
        report_failure(_operation_of(operation.name), reason)


class _WatchedBody(StreamingBody):  # type: ignore[misc]  # botocore has no types
    """A body that reports when it breaks off."""

    def read(self, amt: int | None = None) -> bytes:
        """Read on. Raises what the base class does."""
        try:
            return bytes(super().read(amt))
        except BotoCoreError as error:
            report_failure("read", reason_of(error))
            raise


def _watch_body(*, parsed: dict[str, Any], **_: Any) -> None:
    body = parsed.get("Body")
    if isinstance(body, StreamingBody):
        parsed["Body"] = _WatchedBody(body._raw_stream, body._content_length)  # noqa: SLF001 - no way to wrap one


def _operation_of(name: str) -> Operation:
    return next((kind for verb, kind in _BY_VERB if name.startswith(verb)), "write")
