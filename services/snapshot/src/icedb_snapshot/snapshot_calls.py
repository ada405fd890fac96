"""GetSnapshot and StreamSnapshot: which data files of one table are live. Reads; nothing here writes to the store.

What is known already is answered on the event loop; a read of the log waits as a coroutine, shared with other callers;
folds of the past and the making of answers run in threads, each answer once for all who ask for it meanwhile. Answers
are bytes (:mod:`icedb_snapshot.answers`).

Callers read their own writes: a call waits until the batch that it names is in the log that is read. What is looked at
in which order, and why: :mod:`icedb_log.serving.batch_commits` (I2, I5).
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, Final

from icedb_log.errors import InvalidRequest, Overloaded
from icedb_log.holds.tags import find_tag, read_tagged
from icedb_log.log.fold import Snapshot
from icedb_log.serving.arrow_files import FileColumns
from icedb_log.serving.batch_commits import CommitWait, Whereabouts, check_commit_time, find_commit, look_for_batch
from icedb_log.serving.changes import PathChanges
from icedb_log.serving.selection import FileSelector, select_paths
from icedb_log.serving.table_cache import TableState
from icedb_log.store.store_clock import check_has_come
from icedb_log.store.table_store import TableStore
from icedb_log.table.table_config import TableConfig, unite_columns
from icedb_log.units import MIB, SECOND_MS
from icedb_proto import snapshot_pb2

from icedb_snapshot.answers import Answer, AnswerCache, AnswerKey, build_answer
from icedb_snapshot.requests import ServiceParts, SnapshotQuery, parse_request

MAX_PRESIGNED_FILES: Final = 10_000
"""Of one answer; signing takes a quarter of a millisecond each."""
MAX_ANSWERS: Final = 1000
MAX_ANSWER_BYTES: Final = 256 * MIB
"""Of answers that are kept. They are the bytes that a table's state has in memory anyway, as long as its files stay."""
MAX_KEPT_REQUEST_BYTES: Final = 4096
"""Answers are kept by what was asked for; thousands of values, some ten times as large in memory, are asked once."""


class SnapshotCalls:
    """Answers GetSnapshot and StreamSnapshot. Each raises an IceDBError for whatever is wrong."""

    def __init__(self, parts: ServiceParts) -> None:
        self._parts = parts
        self.answers: Final = AnswerCache(max_answers=MAX_ANSWERS, max_bytes=MAX_ANSWER_BYTES)
        self._building: dict[AnswerKey, asyncio.Task[Answer]] = {}

    async def get_snapshot(self, request: snapshot_pb2.GetSnapshotRequest, context: Any) -> bytes:
        """Return a serialized GetSnapshotResponse."""
        table, arrived_ms = self._parts.open(request, context), self._parts.clock.monotonic_ms()
        answer, started_ms = await self._find(table, request)
        body = answer.render(
            staleness_ms=self._age_ms(started_ms), max_message_bytes=self._parts.settings.snapshot_max_message_bytes
        )
        self._parts.metrics.observe_answer(size_bytes=len(body), is_from_memory=started_ms < arrived_ms)
        return body

    async def stream_snapshot(self, request: snapshot_pb2.GetSnapshotRequest, context: Any) -> AsyncIterator[bytes]:
        """Yield serialized pages. A page is made when the one before it is on its way."""
        table, arrived_ms = self._parts.open(request, context), self._parts.clock.monotonic_ms()
        answer, started_ms = await self._find(table, request)
        size_bytes = 0
        for page in answer.pages(staleness_ms=self._age_ms(started_ms)):
            size_bytes += len(page)
            yield page
        self._parts.metrics.observe_answer(size_bytes=size_bytes, is_from_memory=started_ms < arrived_ms)

    def _age_ms(self, started_ms: int) -> int:
        return max(0, self._parts.clock.monotonic_ms() - started_ms)

    async def _find(self, table: TableStore, request: snapshot_pb2.GetSnapshotRequest) -> tuple[Answer, int]:
        """Return an answer, and when the read behind it began (monotonic)."""
        parts, query = self._parts, parse_request(request)
        max_staleness_ms = parts.max_staleness_ms(request)
        if query.tag is not None:
            return await self._find_tagged(table, query, query.tag, max_staleness_ms=max_staleness_ms)
        state = await parts.reads.read(table.name, max_staleness_ms=max_staleness_ms)
        if query.min_commit is not None and find_commit(state, query.min_commit) is None:
            state = await self._await_commit(table, query.min_commit)
        snapshot, as_of_ms = state.snapshot, query.as_of_ms
        if as_of_ms is not None:
            check_has_come(table.name, "as_of_ms", as_of_ms, store_now_ms=parts.store_now_ms(state))
            if query.min_commit is not None:
                check_commit_time(state, query.min_commit, "as_of_ms", as_of_ms)
            snapshot = await parts.reads.work.run_compute(lambda: state.at(as_of_ms))
        changes = None
        if query.since_snapshot_id is not None:
            changes = state.history.find(query.since_snapshot_id, snapshot.snapshot_id)
            query = query if changes is not None else replace(query, since_snapshot_id=None)
        return await self._answer(table, state.config, snapshot, query, changes=changes), state.started_ms

    async def _await_commit(self, table: TableStore, batch_id: str) -> TableState:
        """Return a state whose log has a batch. Waits as long as its caller does, and at most the setting says.

        Raises:
            InvalidRequest: The batch was refused: it is in quarantine, and nothing will commit it as it is.
            NotFound: Nobody knows the batch; or no such table.
            Unavailable: It is still staged after the longest wait.
        """
        reads, timeout_ms = self._parts.reads, self._parts.settings.snapshot_commit_wait_ms
        wait = CommitWait(batch_id, self._parts.clock, timeout_ms, "ICEDB_SNAPSHOT_COMMIT_WAIT_MS")
        while True:
            try:
                found = await reads.work.run_blocking(table.name, lambda: look_for_batch(table, batch_id))
            except Overloaded:  # many wait for this table: the log alone tells when it is there
                found = Whereabouts(is_staged=True)
            # Read after the look (I2, I5). Shared with all who wait for the same table.
            state = await reads.read(table.name, max_staleness_ms=0)
            pause_ms = wait.find_pause(found, state)
            if pause_ms is None:
                return state
            await asyncio.sleep(pause_ms / SECOND_MS)

    async def _find_tagged(
        self, table: TableStore, query: SnapshotQuery, name: str, *, max_staleness_ms: int
    ) -> tuple[Answer, int]:
        reads, started_ms = self._parts.reads, self._parts.clock.monotonic_ms()
        state = await reads.read(table.name, max_staleness_ms=max(1, max_staleness_ms))
        tag, status = await reads.work.run_blocking(table.name, lambda: find_tag(table, name))
        # A tag never changes what it names, so one object is one answer.
        key: AnswerKey = (table.name, tag.key, tag.etag, *_conditions(state.config, query))
        known = self.answers.get(key)
        if known is None or status != "active":
            _, snapshot = await reads.work.run_blocking(table.name, lambda: read_tagged(table, name, is_compact=True))
            known = await self._answer(table, state.config, snapshot, query, key=key)
        return known, started_ms

    async def _answer(
        self,
        table: TableStore,
        config: TableConfig,
        snapshot: Snapshot,
        query: SnapshotQuery,
        *,
        key: AnswerKey | None = None,
        changes: PathChanges | None = None,
    ) -> Answer:
        """Return the answer to a query on a snapshot: from memory, or made once for all who want it now."""
        version = (snapshot.snapshot_id, snapshot.as_of_ms, snapshot.is_stable, snapshot.last_commit_ms)
        key = key or (table.name, *version, snapshot.horizon_ms, table.paths.number, *_conditions(config, query))
        known = self.answers.get(key)
        if known is not None:
            return known
        making = self._building.get(key)
        if making is None:
            making = self._building[key] = asyncio.ensure_future(
                self._parts.reads.work.run_compute(lambda: self._make(table, config, snapshot, query, changes))
            )
            is_kept = query.presign_ms is None and query.request_bytes <= MAX_KEPT_REQUEST_BYTES
            making.add_done_callback(lambda done: self._end(key, done, is_kept=is_kept))
        return await asyncio.shield(making)

    def _end(self, key: AnswerKey, done: asyncio.Task[Answer], *, is_kept: bool) -> None:
        del self._building[key]
        if not done.cancelled() and done.exception() is None and is_kept:
            self.answers.keep(key, done.result())

    def _make(
        self,
        table: TableStore,
        config: TableConfig,
        snapshot: Snapshot,
        query: SnapshotQuery,
        changes: PathChanges | None,
    ) -> Answer:
        if changes is None:
            selector = FileSelector(table.paths, config, snapshot, filters=query.filters, where=query.where)
            selections = selector.select_chunks(snapshot.live)
        else:
            selections = select_paths(snapshot.live, changes.came)
        if query.presign_ms is not None:
            count = sum(selection.file_count for selection in selections)
            if count > MAX_PRESIGNED_FILES:
                raise InvalidRequest(
                    f"table {table.name}: {count} data files would get a URL; at most {MAX_PRESIGNED_FILES}: narrow it "
                    "with partition filters or where"
                )
        return build_answer(
            table,
            replace(snapshot, schema=unite_columns(snapshot.schema, config)),
            selections,
            presign_ms=query.presign_ms,
            columns=FileColumns.of(table.paths, config, with_bounds=query.with_bounds) if query.is_columnar else None,
            changes=changes,
        )


def _conditions(config: TableConfig, query: SnapshotQuery) -> tuple[object, ...]:
    form = query.is_columnar, query.with_bounds, query.since_snapshot_id, query.presign_ms
    return tuple(config.declared.items()), query.filters, query.where, *form
