"""Who looks at a page, and whether a form came from one of our pages.

A browser signs in with the token that programs send, and keeps it in a cookie that no script reads and no other site's
page sends; it is checked at each request, so that one that was withdrawn counts no longer. Programs may send it as
they do elsewhere. There is no session on this side: any replica answers.

A form that changes something, or runs a query, must come from a page of this host (``Sec-Fetch-Site``, ``Origin``),
and bear the value of a cookie that only such a page knows. Without an access file and on a loopback address the name
by which the console is called must be one of this machine: else a page from elsewhere could have its own name lead
here (DNS rebinding).
"""

import hmac
import secrets
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from icedb_log.errors import InvalidRequest, PermissionDenied
from icedb_log.hosts import is_loopback
from icedb_log.units import KIB, SECOND_MS
from icedb_service.access.access_file import Identity, Verb
from icedb_service.access.credentials import AUTHORIZATION, HttpAccess
from icedb_service.access.guard import AccessGuard
from starlette.requests import Request
from starlette.responses import Response

from icedb_console.settings import ConsoleSettings

TOKEN_COOKIE: Final = "icedb_token"  # noqa: S105 - a name
FORM_COOKIE: Final = "icedb_form"
FORM_FIELD: Final = "form_key"
MAX_TOKEN_CHARS: Final = 3500
"""Browsers keep no larger cookie."""
MAX_FORM_BYTES: Final = 256 * KIB
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
        self._access = HttpAccess(guard)
        self._is_secure = settings.tls_cert_file is not None
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
        return self._access.identify(_with_token(request))

    def recognise(self, request: Request) -> Identity:
        """Return who looks; counts nothing. Raises Unauthenticated."""
        return self._access.recognise(_with_token(request))

    def require(self, request: Request, verb: Verb, table: str) -> Identity:
        """Return who looks, if they may do this. Raises Unauthenticated, NotFound, PermissionDenied, Overloaded."""
        return self._access.require(_with_token(request), verb, table)

    def sign_in(self, response: Response, token: str) -> None:
        """Have the browser keep a token, if it is somebody's.

        Raises:
            Unauthenticated: It is nobody's.
            InvalidRequest: No browser would keep it.
        """
        if len(token) > MAX_TOKEN_CHARS or not _COOKIE_CHARS.issuperset(token):
            raise InvalidRequest(f"this is no token: up to {MAX_TOKEN_CHARS} letters, digits and -._~+/=")
        self.guard.identify(authorization=f"Bearer {token}")
        self._set(response, TOKEN_COOKIE, token, seconds=self._session_s)

    def sign_out(self, response: Response) -> None:
        """Have the browser forget its token."""
        response.delete_cookie(TOKEN_COOKIE, path="/", secure=self._is_secure, httponly=True, samesite="strict")

    def form_key(self, request: Request) -> str:
        """Return what a form on the page has to bear."""
        known = request.cookies.get(FORM_COOKIE, "")
        return known if len(known) == len(secrets.token_urlsafe()) and known.isascii() else secrets.token_urlsafe()

    def keep_form_key(self, response: Response, key: str) -> None:
        """Have the browser keep it."""
        self._set(response, FORM_COOKIE, key, seconds=None)

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

    def _set(self, response: Response, name: str, value: str, *, seconds: int | None) -> None:
        response.set_cookie(
            name, value, max_age=seconds, path="/", secure=self._is_secure, httponly=True, samesite="strict"
        )


def _with_token(request: Request) -> Mapping[str, Any]:
    """Return a request's scope, with the token of its cookie where it has no header for it."""
    scope = request.scope
    token = request.cookies.get(TOKEN_COOKIE)
    name = AUTHORIZATION.encode()
    if not token or any(key == name for key, _ in scope["headers"]):
        return scope
    return {**scope, "headers": [*scope["headers"], (name, f"Bearer {token}".encode("latin-1", "replace"))]}


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
