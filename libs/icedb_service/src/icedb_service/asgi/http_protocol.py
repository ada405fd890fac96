"""uvicorn's HTTP protocol with deadlines that uvicorn itself does not have: for headers, and for what nobody reads."""

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from icedb_service.access.http_access import CERTIFICATE_NAMES, certificate_names

MS_PER_S = 1000


class PatientProtocol(HttpToolsProtocol):
    """Closes connections that do not send a request's headers in time.

    The same deadline holds for a body that goes on after it was refused: it is read and thrown away, so that the
    producer sees the answer, but not for ever.
    """

    deadline_s: ClassVar[float] = 10.0
    _deadline: asyncio.TimerHandle | None = None
    _is_body_open = False
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

    def on_message_begin(self) -> None:
        """Begin to wait for the headers of a further request."""
        self._arm()
        super().on_message_begin()
        self.scope[CERTIFICATE_NAMES] = self._certificate_names  # type: ignore[typeddict-unknown-key]

    def on_headers_complete(self) -> None:
        """Leave the body to the deadline of whoever reads it."""
        self._disarm()
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
    return type("BoundPatientProtocol", (PatientProtocol,), {"deadline_s": header_timeout_ms / MS_PER_S})
