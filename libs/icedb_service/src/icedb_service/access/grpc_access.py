"""Access control for gRPC calls: credentials from the metadata and the TLS peer of a call."""

from typing import Any, Final

from icedb_service.access.guard import AccessGuard
from icedb_service.access.verbs import Identity, Verb

AUTHORIZATION: Final = "authorization"


class GrpcAccess:
    """Asks the guard for gRPC handlers, synchronous or asyncio ones.

    Args:
        guard: Decides.
    """

    def __init__(self, guard: AccessGuard) -> None:
        self.guard = guard

    def identify(self, context: Any) -> Identity:
        """Return who calls. Raises Unauthenticated."""
        metadata = dict(context.invocation_metadata() or ())
        names = (*context.auth_context().get("x509_subject_alternative_name", ()),)
        return self.guard.identify(
            authorization=metadata.get(AUTHORIZATION),
            certificate_names=tuple(name.decode(errors="replace") for name in names),
        )

    def require(self, context: Any, verb: Verb, table: str) -> Identity:
        """Return who calls, if they may do this. Raises Unauthenticated, PermissionDenied, NotFound, Overloaded."""
        identity = self.identify(context)
        self.guard.require(identity, verb, table)
        return identity
