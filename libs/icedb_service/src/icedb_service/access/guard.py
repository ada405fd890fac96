"""The one place that decides whether a call is allowed.

Every door (gRPC, HTTP, tasks, the S3 gateway) asks here before it looks whether a table is there, so that nobody learns
the name of a table that is not theirs.
"""

from collections.abc import Iterable, Sequence

from icedb_service.access.verbs import ANYBODY, AccessKey, Identity, Verb


class AccessGuard:
    """Recognises callers and applies the policy. Thread-safe. Without a policy everything is allowed."""

    def identify(self, *, authorization: str | None = None, certificate_names: Sequence[str] = ()) -> Identity:
        """Return who calls.

        Args:
            authorization: The ``authorization`` header, ``Bearer …``.
            certificate_names: Names in the client certificate that TLS has verified.

        Raises:
            Unauthenticated: No credentials, or wrong ones.
        """
        del authorization, certificate_names
        return ANYBODY

    def require(self, identity: Identity, verb: Verb, table: str) -> None:
        """Return if the identity may do this.

        Raises:
            NotFound: It may not know of the table: the same error as for a table that is not there.
            PermissionDenied: It may know of the table, and not do this.
            Overloaded: It calls more often than its rate allows.
        """

    def can_see(self, identity: Identity, table: str) -> bool:
        """Whether the identity may know that a table is there."""
        del identity, table
        return True

    def visible(self, identity: Identity, tables: Iterable[str]) -> list[str]:
        """Return the tables that the identity may know of, in their order."""
        return [table for table in tables if self.can_see(identity, table)]

    def access_key(self, access_key_id: str) -> AccessKey | None:
        """Return a key of the S3 gateway by its id; ``None`` if there is none."""
        del access_key_id
        return None
