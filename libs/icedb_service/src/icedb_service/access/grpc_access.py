"""Access control for gRPC calls: credentials from the metadata and the TLS peer of a call."""

from typing import Any, Final

from icedb_service.access.guard import AccessGuard
from icedb_service.access.verbs import Identity, Verb

AUTHORIZATION: Final = "authorization"
_SUBJECT_NAMES: Final = ("x509_subject_alternative_name", "x509_common_name")
"""Where TLS puts the names of a client certificate; the common name counts only where there is no other."""


class GrpcAccess:
    """Asks the guard for gRPC handlers, synchronous or asyncio ones.

    Args:
        guard: Decides.
    """

    def __init__(self, guard: AccessGuard) -> None:
        self.guard = guard

    def identify(self, context: Any) -> Identity:
        """Return who calls, for a call that is about no single table; counts a call.

        Raises:
            Unauthenticated: No credentials, or wrong ones.
            Overloaded: It calls more often than its rate allows.
        """
        identity = self.recognise(context)
        self.guard.charge(identity)
        return identity

    def require(self, context: Any, verb: Verb, table: str) -> Identity:
        """Return who calls, if they may do this. Raises Unauthenticated, PermissionDenied, NotFound, Overloaded."""
        identity = self.recognise(context)
        self.guard.require(identity, verb, table)
        return identity

    def recognise(self, context: Any) -> Identity:
        """Return who calls, and count nothing: for streams whose messages are counted one by one."""
        if not self.guard.is_enforced:
            return self.guard.identify()
        given = [str(value) for key, value in context.invocation_metadata() or () if key == AUTHORIZATION]
        # Several are one that is wrong: which of them would count?
        return self.guard.identify(
            authorization=", ".join(given) if given else None,
            certificate_names=_certificate_names(context.auth_context()),
        )


def _certificate_names(peer: Any) -> tuple[str, ...]:
    for kind in _SUBJECT_NAMES:
        names = tuple(name.decode(errors="replace") for name in peer.get(kind) or ())
        if names:
            return names
    return ()
