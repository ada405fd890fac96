"""From methods that block to methods that are awaited: same name, arguments, documentation and answer.

An asynchronous class wraps an object that blocks, its ``wrapped``, and has one line for each of its methods. Signatures
and docstrings are those of the method that is wrapped, for people, editors and type checkers: they cannot drift.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from functools import update_wrapper
from typing import Any, Concatenate, Final, ParamSpec, Protocol, TypeVar, cast

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
