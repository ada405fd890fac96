"""Asks the snapshot service: which calls a request takes, how each is retried, and what its answers mean.

:class:`ServiceReads` is written once for callers who await and for those who wait: it is coroutines over a
:class:`Transport`. Over that of callers who wait nothing in them is ever suspended, so :class:`GrpcReads` runs them to
their end without an event loop.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import update_wrapper
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import grpc
import grpc.aio
from icedb_log.clock import Clock
from icedb_log.errors import IceDBError, InvalidRequest, Unavailable
from icedb_log.store.stores import S3Options
from icedb_log.table.partitions import PartitionFilter
from icedb_log.table.table_config import PartitionField
from icedb_proto import snapshot_pb2 as pb
from tenacity import (
    AsyncRetrying,
    RetryCallState,
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
_GROWING: Final = wait_exponential(multiplier=FIRST_PAUSE_S, max=LONGEST_PAUSE_S) + wait_random(0, FIRST_PAUSE_S)

_Given = ParamSpec("_Given")
_Answer = TypeVar("_Answer")


class Transport:
    """What differs between callers who await, as here, and callers who wait."""

    secure: Callable[..., Any] = staticmethod(grpc.aio.secure_channel)
    insecure: Callable[..., Any] = staticmethod(grpc.aio.insecure_channel)

    async def take(self, call: Any) -> Any:
        """Return the answer of a call."""
        return await call

    def stream(self, call: Any) -> AsyncIterable[Any]:
        """Return the answers of a call, one after the other."""
        answers: AsyncIterable[Any] = call
        return answers

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)

    async def work(self, do: Callable[..., Any], *given: Any) -> Any:
        """Do what blocks, in a thread."""
        return await asyncio.to_thread(do, *given)


class _Waiting(Transport):
    """Blocks, and suspends nothing."""

    secure = staticmethod(grpc.secure_channel)
    insecure = staticmethod(grpc.insecure_channel)

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def take(self, call: Any) -> Any:
        return call

    async def stream(self, call: Any) -> AsyncGenerator[Any, None]:
        for answer in call:
            yield answer

    async def sleep(self, seconds: float) -> None:
        self._clock.sleep_ms(round(seconds * 1000))

    async def work(self, do: Callable[..., Any], *given: Any) -> Any:
        return do(*given)


class ServiceReads:
    """Asks a snapshot service, or several replicas of one in turn. Its methods are those of ``Answerer``, awaited.

    Args:
        settings: Addresses, time-out, TLS, token.
        clock: For deadlines.
        transport: How its callers wait.
        answerer: Who is asked for leases by readers of its snapshots, which block.

    Raises:
        InvalidRequest: A file cannot be read, or a token would go over the network in plain text.
    """

    def __init__(self, settings: ClientSettings, *, clock: Clock, transport: Transport, answerer: Answerer) -> None:
        self._settings = settings
        self._clock = clock
        self._transport = transport
        self._answerer = answerer
        self._timeout_s = settings.snapshot_timeout_ms / 1000
        self._channels = Channels(settings, secure=transport.secure, insecure=transport.insecure)
        self._large: set[str] = set()
        """Tables whose answers do not fit one message."""
        self._policy = AsyncRetrying(
            retry=retry_if_exception(is_passing),
            stop=stop_after_attempt(MAX_TRIES) | stop_before_delay(self._timeout_s),
            wait=_pause_s,
            sleep=transport.sleep,
            reraise=True,
        )

    async def close(self) -> None:
        """Close the channels. May be called again."""
        for channel in self._channels.all:
            await self._transport.take(channel.close())

    async def snapshot(self, request: SnapshotRequest) -> Snapshot:
        """Return which files are live."""
        message = pb.GetSnapshotRequest(
            table=request.table,
            as_of_ms=request.as_of_ms,
            partition_filters=[to_wire(condition) for condition in request.filters],
            max_staleness_ms=request.max_staleness_ms,
            where=request.where,
            min_commit=request.min_commit,
            presign_ms=request.presign_ms,
            pin=request.pin,
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
                pages = [await self._ask("GetSnapshot", message)]
            except TooLarge:
                if not is_narrow:
                    self._large.add(request.table)
        if not pages:
            pages = await self._ask("StreamSnapshot", message, is_stream=True)
        found = _read_snapshot(pages, request, self._answerer, self._settings.s3)
        # What does not fit together is no answer: another server may call a snapshot by an id that has other columns.
        return found or await self.snapshot(replace(request, since=None))

    async def tables(self, glob: str | None) -> tuple[str, ...]:
        """Return which tables there are, ascending."""
        names: list[str] = []
        token: str | None = None
        for _ in range(MAX_PAGES_OF_TABLES):
            answer = await self._ask("ListTables", pb.ListTablesRequest(page_token=token, glob=glob))
            names += answer.tables
            token = _maybe(answer, "next_page_token")
            if token is None:
                return tuple(names)
        raise Unavailable(f"the list of tables does not end after {MAX_PAGES_OF_TABLES} pages")

    async def table(self, table: str, max_staleness_ms: int | None = None) -> TableInfo:
        """Return what a table is."""
        found = await self._ask("GetTable", pb.GetTableRequest(table=table, max_staleness_ms=max_staleness_ms))
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
        )

    async def changes(self, table: str, *, from_ms: int, to_ms: int | None, max_staleness_ms: int | None) -> Changes:
        """Return which files came and went between two times."""
        message = pb.GetChangesRequest(table=table, from_ms=from_ms, to_ms=to_ms, max_staleness_ms=max_staleness_ms)
        pages = await self._ask("GetChanges", message, is_stream=True)
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

    async def acquire_lease(self, table: str, *, ttl_ms: int, at_ms: int | None) -> LeaseInfo:
        """Hold a table as it was at a time, and at any time since; ``None``: from now on."""
        message = pb.AcquireLeaseRequest(table=table, ttl_ms=ttl_ms, at_ms=at_ms)
        return _read_lease(await self._ask("AcquireLease", message))

    async def renew_lease(self, table: str, lease_id: str, *, ttl_ms: int) -> LeaseInfo:
        """Let a lease last for ``ttl_ms`` from now on."""
        message = pb.RenewLeaseRequest(table=table, lease_id=lease_id, ttl_ms=ttl_ms)
        return _read_lease(await self._ask("RenewLease", message))

    async def release_lease(self, table: str, lease_id: str) -> None:
        """End a lease."""
        await self._ask("ReleaseLease", pb.ReleaseLeaseRequest(table=table, lease_id=lease_id))

    async def watch(self, tables: Sequence[str]) -> AsyncGenerator[SnapshotEvent, None]:
        """Follow events from one replica to the next."""
        state = _WatchState(self._timeout_s, clock=self._clock)
        message = pb.WatchSnapshotsRequest(tables=tables)
        while True:
            address, stub = self._channels.next()
            stream = stub.WatchSnapshots(message, metadata=self._channels.metadata())
            try:
                async for event in self._transport.stream(stream):
                    if state.is_news(event):
                        yield _read_event(event)
            except grpc.RpcError as error:
                pause_s = state.pause_s(error)
                if pause_s is None:
                    raise await self._translate(error, address) from error
                await self._transport.sleep(pause_s)
            finally:
                stream.cancel()

    async def _ask(self, method: str, message: Any, *, is_stream: bool = False) -> Any:
        """Return the answer of a call, or the list of its answers; tried again while that may help."""
        ends_ms = self._clock.monotonic_ms() + self._settings.snapshot_timeout_ms
        asked = ""

        async def once() -> Any:
            nonlocal asked
            asked, stub = self._channels.next()
            timeout_s = max(1, ends_ms - self._clock.monotonic_ms()) / 1000
            call = getattr(stub, method)(message, timeout=timeout_s, metadata=self._channels.metadata())
            if is_stream:
                return [answer async for answer in self._transport.stream(call)]
            return await self._transport.take(call)

        try:
            return await self._policy(once)
        except grpc.RpcError as error:
            raise await self._translate(error, asked) from error

    async def _translate(self, error: Any, address: str) -> IceDBError:
        reason = ""
        if is_silent(error):
            reason = await self._transport.work(explain_unavailable, address, self._settings)
        return translate(error, address=address, timeout_s=self._timeout_s, reason=reason)


def _run(work: Coroutine[Any, Any, _Answer]) -> _Answer:
    """Run to its end what suspends nothing."""
    try:
        work.send(None)
    except StopIteration as done:
        answer: _Answer = done.value
        return answer
    raise AssertionError("unreachable: over this transport nothing is suspended")


def _waiting(
    method: Callable[Concatenate[ServiceReads, _Given], Coroutine[Any, Any, _Answer]],
) -> Callable[Concatenate["GrpcReads", _Given], _Answer]:
    def call(self: "GrpcReads", /, *args: _Given.args, **kwargs: _Given.kwargs) -> _Answer:
        return _run(method(self.service, *args, **kwargs))

    update_wrapper(call, method)
    return call


class GrpcReads:
    """Asks a snapshot service; implements :class:`icedb_client.requests.Answerer`. Thread-safe; close it when done.

    Raises:
        InvalidRequest: A file cannot be read, or a token would go over the network in plain text.
    """

    def __init__(self, settings: ClientSettings, *, clock: Clock) -> None:
        self.service = ServiceReads(settings, clock=clock, transport=_Waiting(clock), answerer=self)

    snapshot = _waiting(ServiceReads.snapshot)
    tables = _waiting(ServiceReads.tables)
    table = _waiting(ServiceReads.table)
    changes = _waiting(ServiceReads.changes)
    acquire_lease = _waiting(ServiceReads.acquire_lease)
    renew_lease = _waiting(ServiceReads.renew_lease)
    release_lease = _waiting(ServiceReads.release_lease)
    close = _waiting(ServiceReads.close)

    def watch(self, tables: Sequence[str]) -> Iterator[SnapshotEvent]:
        """Follow events from one replica to the next."""
        events = self.service.watch(tables)
        try:
            while True:
                yield _run(events.__anext__())
        finally:
            _run(events.aclose())


def _pause_s(state: RetryCallState) -> float:
    """Return how long to wait: as long as the server asked for, else longer each time."""
    error = state.outcome.exception() if state.outcome is not None else None
    asked_ms = retry_after_ms(error) if isinstance(error, grpc.RpcError) else None
    return _GROWING(state) if asked_ms is None else max(asked_ms / 1000, FIRST_PAUSE_S)


class _WatchState:
    """What a watch has told already, and how long it has had no server."""

    def __init__(self, patience_s: float, *, clock: Clock) -> None:
        self._patience_ms = patience_s * 1000
        self._clock = clock
        self._told: dict[str, tuple[str | None, str | None]] = {}
        self._pause_s = FIRST_PAUSE_S
        self._since_ms: int | None = None

    def is_news(self, event: pb.SnapshotEvent) -> bool:
        """Whether an event says something that was not told yet; another replica begins with what is known."""
        self._since_ms, self._pause_s = None, FIRST_PAUSE_S
        state = (
            event.snapshot_id if event.HasField("snapshot_id") else None,
            event.problem if event.HasField("problem") else None,
        )
        if event.table in self._told and self._told[event.table] == state:
            return False
        self._told[event.table] = state
        return True

    def pause_s(self, error: Any) -> float | None:
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
