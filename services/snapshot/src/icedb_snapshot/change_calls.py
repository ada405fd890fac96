"""GetChanges: which data files came and went between two times of one table. Reads only.

Both states are folded from one read of the log, so that what lies between them is exact. Pages are made as the caller
takes them: a slow one holds two compact lists of the files that differ, and one page. The cost goes with what changed.
"""

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, Final

import grpc
from icedb_log.errors import InvalidRequest
from icedb_log.keys import TablePaths, check_table_name
from icedb_log.model import FileMarker
from icedb_log.serving.changes import SnapshotChanges, compare_snapshots
from icedb_log.serving.table_cache import TableState
from icedb_log.store.object_store import ObjectStore
from icedb_log.store.store_clock import check_has_come
from icedb_log.table.partition_filter import read_partition_values
from icedb_log.units import MIB
from icedb_proto import snapshot_pb2 as pb
from icedb_service.access.access_file import Verb

from icedb_snapshot.parts import ServiceParts
from icedb_snapshot.request_fields import check_time_ms, read_max_staleness_ms

MAX_PAGE_BYTES: Final = MIB


class ChangeCalls:
    """Answers GetChanges.

    Args:
        parts: What handlers share.
        max_page_bytes: Largest page; a single file that is larger is a page of its own.
    """

    def __init__(self, parts: ServiceParts, *, max_page_bytes: int = MAX_PAGE_BYTES) -> None:
        self._parts = parts
        self._access = parts.access
        self._max_page_bytes = max_page_bytes

    def methods(self) -> dict[str, Any]:
        """Return the handlers by method."""
        return {
            "GetChanges": grpc.unary_stream_rpc_method_handler(
                self.get_changes, request_deserializer=pb.GetChangesRequest.FromString
            ),
        }

    async def get_changes(self, request: pb.GetChangesRequest, context: Any) -> AsyncIterator[bytes]:
        """Send serialized pages.

        Raises:
            IceDBError: Whatever is wrong; the interceptor turns it into a status code.
        """
        self._access.require(context, Verb.READ, request.table)
        parts = self._parts
        paths = parts.warehouse.table(check_table_name(request.table))
        from_ms, to_ms = _read_times(request)
        max_staleness_ms = read_max_staleness_ms(request, default_ms=parts.settings.snapshot_max_staleness_ms)
        state = await parts.reads.read(paths.name, max_staleness_ms=max_staleness_ms)
        now_ms = state.view.store_now_ms + max(0, parts.clock.monotonic_ms() - state.started_ms)
        changes = await parts.reads.work.run_compute(
            lambda: find_changes(state, from_ms=from_ms, to_ms=to_ms, now_ms=now_ms)
        )
        pages = render_pages(parts.warehouse.store, paths, changes, max_page_bytes=self._max_page_bytes)
        while (page := await parts.reads.work.run_compute(lambda: next(pages, None))) is not None:
            yield page


def find_changes(state: TableState, *, from_ms: int, to_ms: int | None, now_ms: int) -> SnapshotChanges:
    """Return what differs between two times of a table. Computes, but reads nothing.

    Args:
        state: One read of the table.
        from_ms: The earlier time, unix ms.
        to_ms: The later time; ``None``: the newest state.
        now_ms: The store's clock, as far as is known.

    Raises:
        InvalidRequest: A time in the future, or the earlier one is later.
        BelowHorizon: Log files that say what was live at the earlier time are deleted.
    """
    for name, value_ms in (("from_ms", from_ms), ("to_ms", to_ms)):
        if value_ms is not None:
            check_has_come(state.view.table, name, value_ms, store_now_ms=now_ms)
    return compare_snapshots(state.at(from_ms), state.at(to_ms))


def render_pages(
    store: ObjectStore, paths: TablePaths, changes: SnapshotChanges, *, max_page_bytes: int
) -> Iterator[bytes]:
    """Yield serialized GetChangesResponses; the first one has everything but the rest of the files.

    Fields of serialized messages may be joined: a page is a head and the entries of its files, each a message of one.
    """
    page = [
        pb.GetChangesResponse(
            table=changes.after.table,
            from_snapshot_id=changes.before.snapshot_id,
            to_snapshot_id=changes.after.snapshot_id,
            added_count=len(changes.added),
            removed_count=len(changes.removed),
            changed_columns=[
                pb.Column(name=name, type=sql_type, narrow_type=changes.after.narrow_types.get(name))
                for name, sql_type in changes.changed_columns.items()
            ],
            is_stable=changes.is_stable,
        ).SerializeToString()
    ]
    page_bytes = len(page[0])
    for entry in _serialize_files(store, paths, changes):
        if page and page_bytes + len(entry) > max_page_bytes:
            yield b"".join(page)
            page, page_bytes = [], 0
        page.append(entry)
        page_bytes += len(entry)
    yield b"".join(page)


def _serialize_files(store: ObjectStore, paths: TablePaths, changes: SnapshotChanges) -> Iterator[bytes]:
    for file in _files(store, paths, changes.added):
        yield pb.GetChangesResponse(added=(file,)).SerializeToString()
    for file in _files(store, paths, changes.removed):
        yield pb.GetChangesResponse(removed=(file,)).SerializeToString()


def _files(store: ObjectStore, paths: TablePaths, markers: Iterable[FileMarker]) -> Iterator[pb.DataFile]:
    partition: str | None = None
    values: list[pb.PartitionValue] = []
    for marker in markers:
        found = paths.partition_of(marker.path)
        if found != partition:  # paths ascend: files of one partition come one after the other
            partition = found
            values = [pb.PartitionValue(name=name, value=value) for name, value in read_partition_values(found).items()]
        yield pb.DataFile(
            path=marker.path,
            uri=store.uri(marker.path),
            size_bytes=marker.size_bytes,
            row_count=marker.row_count,
            partition_values=values,
            created_ms=marker.created_ms,
        )


def _read_times(request: pb.GetChangesRequest) -> tuple[int, int | None]:
    from_ms = check_time_ms("from_ms", request.from_ms)
    to_ms = check_time_ms("to_ms", request.to_ms) if request.HasField("to_ms") else None
    if to_ms is not None and from_ms > to_ms:
        raise InvalidRequest(f"from_ms {from_ms} is later than to_ms {to_ms}: from_ms is the earlier one")
    return from_ms, to_ms
