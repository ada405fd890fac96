"""HTTP/1.1 messages as the fault proxy passes them on: a head of bytes and a whole body.

Only what S3 clients and the development server send: lengths or chunks, no upgrades, no pipelining.
"""

import asyncio
import http
from dataclasses import dataclass, replace
from datetime import timedelta
from email.utils import format_datetime, parsedate_to_datetime
from typing import Final, Self

HEAD_END: Final = b"\r\n\r\n"
MAX_HEAD_BYTES: Final = 256 * 1024
_NO_BODY_STATUS: Final = (204, 304)


class BrokenMessage(Exception):
    """A peer sent something that is no message, or went away in the middle of one."""


@dataclass(frozen=True, slots=True)
class Message:
    """A request or an answer.

    Attributes:
        start: First line, without its end.
        headers: Name (as sent) and value of each, in order.
        body: Decoded from chunks if it came so.
    """

    start: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    @property
    def method(self) -> str:
        """Of a request."""
        return self.start.split(" ", 1)[0]

    @property
    def path(self) -> str:
        """Of a request, with its query."""
        return self.start.split(" ", 2)[1]

    @property
    def status(self) -> int:
        """Of an answer."""
        return int(self.start.split(" ", 2)[1])

    def header(self, name: str) -> str:
        """Return a header's value, lower-cased; empty if it is not there."""
        return next((value.lower() for key, value in self.headers if key.lower() == name), "")

    def at_later(self, delay_ms: int) -> Self:
        """Return the answer with a ``Date`` that is so much later."""
        later = timedelta(milliseconds=delay_ms)
        told = (
            (k, format_datetime(parsedate_to_datetime(v) + later, usegmt=True)) if k.lower() == "date" else (k, v)
            for k, v in self.headers
        )
        return replace(self, headers=tuple(told))

    def encode_head(self, *, length: int | None = None) -> bytes:
        """Return the head's bytes; with a length instead of chunks where there is a body."""
        kept = [(key, value) for key, value in self.headers if key.lower() not in ("transfer-encoding", "expect")]
        if length is not None:
            kept = [(key, value) for key, value in kept if key.lower() != "content-length"]
            kept.append(("Content-Length", str(length)))
        return "\r\n".join([self.start, *(f"{key}: {value}" for key, value in kept), "", ""]).encode("latin-1")


async def read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Message | None:
    """Read a request; ``None``: the client has left. A client that waits is told to go on. Raises BrokenMessage."""
    head = await _read_head(reader)
    if head is None:
        return None
    if head.header("expect") == "100-continue":
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    return Message(head.start, head.headers, await _read_body(reader, head, is_answer=False))


async def read_answer(reader: asyncio.StreamReader, *, method: str) -> Message:
    """Read an answer. Raises BrokenMessage."""
    while True:
        head = await _read_head(reader)
        if head is None:
            raise BrokenMessage("the server has left")
        if head.status != http.HTTPStatus.CONTINUE:
            break
    if method == "HEAD" or head.status in _NO_BODY_STATUS:
        return head
    return Message(head.start, head.headers, await _read_body(reader, head, is_answer=True))


def encode_error(status: int) -> bytes:
    """Return an answer with an error as S3 words it."""
    codes = {403: "AccessDenied", 500: "InternalError", 503: "SlowDown", 507: "InsufficientStorage"}
    code = codes.get(status, "InternalError")
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>chaos</Message></Error>".encode()
    head = f"HTTP/1.1 {status} {code}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def _read_head(reader: asyncio.StreamReader) -> Message | None:
    try:
        raw = await reader.readuntil(HEAD_END)
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise BrokenMessage("half a head") from error
        return None
    except (asyncio.LimitOverrunError, OSError) as error:
        raise BrokenMessage(str(error)) from error
    start, *lines = raw.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    pairs = (line.partition(":") for line in lines)
    return Message(start, tuple((name.strip(), value.strip()) for name, _, value in pairs), b"")


async def _read_body(reader: asyncio.StreamReader, head: Message, *, is_answer: bool) -> bytes:
    length = head.header("content-length")
    try:
        if head.header("transfer-encoding") == "chunked":
            return await _read_chunks(reader)
        if length:
            return await reader.readexactly(int(length))
        return await reader.read() if is_answer else b""
    except (asyncio.IncompleteReadError, OSError, ValueError) as error:
        raise BrokenMessage("half a body") from error


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    parts: list[bytes] = []
    while size := int((await reader.readline()).split(b";")[0], 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    while (await reader.readline()).strip():
        pass
    return b"".join(parts)
