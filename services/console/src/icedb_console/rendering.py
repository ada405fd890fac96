"""Templates, and the headers of every answer: what a browser may load, run and send. Everything is escaped."""

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, Final

from icedb_log.clock import Clock
from icedb_log.units import SECOND_MS
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from icedb_console.views import (
    GUARD_WORDS,
    WHAT_WORDS,
    explain_partition,
    name_partition,
    show_ago,
    show_bytes,
    show_count,
    show_exactly,
    show_span,
    table_path,
)

CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    # Not less: of a form on a page with "no-referrer" browsers do not say where it comes from.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
STATIC_TYPES: Final[Mapping[str, str]] = {
    "console.css": "text/css; charset=utf-8",
    "console.js": "text/javascript; charset=utf-8",
    "charts.js": "text/javascript; charset=utf-8",
    "editor.js": "text/javascript; charset=utf-8",
    "query.js": "text/javascript; charset=utf-8",
    "uplot.js": "text/javascript; charset=utf-8",
    "uplot.css": "text/css; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
OLD_MS: Final = 15 * SECOND_MS
"""A page that is as old as this says so by more than its time."""
_FOR_EVER: Final = "public, max-age=31536000, immutable"


class Renderer:
    """Makes answers of templates.

    Args:
        clock: For what is told as an age.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._environment = Environment(
            loader=PackageLoader("icedb_console"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update(
            count=show_count,
            bytes=show_bytes,
            span=show_span,
            ago=lambda time_ms: show_ago(time_ms, clock.now_ms()),
            exactly=show_exactly,
            clock_time=lambda time_ms: show_exactly(time_ms).partition(" ")[2],
            is_old=lambda time_ms: clock.now_ms() - time_ms > OLD_MS,
            partition=name_partition,
        )
        self._environment.globals.update(
            table_path=table_path,
            static=lambda name: f"/static/{name}?{static_digest(name)}",
            explain_partition=explain_partition,
            guard_words=GUARD_WORDS,
            what_words=WHAT_WORDS,
        )

    def render(self, template: str, **given: Any) -> str:
        """Return a page."""
        return self._environment.get_template(template).render(**given)

    def answer(self, request: Request, template: str, *, code: int = 200, **given: Any) -> Response:
        """Return a page as an answer; one that the browser has already is not sent again."""
        body = self.render(template, **{"request": request, "mark": "", "as_of_ms": 0, **given}).encode()
        etag = f'"{hashlib.blake2b(body, digest_size=16).hexdigest()}"'
        headers = {"etag": etag, "cache-control": "private, no-cache", "vary": "cookie, authorization"}
        if code == 200 and request.headers.get("if-none-match") == etag:  # noqa: PLR2004 - the status
            return Response(status_code=304, headers=headers)
        return HTMLResponse(body, code, headers=headers)


def answer_static(request: Request, name: str) -> Response:
    """Return one of our files; for ever, if it was asked for by its digest."""
    if name not in STATIC_TYPES:
        return Response("no such file\n", 404, media_type="text/plain")
    is_this = request.url.query == static_digest(name)
    headers = {"cache-control": _FOR_EVER if is_this else "no-cache"}
    return Response(_read_static(name), media_type=STATIC_TYPES[name], headers=headers)


@cache
def static_digest(name: str) -> str:
    """Return what tells a file from the one of another release."""
    return hashlib.blake2b(_read_static(name), digest_size=8).hexdigest()


@cache
def _read_static(name: str) -> bytes:
    return (resources.files("icedb_console") / "static" / name).read_bytes()
