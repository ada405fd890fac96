"""How a call shows who makes it: in gRPC metadata, in HTTP headers, by its TLS peer, or in the message of a task.

A task that does only what the periodic sweep would do anyway needs no token: its message says "look", and the work
stands in the store. One that says what to do needs the verb for it. Imports neither gRPC nor a web framework.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Final

from icedb_service.access.access_file import Identity, Verb
from icedb_service.access.guard import AccessGuard, Places
from icedb_service.metrics import Endpoint

AUTHORIZATION: Final = "authorization"
_SUBJECT_NAMES: Final = ("x509_subject_alternative_name", "x509_common_name")
"""Where TLS puts the names of a client certificate; the common name counts only where there is no other."""


class _CallAccess(ABC):
    """Asks the guard for calls of one kind."""

    def __init__(self, guard: AccessGuard) -> None:
        self.guard = guard

    @abstractmethod
    def recognise(self, call: Any) -> Identity:
        """Return who calls, and count nothing: for streams whose messages are counted one by one.

        Raises:
            Unauthenticated: No credentials, or wrong ones.
        """

    def identify(self, call: Any) -> Identity:
        """Return who calls, for a call that is about no single table; counts a call.

        Raises:
            Unauthenticated: No credentials, or wrong ones.
            Overloaded: It calls more often than its rate allows.
        """
        identity = self.recognise(call)
        self.guard.charge(identity)
        return identity

    def require(self, call: Any, verb: Verb, table: str) -> Identity:
        """Return who calls, if they may do this. Raises Unauthenticated, PermissionDenied, NotFound, Overloaded."""
        identity = self.recognise(call)
        self.guard.require(identity, verb, table)
        return identity


class GrpcAccess(_CallAccess):
    """Asks the guard for gRPC handlers, synchronous or asyncio ones: a call is their context.

    Args:
        guard: The guard.
        calls: The calls that the server answers at once.
    """

    def __init__(self, guard: AccessGuard, calls: Places) -> None:
        super().__init__(guard)
        self._calls = calls

    def recognise(self, call: Any) -> Identity:
        """Return who calls, and hold a place for the call until it ends. Raises Unauthenticated, Overloaded."""
        if not self.guard.is_enforced:
            return self.guard.identify()
        given = [str(value) for key, value in call.invocation_metadata() or () if key == AUTHORIZATION]
        peer = call.auth_context()
        names: tuple[bytes, ...] = next((tuple(peer[kind]) for kind in _SUBJECT_NAMES if peer.get(kind)), ())
        # Several are one that is wrong: which of them would count?
        identity = self.guard.identify(
            authorization=", ".join(given) if given else None,
            certificate_names=tuple(name.decode(errors="replace") for name in names),
        )
        release = self.guard.hold(identity, self._calls)
        call.add_done_callback(lambda _: release())
        return identity


class HttpAccess(_CallAccess):
    """Asks the guard for ASGI requests: a call is a scope.

    Args:
        guard: The guard.
        max_requests: How many requests the server answers at once.
    """

    def __init__(self, guard: AccessGuard, *, max_requests: int) -> None:
        super().__init__(guard)
        self._requests = Places("requests", setting="ICEDB_HTTP_MAX_CONNECTIONS", size=max_requests)

    def at(self, endpoint: Endpoint) -> "HttpAccess":
        """Return the same for another endpoint of the server."""
        other = copy(self)
        other.guard = self.guard.at(endpoint)
        return other

    def hold(self, call: Mapping[str, Any], identity: Identity, places: Places | None = None) -> None:
        """Hold a place for a request until it ends: one of the server's requests, or of another pool. Idempotent.

        Raises:
            RateLimited: The identity holds its share.
        """
        pool = places or self._requests
        held = call.get(HELD)
        if held is not None and pool.what not in held:
            held[pool.what] = self.guard.hold(identity, pool)

    def recognise(self, call: Mapping[str, Any]) -> Identity:
        """Return who sends a request, and hold a place for it until it ends. Raises Unauthenticated, RateLimited."""
        identity = self._identify(call)
        self.hold(call, identity)
        return identity

    def _identify(self, call: Mapping[str, Any]) -> Identity:
        given = [value for key, value in call["headers"] if key == AUTHORIZATION.encode()]
        # Several are one that is wrong: which of them would count?
        return self.guard.identify(
            authorization=b", ".join(given).decode("latin-1") if given else None,
            certificate_names=call.get(CERTIFICATE_NAMES, ()),
        )


class TaskAccess(_CallAccess):
    """Asks the guard for tasks: a call is Celery's request of the running task."""

    def __init__(self, guard: AccessGuard) -> None:
        super().__init__(guard.at("task"))

    def recognise(self, call: Any) -> Identity:
        """Return who sent a message, by the authorization that it carries. Raises Unauthenticated."""
        headers = getattr(call, "headers", None)
        value = headers.get(AUTHORIZATION) if isinstance(headers, Mapping) else None
        return self.guard.identify(authorization=value if isinstance(value, str) else None)


HELD: Final = "icedb.held"
"""Where an ASGI scope has what gives a request's places back, by what each pool is of; :class:`ObservedApp` does when
it ends."""
CERTIFICATE_NAMES: Final = "icedb.certificate_names"
"""Where the HTTP server leaves the names of a client certificate in an ASGI scope."""


def certificate_names(peer: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the names in a verified certificate, as ``ssl`` describes it: the common name where there is no other."""
    if not peer:
        return ()
    others = tuple(str(name) for _kind, name in peer.get("subjectAltName", ()))
    if others:
        return others
    return tuple(str(value) for part in peer.get("subject", ()) for kind, value in part if kind == "commonName")


@dataclass(frozen=True, slots=True)
class Need:
    """What a message asks for."""

    verb: Verb
    table: str


Needs = Callable[[Mapping[str, Any]], Sequence[Need]]
"""From a task's arguments by name to what they ask for; nothing: the sweep would do it anyway."""


def needs(verb: Verb, *if_set: str) -> Needs:
    """Return the needs of a task that does this with its table: always, or only if one of these arguments is set."""

    def of(arguments: Mapping[str, Any]) -> Sequence[Need]:
        is_asked = not if_set or any(arguments.get(name) for name in if_set)
        return (Need(verb, str(arguments.get("table"))),) if is_asked else ()

    return of
