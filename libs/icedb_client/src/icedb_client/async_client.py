"""The client for asyncio: :class:`icedb_client.Client`, awaited.

Has no code of its own for what a client does: each call runs in a thread of the event loop's default executor, and each
iterator has a thread of its own, since it may wait for long. A test compares every name and signature with those of
the client.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, Protocol, Self, TypeVar, cast, runtime_checkable

from icedb_client.client import Client
from icedb_client.snapshots import Snapshot

if TYPE_CHECKING:
    from icedb_log.store.s3_options import S3Options

    from icedb_client.file_list import FileList
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


@runtime_checkable
class Closable(Protocol):
    """An iterator that any thread may close, while another one waits for its next item."""

    def close(self) -> None:
        """End it."""
        ...


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
    """Begin an iterator in a thread of its own, take its items there, and close it when nobody wants more."""
    loop, thread = asyncio.get_running_loop(), ThreadPoolExecutor(1, "icedb-iterator")
    items: Iterator[_Item] = iter(())
    taken: asyncio.Future[Any] | None = None
    try:
        items = await loop.run_in_executor(thread, begin)
        while True:
            taken = loop.run_in_executor(thread, next, items, cast("_Item", _END))
            item = await asyncio.shield(taken)
            if item is _END:
                return
            yield item
    finally:
        if isinstance(items, Generator):
            closing = loop.run_in_executor(thread, items.close)
            if taken is None or taken.done():
                await closing  # else the caller went away in the middle: it is closed when its step has ended
        elif isinstance(items, Closable):
            items.close()
        thread.shutdown(wait=False)


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
    duckdb = in_thread(Snapshot.duckdb)
    sql = in_thread(Snapshot.sql)
    held = entering_in_thread(Snapshot.held, lambda nothing: nothing)


def _snapshot_in_thread(
    method: Callable[Concatenate[Client, _Given], Snapshot],
) -> Callable[Concatenate["AsyncClient", _Given], Awaitable[AsyncSnapshot]]:
    async def call(self: "AsyncClient", /, *args: _Given.args, **kwargs: _Given.kwargs) -> AsyncSnapshot:
        return AsyncSnapshot(await asyncio.to_thread(method, self.wrapped, *args, **kwargs))

    update_wrapper(call, method)
    return call


class AsyncClient:
    """A connection to a warehouse for asyncio: every method of :class:`icedb_client.Client`, to be awaited.

    Methods that yield are asynchronous iterators, blocks are entered with ``async with``, and a snapshot is an
    :class:`AsyncSnapshot`, whose readers are awaited, too. Arguments, answers and errors are those of the client; so
    are the arguments of the constructor. Who cancels a call does not wait for it any more; its thread ends it.
    """

    def __init__(self, address: str | None = None, **arguments: Any) -> None:
        self.wrapped = Client(address, **arguments)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close connections. May be called again; a closed client may be used again."""
        await asyncio.to_thread(self.wrapped.close)

    snapshot = _snapshot_in_thread(Client.snapshot)
    tables = in_thread(Client.tables)
    table = in_thread(Client.table)
    changes = in_thread(Client.changes)
    watch = iterating_in_thread(Client.watch)
    reading = entering_in_thread(Client.reading, AsyncSnapshot)
    query = in_thread(Client.query)
    table_config = in_thread(Client.table_config)
    enqueue = in_thread(Client.enqueue)
    enqueue_file = iterating_in_thread(Client.enqueue_file)
    enqueue_arrow = iterating_in_thread(Client.enqueue_arrow)
    producer = in_thread(Client.producer)
    wait_committed = in_thread(Client.wait_committed)
