"""A read-only S3 server over a directory that lets every request wait: what loopback lacks of a real store.

``python -m bench.slow_s3 --root DIRECTORY --latency-ms 15 --port-file FILE``. Serves the files that are there when it
starts as objects, each folder of the directory as a bucket: GetObject (ranges, ``If-Match``), HeadObject,
ListObjectsV2; with ``--live`` those that are there when it is asked. It looks at no signature. Requests wait side by
side, as on S3, and not one after another: an event loop, no lock. What a request costs the server itself is taken from
the same cores as the readers' time. Requests and bytes are counted, and told as :mod:`bench.counting_s3` tells them.
"""

import argparse
import asyncio
import json
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import formatdate
from itertools import islice
from pathlib import Path
from typing import Final
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from bench.servers import running_server, tell_port

COUNTS: Final = "/-/counts"
MAX_KEYS: Final = 1000
_REASONS: Final = {200: "OK", 206: "Partial Content", 404: "Not Found", 405: "Method Not Allowed", 412: "Failed"}
_PAST_FOLDER: Final = "\U0010ffff"


@dataclass(frozen=True, slots=True)
class Served:
    """One object."""

    path: Path
    size_bytes: int
    etag: str
    modified_s: float

    @property
    def headers(self) -> tuple[str, ...]:
        """What every answer about it says."""
        return (f'ETag: "{self.etag}"', f"Last-Modified: {formatdate(self.modified_s, usegmt=True)}")


@dataclass(frozen=True, slots=True)
class Answer:
    """What goes back; ``size_bytes`` where the body is left out (HEAD)."""

    status: int
    body: bytes = b""
    headers: tuple[str, ...] = ()
    size_bytes: int = -1


@dataclass(slots=True)
class Page:
    """One page of a listing."""

    rows: dict[str, str] = field(default_factory=dict)
    last: str = ""
    is_truncated: bool = False


class Objects:
    """What a bucket holds: every file below a directory, or below one folder of it, as it was at the start."""

    def __init__(self, root: Path, folder: Path | None = None) -> None:
        self._by_key = {
            path.relative_to(root).as_posix(): _serve(path) for path in (folder or root).rglob("*") if path.is_file()
        }
        self._keys = sorted(self._by_key)

    def answer(self, method: str, key: str, query: str, headers: dict[str, str]) -> Answer:
        """Answer a read of an object, or a listing if there is no key."""
        if not key:
            return self._list({name: values[0] for name, values in parse_qs(query).items()})
        found = self._by_key.get(key)
        if found is None:
            return _missing("NoSuchKey")
        if method == "HEAD":
            return Answer(200, headers=found.headers, size_bytes=found.size_bytes)
        return _read(found, headers)

    def _list(self, query: dict[str, str]) -> Answer:
        prefix, limit = query.get("prefix", ""), min(int(query.get("max-keys", MAX_KEYS)), MAX_KEYS)
        page = self._page(
            prefix, query.get("delimiter", ""), query.get("continuation-token", query.get("start-after")), limit
        )
        token = f"<NextContinuationToken>{escape(page.last)}</NextContinuationToken>" if page.is_truncated else ""
        body = (
            '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Prefix>{escape(prefix)}</Prefix><KeyCount>{len(page.rows)}</KeyCount>"
            f"<MaxKeys>{limit}</MaxKeys><IsTruncated>{str(page.is_truncated).lower()}</IsTruncated>{token}"
            f"{''.join(page.rows.values())}</ListBucketResult>"
        )
        return Answer(200, body.encode(), ("Content-Type: application/xml",))

    def _page(self, prefix: str, delimiter: str, after: str | None, limit: int) -> Page:
        page = Page()
        start = max(bisect_left(self._keys, prefix), bisect_right(self._keys, after) if after else 0)
        for key in islice(self._keys, start, None):
            if not key.startswith(prefix):
                break
            folder, is_inside, _ = key[len(prefix) :].partition(delimiter) if delimiter else ("", "", "")
            name = f"{prefix}{folder}{delimiter}" if is_inside else key
            if name not in page.rows and len(page.rows) == limit:
                page.is_truncated = True
                break
            if is_inside:
                page.rows[name] = f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
                page.last = name + _PAST_FOLDER
            else:
                page.rows[name], page.last = self._row(key), key
        return page

    def _row(self, key: str) -> str:
        found = self._by_key[key]
        modified = datetime.fromtimestamp(found.modified_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        return (
            f"<Contents><Key>{escape(key)}</Key><LastModified>{modified}</LastModified>"
            f"<ETag>&quot;{found.etag}&quot;</ETag><Size>{found.size_bytes}</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
        )


class LiveObjects(Objects):
    """What a bucket holds whenever it is asked."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def answer(self, method: str, key: str, query: str, headers: dict[str, str]) -> Answer:
        """Look at the object, or at the folder that a listing is of, and answer."""
        prefix = key or parse_qs(query).get("prefix", [""])[0]
        folder = self._root / prefix.rpartition("/")[0]
        while True:
            with suppress(FileNotFoundError):  # deleted meanwhile
                return Objects(self._root, folder).answer(method, key, query, headers)


def _serve(path: Path) -> Served:
    stat = path.stat()
    return Served(path, stat.st_size, f"{stat.st_ino:x}{stat.st_mtime_ns:x}", stat.st_mtime)


def _read(found: Served, headers: dict[str, str]) -> Answer:
    wanted = headers.get("if-match", "*").strip('"')
    if wanted not in ("*", found.etag):
        return Answer(412)
    unit, _, span = headers.get("range", "").partition("=")
    if unit != "bytes":
        return Answer(200, found.path.read_bytes(), found.headers)
    first, _, last = span.partition("-")
    start = int(first) if first else max(0, found.size_bytes - int(last))
    end = int(last) + 1 if first and last else found.size_bytes
    with found.path.open("rb") as file:
        file.seek(start)
        part = file.read(end - start)
    return Answer(
        206, part, (*found.headers, f"Content-Range: bytes {start}-{start + len(part) - 1}/{found.size_bytes}")
    )


def _missing(code: str) -> Answer:
    return Answer(404, f"<Error><Code>{code}</Code></Error>".encode(), ("Content-Type: application/xml",))


@dataclass(slots=True)
class Tally:
    """What was asked for since somebody asked for this."""

    operations: Counter[str] = field(default_factory=Counter)
    sent_bytes: int = 0

    def note(self, method: str, key: str, sent_bytes: int) -> None:
        """Count one request."""
        self.operations["list" if method == "GET" and not key else method.lower()] += 1
        self.sent_bytes += sent_bytes

    def take(self) -> bytes:
        """Return all as JSON, and begin anew."""
        body = json.dumps({"operations": self.operations, "bytes": {"sent": self.sent_bytes}}).encode()
        self.operations, self.sent_bytes = Counter(), 0
        return body


class Connection(asyncio.Protocol):
    """One connection: requests one after another, each answered ``latency_s`` after it came."""

    def __init__(self, buckets: Mapping[str, Objects], latency_s: float, tally: Tally) -> None:
        self._buckets = buckets
        self._latency_s = latency_s
        self._tally = tally
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep it."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer every request that is complete; none has a body, but for the last one of a connection."""
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head, self._buffer = self._buffer[:end].decode("latin-1"), self._buffer[end + 4 :]
            asyncio.get_running_loop().call_later(self._latency_s, self._answer, head)

    def _answer(self, head: str) -> None:
        first, *lines = head.split("\r\n")
        method, target, _ = first.split(" ", 2)
        pairs = (line.partition(":") for line in lines)
        answer = self._find(method, target, {name.lower(): value.strip() for name, _, value in pairs})
        size_bytes = len(answer.body) if answer.size_bytes < 0 else answer.size_bytes
        said = [
            f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}",
            f"Content-Length: {size_bytes}",
            f"Date: {formatdate(usegmt=True)}",
            *answer.headers,
        ]
        body = b"" if method == "HEAD" else answer.body
        if target != COUNTS:
            self._tally.note(method, urlsplit(target).path.strip("/").partition("/")[2], len(body))
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write("\r\n".join((*said, "\r\n")).encode() + body)

    def _find(self, method: str, target: str, headers: dict[str, str]) -> Answer:
        if target == COUNTS:
            return Answer(200, self._tally.take())
        parts = urlsplit(target)
        bucket, _, key = unquote(parts.path).lstrip("/").partition("/")
        if method not in ("GET", "HEAD"):
            return Answer(405)
        objects = self._buckets.get(bucket)
        return _missing("NoSuchBucket") if objects is None else objects.answer(method, key, parts.query, headers)


def running_slow_s3(root: Path, folder: Path, *, latency_ms: int, is_live: bool = False) -> AbstractContextManager[str]:
    """Serve what lies below ``root`` now, or what will lie there; the server's address comes out."""
    more = ["--live"] if is_live else []
    return running_server(["bench.slow_s3", "--root", str(root), "--latency-ms", str(latency_ms), *more], folder)


async def _run(buckets: Mapping[str, Objects], latency_s: float, port_file: Path) -> None:
    loop = asyncio.get_running_loop()
    tally = Tally()
    server = await loop.create_server(lambda: Connection(buckets, latency_s, tally), "127.0.0.1", 0)
    tell_port(server.sockets[0].getsockname()[1], port_file)
    await server.serve_forever()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the server until it is told to end."""
    parser = argparse.ArgumentParser(prog="python -m bench.slow_s3", description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--latency-ms", type=int, required=True)
    parser.add_argument("--port-file", type=Path, required=True)
    parser.add_argument("--live", action="store_true")
    options = parser.parse_args(arguments)
    kind = LiveObjects if options.live else Objects
    buckets = {folder.name: kind(folder) for folder in options.root.iterdir() if folder.is_dir()}
    asyncio.run(_run(buckets, options.latency_ms / 1000, options.port_file))


if __name__ == "__main__":
    main()
