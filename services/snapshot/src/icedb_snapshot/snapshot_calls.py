"""GetSnapshot: which data files of one table are live. Reads; nothing here writes to the store.

Answers come as bytes (:mod:`icedb_snapshot.answers`), so the methods are registered by hand.
"""

from typing import Any

import grpc
from icedb_log.log.fold import fold
from icedb_log.model import Snapshot
from icedb_log.serving.table_cache import TableState
from icedb_log.tables.partition_filter import PartitionMatcher
from icedb_proto import snapshot_pb2
from icedb_service.access.verbs import Verb

from icedb_snapshot.answers import AnswerCache
from icedb_snapshot.parts import ServiceParts
from icedb_snapshot.requests import SnapshotQuery, parse_request


class SnapshotCalls:
    """Answers GetSnapshot.

    Args:
        parts: What handlers share.
    """

    def __init__(self, parts: ServiceParts) -> None:
        self._parts = parts
        self._access = parts.access
        self._answers = AnswerCache(parts.warehouse.store, max_tables=parts.settings.snapshot_max_tables)

    def methods(self) -> dict[str, Any]:
        """Return the handlers by method."""
        return {
            "GetSnapshot": grpc.unary_unary_rpc_method_handler(
                self.get_snapshot, request_deserializer=snapshot_pb2.GetSnapshotRequest.FromString
            ),
        }

    async def get_snapshot(self, request: snapshot_pb2.GetSnapshotRequest, context: Any) -> bytes:
        """Return a serialized GetSnapshotResponse.

        Raises:
            IceDBError: Whatever is wrong; the interceptor turns it into a status code.
        """
        self._access.require(context, Verb.READ, request.table)
        parts = self._parts
        query = parse_request(request, default_max_staleness_ms=parts.settings.snapshot_max_staleness_ms)
        arrived_ms = parts.clock.monotonic_ms()
        state = await parts.reads.read(query.table, max_staleness_ms=query.max_staleness_ms)
        body = await parts.reads.work.run_compute(lambda: self._render(state, query))
        parts.metrics.observe_answer(size_bytes=len(body), is_from_memory=state.started_ms < arrived_ms)
        return body

    def _render(self, state: TableState, query: SnapshotQuery) -> bytes:
        parts = self._parts
        matcher = PartitionMatcher(query.filters, state.config)
        snapshot = _at(state, query)
        return self._answers.get(parts.warehouse.table(query.table), snapshot).render(
            snapshot,
            matcher=matcher,
            staleness_ms=max(0, parts.clock.monotonic_ms() - state.started_ms),
            max_message_bytes=parts.settings.snapshot_max_message_bytes,
        )


def _at(state: TableState, query: SnapshotQuery) -> Snapshot:
    if query.as_of_ms is None:
        return state.snapshot
    return fold(state.view, as_of_ms=query.as_of_ms)
