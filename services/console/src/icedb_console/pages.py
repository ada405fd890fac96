"""The pages: from a request to an answer. Who may see what is asked first; tables that are not theirs never show.

A page never waits long for the store: what is known is shown, and says so. What is live on a page is fetched again by
its script when the stream of its events says that something is new.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final
from urllib.parse import urlencode

from icedb_client.files import format_of_key
from icedb_client.wakeups import RedisLook, look_at_redis
from icedb_log.clock import Clock
from icedb_log.errors import IceDBError, InvalidRequest, NotFound, Overloaded, Unavailable
from icedb_log.ingest.quarantine import find_reason
from icedb_log.serving.status import TableStatus
from icedb_log.units import SECOND_MS
from icedb_log.warehouse import Warehouse
from icedb_service.access.access_file import Identity, Verb
from icedb_service.logs import get_logger
from icedb_service.readers import BlockingWork, TableNames
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from icedb_console.actions import ACTIONS, Actions
from icedb_console.figures import Figures, TableFigures
from icedb_console.metrics import ConsoleMetrics, Page
from icedb_console.queries import Queries, QueryFailed, QueryRows
from icedb_console.query_api import answer_rows, read_statement
from icedb_console.rendering import Renderer
from icedb_console.sessions import FORM_FIELD, Sessions
from icedb_console.settings import ConsoleSettings
from icedb_console.table_facts import MOST_COMMITS, FactsReader, TableFacts
from icedb_console.views import (
    MOST_COLUMNS,
    PARTITIONS_PER_PAGE,
    SORTS,
    TABLES_PER_PAGE,
    cut,
    draw_commits,
    draw_partitions,
    draw_result,
    sum_up,
    table_path,
)

SHOWN_LINES: Final = 20
MOST_WAITING: Final = 20
LOOK_S: Final = 1.0
"""How often a stream looks for news."""
AGE_S: Final = 20
"""Ages on a page are made new at least so often."""
NOTES: Final = "icedb.console"
SEE_OTHER: Final = 303
_EXAMPLE: Final = "select * from {} limit 100"


@dataclass(frozen=True, slots=True)
class PageParts:
    """What the pages share."""

    warehouse: Warehouse
    settings: ConsoleSettings
    clock: Clock
    metrics: ConsoleMetrics
    sessions: Sessions
    renderer: Renderer
    figures: Figures
    facts: FactsReader
    names: TableNames
    work: BlockingWork
    queries: Queries
    actions: Actions
    closing: asyncio.Event


def note(request: Request, page: Page, identity: Identity | None = None, **fields: str) -> None:
    """Say for the log and the metrics what a request is about."""
    notes: dict[str, str] = request.scope.setdefault(NOTES, {})
    notes.update(page=page, **fields)
    if identity is not None:
        notes["identity"] = identity.name


class Pages:
    """Answers requests for pages."""

    def __init__(self, parts: PageParts) -> None:
        self._parts = parts
        self._streams = 0

    async def overview(self, request: Request) -> Response:
        """Show all tables that one may read."""
        parts, identity = self._parts, self._identify(request, "overview")
        known = self._readable(identity)
        search = request.query_params.get("q", "")[:100]
        sort = request.query_params.get("sort", "")
        sort = sort if sort in SORTS else next(iter(SORTS))
        found = sorted((each for each in known if search.lower() in each.name), key=SORTS[sort])
        path = f"/?{_query(q=search, sort=sort)}"
        shown, pager = cut(found, _page_number(request), size=TABLES_PER_PAGE, path=path)
        return self._answer(
            request,
            "overview.html",
            identity,
            tables=shown,
            pager=pager,
            sums=sum_up(known),
            table_count=len(known),
            unread=sum(each.is_new for each in known),
            search=search,
            sort=sort,
            sorts=tuple(SORTS),
            problem=parts.figures.problem,
            is_reading=not parts.figures.has_listed,
        )

    async def table(self, request: Request) -> Response:
        """Show one table."""
        name, identity = self._may(request, "table", Verb.READ)
        self._parts.figures.look()
        try:
            facts = await self._parts.facts.read(name)
        except NotFound:
            raise
        except IceDBError as error:
            figures = TableFigures(name, None, error)
            return self._answer(request, "table_unread.html", identity, table=name, health=figures.health)
        if facts is None:
            return self._answer(request, "table_unread.html", identity, table=name, health=None)
        return self._answer(request, "table.html", identity, **self._show_facts(request, identity, facts))

    def _show_facts(self, request: Request, identity: Identity, facts: TableFacts) -> dict[str, Any]:
        guard, name = self._parts.sessions.guard, facts.config.name
        may_maintain = guard.allows(identity, Verb.MAINTAIN, name)
        newest_first = facts.partitions[::-1]
        partitions, pager = cut(
            newest_first,
            _page_number(request),
            size=PARTITIONS_PER_PAGE,
            path=table_path(name),
            anchor="#partitions",
        )
        return {
            "table": name,
            "facts": facts,
            "status": facts.status,
            "config": facts.config,
            "health": TableFigures(name, facts.status, None).health,
            "may_maintain": may_maintain,
            "partitions": partitions,
            "pager": pager,
            "most_bytes": max((each.size_bytes for each in facts.partitions), default=0),
            "most_small": max((each.small_count for each in facts.partitions), default=0),
            "small_files": sum(each.small_count for each in facts.partitions),
            "partition_picture": draw_partitions(newest_first[:MOST_COLUMNS][::-1], facts.explained, facts.config),
            "pictured": min(len(newest_first), MOST_COLUMNS),
            "commit_picture": draw_commits(facts.commits),
            "commits": facts.commits[:MOST_COMMITS],
            "merges": [each for each in facts.commits if each.added is not None and each.removed.file_count][:20],
            "problems": {
                what: why
                for what, why in facts.problems.items()
                if not what.startswith("view ") or guard.can_see(identity, what.removeprefix("view "))
            },
            "views": [view for view in facts.details.views if guard.can_see(identity, view.view)],
            "may_see_source": facts.status.view is not None and guard.can_see(identity, facts.status.view.source),
        }

    async def columns(self, request: Request) -> Response:
        """Show what is known of a table's columns, as `icedb describe` finds it out: footers are read for it."""
        name, identity = self._may(request, "columns", Verb.READ)
        problem, found = "", {}
        try:
            found = await self._unless_left(request, self._parts.queries.describe(identity.name, name))
        except Overloaded:
            raise
        except (QueryFailed, InvalidRequest) as error:
            problem = str(error)
        return self._answer(request, "columns.html", identity, table=name, found=found, problem=problem)

    async def quarantined(self, request: Request) -> Response:
        """Show why a batch is in quarantine, and its first rows."""
        name, identity = self._may(request, "quarantine", Verb.READ)
        batch_id = str(request.path_params["batch"])
        place, guard = self._parts.warehouse.table(name), self._parts.sessions.guard
        stored = await self._parts.work.run_blocking(name, lambda: find_reason(place, batch_id))
        if stored is None:
            raise NotFound(f"table {name}: batch {batch_id[:80]!r} is not in quarantine any more")
        entry, problem, lines = stored.entry, "", []
        try:
            if not entry.payload_key.startswith(place.paths.quarantine_prefix):
                raise InvalidRequest(f"its payload is said to lie at {entry.payload_key[:200]}, which is elsewhere")
            preview = self._parts.queries.preview(identity.name, entry.payload_key, lines=SHOWN_LINES)
            reasons = dict(enumerate(entry.row_reasons))
            lines = [(line, reasons.get(at)) for at, line in enumerate(await self._unless_left(request, preview))]
        except (QueryFailed, InvalidRequest, Unavailable) as error:
            problem = str(error)
        return self._answer(
            request,
            "quarantined.html",
            identity,
            table=name,
            entry=entry,
            format=format_of_key(entry.payload_key),
            lines=lines,
            problem=problem,
            may_maintain=guard.allows(identity, Verb.MAINTAIN, name),
            may_erase=guard.allows(identity, Verb.ERASE, name),
        )

    async def workers(self, request: Request) -> Response:
        """Show who works on what now, and what waits in the queues."""
        parts, identity = self._parts, self._identify(request, "workers")
        known = self._readable(identity)
        read = [(each.name, each.status) for each in known if each.status is not None and each.error is None]
        look: RedisLook | None = None
        problem = ""
        settings = parts.settings
        try:
            look = await parts.work.run_blocking(
                "", lambda: look_at_redis(settings.redis_url, timeout_ms=settings.redis_timeout_ms)
            )
        except IceDBError as error:
            problem = str(error)
        return self._answer(
            request,
            "workers.html",
            identity,
            working=sorted(
                (
                    (self._shown_owner(worker.owner, identity, name), name, worker)
                    for name, status in read
                    for worker in status.workers
                ),
                key=lambda each: each[:2],
            ),
            staged=_longest((status.staged_lag_ms, name, status) for name, status in read if status.staged_batches),
            lagging=_longest((status.merge_lag_ms, name, status) for name, status in read if status.merge_lag_files),
            redis=look,
            problem=problem,
            is_reading=not parts.figures.has_listed,
        )

    def _shown_owner(self, owner: str, identity: Identity, table: str) -> str:
        """Return the name of a worker as this caller may see it: without its host unless he may maintain the table."""
        may_maintain = self._parts.sessions.guard.allows(identity, Verb.MAINTAIN, table)
        return owner if may_maintain else owner.partition("@")[0]

    async def query(self, request: Request) -> Response:
        """Show the query box; run what was sent."""
        identity, guard = self._identify(request, "query"), self._parts.sessions.guard
        names = [name for name in await self._parts.names.read() if guard.allows(identity, Verb.READ, name)]
        table = request.query_params.get("table", "")
        sql = request.query_params.get("sql", "")[:10_000] or (_EXAMPLE.format(table) if table in names else "")
        result: QueryRows | None = None
        problem, code = "", 200
        if request.method == "POST":
            fields = await self._parts.sessions.read_form(request)
            sql = fields.get("sql", "").replace("\r\n", "\n")
            try:
                result = await self._unless_left(request, self._parts.queries.run(identity.name, sql, tables=names))
            except (QueryFailed, InvalidRequest, NotFound) as error:
                problem = str(error)
            except Overloaded as error:
                problem, code = str(error), 429
        return self._answer_with_form(
            request,
            "query.html",
            identity,
            code=code,
            sql=sql,
            names=names,
            result=result,
            plots=[] if result is None else draw_result(result),
            problem=problem,
            is_on=self._parts.queries.is_on,
            settings=self._parts.settings,
        )

    async def run_query(self, request: Request) -> Response:
        """Run the statement of a program, over the tables that it may read."""
        identity, guard = self._identify(request, "query"), self._parts.sessions.guard
        sql = await read_statement(request)
        names = [name for name in await self._parts.names.read() if guard.allows(identity, Verb.READ, name)]
        return answer_rows(await self._unless_left(request, self._parts.queries.run(identity.name, sql, tables=names)))

    async def action(self, request: Request) -> Response:
        """Ask whether something should be done; do it, once that was confirmed."""
        name, identity = self._may(request, "action", Verb.MAINTAIN)
        which = str(request.path_params["action"])
        action = ACTIONS.get(which)
        if action is None:
            raise NotFound(f"there is no action {which[:40]!r}")
        if action.loses_rows:
            self._parts.sessions.require(request, Verb.ERASE, name)
        if request.method == "GET":
            what = request.query_params.get("what", "")[:200]
            return self._answer_with_form(
                request, "action.html", identity, table=name, which=which, action=action, what=what, done="", problem=""
            )
        fields = await self._parts.sessions.read_form(request)
        what = fields.get("what", "")[:200]
        done = problem = ""
        try:
            if action.needs and not what:
                raise InvalidRequest(f"say which {action.needs}")
            done = await self._parts.work.run_blocking(name, lambda: self._parts.actions.run(which, name, what))
        except IceDBError as error:
            problem = str(error)
        self._parts.metrics.count_action(which, is_done=not problem)
        get_logger().info(
            "console_action", action=which, table=name, what=what, identity=identity.name, problem=problem or None
        )
        return self._answer_with_form(
            request,
            "action.html",
            identity,
            code=409 if problem else 200,
            table=name,
            which=which,
            action=action,
            what=what,
            done=done,
            problem=problem,
        )

    async def live(self, request: Request) -> Response:
        """Stream when a page has something new: of one table, or of all."""
        name = request.query_params.get("table", "")
        note(request, "live")
        sessions = self._parts.sessions
        identity = sessions.require(request, Verb.READ, name) if name else sessions.identify(request)
        note(request, "live", identity)
        if self._streams >= self._parts.settings.console_max_streams:
            raise Overloaded(f"{self._streams} pages are kept up to date already (ICEDB_CONSOLE_MAX_STREAMS)")
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(
            self._tell_news(request, identity, name), media_type="text/event-stream", headers=headers
        )

    async def _tell_news(self, request: Request, identity: Identity, table: str) -> AsyncIterator[str]:
        parts = self._parts
        self._streams += 1
        parts.metrics.streams.inc()
        seen = self._mark(identity, table)
        told_ms = parts.clock.monotonic_ms()
        try:
            yield "retry: 3000\n\n"
            while not parts.closing.is_set():
                with suppress(TimeoutError):
                    await asyncio.wait_for(parts.closing.wait(), LOOK_S)
                if sessions_end := self._has_lost(request, identity, table):
                    yield f"event: end\ndata: {sessions_end}\n\n"
                    return
                if table:
                    await self._read_again(table)
                now_ms = parts.clock.monotonic_ms()
                mark = self._mark(identity, table)
                if mark != seen or now_ms - told_ms >= AGE_S * SECOND_MS:
                    seen, told_ms = mark, now_ms
                    yield "event: news\ndata: 1\n\n"
        finally:
            self._streams -= 1
            parts.metrics.streams.dec()

    def _has_lost(self, request: Request, identity: Identity, table: str) -> str:
        """Return why somebody may look no more: tokens are withdrawn, and grants change, while a stream is open."""
        try:
            now = self._parts.sessions.recognise(request)
        except IceDBError:
            return "signed out"
        guard = self._parts.sessions.guard
        return "" if now == identity and (not table or guard.allows(now, Verb.READ, table)) else "not allowed"

    async def _read_again(self, table: str) -> None:
        try:
            await self._parts.facts.read(table)
        except IceDBError:
            return  # the page says so

    def _mark(self, identity: Identity, table: str) -> object:
        if table:
            known = self._parts.figures.look().get(table)
            return None if known is None else known.mark
        return hash(tuple((each.name, each.mark) for each in self._readable(identity)))

    async def sign_in(self, request: Request) -> Response:
        """Take a token."""
        note(request, "sign_in")
        problem, code = "", 200
        if request.method == "POST":
            fields = await self._parts.sessions.read_form(request)
            response = RedirectResponse("/", SEE_OTHER)
            try:
                self._parts.sessions.sign_in(request, response, fields.get("token", "").strip())
            except IceDBError as error:
                problem, code = str(error), 401
            else:
                return response
        return self._answer_with_form(request, "sign_in.html", None, code=code, problem=problem)

    async def sign_out(self, request: Request) -> Response:
        """Forget the token."""
        note(request, "sign_in")
        await self._parts.sessions.read_form(request)
        response = RedirectResponse("/sign-in", SEE_OTHER)
        self._parts.sessions.sign_out(request, response)
        return response

    def _identify(self, request: Request, page: Page) -> Identity:
        """Return who sends a request for a page that is of no table."""
        note(request, page)
        identity = self._parts.sessions.identify(request)
        note(request, page, identity)
        return identity

    def _readable(self, identity: Identity) -> list[TableFigures]:
        """Return what is known of the tables that somebody may read."""
        guard = self._parts.sessions.guard
        return [each for name, each in self._parts.figures.look().items() if guard.allows(identity, Verb.READ, name)]

    def _may(self, request: Request, page: Page, verb: Verb) -> tuple[str, Identity]:
        """Return which table a request is about, and who sends it, if they may do this."""
        name = str(request.path_params["table"])
        note(request, page, table=name[:80])
        identity = self._parts.sessions.require(request, verb, name)
        note(request, page, identity)
        return name, identity

    async def _unless_left(self, request: Request, work: Any) -> Any:
        """Return what work gives; cancel it when the client has gone."""
        running = asyncio.ensure_future(work)
        leaving = asyncio.ensure_future(_wait_until_left(request))
        closing = asyncio.ensure_future(self._parts.closing.wait())
        try:
            await asyncio.wait((running, leaving, closing), return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                running.cancel()
                await asyncio.wait((running,))
                raise Overloaded("the query was cancelled: its page was closed, or the console stops")
            return running.result()
        finally:
            for each in (running, leaving, closing):
                each.cancel()

    def _answer(
        self, request: Request, template: str, identity: Identity | None, *, code: int = 200, **given: Any
    ) -> Response:
        return self._parts.renderer.answer(
            request,
            template,
            code=code,
            identity=identity,
            is_enforced=self._parts.sessions.guard.is_enforced,
            **given,
        )

    def _answer_with_form(
        self, request: Request, template: str, identity: Identity | None, *, code: int = 200, **given: Any
    ) -> Response:
        key = self._parts.sessions.form_key(request)
        response = self._answer(request, template, identity, code=code, form_field=FORM_FIELD, form_key=key, **given)
        self._parts.sessions.keep_form_key(request, response, key)
        response.headers["cache-control"] = "no-store"
        return response


async def _wait_until_left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _longest(found: Iterable[tuple[int, str, TableStatus]]) -> list[tuple[int, str, TableStatus]]:
    return sorted(found, reverse=True, key=itemgetter(0))[:MOST_WAITING]


def _page_number(request: Request) -> int:
    text = request.query_params.get("page", "1")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 8 else 1  # noqa: PLR2004 - no such page


def _query(**parameters: str) -> str:
    return urlencode({name: value for name, value in parameters.items() if value})


def title_of(error: IceDBError) -> str:
    """Return a page's title for what went wrong."""
    return _TITLES.get(type(error).__name__, "This did not work")


_TITLES: Final[Mapping[str, str]] = {
    "NotFound": "There is no such page",
    "PermissionDenied": "You may not do this",
    "Unauthenticated": "Please sign in",
    "RateLimited": "Too many calls",
    "Overloaded": "Busy: try again",
    "Unavailable": "The store does not answer",
    "InvalidRequest": "This was not understood",
}
