"""The client for asyncio: :class:`icedb_client.Client`, awaited.

Has no code of its own for what a client does. What asks the snapshot service is awaited on the event loop; what blocks
(the store, DuckDB, Redis) runs in threads. A test compares every name and signature with those of the client.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, aclosing, asynccontextmanager
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Protocol, Self, TypeVar, cast

from icedb_log.errors import InvalidRequest, NotFound

from icedb_client.client import Client, check_names, naming_tables
from icedb_client.requests import Answerer, SnapshotEvent
from icedb_client.snapshots import Snapshot

if TYPE_CHECKING:
    from icedb_log.store.stores import S3Options

    from icedb_client.file_list import FileList
    from icedb_client.grpc_reads import ServiceReads
    from icedb_client.requests import LeaseInfo

_Given = ParamSpec("_Given")
_Answer = TypeVar("_Answer")
_Other = TypeVar("_Other")
_Item = TypeVar("_Item")
_Wrapped = TypeVar("_Wrapped")
_END: Final = object()


class _Wrapper(Protocol):
    @property
    def wrapped(self) -> Any: ...


def in_thread(
    method: Callable[Concatenate[_Wrapped, _Given], _Answer],
) -> Callable[Concatenate[_Wrapper, _Given], Awaitable[_Answer]]:
    """Run a method in a thread."""

    async def call(self: _Wrapper, /, *args: _Given.args, **kwargs: _Given.kwargs) -> _Answer:
        return await asyncio.to_thread(method, self.wrapped, *args, **kwargs)

    update_wrapper(call, method)
    return call


def iterating_in_thread(
    method: Callable[Concatenate[_Wrapped, _Given], Iterator[_Item]],
) -> Callable[Concatenate[_Wrapper, _Given], AsyncIterator[_Item]]:
    """Take each item of an iterator in a thread."""

    def call(self: _Wrapper, /, *args: _Given.args, **kwargs: _Given.kwargs) -> AsyncIterator[_Item]:
        return iterate_in_thread(lambda: method(self.wrapped, *args, **kwargs))

    update_wrapper(call, method)
    return call


async def iterate_in_thread(begin: Callable[[], Iterator[_Item]]) -> AsyncGenerator[_Item, None]:
    """Begin an iterator in a thread, take its items there, and close it when nobody wants more."""
    items = await asyncio.to_thread(begin)
    taken: asyncio.Future[Any] | None = None
    try:
        while True:
            taken = asyncio.ensure_future(asyncio.to_thread(next, items, cast("_Item", _END)))
            item = await asyncio.shield(taken)
            if item is _END:
                return
            yield item
    finally:
        if taken is not None and not taken.done():
            # The caller went away in the middle: the thread ends its step, then the iterator may be closed.
            taken.add_done_callback(lambda _done: _close(items))
        else:
            await asyncio.to_thread(_close, items)


def entering_in_thread(
    method: Callable[Concatenate[_Wrapped, _Given], AbstractContextManager[_Answer]],
    adapt: Callable[[_Answer], _Other],
) -> Callable[Concatenate[_Wrapper, _Given], AbstractAsyncContextManager[_Other]]:
    """Enter and leave a block in threads; ``adapt`` makes of what it gives what the caller gets."""

    @asynccontextmanager
    async def enter(self: _Wrapper, /, *args: _Given.args, **kwargs: _Given.kwargs) -> AsyncIterator[_Other]:
        block = method(self.wrapped, *args, **kwargs)
        answer = await asyncio.to_thread(block.__enter__)
        try:
            yield adapt(answer)
        except BaseException as error:
            if not await asyncio.to_thread(block.__exit__, type(error), error, error.__traceback__):
                raise
        else:
            await asyncio.to_thread(block.__exit__, None, None, None)

    update_wrapper(enter, method)
    return enter


def _close(items: Iterator[Any]) -> None:
    if isinstance(items, Generator):
        items.close()


class AsyncSnapshot:
    """A :class:`icedb_client.Snapshot` whose readers are awaited; it has the same attributes.

    Args:
        wrapped: The snapshot.
    """

    def __init__(self, wrapped: Snapshot) -> None:
        self.wrapped = wrapped

    def __repr__(self) -> str:
        return repr(self.wrapped)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.wrapped, name)

    if TYPE_CHECKING:
        table: str
        snapshot_id: str
        schema: Mapping[str, str]
        files: FileList
        total_file_count: int
        as_of_ms: int | None
        is_stable: bool
        last_commit_ms: int | None
        horizon_ms: int | None
        staleness_ms: int
        where: str | None
        s3: S3Options | None
        row_count: int | None
        size_bytes: int
        lease: LeaseInfo | None
        partition_names: tuple[str, ...]

    to_arrow = in_thread(Snapshot.to_arrow)
    to_arrow_reader = in_thread(Snapshot.to_arrow_reader)
    to_batches = iterating_in_thread(Snapshot.to_batches)
    to_pandas = in_thread(Snapshot.to_pandas)
    to_polars = in_thread(Snapshot.to_polars)
    describe = in_thread(Snapshot.describe)
    head = in_thread(Snapshot.head)
    duckdb = in_thread(Snapshot.duckdb)
    sql = in_thread(Snapshot.sql)
    held = entering_in_thread(Snapshot.held, lambda nothing: nothing)


def _asking(
    method: Callable[Concatenate[Client, _Given], _Answer],
) -> Callable[Concatenate["AsyncClient", _Given], Awaitable[_Answer]]:
    """Await what a method of the client asks for: it runs as it stands, over an answerer whose answers are awaited."""

    async def call(self: "AsyncClient", /, *args: _Given.args, **kwargs: _Given.kwargs) -> _Answer:
        asking: Any = _Asking(self._answerer())
        answer: Any = method(asking, *args, **kwargs)
        try:
            found: _Answer = await answer
        except NotFound as error:
            await asyncio.to_thread(_raise_named, self.wrapped, error)
            raise
        return found

    update_wrapper(call, method)
    return call


def _raise_named(client: Client, error: NotFound) -> None:
    with naming_tables(client):
        raise error


def _asking_for_snapshot(
    method: Callable[Concatenate[Client, _Given], Snapshot],
) -> Callable[Concatenate["AsyncClient", _Given], Awaitable[AsyncSnapshot]]:
    ask = _asking(method)

    async def call(self: "AsyncClient", /, *args: _Given.args, **kwargs: _Given.kwargs) -> AsyncSnapshot:
        return AsyncSnapshot(await ask(self, *args, **kwargs))

    update_wrapper(call, method)
    return call


class _Asking:
    """All that the reading methods of a client need of it."""

    def __init__(self, answerer: "ServiceReads | _InThreads") -> None:
        self.answerer = answerer


class _InThreads:
    """An answerer each of whose methods runs in a thread."""

    def __init__(self, answerer: Answerer) -> None:
        self._answerer = answerer

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        return partial(asyncio.to_thread, getattr(self._answerer, name))


class AsyncClient:
    """A connection to a warehouse for asyncio: every method of :class:`icedb_client.Client`, to be awaited.

    Methods that yield are asynchronous iterators, blocks are entered with ``async with``, and a snapshot is an
    :class:`AsyncSnapshot`, whose readers are awaited, too. Use it from one event loop. Arguments, answers and errors
    are those of the client; so are the arguments of the constructor.
    """

    def __init__(self, **arguments: Any) -> None:
        self.wrapped = Client(**arguments)
        self._aio: ServiceReads | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close connections. May be called again; a closed client may be used again."""
        aio, self._aio = self._aio, None
        if aio is not None and self._loop is asyncio.get_running_loop():
            await aio.close()
        await asyncio.to_thread(self.wrapped.close)

    async def watch(self, tables: Sequence[str] = ()) -> AsyncIterator[SnapshotEvent]:
        """See :meth:`icedb_client.Client.watch`."""
        names = check_names(tables)
        if self.wrapped.settings.snapshot_address is None:
            events = iterate_in_thread(lambda: self.wrapped.watch(names))
        else:
            events = self._service().watch(names)
        async with aclosing(events):
            async for event in events:
                yield event

    snapshot = _asking_for_snapshot(Client.snapshot)
    tables = _asking(Client.tables)
    table = _asking(Client.table)
    changes = _asking(Client.changes)
    reading = entering_in_thread(Client.reading, AsyncSnapshot)
    query = in_thread(Client.query)
    table_config = in_thread(Client.table_config)
    enqueue = in_thread(Client.enqueue)
    enqueue_file = iterating_in_thread(Client.enqueue_file)
    enqueue_arrow = iterating_in_thread(Client.enqueue_arrow)
    producer = in_thread(Client.producer)
    wait_committed = in_thread(Client.wait_committed)

    def _answerer(self) -> "ServiceReads | _InThreads":
        if self.wrapped.settings.snapshot_address is None:
            return _InThreads(self.wrapped.answerer)
        return self._service()

    def _service(self) -> "ServiceReads":
        loop = asyncio.get_running_loop()
        if self._aio is None:
            from icedb_client.grpc_reads import ServiceReads, Transport  # noqa: PLC0415 - gRPC only if it is used

            self._aio = ServiceReads(
                self.wrapped.settings,
                clock=self.wrapped.clock,
                transport=Transport(),
                answerer=self.wrapped.answerer,
            )
            self._loop = loop
        if self._loop is not loop:
            raise InvalidRequest("this client belongs to another event loop: make one for each")
        return self._aio
