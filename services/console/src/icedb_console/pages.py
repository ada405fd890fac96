"""The pages: from a request to an answer. Who may see what is asked first; tables that are not theirs never show.

A page never waits long for the store: what is known is shown, and says of when it is. It bears a mark of what it shows.
Its stream begins at that mark, and says again and again that the page is the same as what is known, that what is known
is old itself, or that there is news: then the script of the page fetches it again.
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
from icedb_log.units import MINUTE_MS, SECOND_MS
from icedb_log.wake_keys import WorkerLook
from icedb_log.warehouse import Warehouse
from icedb_service.access.access_file import Identity, Verb
from icedb_service.logs import get_logger
from icedb_service.readers import BlockingWork, TableNames
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from icedb_console.actions import ACTIONS, Actions
from icedb_console.figures import Figures, TableFigures, make_mark
from icedb_console.metrics import ConsoleMetrics, Page
from icedb_console.queries import Queries, QueryFailed, QueryRows, Statement
from icedb_console.query_api import answer_rows, read_statement
from icedb_console.query_process import FORMATS, MAX_FILE_BYTES
from icedb_console.rendering import OLD_MS, Renderer
from icedb_console.sessions import FORM_FIELD, MAX_STREAMS, Sessions
from icedb_console.settings import ConsoleSettings
from icedb_console.table_facts import MOST_COMMITS, FactsReader, TableFacts
from icedb_console.views import (
    MOST_COLUMNS,
    PARTITIONS_PER_PAGE,
    SORTS,
    TABLES_PER_PAGE,
    chart_commits,
    chart_partitions,
    chart_result,
    cut,
    sum_up,
    table_path,
)

MOST_PICKED: Final = 100
"""Tables whose columns can be picked in the query box: the first, by name."""
SHOWN_LINES: Final = 20
MOST_WAITING: Final = 20
LOOK_S: Final = 1.0
"""How often a stream looks for news; more often than a round of figures ends, which is news, else no page is live."""
AGE_S: Final = 5
"""A page is made anew at least so often: its ages, and what its mark does not tell."""
MEDIA_TYPES: Final = {"csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}
SILENT_MS: Final = MINUTE_MS
"""A worker that says nothing for so long has ended, or hangs, or Redis is away."""
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
            **self._freshness(known),
        )

    def _freshness(self, known: Iterable[TableFigures]) -> dict[str, Any]:
        """Return of when a page over several tables is, what marks it, and whether its figures are read right now."""
        figures = self._parts.figures
        return {"as_of_ms": figures.read_ms, "is_reading": figures.is_behind, "mark": self._mark_all(known)}

    def _mark_all(self, known: Iterable[TableFigures]) -> str:
        figures = self._parts.figures
        marks = [(each.name, each.mark) for each in known]
        return make_mark((figures.read_ms, figures.is_behind, figures.problem, marks))

    async def table(self, request: Request) -> Response:
        """Show one table."""
        name, identity = self._may(request, "table", Verb.READ)
        self._parts.figures.look()
        try:
            facts = await self._parts.facts.read(name)
        except NotFound:
            raise
        except IceDBError as error:
            health = TableFigures(name, None, error).health
            return self._answer(
                request, "table_unread.html", identity, table=name, health=health, mark=make_mark(str(error))
            )
        if facts is None:
            return self._answer(request, "table_unread.html", identity, table=name, health=None, mark=make_mark(None))
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
            "mark": facts.mark,
            "as_of_ms": facts.read_ms,
            "status": facts.status,
            "config": facts.config,
            "health": TableFigures(name, facts.status, None).health,
            "may_maintain": may_maintain,
            "partitions": partitions,
            "pager": pager,
            "most_bytes": max((each.size_bytes for each in facts.partitions), default=0),
            "small_files": sum(each.small_count for each in facts.partitions),
            "partition_chart": chart_partitions(newest_first[:MOST_COLUMNS][::-1], facts.explained, facts.config),
            "commit_chart": chart_commits(facts.commits),
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
            workers=[] if look is None else self._show_workers(look.workers, identity),
            staged=_longest((status.staged_lag_ms, name, status) for name, status in read if status.staged_batches),
            lagging=_longest((status.merge_lag_ms, name, status) for name, status in read if status.merge_lag_files),
            redis=look,
            problem=problem,
            table_count=len(known),
            **self._freshness(known),
        )

    def _show_workers(self, workers: Iterable[WorkerLook], identity: Identity) -> list[dict[str, Any]]:
        """Return workers as this caller may see them: without their hosts and the tables that are not his."""
        guard, now_ms = self._parts.sessions.guard, self._parts.clock.now_ms()
        may_maintain = any(guard.allows(identity, Verb.MAINTAIN, name) for name in self._parts.figures.look())
        return [
            {
                "queue": worker.queue,
                "version": worker.version,
                "seen_ms": worker.seen_ms,
                "is_silent": now_ms - worker.seen_ms > SILENT_MS,
                "host": f"{worker.host}, process {worker.pid}" if may_maintain else "",
                "doing": [
                    (task, table if guard.allows(identity, Verb.READ, table) else "another table" if table else "")
                    for task, table in worker.doing
                ],
            }
            for worker in workers
        ]

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
            statement, file_format = Statement(sql=sql), fields.get("download", "")
            try:
                if file_format in FORMATS:
                    asked = self._parts.queries.download(
                        identity.name, statement, tables=names, file_format=file_format
                    )
                    return _answer_file(await self._unless_left(request, asked), file_format)
                result = await self._unless_left(
                    request, self._parts.queries.run(identity.name, statement, tables=names)
                )
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
            picked=table,
            columns=await self._find_columns(identity, names, table),
            as_of_ms=0 if result is None else self._parts.clock.now_ms() - result.duration_ms,
            result=result,
            charts=[] if result is None else chart_result(result),
            problem=problem,
            is_on=self._parts.queries.is_on,
            file_bytes=MAX_FILE_BYTES,
            settings=self._parts.settings,
        )

    async def _find_columns(self, identity: Identity, names: Iterable[str], table: str) -> dict[str, Mapping[str, str]]:
        """Return the columns of the first tables that are known, and of the one that was picked."""
        known = {each.name: each.columns for each in self._readable(identity)}
        if table in names:
            with suppress(IceDBError):
                facts = await self._parts.facts.read(table)
                known[table] = {} if facts is None else facts.schema
        return {name: known.get(name, {}) for name in sorted(names, key=lambda each: each != table)[:MOST_PICKED]}

    async def run_query(self, request: Request) -> Response:
        """Run the statement of a program, over the tables that it may read."""
        identity, guard = self._identify(request, "query"), self._parts.sessions.guard
        statement = await read_statement(request)
        names = [name for name in await self._parts.names.read() if guard.allows(identity, Verb.READ, name)]
        asked = self._parts.queries.run(identity.name, statement, tables=names)
        return answer_rows(await self._unless_left(request, asked))

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
        if self._streams >= MAX_STREAMS:
            raise Overloaded(f"{self._streams} pages are kept up to date already")
        sessions.hold_stream(request, identity)
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(
            self._tell_news(request, identity, name), media_type="text/event-stream", headers=headers
        )

    async def _tell_news(self, request: Request, identity: Identity, table: str) -> AsyncIterator[str]:
        parts = self._parts
        self._streams += 1
        seen = request.query_params.get("mark", "")
        told_ms = parts.clock.monotonic_ms()
        look_s = min(LOOK_S, parts.settings.console_refresh_ms / SECOND_MS / 4)
        try:
            yield "retry: 3000\n\n"
            while not parts.closing.is_set():
                if sessions_end := self._has_lost(request, identity, table):
                    yield f"event: end\ndata: {sessions_end}\n\n"
                    return
                mark, is_late = await self._mark(identity, table)
                now_ms = parts.clock.monotonic_ms()
                event = "late" if is_late else "same"
                if mark != seen or now_ms - told_ms >= AGE_S * SECOND_MS:
                    event, seen, told_ms = "news", mark, now_ms
                yield f"event: {event}\ndata: {mark}\n\n"
                with suppress(TimeoutError):
                    await asyncio.wait_for(parts.closing.wait(), look_s)
        finally:
            self._streams -= 1

    def _has_lost(self, request: Request, identity: Identity, table: str) -> str:
        """Return why somebody may look no more: tokens are withdrawn, and grants change, while a stream is open."""
        try:
            now = self._parts.sessions.recognise(request)
        except IceDBError:
            return "signed out"
        guard = self._parts.sessions.guard
        return "" if now == identity and (not table or guard.allows(now, Verb.READ, table)) else "not allowed"

    async def _mark(self, identity: Identity, table: str) -> tuple[str, bool]:
        """Return the mark of what is read now, or was read last, and whether that is old itself."""
        figures = self._parts.figures
        known = self._readable(identity)
        if not table:
            return self._mark_all(known), self._is_late(figures.read_ms)
        try:
            facts = await self._parts.facts.read(table)
        except IceDBError as error:
            return make_mark(str(error)), False
        if facts is None:
            return make_mark(None), False
        return facts.mark, self._is_late(facts.read_ms)

    def _is_late(self, read_ms: int) -> bool:
        return self._parts.clock.now_ms() - read_ms > OLD_MS + self._parts.settings.console_refresh_ms

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


def _answer_file(body: bytes, file_format: str) -> Response:
    headers = {"content-disposition": f'attachment; filename="query.{file_format}"', "cache-control": "no-store"}
    return Response(body, media_type=MEDIA_TYPES[file_format], headers=headers)


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
