"""Asks the snapshot service: which calls a request takes, how each is retried, and what its answers mean."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

import grpc
import orjson
from icedb_log.clock import Clock
from icedb_log.errors import IceDBError, InvalidRequest, Unavailable
from icedb_log.store.s3_options import S3Options
from icedb_log.table.partitions import PartitionFilter
from icedb_log.table.table_config import PartitionField
from icedb_proto import snapshot_pb2 as pb
from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_exception,
    stop_after_attempt,
    stop_before_delay,
    wait_exponential,
    wait_random,
)

from icedb_client.file_list import ArrowFiles, FileList, WireFiles, read_batches
from icedb_client.grpc_channels import (
    Channels,
    TooLarge,
    explain_unavailable,
    is_passing,
    is_silent,
    retry_after_ms,
    translate,
)
from icedb_client.requests import Answerer, Changes, LeaseInfo, SnapshotEvent, SnapshotRequest, TableInfo
from icedb_client.settings import ClientSettings
from icedb_client.snapshots import Snapshot, can_lead_to, describe_changes

MAX_TRIES: Final = 4
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
MAX_PAGES_OF_TABLES: Final = 100_000
_NOT_YET: Final = "the snapshot service has not read its figures yet; ask again in a few seconds"
_GROWING: Final = wait_exponential(multiplier=FIRST_PAUSE_S, max=LONGEST_PAUSE_S) + wait_random(0, FIRST_PAUSE_S)


class GrpcReads:
    """Asks a snapshot service, or several replicas of one in turn. Thread-safe; close it when done.

    Implements :class:`icedb_client.requests.Answerer`.

    Args:
        settings: Addresses, time-out, TLS, token.
        clock: For deadlines and pauses.

    Raises:
        InvalidRequest: A file cannot be read, or a token would go over the network in plain text.
    """

    def __init__(self, settings: ClientSettings, *, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._timeout_s = settings.snapshot_timeout_ms / 1000
        self._channels = Channels(settings)
        self._large: set[str] = set()
        """Tables whose answers do not fit one message."""
        self._policy = Retrying(
            retry=retry_if_exception(is_passing),
            stop=stop_after_attempt(MAX_TRIES) | stop_before_delay(self._timeout_s),
            wait=_pause_s,
            sleep=lambda pause_s: clock.sleep_ms(round(pause_s * 1000)),
            reraise=True,
        )

    def close(self) -> None:
        """Close the channels. May be called again."""
        for channel in self._channels.all:
            channel.close()

    def snapshot(self, request: SnapshotRequest) -> Snapshot:
        """Return which files are live."""
        message = pb.GetSnapshotRequest(
            table=request.table,
            as_of_ms=request.as_of_ms,
            partition_filters=[to_wire(condition) for condition in request.filters],
            max_staleness_ms=request.max_staleness_ms,
            where=request.where,
            min_commit=request.min_commit,
            presign_ms=request.presign_ms,
            tag=request.tag,
            columnar=request.columnar,
            with_bounds=request.bounds,
        )
        since = request.since
        if since is not None and can_lead_to(since, request) and isinstance(since.files, ArrowFiles):
            message.since_snapshot_id = since.snapshot_id
        pages: list[Any] = []
        is_narrow = request.where is not None or bool(request.filters)
        if is_narrow or request.table not in self._large:
            try:
                pages = [self._ask("GetSnapshot", message)]
            except TooLarge:
                if not is_narrow:
                    self._large.add(request.table)
        if not pages:
            pages = self._ask("StreamSnapshot", message, is_stream=True)
        found = _read_snapshot(pages, request, self, self._settings.s3)
        # What does not fit together is no answer: another server may call a snapshot by an id that has other columns.
        return found or self.snapshot(replace(request, since=None))

    def tables(self, glob: str | None) -> tuple[str, ...]:
        """Return which tables there are, ascending."""
        return tuple(name for page in self._list_tables(glob=glob) for name in page.tables)

    def figures(self) -> list[dict[str, Any]]:
        """Return the figures of all tables, by name, as the service has read them last: how long ago is ``age_ms``.

        One that the service has not read yet has an ``error``.
        """
        documents: list[dict[str, Any]] = []
        for page in self._list_tables(with_figures=True):
            known = {each.table: orjson.loads(each.figures) | {"age_ms": each.age_ms} for each in page.figures}
            error = {"kind": "Unavailable", "message": _NOT_YET}
            documents += [known.get(name, {"table": name, "halted": False, "error": error}) for name in page.tables]
        return documents

    def _list_tables(self, **asked: Any) -> Iterator[pb.ListTablesResponse]:
        token: str | None = None
        for _ in range(MAX_PAGES_OF_TABLES):
            answer = self._ask("ListTables", pb.ListTablesRequest(page_token=token, **asked))
            yield answer
            token = _maybe(answer, "next_page_token")
            if token is None:
                return
        raise Unavailable(f"the list of tables does not end after {MAX_PAGES_OF_TABLES} pages")

    def table(self, table: str, max_staleness_ms: int | None = None) -> TableInfo:
        """Return what a table is."""
        found = self._ask("GetTable", pb.GetTableRequest(table=table, max_staleness_ms=max_staleness_ms))
        return TableInfo(
            name=found.name,
            schema={column.name: column.type for column in found.schema},
            partition_fields=tuple(
                PartitionField(name=f.name, transform=f.transform, column=f.column, width=_maybe(f, "width"))
                for f in found.partition_fields
            ),
            sort_columns=tuple(found.sort_columns),
            data_grace_ms=found.data_grace_ms,
            log_grace_ms=found.log_grace_ms,
            retention_ms=_maybe(found, "retention_ms"),
            retention_field=_maybe(found, "retention_field"),
            horizon_ms=_maybe(found, "horizon_ms"),
            promoted={each.column: tuple(each.path) for each in found.promoted},
        )

    def changes(self, table: str, *, from_ms: int, to_ms: int | None, max_staleness_ms: int | None) -> Changes:
        """Return which files came and went between two times."""
        message = pb.GetChangesRequest(table=table, from_ms=from_ms, to_ms=to_ms, max_staleness_ms=max_staleness_ms)
        pages = self._ask("GetChanges", message, is_stream=True)
        head = pages[0] if pages else pb.GetChangesResponse()
        added, removed = [page.added for page in pages], [page.removed for page in pages]
        _require_all(table, sum(map(len, added)), head.added_count if pages else -1)
        _require_all(table, sum(map(len, removed)), head.removed_count if pages else -1)
        return Changes(
            table=head.table,
            from_snapshot_id=head.from_snapshot_id,
            to_snapshot_id=head.to_snapshot_id,
            added=WireFiles(added, size_bytes=None, row_count=_sum_rows(added)),
            removed=WireFiles(removed, size_bytes=None, row_count=_sum_rows(removed)),
            changed_columns={column.name: column.type for column in head.changed_columns},
            is_stable=head.is_stable,
        )

    def acquire_lease(self, table: str, *, ttl_ms: int, at_ms: int | None) -> LeaseInfo:
        """Hold a table as it was at a time, and at any time since; ``None``: from now on."""
        message = pb.AcquireLeaseRequest(table=table, ttl_ms=ttl_ms, at_ms=at_ms)
        return _read_lease(self._ask("AcquireLease", message))

    def renew_lease(self, table: str, lease_id: str, *, ttl_ms: int) -> LeaseInfo:
        """Let a lease last for ``ttl_ms`` from now on, and never shorter than before."""
        message = pb.RenewLeaseRequest(table=table, lease_id=lease_id, ttl_ms=ttl_ms)
        return _read_lease(self._ask("RenewLease", message))

    def release_lease(self, table: str, lease_id: str) -> None:
        """End a lease."""
        self._ask("ReleaseLease", pb.ReleaseLeaseRequest(table=table, lease_id=lease_id))

    def watch(self, tables: Sequence[str]) -> Iterator[SnapshotEvent]:
        """Follow events from one replica to the next; any thread may close what is returned."""
        return Watch(self, tables, patience_s=self._timeout_s, clock=self._clock)

    def _ask(self, method: str, message: Any, *, is_stream: bool = False) -> Any:
        """Return the answer of a call, or the list of its answers; tried again while that may help."""
        ends_ms = self._clock.monotonic_ms() + self._settings.snapshot_timeout_ms
        asked = ""

        def once() -> Any:
            nonlocal asked
            asked, stub = self._channels.next()
            timeout_s = max(1, ends_ms - self._clock.monotonic_ms()) / 1000
            answer = getattr(stub, method)(message, timeout=timeout_s, metadata=self._channels.metadata())
            return list(answer) if is_stream else answer

        try:
            return self._policy(once)
        except grpc.RpcError as error:
            raise self.translate(error, asked) from error

    def begin_watch(self, message: pb.WatchSnapshotsRequest) -> tuple[str, Any]:
        """Return who is watched next, and the stream of its events."""
        address, stub = self._channels.next()
        return address, stub.WatchSnapshots(message, metadata=self._channels.metadata())

    def translate(self, error: Any, address: str) -> IceDBError:
        """Return our error of one that gRPC raised."""
        reason = explain_unavailable(address, self._settings) if is_silent(error) else ""
        return translate(error, address=address, timeout_s=self._timeout_s, reason=reason)


def _pause_s(state: RetryCallState) -> float:
    """Return how long to wait: as long as the server asked for, else longer each time."""
    error = state.outcome.exception() if state.outcome is not None else None
    asked_ms = retry_after_ms(error) if isinstance(error, grpc.RpcError) else None
    return _GROWING(state) if asked_ms is None else max(asked_ms / 1000, FIRST_PAUSE_S)


class Watch(Iterator[SnapshotEvent]):
    """Events, from one replica to the next. Taken by one thread; any may close it.

    Args:
        reads: Who asks.
        tables: Which; none: all.
        patience_s: How long it may have no server.
        clock: For that.
    """

    def __init__(self, reads: GrpcReads, tables: Sequence[str], *, patience_s: float, clock: Clock) -> None:
        self._reads = reads
        self._message = pb.WatchSnapshotsRequest(tables=tables)
        self._patience_ms = patience_s * 1000
        self._clock = clock
        self._told: dict[str, tuple[str | None, str | None]] = {}
        self._pause_s = FIRST_PAUSE_S
        self._since_ms: int | None = None
        self._stream: Any = None
        self._is_closed = False
        self._events = self._follow()

    def __next__(self) -> SnapshotEvent:
        return next(self._events)

    def close(self) -> None:
        """End it: who waits for an event gets none. May be called again."""
        self._is_closed = True
        if self._stream is not None:
            self._stream.cancel()

    def _follow(self) -> Iterator[SnapshotEvent]:
        while not self._is_closed:
            address, self._stream = self._reads.begin_watch(self._message)
            if self._is_closed:
                self._stream.cancel()  # whoever closed it has not seen this one
            try:
                for event in self._stream:
                    if self._is_news(event):
                        yield _read_event(event)
            except grpc.RpcError as error:
                pause_s = 0 if self._is_closed else self._pause_after(error)
                if pause_s is None:
                    raise self._reads.translate(error, address) from error
                self._clock.sleep_ms(round(pause_s * 1000))
            finally:
                self._stream.cancel()

    def _is_news(self, event: pb.SnapshotEvent) -> bool:
        """Whether an event says something that was not told yet; another replica begins with what is known."""
        self._since_ms, self._pause_s = None, FIRST_PAUSE_S
        state = (_maybe(event, "snapshot_id"), _maybe(event, "problem"))
        is_news = event.table not in self._told or self._told[event.table] != state
        self._told[event.table] = state
        return is_news

    def _pause_after(self, error: Any) -> float | None:
        """Return how long to wait before the next server is asked; ``None``: the watch has ended."""
        now_ms = self._clock.monotonic_ms()
        self._since_ms = now_ms if self._since_ms is None else self._since_ms
        if not is_passing(error) or now_ms - self._since_ms > self._patience_ms:
            return None
        asked_ms = retry_after_ms(error)
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, LONGEST_PAUSE_S)
        return pause_s if asked_ms is None else asked_ms / 1000


def to_wire(condition: PartitionFilter) -> pb.PartitionFilter:
    """Return a filter as the protocol has it.

    Raises:
        InvalidRequest: It has more than one kind of condition; write them as several filters.
    """
    glob = getattr(condition, "glob", None)
    kinds = (condition.any_of is not None, condition.is_null is not None, bool(condition.bounds()), glob is not None)
    if sum(kinds) != 1:
        raise InvalidRequest(
            f"the filter on partition field {condition.field[:80]} needs one kind of condition; write several filters"
        )
    if glob is not None:
        return pb.PartitionFilter(field=condition.field, glob=glob)
    if condition.any_of is not None:
        values = sorted(condition.any_of)
        if len(values) == 1:
            return pb.PartitionFilter(field=condition.field, equals=values[0])
        return pb.PartitionFilter(field=condition.field, any_of=pb.ValueList(values=values))
    if condition.is_null is not None:
        return pb.PartitionFilter(field=condition.field, is_null=condition.is_null)
    if condition.at_least is not None and condition.above is not None:
        raise InvalidRequest(f"the filter on partition field {condition.field[:80]} has two lower bounds")
    if condition.at_most is not None and condition.below is not None:
        raise InvalidRequest(f"the filter on partition field {condition.field[:80]} has two upper bounds")
    bounds = pb.ValueRange()
    for name in ("at_least", "above", "at_most", "below"):
        value = getattr(condition, name)
        if value is not None:
            setattr(bounds, name, value)
    return pb.PartitionFilter(field=condition.field, range=bounds)


def _read_event(event: pb.SnapshotEvent) -> SnapshotEvent:
    """Return an event of the watch."""
    return SnapshotEvent(
        event.table,
        _maybe(event, "snapshot_id"),
        event.file_count,
        event.size_bytes,
        _maybe(event, "row_count"),
        _maybe(event, "last_commit_ms"),
        _maybe(event, "problem"),
    )


def _read_snapshot(
    pages: list[pb.GetSnapshotResponse], request: SnapshotRequest, answerer: Answerer, s3: S3Options | None
) -> Snapshot | None:
    """Return what pages say; ``None`` if they say what has changed since a snapshot, and that cannot be."""
    head = pages[0] if pages else pb.GetSnapshotResponse()
    schema = {column.name: column.type for column in head.schema}
    files: FileList
    changes = None
    if head.HasField("uri_prefix"):
        table = read_batches(part for page in pages for part in page.file_batches)
        files, known = ArrowFiles(table, uri_prefix=head.uri_prefix), request.since
        if head.HasField("since_snapshot_id") and known is not None and isinstance(known.files, ArrowFiles):
            if known.files.to_arrow().schema != table.schema:
                return None
            added, (files, removed) = files, known.files.change(files, head.removed_paths)
            if (len(files), len(removed)) != (head.file_count, len(head.removed_paths)):
                return None
            # A log file may tell the rows of a file that was there before.
            if (files.size_bytes, files.row_count) != (head.size_bytes, _maybe(head, "row_count")):
                return None
            changes = describe_changes(known, head.snapshot_id, schema, added=added, removed=removed)
    else:
        pages_of_files = [page.files for page in pages]
        files = WireFiles(pages_of_files, size_bytes=head.size_bytes, row_count=_maybe(head, "row_count"))
    _require_all(request.table, len(files), head.file_count if pages else -1)
    is_on_s3 = len(files) > 0 and files[0].uri.startswith("s3://")
    return Snapshot(
        table=head.table,
        snapshot_id=head.snapshot_id,
        schema=schema,
        files=files,
        total_file_count=head.total_file_count,
        as_of_ms=_maybe(head, "as_of_ms"),
        is_stable=head.is_stable,
        last_commit_ms=_maybe(head, "last_commit_ms"),
        horizon_ms=_maybe(head, "horizon_ms"),
        narrow_types={column.name: column.narrow_type for column in head.schema if column.HasField("narrow_type")},
        staleness_ms=head.staleness_ms,
        where=request.where,
        s3=(s3 or S3Options()) if is_on_s3 else None,
        answerer=answerer,
        changes=changes,
    )


def _sum_rows(pages: Iterable[Any]) -> int | None:
    files = [file for page in pages for file in page]
    return sum(file.row_count for file in files) if all(file.HasField("row_count") for file in files) else None


def _require_all(table: str, found: int, said: int) -> None:
    if found != said:
        raise Unavailable(f"table {table}: the service announced {max(said, 0)} data files and sent {found}; try again")


def _read_lease(lease: pb.Lease) -> LeaseInfo:
    return LeaseInfo(lease.table, lease.lease_id, lease.at_ms, lease.expires_ms)


def _maybe(message: Any, name: str) -> Any:
    return getattr(message, name) if message.HasField(name) else None
