"""WatchSnapshots: tells when tables change. Reads only."""

from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Final

import grpc
from icedb_log.errors import InvalidRequest, NotFound
from icedb_log.keys import check_table_name
from icedb_log.serving.table_cache import TableState
from icedb_log.table.drop_mark import describe_missing
from icedb_proto import snapshot_pb2 as pb
from icedb_service.access.access_file import Identity, Verb
from icedb_service.readers import TableNames

from icedb_snapshot.parts import ServiceParts
from icedb_snapshot.watches import Watcher, Watches

MAX_NAMED_TABLES: Final = 1000


class WatchCalls:
    """Answers WatchSnapshots.

    Args:
        parts: What handlers share.
        names: Which tables there are.
    """

    def __init__(self, parts: ServiceParts, names: TableNames) -> None:
        self._parts = parts
        self._access = parts.access
        settings = parts.settings
        self.watches: Final = Watches(
            read_table=lambda table, max_age_ms: parts.reads.read(table, max_staleness_ms=max_age_ms),
            read_names=names.read,
            interval_ms=settings.snapshot_watch_interval_ms,
            max_watchers=settings.snapshot_max_watchers,
            max_polls=max(1, settings.snapshot_threads // 2),
            describe=self._describe,
            on_change=parts.metrics.show_watchers,
        )

    def methods(self) -> dict[str, Any]:
        """Return the handlers by method."""
        return {
            "WatchSnapshots": grpc.unary_stream_rpc_method_handler(
                self.watch,
                request_deserializer=pb.WatchSnapshotsRequest.FromString,
                response_serializer=pb.SnapshotEvent.SerializeToString,
            ),
        }

    def end(self) -> None:
        """End all streams with UNAVAILABLE, for good."""
        self.watches.end()

    async def watch(self, request: pb.WatchSnapshotsRequest, context: Any) -> AsyncIterator[pb.SnapshotEvent]:
        """Send the state of each table, and then each change, until the caller goes or the server stops.

        Raises:
            IceDBError: Whatever is wrong; the interceptor turns it into a status code.
        """
        identity = self._allow(request, context)
        tables = frozenset(check_table_name(table) for table in request.tables)
        watcher = Watcher(partial(self._access.guard.allows, identity, Verb.READ), tables or None)
        self.watches.add(watcher)
        # Also where the stream is given up while a message is on its way, and nothing is raised in here.
        context.add_done_callback(lambda _: self.watches.remove(watcher))
        try:
            told: set[str] = set()
            while True:
                event = await watcher.take()
                if event.table in tables - told and not event.HasField("snapshot_id") and not event.HasField("problem"):
                    raise NotFound(describe_missing(event.table))
                told.add(event.table)
                self._parts.metrics.observe_event()
                yield event
        finally:
            self.watches.remove(watcher)

    def _allow(self, request: pb.WatchSnapshotsRequest, context: Any) -> Identity:
        identity = self._access.identify(context)
        if len(request.tables) > MAX_NAMED_TABLES:
            raise InvalidRequest(
                f"{len(request.tables)} tables are more than {MAX_NAMED_TABLES}: name none to watch all"
            )
        for table in request.tables:
            self._access.guard.require(identity, Verb.READ, table)
        return identity

    async def _describe(self, state: TableState) -> pb.SnapshotEvent:
        return await self._parts.reads.work.run_compute(partial(describe_event, state))


def describe_event(state: TableState) -> pb.SnapshotEvent:
    """Return the message about a table's newest state. Pure."""
    snapshot = state.snapshot
    return pb.SnapshotEvent(
        table=state.view.table,
        snapshot_id=snapshot.snapshot_id,
        file_count=len(snapshot.live),
        size_bytes=snapshot.size_bytes,
        row_count=snapshot.row_count,
        last_commit_ms=snapshot.last_commit_ms or None,
    )
