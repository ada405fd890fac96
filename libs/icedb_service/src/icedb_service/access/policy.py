"""What an access file means (credentials to identities, identities and tables to verbs), and the policy that holds now.

The file is looked at when somebody asks, at most once a second: no thread and no signal, so that it is the same in a
server, in a worker's child and in a program that embeds one. A new file counts as a whole or not at all: one that is
wrong is logged and shown in a metric, and the policy before it goes on.
"""

import hashlib
import hmac
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from cachetools import TTLCache
from icedb_log.clock import Clock
from icedb_log.errors import InvalidRequest, Unauthenticated, Unavailable
from icedb_log.units import SECOND_MS

from icedb_service.access.access_file import (
    ANONYMOUS,
    AccessFile,
    AccessKey,
    AccessKeyEntry,
    Identity,
    IssuerEntry,
    RateEntry,
    Verb,
    read_access_file,
)
from icedb_service.access.jwt_tokens import FetchedKeys, FileKeys, Issuer, looks_like_jwt, verify_jwt
from icedb_service.logs import get_logger
from icedb_service.metrics import AccessMetrics

MAX_REMEMBERED: Final = 10_000
MAX_SEEN_MS: Final = 60_000
MAX_SECRET_BYTES: Final = 4096
MAX_TABLE_CHARS: Final = 64
"""What of a name is compared with patterns: one more than a table's may have."""
_CLAIM_VALUE: Final = re.compile(r"[!-~]{1,200}")


class Policy:
    """Recognises and decides. Thread-safe.

    Args:
        access: The file.
        folder: What its relative paths begin at.
        clock: For times in tokens.
        fetched: Keys by address, kept from the policy before.

    Raises:
        InvalidRequest: A file that it names cannot be read, or is wrong.
    """

    def __init__(
        self, access: AccessFile, *, folder: Path, clock: Clock, fetched: Mapping[str, FetchedKeys] | None = None
    ) -> None:
        self._clock = clock
        self._access = access
        self.files: list[Path] = []
        self.fetched: dict[str, FetchedKeys] = {}
        self._tokens = {
            token.sha256: (token, Identity(name)) for name, entry in access.identities.items() for token in entry.tokens
        }
        self._certificates = {
            known: Identity(name) for name, entry in access.identities.items() for known in entry.certificates
        }
        self._access_keys = {
            key.id: AccessKey(Identity(name), self._secret_of(key, folder))
            for name, entry in access.identities.items()
            for key in entry.access_keys
        }
        self._issuers = [
            self._make_issuer(name, entry, folder, fetched or {}) for name, entry in access.issuers.items()
        ]
        self._grants = [
            (_compile(grant.identities), _compile(grant.tables), frozenset(grant.verbs)) for grant in access.grants
        ]
        # JWTs that were found valid a moment ago: a signature costs up to half a millisecond, and one event loop pays.
        # For a minute at most, so that a key that its issuer has withdrawn does not count for longer.
        self._seen: TTLCache[str, tuple[Identity, float]] = TTLCache(MAX_REMEMBERED, MAX_SEEN_MS, clock.monotonic_ms)
        self._seen_lock = threading.Lock()
        self._verbs = lru_cache(maxsize=MAX_REMEMBERED)(self._find_verbs)

    @property
    def anonymous(self) -> Identity | None:
        """Who shows no credentials, if such callers are let in."""
        return Identity(ANONYMOUS) if ANONYMOUS in self._access.identities else None

    def by_token(self, token: str) -> Identity:
        """Return whose bearer token this is.

        Raises:
            Unauthenticated: Nobody's, or not any more.
            Unavailable: The keys that it would be checked with are not there yet.
        """
        digest = hashlib.sha256(token.encode(errors="replace")).hexdigest()
        known = self._tokens.get(digest)
        if known is not None and hmac.compare_digest(known[0].sha256, digest):
            entry, identity = known
            if entry.expires is not None and self._clock.now_ms() >= entry.expires.timestamp() * SECOND_MS:
                raise Unauthenticated("the token has expired; ask the maintainer of the access file for a new one")
            return identity
        if self._issuers and looks_like_jwt(token):
            with self._seen_lock:
                seen, ends_s = self._seen.get(digest, (None, 0.0))
            if seen is not None and self._clock.now_ms() < ends_s * SECOND_MS:
                return seen
            return self._by_jwt(token, digest)
        raise Unauthenticated("the bearer token is not known here; check ICEDB_TOKEN")

    def by_certificate(self, names: Sequence[str]) -> Identity | None:
        """Return whose client certificate this is; ``None`` if it is nobody's.

        Raises:
            Unauthenticated: Its names are those of several identities.
        """
        found = {self._certificates[name] for name in names if name in self._certificates}
        if len(found) > 1:
            raise Unauthenticated("the client certificate has the names of several identities")
        return found.pop() if found else None

    def access_key(self, access_key_id: str) -> AccessKey | None:
        """Return a key of the S3 gateway."""
        return self._access_keys.get(access_key_id)

    def rate(self, identity: Identity) -> RateEntry | None:
        """Return how often an identity may call; ``None``: as often as it likes."""
        entry = self._access.identities.get(identity.name)
        return entry.rate if entry is not None and entry.rate is not None else self._access.default_rate

    def verbs(self, name: str, table: str) -> frozenset[Verb]:
        """Return what an identity may do with a table."""
        # What callers send as a name may be a message long, and is remembered. No table has one as long as this.
        return self._verbs(name, table[:MAX_TABLE_CHARS])

    def _find_verbs(self, name: str, table: str) -> frozenset[Verb]:
        found: set[Verb] = set()
        for identities, tables, verbs in self._grants:
            if identities.fullmatch(name) and tables.fullmatch(table):
                found |= verbs
        return frozenset(found)

    def _by_jwt(self, token: str, digest: str) -> Identity:
        missing: Unavailable | None = None
        for issuer in self._issuers:
            try:
                claims = verify_jwt(token, issuer, clock=self._clock)
            except Unavailable as error:
                missing = error
                continue
            if claims is not None:
                identity = self._of_claims(issuer, claims)
                with self._seen_lock:
                    self._seen[digest] = (identity, claims["exp"])
                return identity
        if missing is not None:
            raise missing
        raise Unauthenticated("the token is not signed by an issuer that is known here, or in another way than agreed")

    def _of_claims(self, issuer: Issuer, claims: Mapping[str, Any]) -> Identity:
        for name, entry in self._access.identities.items():
            if any(rule.issuer == issuer.name and _fits(rule.claims, claims) for rule in entry.jwt):
                return Identity(name)
        own_claim = issuer.entry.identity_claim
        value = claims.get(own_claim) if own_claim else None
        if isinstance(value, str) and _CLAIM_VALUE.fullmatch(value):
            return Identity(f"{issuer.name}:{value}")
        raise Unauthenticated("the token is valid, but its claims are those of no identity in the access file")

    def _make_issuer(self, name: str, entry: IssuerEntry, folder: Path, fetched: Mapping[str, FetchedKeys]) -> Issuer:
        source: FileKeys | FetchedKeys
        if entry.keys_file is not None:
            path = folder / entry.keys_file
            self.files.append(path)
            source = FileKeys(path)
        else:
            url = entry.keys_url or ""
            source = self.fetched[url] = fetched.get(url) or FetchedKeys(url, clock=self._clock)
        return Issuer(name, entry, source)

    def _secret_of(self, key: AccessKeyEntry, folder: Path) -> str:
        if key.secret is not None:
            return key.secret.get_secret_value()
        path = folder / (key.secret_file or "")
        self.files.append(path)
        try:
            secret = path.read_text(encoding="utf-8")[:MAX_SECRET_BYTES].strip()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidRequest(f"access key {key.id}: secret_file {path}: {type(error).__name__}") from None
        if not secret:
            raise InvalidRequest(f"access key {key.id}: secret_file {path} is empty")
        return secret


def hash_token(token: str) -> str:
    """Return what the access file says of a token."""
    return hashlib.sha256(token.encode()).hexdigest()


def _fits(wanted: Mapping[str, str], claims: Mapping[str, Any]) -> bool:
    """Whether a token has each claim with this value, or with a list that has it."""
    for name, value in wanted.items():
        claim = claims.get(name)
        if claim != value and not (isinstance(claim, list) and value in claim):
            return False
    return True


def _compile(patterns: Iterable[str]) -> re.Pattern[str]:
    texts = (re.sub(r"(?:\\\*)+", ".*", re.escape(pattern)).replace(r"\?", ".") for pattern in patterns)
    return re.compile("|".join(f"(?:{text})" for text in texts), re.DOTALL)


LOOK_MS: Final = 1000
READ_ATTEMPTS: Final = 3

_Stamp = tuple[tuple[str, int, int, int] | str, ...]


class AccessSource:
    """The policy that holds now. Thread-safe.

    Raises:
        InvalidRequest: The file cannot be used.
    """

    def __init__(self, path: Path, *, clock: Clock, metrics: AccessMetrics | None = None) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._is_broken = False
        self._policy, self._stamp = self._load(None)
        self._looked_ms = clock.monotonic_ms()
        if metrics is not None:
            metrics.broken.set_function(self._ask_whether_broken)

    def current(self) -> Policy:
        """Return the policy."""
        if self._clock.monotonic_ms() - self._looked_ms >= LOOK_MS and self._lock.acquire(blocking=False):
            try:
                self._look()
            finally:
                self._lock.release()
        return self._policy

    def _look(self) -> None:
        self._looked_ms = self._clock.monotonic_ms()
        stamp = _stamp([self._path, *self._policy.files])
        if stamp == self._stamp:
            return
        try:
            self._policy, self._stamp = self._load(self._policy)
        except InvalidRequest as error:
            self._stamp, self._is_broken = stamp, True  # said once for each state of the file
            get_logger().error("access_file_broken", error=str(error), mitigation="the policy before it goes on")
            return
        self._is_broken = False
        get_logger().info("access_file_loaded", path=str(self._path))

    def _load(self, before: Policy | None) -> tuple[Policy, _Stamp]:
        """Read the file and those that it names; again if one was written meanwhile."""
        for _ in range(READ_ATTEMPTS):
            first = _stamp([self._path])
            policy = Policy(
                read_access_file(self._path),
                folder=self._path.parent,
                clock=self._clock,
                fetched=before.fetched if before else None,
            )
            if first == _stamp([self._path]):
                return policy, _stamp([self._path, *policy.files])
        raise InvalidRequest(f"access file {self._path}: it changes while it is read")

    def _ask_whether_broken(self) -> float:
        self.current()
        return float(self._is_broken)


def _stamp(paths: list[Path]) -> _Stamp:
    found: list[tuple[str, int, int, int] | str] = []
    for path in paths:
        try:
            info = path.stat()
        except OSError as error:
            found.append(f"{path}: {error.strerror}")
        else:
            found.append((str(path), info.st_mtime_ns, info.st_size, info.st_ino))
    return tuple(found)
