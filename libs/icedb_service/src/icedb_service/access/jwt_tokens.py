"""Checks JSON Web Tokens (signature, algorithm, issuer, audience, times) with the public keys of their issuers.

Keys come from a file, or from an address and are fetched anew when they change. A call never waits for an issuer:
keys are fetched by a thread of their own, and a key that is not known yet makes the call fail until they have come.
The cryptography is joserfc's.
"""

import json
import threading
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from icedb_log.clock import Clock
from icedb_log.errors import InvalidRequest, Unauthenticated, Unavailable
from icedb_log.units import SECOND_MS
from joserfc import jwt
from joserfc.errors import ExpiredTokenError, InvalidKeyIdError, JoseError
from joserfc.jwk import KeySet
from joserfc.jwt import JWTClaimsRegistry

from icedb_service.access.access_file import IssuerEntry
from icedb_service.logs import get_logger

MAX_BYTES: Final = 1024 * 1024
TIMEOUT_S: Final = 5
MAX_AGE_MS: Final = 5 * 60 * 1000
"""Fetched keys older than this are fetched anew; until that succeeds the old ones go on."""
RETRY_MS: Final = 10_000
"""Least time between two tries, also for a key that is not known."""


class FileKeys:
    """Keys from a file, read once: whoever reads the access file again reads this again.

    Raises:
        InvalidRequest: It cannot be read, or is none.
    """

    def __init__(self, path: Path) -> None:
        try:
            body = path.read_bytes()
        except OSError as error:
            raise InvalidRequest(f"key set {path}: {error.strerror}") from error
        self._keys = parse_key_set(body, where=str(path))

    def keys(self) -> KeySet:
        """Return the keys."""
        return self._keys

    def miss(self) -> None:
        """Do nothing: the file is read again when it changes."""


class FetchedKeys:
    """Keys from an address. Thread-safe."""

    def __init__(self, url: str, *, clock: Clock) -> None:
        self._url = url
        self._clock = clock
        self._keys: KeySet | None = None
        self._fetched_ms = 0
        self._tried_ms: int | None = None
        self._lock = threading.Lock()
        self._is_fetching = False

    def keys(self) -> KeySet:
        """Return the keys that were fetched last, and fetch new ones when they are old.

        Raises:
            Unavailable: None have come yet.
        """
        if self._keys is None or self._clock.monotonic_ms() - self._fetched_ms > MAX_AGE_MS:
            self._begin()
        if self._keys is None:
            raise Unavailable(f"the keys at {self._url} are not here yet; try again soon")
        return self._keys

    def miss(self) -> None:
        """Fetch anew: the issuer may have changed its keys."""
        self._begin()

    def fetch(self) -> None:
        """Fetch now, in this thread; a failure is logged, and the keys that are here go on."""
        try:
            keys = parse_key_set(_download(self._url), where=self._url)
        except (OSError, ValueError, InvalidRequest) as error:
            get_logger().warning(
                "jwt_keys_not_fetched", url=self._url, error=str(error)[:300], mitigation="those known before go on"
            )
        else:
            self._keys, self._fetched_ms = keys, self._clock.monotonic_ms()
            get_logger().info("jwt_keys_fetched", url=self._url, keys=len(keys.keys))
        finally:
            with self._lock:
                self._is_fetching = False

    def _begin(self) -> None:
        now_ms = self._clock.monotonic_ms()
        with self._lock:
            if self._is_fetching or (self._tried_ms is not None and now_ms - self._tried_ms < RETRY_MS):
                return
            self._is_fetching, self._tried_ms = True, now_ms
        threading.Thread(target=self.fetch, name="jwt-keys", daemon=True).start()


def parse_key_set(body: bytes, *, where: str) -> KeySet:
    """Return a JWK set. Raises InvalidRequest with the place if it is none, has no keys, or has secret ones."""
    try:
        keys = KeySet.import_key_set(json.loads(body))
    except (JoseError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise InvalidRequest(f"key set {where}: not a JWK set ({type(error).__name__})") from None
    if not keys.keys:
        raise InvalidRequest(f"key set {where}: has no keys")
    if any(key.key_type == "oct" or key.is_private for key in keys.keys):
        raise InvalidRequest(f"key set {where}: has a secret key; only public ones belong here")
    return keys


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_args: Any, **_more: Any) -> None:
        """Follow nothing: it could lead from https to anywhere."""


def _download(url: str) -> bytes:
    opener = urllib.request.build_opener(_NoRedirects)
    with opener.open(url, timeout=TIMEOUT_S) as answer:
        body: bytes = answer.read(MAX_BYTES + 1)
    if len(body) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes")
    return body


PARTS: Final = 3


@dataclass(frozen=True, slots=True)
class Issuer:
    """Who issues tokens: name and entry of the access file, and its keys."""

    name: str
    entry: IssuerEntry
    source: FileKeys | FetchedKeys


def looks_like_jwt(token: str) -> bool:
    """Whether a token has the form of a signed JWT."""
    return token.count(".") == PARTS - 1 and token.startswith("ey")


def verify_jwt(token: str, issuer: Issuer, *, clock: Clock) -> Mapping[str, Any] | None:
    """Return the claims of a token of this issuer; ``None`` if it is not signed with a key of the issuer.

    Raises:
        Unauthenticated: It is the issuer's, and is expired, not valid yet, or for somebody else.
        Unavailable: The issuer's keys are not there yet.
    """
    keys = issuer.source.keys()
    try:
        claims = jwt.decode(token, keys, algorithms=list(issuer.entry.algorithms)).claims
    except InvalidKeyIdError:
        issuer.source.miss()
        return None
    except (JoseError, ValueError, TypeError):
        return None
    checks = JWTClaimsRegistry(
        now=clock.now_ms() // SECOND_MS,
        leeway=issuer.entry.leeway_s,
        iss={"essential": True, "value": issuer.entry.issuer},
        aud={"essential": True, "value": issuer.entry.audience},
        exp={"essential": True},
    )
    try:
        checks.validate(claims)
    except ExpiredTokenError:
        raise Unauthenticated("the token has expired; get a new one") from None
    except JoseError as error:
        claim = getattr(error, "claim", None) or "?"
        raise Unauthenticated(f"the token is not valid here: its claim {str(claim)[:20]!r} does not fit") from None
    return claims
