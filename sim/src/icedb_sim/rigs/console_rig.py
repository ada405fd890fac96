"""A console on a table in memory, asked as a browser asks it, without a socket."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from icedb_console.metrics import ConsoleMetrics
from icedb_console.pages import PageParts
from icedb_console.server import ConsoleApp, open_parts
from icedb_console.sessions import FORM_COOKIE, FORM_FIELD
from icedb_console.settings import ConsoleSettings
from icedb_log.warehouse import Warehouse
from icedb_service.access.guard import AccessGuard, RateLimits
from icedb_service.access.policy import AccessSource
from icedb_service.http_server import HealthChecks

from icedb_sim.rigs.access_rig import token_entry, write_access
from icedb_sim.tables.small_table import SmallTable

HOST: Final = "127.0.0.1:8090"
LIMIT_MS: Final = 240_000
READER: Final = "icedb_alpha-token-0123456789"
KEEPER, ERASER, STRANGER = (READER.replace("alpha", name) for name in ("keeper", "eraser", "stranger"))
"""Tokens: of who may read table ``t``, maintain it, too, do all, and of who has table ``other`` alone."""


def make_document() -> dict[str, Any]:
    """Return the access file of a console."""
    names = {"reader": READER, "keeper": KEEPER, "eraser": ERASER, "stranger": STRANGER}
    verbs = {"reader": ["read"], "keeper": ["read", "maintain"], "eraser": ["read", "maintain", "erase"]}
    return {
        "identities": {name: {"tokens": [token_entry(token)]} for name, token in names.items()},
        "grants": [
            *({"identities": [name], "tables": ["t"], "verbs": some} for name, some in verbs.items()),
            {"identities": ["stranger"], "tables": ["other"], "verbs": ["read", "maintain", "erase"]},
        ],
    }


@dataclass
class Answer:
    """What came back, as far as it has come."""

    status: int
    headers: dict[str, str]
    cookies: dict[str, str]
    text: str


@dataclass
class Browser:
    """Asks an application; keeps cookies."""

    app: ConsoleApp
    cookies: dict[str, str] = field(default_factory=dict)
    token: str | None = None

    async def get(self, path: str, **headers: str) -> Answer:
        """Ask for a page."""
        return await self.ask("GET", path, headers=headers)

    async def post(self, path: str, fields: dict[str, str] | None = None, **headers: str) -> Answer:
        """Send a form of our own page."""
        key = self.cookies.setdefault(FORM_COOKIE, "k" * 43)
        return await self.ask("POST", path, body=urlencode({FORM_FIELD: key, **(fields or {})}), headers=headers)

    async def ask(
        self,
        method: str,
        path: str,
        *,
        body: str = "",
        headers: dict[str, str] | None = None,
        left: asyncio.Event | None = None,
        on_body: Callable[[Answer], None] | None = None,
    ) -> Answer:
        """Send a request; ``left`` is set when the browser goes away, ``on_body`` is told of each piece."""
        given = {"host": HOST, **{name.replace("_", "-"): value for name, value in (headers or {}).items()}}
        if self.token is not None:
            given["authorization"] = f"Bearer {self.token}"
        if self.cookies:
            given["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        path, _, query = path.partition("?")
        scope: dict[str, Any] = {
            "type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in given.items()], "scheme": "http",
            "server": ("127.0.0.1", 8090), "client": ("127.0.0.1", 5000), "http_version": "1.1", "root_path": "",
        }  # fmt: skip
        messages: list[dict[str, Any]] = [{"type": "http.request", "body": body.encode(), "more_body": False}]
        gone = left or asyncio.Event()
        answer = Answer(0, {}, {}, "")

        async def receive() -> Any:
            if messages:
                return messages.pop(0)
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                answer.status = message["status"]
                for name, value in message["headers"]:
                    if name == b"set-cookie":
                        cookie = value.decode().partition(";")[0].partition("=")
                        answer.cookies[cookie[0]] = value.decode()
                        self.cookies[cookie[0]] = cookie[2].strip('"')
                    else:
                        answer.headers[name.decode()] = value.decode()
            else:
                answer.text += message.get("body", b"").decode()
                if on_body is not None:
                    on_body(answer)

        await self.app(scope, receive, send)
        return answer


@dataclass
class Rig:
    """An open console; ``document`` is what ``write`` writes as its access file."""

    parts: PageParts
    app: ConsoleApp
    document: dict[str, Any]
    write: Callable[[], None]

    def browser(self, token: str | None = None) -> Browser:
        """Return a browser, or a program that sends a token."""
        return Browser(self.app, token=token)


@asynccontextmanager
async def open_console(
    table: SmallTable, *, folder: Path | None = None, warehouse: Warehouse | None = None, **settings: Any
) -> AsyncIterator[Rig]:
    """Open a console on the running event loop.

    Args:
        table: Its store is the warehouse's, its clock the console's.
        folder: Where an access file is written; without it everybody may do everything.
        warehouse: Another one than that of the table.
        settings: Of the console. A query's process may take its time to start, unless they say how long.
    """
    document, clock = make_document(), table.clock
    guard, write = AccessGuard(), _write_nothing
    if folder is not None:
        path = folder / "access.json"

        def write() -> None:
            write_access(path, document)

        write()
        guard = AccessGuard(AccessSource(path, clock=clock), limits=RateLimits(clock), endpoint="http")
    async with AsyncExitStack() as stack:
        parts = open_parts(
            warehouse or Warehouse(table.store, "wh"),
            settings=ConsoleSettings(**{"store": "file:///nowhere", "console_query_limit_ms": LIMIT_MS, **settings}),
            clock=clock,
            guard=guard,
            metrics=ConsoleMetrics(),
            stack=stack,
        )
        parts.facts.patience_ms = LIMIT_MS  # a page of a busy machine, too, shows what was read for it
        yield Rig(parts, ConsoleApp(parts, HealthChecks()), document, write)


def _write_nothing() -> None:
    """There is no access file."""
