"""uvicorn's HTTP protocol with bounds that it has not: for headers, in time and bytes, and for what nobody reads."""

import asyncio
from typing import Any, ClassVar, Final

from icedb_log.units import SECOND_MS
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from icedb_service.access.credentials import CERTIFICATE_NAMES, certificate_names

MAX_HEADER_BYTES: Final = 64 * 1024
"""What of a request may come before its headers are complete, and what may follow its body as trailers; besides what
one read of the connection brings, 256 KiB at most."""
_TOO_LARGE: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


class PatientProtocol(HttpToolsProtocol):
    """Closes connections that do not send a request's headers in time, or too many of them.

    The same deadline holds for a body that goes on after it was refused: it is read and thrown away, so that the
    producer sees the answer, but not for ever.
    """

    deadline_s: ClassVar[float] = 10.0
    _deadline: asyncio.TimerHandle | None = None
    _is_body_open = False
    _is_in_headers = True
    _has_begun = False
    _header_bytes = 0
    _certificate_names: tuple[str, ...] = ()

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for the first headers."""
        super().connection_made(transport)
        self._certificate_names = certificate_names(transport.get_extra_info("peercert"))
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read; what is read before headers are complete is kept, so it is bounded."""
        self._has_begun = False
        super().data_received(data)
        if self._is_in_headers and not self._has_begun:
            self._count_header(len(data))

    def on_message_begin(self) -> None:
        """Begin to wait for the headers of a further request."""
        self._arm()
        self._is_in_headers = self._has_begun = True
        self._header_bytes = 0
        super().on_message_begin()
        self.scope[CERTIFICATE_NAMES] = self._certificate_names  # type: ignore[typeddict-unknown-key]

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; trailers, which come after the body, are nobody's."""
        if self._is_body_open:
            self._count_header(len(name) + len(value))
        else:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Leave the body to the deadline of whoever reads it."""
        self._disarm()
        self._is_in_headers, self._header_bytes = False, 0
        self._is_body_open = True
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Leave the rest to keep-alive."""
        self._is_body_open = False
        self._disarm()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the end of a body that nobody reads any more."""
        super().on_response_complete()
        if self._is_body_open:
            self._arm()

    def _count_header(self, size_bytes: int) -> None:
        self._header_bytes += size_bytes
        if self._header_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
            if self._is_in_headers and (self.cycle is None or self.cycle.response_complete):
                self.transport.write(_TOO_LARGE)
            self.transport.close()

    def _arm(self) -> None:
        if self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(self.deadline_s, self._give_up)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        self.transport.close()


def make_protocol(*, header_timeout_ms: int) -> type[asyncio.Protocol]:
    """Return the protocol with a deadline."""
    return type("BoundPatientProtocol", (PatientProtocol,), {"deadline_s": header_timeout_ms / SECOND_MS})
