"""Reads request bodies: bounded in bytes, in time, and in what all of them hold together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from icedb_log.units import MIB, SECOND_MS
from starlette.requests import ClientDisconnect, Request

from icedb_ingest.frontend.errors import BatchTooLarge, BodyTimeout, ProducerLeft
from icedb_ingest.frontend.memory import Hold, Memory

STEP_BYTES: Final = MIB
"""By how much the room of a body of unknown length grows."""


def declared_bytes(request: Request, *, max_bytes: int) -> int | None:
    """Return the length that a request declares; ``None`` for a chunked body. Raises BatchTooLarge."""
    text = request.headers.get("content-length", "")
    if not text.isdigit():
        return None
    size_bytes = int(text)
    if size_bytes > max_bytes:
        raise _too_large(max_bytes)
    return size_bytes


@dataclass(slots=True)
class HeldBody:
    """A body, and the room that it takes.

    Attributes:
        body: All of it.
        hold: Its room.
    """

    body: bytes
    hold: Hold


@asynccontextmanager
async def held_body(request: Request, *, memory: Memory, max_bytes: int, timeout_ms: int) -> AsyncIterator[HeldBody]:
    """Yield a request's whole body; its room is given back at the end of the block.

    Raises:
        BatchTooLarge: More than ``max_bytes``.
        BodyTimeout: It took longer than ``timeout_ms``.
        Busy: No room for it.
        ProducerLeft: The connection ended first.
    """
    size_bytes = declared_bytes(request, max_bytes=max_bytes)
    room_bytes = size_bytes if size_bytes is not None else min(STEP_BYTES, max_bytes)
    async with memory.hold(room_bytes) as hold:
        chunks: list[bytes] = []
        read_bytes = 0
        try:
            async with asyncio.timeout(timeout_ms / SECOND_MS):
                async for chunk in request.stream():
                    read_bytes += len(chunk)
                    if read_bytes > max_bytes:
                        raise _too_large(max_bytes)
                    if read_bytes > room_bytes:
                        room_bytes = min(room_bytes + max(STEP_BYTES, len(chunk)), max_bytes)
                        hold.grow_to(room_bytes)
                    chunks.append(chunk)
        except TimeoutError:
            raise BodyTimeout(
                f"the body did not come within {timeout_ms} ms ({read_bytes} bytes did); send it compressed, or in "
                "smaller batches"
            ) from None
        except ClientDisconnect as error:
            raise ProducerLeft(f"the connection ended after {read_bytes} bytes of the body") from error
        held = HeldBody(b"".join(chunks), hold)
        chunks.clear()
        yield held


def _too_large(max_bytes: int) -> BatchTooLarge:
    return BatchTooLarge(f"the body is larger than {max_bytes} bytes: cut it into several batches")
