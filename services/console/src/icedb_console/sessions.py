"""Who looks at a page, and whether a form came from one of our pages.

A browser signs in with the token that programs send, and keeps it sealed in a cookie that no script reads and no other
site's page sends: who gets hold of the cookie has a session of this console until it ends, and no token. The token is
checked at each request, so that one that was withdrawn counts no longer. Programs may send it as they do elsewhere.
There is no session on this side: any replica answers that has the same ``ICEDB_CONSOLE_SECRET``. Cookies go over TLS
alone where the browser speaks it, be it with a proxy before the console, which says so (``X-Forwarded-Proto``).

A form that changes something, or runs a query, must come from a page of this host (``Sec-Fetch-Site``, ``Origin``),
and bear the value of a cookie that only such a page knows. Without an access file and on a loopback address the name
by which the console is called must be one of this machine: else a page from elsewhere could have its own name lead
here (DNS rebinding).
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from cryptography.fernet import Fernet, InvalidToken
from icedb_log.errors import InvalidRequest, PermissionDenied
from icedb_log.hosts import is_loopback
from icedb_log.units import KIB, SECOND_MS
from icedb_service.access.access_file import Identity, Verb
from icedb_service.access.credentials import AUTHORIZATION, HttpAccess
from icedb_service.access.guard import AccessGuard, Places
from starlette.requests import Request
from starlette.responses import Response

from icedb_console.settings import ConsoleSettings

SESSION_COOKIE: Final = "icedb_session"
FORM_COOKIE: Final = "icedb_form"
FORM_FIELD: Final = "form_key"
MAX_TOKEN_CHARS: Final = 2800
"""Sealed they are a third longer, and browsers keep no larger cookie than 4 KiB."""
MAX_FORM_BYTES: Final = 256 * KIB
MAX_STREAMS: Final = 300
"""Pages that are kept up to date at once; more show what was when they were loaded."""
_MAX_FIELDS: Final = 32
_COOKIE_CHARS: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+/=")
"""What tokens are made of (RFC 6750)."""


class Sessions:
    """Recognises who looks, and checks forms.

    Args:
        guard: Who may do what.
        settings: Where the console listens, and how long a browser stays signed in.
    """

    def __init__(self, guard: AccessGuard, settings: ConsoleSettings) -> None:
        self.guard = guard
        self._access = HttpAccess(guard, max_requests=settings.http_max_connections)
        self._streams = Places("pages that are kept up to date", size=MAX_STREAMS)
        self._has_tls = settings.tls_cert_file is not None
        secret = settings.console_secret
        key = secrets.token_bytes() if secret is None else secret.get_secret_value().encode()
        self._seal = Fernet(base64.urlsafe_b64encode(hashlib.sha256(b"icedb console session 1:" + key).digest()))
        self._session_s = settings.console_session_ms // SECOND_MS
        self._is_local = not guard.is_enforced and is_loopback(settings.console_host)

    def check_host(self, request: Request) -> None:
        """Raise PermissionDenied if the console was called by a name that is not this machine's, and is open."""
        if self._is_local and not is_loopback(_host_name(request)):
            raise PermissionDenied(
                "this console is open to this machine only: call it by 127.0.0.1 or localhost, or set ICEDB_ACCESS_FILE"
            )

    def identify(self, request: Request) -> Identity:
        """Return who looks, for a page that is about no single table; counts a call. Raises Unauthenticated."""
        return self._access.identify(self._with_token(request))

    def recognise(self, request: Request) -> Identity:
        """Return who looks; counts nothing. Raises Unauthenticated."""
        return self._access.recognise(self._with_token(request))

    def require(self, request: Request, verb: Verb, table: str) -> Identity:
        """Return who looks, if they may do this. Raises Unauthenticated, NotFound, PermissionDenied, Overloaded."""
        return self._access.require(self._with_token(request), verb, table)

    def hold_stream(self, request: Request, identity: Identity) -> None:
        """Hold a place for a page that is kept up to date, until its request ends. Raises RateLimited."""
        self._access.hold(request.scope, identity, self._streams)

    def sign_in(self, request: Request, response: Response, token: str) -> None:
        """Have the browser keep a token, sealed, if it is somebody's.

        Raises:
            Unauthenticated: It is nobody's.
            InvalidRequest: No browser would keep it.
        """
        if len(token) > MAX_TOKEN_CHARS or not _COOKIE_CHARS.issuperset(token):
            raise InvalidRequest(f"this is no token: up to {MAX_TOKEN_CHARS} letters, digits and -._~+/=")
        self.guard.identify(authorization=f"Bearer {token}")
        sealed = self._seal.encrypt(token.encode()).decode()
        self._set(request, response, SESSION_COOKIE, sealed, seconds=self._session_s)

    def sign_out(self, request: Request, response: Response) -> None:
        """Have the browser forget its session."""
        self._set(request, response, SESSION_COOKIE, "", seconds=0)

    def form_key(self, request: Request) -> str:
        """Return what a form on the page has to bear."""
        known = request.cookies.get(FORM_COOKIE, "")
        return known if len(known) == len(secrets.token_urlsafe()) and known.isascii() else secrets.token_urlsafe()

    def keep_form_key(self, request: Request, response: Response, key: str) -> None:
        """Have the browser keep it."""
        self._set(request, response, FORM_COOKIE, key, seconds=None)

    async def read_form(self, request: Request) -> Mapping[str, str]:
        """Return the fields of a form that came from one of our pages.

        Raises:
            PermissionDenied: It did not.
            InvalidRequest: It is no form, or too large.
        """
        _require_same_site(request)
        body = bytearray()
        async for piece in request.stream():
            body += piece
            if len(body) > MAX_FORM_BYTES:
                raise InvalidRequest(f"a form has at most {MAX_FORM_BYTES} bytes")
        try:
            pairs = parse_qsl(body.decode(), keep_blank_values=True, strict_parsing=False, max_num_fields=_MAX_FIELDS)
        except ValueError as error:
            raise InvalidRequest("this is no form of the console") from error
        fields = dict(pairs)
        known = request.cookies.get(FORM_COOKIE, "")
        if not known or not hmac.compare_digest(known.encode(), fields.pop(FORM_FIELD, "").encode(errors="replace")):
            raise PermissionDenied("the form is not of this browser, or too old: load its page again, and send it anew")
        return fields

    def _set(self, request: Request, response: Response, name: str, value: str, *, seconds: int | None) -> None:
        # Of one who claims TLS that is not there the browser does not send the cookie back: nobody gains by the claim.
        is_secure = self._has_tls or request.headers.get("x-forwarded-proto", "").strip().lower() == "https"
        response.set_cookie(name, value, max_age=seconds, path="/", secure=is_secure, httponly=True, samesite="strict")

    def _with_token(self, request: Request) -> Mapping[str, Any]:
        """Return a request's scope, with the token of its session where it has no header for it."""
        scope, name = request.scope, AUTHORIZATION.encode()
        sealed = request.cookies.get(SESSION_COOKIE)
        if not sealed or any(key == name for key, _ in scope["headers"]):
            return scope
        try:
            token = self._seal.decrypt(sealed.encode(), ttl=self._session_s)
        except (InvalidToken, ValueError):
            return scope  # nobody, who may sign in
        return {**scope, "headers": [*scope["headers"], (name, b"Bearer " + token)]}


def _host_name(request: Request) -> str:
    try:
        return urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


def _require_same_site(request: Request) -> None:
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    is_ours = site in (None, "same-origin", "none")
    if origin is not None:
        is_ours = is_ours and urlsplit(origin).netloc == request.headers.get("host")
    if not is_ours:
        raise PermissionDenied("the form came from a page of another site: nothing was done")
