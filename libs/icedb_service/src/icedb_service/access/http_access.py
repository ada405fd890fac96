"""Access control for HTTP requests: credentials from their headers and the TLS peer. Knows no web framework."""

from collections.abc import Mapping
from typing import Any, Final

from icedb_service.access.guard import AccessGuard
from icedb_service.access.verbs import Identity, Verb

CERTIFICATE_NAMES: Final = "icedb.certificate_names"
"""Where the HTTP server leaves the names of a client certificate in an ASGI scope."""
_AUTHORIZATION: Final = b"authorization"


class HttpAccess:
    """Asks the guard for ASGI requests.

    Args:
        guard: Decides.
    """

    def __init__(self, guard: AccessGuard) -> None:
        self.guard = guard

    def require(self, scope: Mapping[str, Any], verb: Verb, table: str) -> Identity:
        """Return who sends a request, if they may do this.

        Raises:
            Unauthenticated: No credentials, or wrong ones.
            IceDBError: As :meth:`AccessGuard.require`.
        """
        identity = self.recognise(scope)
        self.guard.require(identity, verb, table)
        return identity

    def recognise(self, scope: Mapping[str, Any]) -> Identity:
        """Return who sends a request. Raises Unauthenticated."""
        given = [value for key, value in scope["headers"] if key == _AUTHORIZATION]
        # Several are one that is wrong: which of them would count?
        return self.guard.identify(
            authorization=b", ".join(given).decode("latin-1") if given else None,
            certificate_names=scope.get(CERTIFICATE_NAMES, ()),
        )


def certificate_names(peer: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the names in a verified certificate, as ``ssl`` describes it: the common name where there is no other."""
    if not peer:
        return ()
    others = tuple(str(name) for _kind, name in peer.get("subjectAltName", ()))
    if others:
        return others
    return tuple(str(value) for part in peer.get("subject", ()) for kind, value in part if kind == "commonName")
