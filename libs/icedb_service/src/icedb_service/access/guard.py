"""The one place that decides whether a call is allowed, and how a service gets it from its settings.

Every endpoint (gRPC, HTTP, tasks, the S3 gateway) asks here before it looks whether a table is there, so that nobody
learns the name of a table that is not theirs: neither by the answer, nor by how long it takes.
"""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cachetools import LRUCache
from icedb_log.clock import Clock
from icedb_log.errors import InvalidRequest, Overloaded, PermissionDenied, Unauthenticated
from icedb_log.hosts import is_loopback
from icedb_log.table.table_config import table_not_found
from icedb_log.units import MINUTE_MS, SECOND_MS

from icedb_service.access.access_file import ANYBODY, SEGMENT, AccessKey, Identity, RateEntry, Verb
from icedb_service.logs import get_logger
from icedb_service.metrics import AccessMetrics, Endpoint, Refusal
from icedb_service.settings import ServiceSettings
from icedb_service.tls import read_expiry_s

MAX_BUCKETS: Final = 10_000


class RateLimited(Overloaded):
    """A caller calls more often than it may, or holds as much of a pool as it may.

    What the caller does: wait for ``retry_after_ms``, and call less often, or less at once.
    """


@dataclass(slots=True)
class _Bucket:
    calls: float
    filled_ms: int


class RateLimits:
    """Counts calls. Thread-safe. Of more than ``MAX_BUCKETS`` callers, who called longest ago is forgotten."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._buckets: LRUCache[str, _Bucket] = LRUCache(MAX_BUCKETS)
        self._lock = threading.Lock()

    def take(self, name: str, rate: RateEntry) -> int:
        """Count a call. Returns 0 if it may go on, else how long to wait, milliseconds; then it is not counted."""
        now_ms = self._clock.monotonic_ms()
        with self._lock:
            bucket = self._buckets.setdefault(name, _Bucket(rate.burst, now_ms))
            gained = (now_ms - bucket.filled_ms) * rate.calls_per_s / SECOND_MS
            bucket.calls = min(float(rate.burst), bucket.calls + gained)
            bucket.filled_ms = now_ms
            if bucket.calls >= 1:
                bucket.calls -= 1
                return 0
            return int((1 - bucket.calls) * SECOND_MS / rate.calls_per_s) + 1


class Places:
    """A pool of which callers hold some while they are served: calls, watchers, bytes of bodies. Thread-safe.

    No identity of the policy holds more than half of it, so that nobody keeps all others out. Without a policy nobody
    is told from others, and the pool's own bound is all there is.

    Args:
        what: In messages.
        setting: Which bounds the pool; empty: none does.
        size: How much there is.
    """

    def __init__(self, what: str, *, setting: str = "", size: int) -> None:
        self.what = what
        self.setting = setting
        self.size = size
        self.share = max(1, size // 2)
        self._held: Counter[str] = Counter()
        self._lock = threading.Lock()

    def fits(self, name: str | None, size: int = 1, *, beside: int = 0) -> bool:
        """Whether an identity may hold so much more.

        One thing alone may be larger than its share: what is ``beside`` it is held for the same thing.
        """
        if name is None:
            return True
        held = self._held[name]
        return held <= beside or held + size <= self.share

    def take(self, name: str | None) -> bool:
        """Take a place for an identity; return whether it has one."""
        with self._lock:
            if not self.fits(name):
                return False
            self._add(name, 1)
            return True

    def add(self, name: str | None, size: int) -> None:
        """Count what an identity holds more, or less, without asking."""
        with self._lock:
            self._add(name, size)

    def held_by(self, name: str | None) -> int:
        """Return how much an identity holds."""
        return 0 if name is None else self._held[name]

    def _add(self, name: str | None, size: int) -> None:
        if name is None:
            return
        self._held[name] += size
        if not self._held[name]:
            del self._held[name]


@dataclass(frozen=True, slots=True)
class Holder:
    """Who takes some of a pool.

    Attributes:
        name: Its identity; ``None``: nobody is told from others.
        on_refused: Told its name when it is refused because it holds its share.
    """

    name: str | None = None
    on_refused: Callable[[str], object] = lambda _: None

    def refusal(self, places: Places, *, held: int | None = None, retry_after_ms: int = 10 * SECOND_MS) -> RateLimited:
        """Count that it holds its share, and return the error; ``held``: as far as the pool itself does not know."""
        name = self.name or ""
        named = f" ({places.setting})" if places.setting else ""
        self.on_refused(name)
        return RateLimited(
            f"{name} has {places.held_by(name) if held is None else held} {places.what} here already; nobody may have "
            f"more than {places.share}, half of all{named}: end some, or ask another replica",
            retry_after_ms=retry_after_ms,
        )


NOBODY: Final = Holder()


if TYPE_CHECKING:
    from icedb_service.access.policy import AccessSource

MAX_TOKEN_CHARS: Final = 16 * 1024
MAX_SHOWN_CHARS: Final = 80
_BEARER: Final = "bearer"


class AccessGuard:
    """Recognises callers and applies the policy. Thread-safe. Without a policy everything is allowed."""

    def __init__(
        self,
        source: "AccessSource | None" = None,
        *,
        limits: RateLimits | None = None,
        metrics: AccessMetrics | None = None,
        endpoint: Endpoint = "grpc",
    ) -> None:
        self._source = source
        self._limits = limits
        self._metrics = metrics
        self._endpoint: Endpoint = endpoint

    @property
    def is_enforced(self) -> bool:
        """Whether there is a policy."""
        return self._source is not None

    def at(self, endpoint: Endpoint) -> "AccessGuard":
        """Return the guard of another endpoint of the same process: same policy, same counts of calls."""
        return AccessGuard(self._source, limits=self._limits, metrics=self._metrics, endpoint=endpoint)

    def identify(self, *, authorization: str | None = None, certificate_names: Sequence[str] = ()) -> Identity:
        """Return who calls. A token counts before a certificate, and a wrong one is not made good by it.

        Args:
            authorization: The ``authorization`` header, ``Bearer …``.
            certificate_names: Names in the client certificate that TLS has verified.

        Raises:
            Unauthenticated: No credentials, or wrong ones.
            Unavailable: The keys that a token would be checked with are not there yet.
        """
        if self._source is None:
            return ANYBODY
        policy = self._source.current()
        try:
            if authorization is not None:
                return policy.by_token(_bearer_token(authorization))
            found = policy.by_certificate(certificate_names) or policy.anonymous
        except Unauthenticated as error:
            self._count("bad_credentials", detail=str(error))
            raise
        if found is not None:
            return found
        if certificate_names:
            self._count("bad_credentials", detail="certificate", certificate=certificate_names[0][:MAX_SHOWN_CHARS])
            raise Unauthenticated(
                "the client certificate is valid, but its names are those of no identity; "
                "ask the maintainer of the access file, or send a bearer token"
            )
        self._count("no_credentials")
        raise Unauthenticated(
            "this service wants to know who calls: send a bearer token (ICEDB_TOKEN, or the header "
            "`authorization: Bearer …`)"
        )

    def segment(self) -> Identity:
        """Return who sends webhooks whose signature or write key has been checked."""
        return ANYBODY if self._source is None else Identity(SEGMENT)

    def charge(self, identity: Identity) -> None:
        """Count a call that is about no table. :meth:`require` counts by itself.

        Raises:
            Overloaded: It calls more often than its rate allows.
        """
        if self._source is None or self._limits is None:
            return
        rate = self._source.current().rate(identity)
        if rate is None:
            return
        wait_ms = self._limits.take(identity.name, rate)
        if wait_ms:
            self._count("rate", identity=identity.name)
            raise RateLimited(
                f"{identity.name} makes more than {rate.calls_per_s:g} calls a second; go on in {wait_ms} ms",
                retry_after_ms=wait_ms,
            )

    def holder(self, identity: Identity) -> Holder:
        """Return as whom a caller takes some of what all share."""
        if self._source is None:
            return NOBODY
        return Holder(identity.name, lambda name: self._count("share", identity=name))

    def hold(self, identity: Identity, places: Places) -> Callable[[], None]:
        """Take a place for a caller, and return what gives it back; it may be called again.

        Raises:
            RateLimited: The identity holds its share.
        """
        held, holder = ExitStack(), self.holder(identity)
        if not places.take(holder.name):
            raise holder.refusal(places)
        held.callback(places.add, holder.name, -1)
        return held.close

    def check_share(self, identity: Identity, places: Places, *, held: int) -> None:
        """Return if a caller may hold more of a pool that others serve, too, so that what it holds is found elsewhere.

        Raises:
            RateLimited: The identity holds its share.
        """
        if self._source is not None and held >= places.share:
            raise self.holder(identity).refusal(places, held=held, retry_after_ms=MINUTE_MS)

    def require(self, identity: Identity, verb: Verb, table: str) -> None:
        """Return if the identity may do this. Counts a call.

        Raises:
            NotFound: It may not know of the table: the same error as for a table that is not there.
            PermissionDenied: It may know of the table, and not do this.
            Overloaded: It calls more often than its rate allows.
        """
        if self._source is None:
            return
        self.charge(identity)
        verbs = self._source.current().verbs(identity.name, table)
        if verb in verbs:
            return
        shown = table[:MAX_SHOWN_CHARS]
        if not verbs:
            self._count("hidden", identity=identity.name, verb=str(verb), denied_table=shown)
            raise table_not_found(table)
        self._count("not_granted", identity=identity.name, verb=str(verb), denied_table=shown)
        raise PermissionDenied(
            f"{identity.name} may {', '.join(sorted(verbs))} table {table!r}, but not {verb}; "
            "ask the maintainer of the access file for a grant"
        )

    def can_see(self, identity: Identity, table: str) -> bool:
        """Whether the identity may know that a table is there."""
        return self._source is None or bool(self._source.current().verbs(identity.name, table))

    def allows(self, identity: Identity, verb: Verb, table: str) -> bool:
        """Whether the identity may do this; counts nothing: for lists and streams over many tables."""
        return self._source is None or verb in self._source.current().verbs(identity.name, table)

    def access_key(self, access_key_id: str) -> AccessKey | None:
        """Return a key of the S3 gateway by its id; ``None`` if there is none."""
        return None if self._source is None else self._source.current().access_key(access_key_id)

    def _count(self, reason: Refusal, **fields: str) -> None:
        if self._metrics is not None:
            self._metrics.denied.labels(self._endpoint, reason).inc()
        get_logger().info("access_denied", door=self._endpoint, reason=reason, **fields)


def _bearer_token(authorization: str) -> str:
    scheme, _, token = authorization.strip().partition(" ")
    token = token.strip()
    if scheme.lower() != _BEARER or not token:
        raise Unauthenticated("the authorization header is not `Bearer` and a token")
    if len(token) > MAX_TOKEN_CHARS:
        raise Unauthenticated(f"the bearer token has more than {MAX_TOKEN_CHARS} characters")
    return token


def open_guard(
    settings: ServiceSettings,
    *,
    clock: Clock,
    metrics: AccessMetrics,
    endpoint: Endpoint = "grpc",
    hosts: Sequence[str] = (),
) -> AccessGuard:
    """Return the guard of a process. Says once in the log whether access is enforced.

    Args:
        settings: Of the service.
        clock: For ages, times in tokens and rates.
        metrics: Where refusals are counted; one for each registry.
        endpoint: What asks first; see :meth:`AccessGuard.at`.
        hosts: The addresses that the process serves callers on, without ports.

    Raises:
        InvalidRequest: The access file is wrong; or there is none, and an address is not a loopback one.
    """
    if settings.tls_cert_file is not None:
        metrics.certificate_expiry.set_function(partial(read_expiry_s, Path(settings.tls_cert_file)))
    if settings.access_file is not None:
        from icedb_service.access.policy import AccessSource  # noqa: PLC0415 - keys and JWTs take a second to load

        source = AccessSource(Path(settings.access_file), clock=clock, metrics=metrics)
        get_logger().info("access_enforced", path=settings.access_file)
        if settings.tls_cert_file is None and not all(map(is_loopback, hosts)):
            get_logger().warning(
                "tokens_without_tls",
                hosts=list(hosts),
                mitigation="set ICEDB_TLS_CERT_FILE, or encrypt in front",
            )
        return AccessGuard(source, limits=RateLimits(clock), metrics=metrics, endpoint=endpoint)
    open_to = [host for host in hosts if not is_loopback(host)]
    if open_to and not settings.open_access:
        raise InvalidRequest(
            f"ICEDB_ACCESS_FILE is not set, and others reach {open_to[0] or 'every address'}: everybody could read "
            "and write every table. Set ICEDB_ACCESS_FILE (docs/access.md), listen on 127.0.0.1, or say "
            "ICEDB_OPEN_ACCESS=true if only those you trust reach this port"
        )
    if hosts:
        get_logger().warning(
            "access_open",
            hosts=list(hosts),
            mitigation="keep others away, or set ICEDB_ACCESS_FILE",
        )
    return AccessGuard(metrics=metrics, endpoint=endpoint)
