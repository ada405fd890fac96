"""Requests that are no messages: bytes that cannot be parsed are the caller's fault, and are answered so.

gRPC itself answers them with UNKNOWN and a traceback in the log. So a request is parsed to what says that it cannot be
read, and the handler refuses that as it refuses other requests: after it knows who calls.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError
from icedb_log.errors import InvalidRequest


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands in for a request.

    Attributes:
        size_bytes: Of what came.
    """

    size_bytes: int


def tolerant(parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Return a deserializer that gives :class:`Unreadable` where ``parse`` raises."""

    def read(body: bytes) -> Any:
        try:
            return parse(body)
        except DecodeError:
            return Unreadable(len(body))

    return read


def require_readable(request: Any) -> None:
    """Raise InvalidRequest for a request that could not be parsed."""
    if isinstance(request, Unreadable):
        raise InvalidRequest(
            f"the request is no message of this method: its {request.size_bytes} bytes cannot be parsed; generate "
            "the client from the protocol buffers of this release (proto/icedb/v1)"
        )
