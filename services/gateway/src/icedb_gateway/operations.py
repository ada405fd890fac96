"""What S3 clients can ask for: buckets, listings, and files; all of it reads.

Each operation checks what the caller may see before it looks whether it is there: a table that is hidden is answered as
one that does not exist. Ranges and conditions are those of RFC 9110, sections 13 and 14, as S3 applies them: one range;
conditions on the ETag win over those on times.

Objects of tables can also be read by their own keys, as Iceberg's metadata names them. Under the bucket of the
warehouse's public location, two kinds: data files, and what lies in a table's ``_icedb/iceberg/metadata/``. A data file
has to be named by the table's log besides, live or dead (:mod:`icedb_gateway.views`): what a publication names was live
in some state, and keeps its tombstone until it is deleted. Nothing else has a key here: no log, no staged batch, no
configuration, no listing. A key is compared as it is, component by component: nothing in it is resolved, so that ``..``
leads nowhere.
"""

import email.utils
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, Literal
from urllib.parse import urlsplit

from cachetools import TTLCache
from icedb_iceberg.location import read_location
from icedb_log.errors import HaltError, IceDBError, InvalidRequest, NotFound, PermissionDenied
from icedb_log.keys import TABLE_FOLDER, TablePaths, file_time_ms
from icedb_log.units import SECOND_MS
from icedb_service.access.access_file import Identity, Verb
from icedb_service.logs import get_logger

from icedb_gateway.bodies import Bodies, OpenBody
from icedb_gateway.errors import S3Error, no_such_bucket, no_such_key, not_implemented, not_published, to_s3_error
from icedb_gateway.list_objects import Lister, render_buckets, render_location, render_versioning
from icedb_gateway.listing import TableRef, etag_of, modified_ms_of, parse_table_ref
from icedb_gateway.requests import GatewayParts, S3Request, Sender
from icedb_gateway.views import FoundFile, TableViews

LOCATION_AGE_MS: Final = 10 * SECOND_MS
"""How long the public location is believed: it is fixed, until a person changes it."""
_FOLDERS: Final = ("/_data/", "/_icedb/")
_METADATA_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,250}")


@dataclass(frozen=True, slots=True)
class TableObject:
    """What a key means.

    Attributes:
        table: Whose it is.
        path: Its key in the store.
        rest: What follows the folder of its kind.
        is_metadata: Whether it is Iceberg's metadata, and not a data file.
    """

    table: str
    path: str
    rest: str
    is_metadata: bool


@dataclass(frozen=True, slots=True)
class _Place:
    bucket: str
    root: str


_NOWHERE: Final = _Place("", "")
"""No bucket has this name."""


class TableObjects:
    """Reads keys. Use it from one event loop."""

    def __init__(self, parts: GatewayParts) -> None:
        self._warehouse = parts.warehouse
        self._work = parts.reads.work
        self._places: TTLCache[None, _Place] = TTLCache(1, LOCATION_AGE_MS, parts.clock.monotonic_ms)

    async def is_bucket(self, bucket: str) -> bool:
        """Whether the warehouse's public location is in this bucket. Raises as :meth:`parse`."""
        return bool(bucket) and bucket == (await self._find_place()).bucket

    async def parse(self, bucket: str, key: str) -> TableObject | None:
        """Return what a key means; ``None`` for one that is of no object of a table, or of another bucket.

        Raises:
            Overloaded: Too many calls wait for the store.
            Unavailable: The public location could not be read.
        """
        if not bucket or not any(folder in key for folder in _FOLDERS):  # of a view: most of what is asked for
            return None
        place = await self._find_place()
        if bucket != place.bucket or not key.startswith(place.root):
            return None
        folder, _, rest = key.removeprefix(place.root).partition("/")
        found = TABLE_FOLDER.fullmatch(folder)
        if found is None:
            return None
        first = self._warehouse.first(found["name"])
        return self._below(first.numbered(int(found["number"] or 1)).paths, rest)

    async def _find_place(self) -> _Place:
        place = self._places.get(None)
        if place is None:
            place = self._places[None] = await self._work.run_blocking("", self._read_place)
        return place

    @staticmethod
    def _below(paths: TablePaths, rest: str) -> TableObject | None:
        path = f"{paths.prefix}/{rest}"
        if path.startswith(paths.data_prefix):
            return TableObject(paths.name, path, path.removeprefix(paths.data_prefix), is_metadata=False)
        name = path.removeprefix(paths.published_prefix)
        if name != path and _METADATA_NAME.fullmatch(name):
            return TableObject(paths.name, path, name, is_metadata=True)
        return None

    def _read_place(self) -> _Place:
        try:
            parts = urlsplit(read_location(self._warehouse.store, self._warehouse.root))
        except (InvalidRequest, HaltError) as error:
            get_logger().error(
                "public_location_unusable", reason=str(error), mitigation="no file can be read by its key"
            )
            return _NOWHERE
        if parts.scheme != "s3":
            return _NOWHERE
        root = parts.path.strip("/")
        return _Place(parts.netloc, f"{root}/" if root else "")


_RANGE: Final = re.compile(r"bytes\s*=\s*(?P<first>[0-9]{0,19})\s*-\s*(?P<last>[0-9]{0,19})\s*")


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes ``start`` to ``start + length``; never empty, but for a whole file that is. ``is_part``: status 206."""

    start: int
    length: int
    is_part: bool


def parse_range(header: str | None, *, size_bytes: int) -> ByteRange:
    """Return what a ``Range`` header asks for. Several ranges, or what is no range, ask for the whole, as on S3.

    Raises:
        S3Error: InvalidRange: none of its bytes exist.
    """
    match = _RANGE.fullmatch(header) if header is not None else None
    if match is None or not (match["first"] or match["last"]):
        return ByteRange(0, size_bytes, is_part=False)
    first, last = match["first"], match["last"]
    if not first:
        length = min(int(last), size_bytes)
        start, end = size_bytes - length, size_bytes
    else:
        start = int(first)
        end = min(int(last) + 1, size_bytes) if last else size_bytes
        if last and int(last) < start:
            return ByteRange(0, size_bytes, is_part=False)
    if start >= end:
        raise S3Error(
            "InvalidRange",
            f"The requested range is not satisfiable: the object has {size_bytes} bytes",
            status=416,
            headers={"Content-Range": f"bytes */{size_bytes}"},
        )
    return ByteRange(start, end - start, is_part=True)


def check_conditions(headers: Mapping[str, str], *, etag: str, modified_ms: int) -> Literal["send", "not_modified"]:
    """Return what the conditions in a request's headers (names in lower case) lead to. Raises S3Error (412).

    The ETag is without quotes; times are compared in whole seconds.
    """
    modified_s = modified_ms // 1000
    if_match, if_none_match = headers.get("if-match"), headers.get("if-none-match")
    if if_match is not None:
        if not _names(if_match, etag):
            raise _failed("If-Match")
    elif (since_s := _time(headers.get("if-unmodified-since"))) is not None and modified_s > since_s:
        raise _failed("If-Unmodified-Since")
    if if_none_match is not None:
        return "not_modified" if _names(if_none_match, etag) else "send"
    since_s = _time(headers.get("if-modified-since"))
    return "not_modified" if since_s is not None and modified_s <= since_s else "send"


def http_date(time_ms: int) -> str:
    """Return a time as HTTP headers have it, in whole seconds."""
    return email.utils.formatdate(time_ms // 1000, usegmt=True)


def _names(header: str, etag: str) -> bool:
    values = (value.strip().removeprefix("W/").strip('"') for value in header.split(","))
    return any(value in ("*", etag) for value in values)


def _time(header: str | None) -> float | None:
    if header is None:
        return None
    try:
        return email.utils.parsedate_to_datetime(header).timestamp()
    except (ValueError, OverflowError):
        return None


def _failed(condition: str) -> S3Error:
    return S3Error(
        "PreconditionFailed",
        f"At least one of the pre-conditions you specified did not hold: {condition}",
        status=412,
    )


XML: Final = "application/xml"
BINARY: Final = "application/octet-stream"
PARQUET: Final = "application/vnd.apache.parquet"
FILE_ENDING: Final = ".parquet"
_IGNORED: Final = ("x-id",)
"""Says the operation's name once more, for logs."""


@dataclass(frozen=True, slots=True)
class FileBody:
    """The bytes of a file that an answer has: how the client named it, where it lies, its size, and which part.

    ``ref`` is ``None`` for what is no data file.
    """

    ref: TableRef | None
    rest: str
    path: str
    size_bytes: int
    part: ByteRange


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request is answered, without the headers that every answer has: a small body, or a file's bytes."""

    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    file: FileBody | None = None


class Operations:
    """Answers requests whose sender is known."""

    def __init__(self, parts: GatewayParts, bodies: Bodies) -> None:
        self._views = TableViews(parts)
        self._objects = TableObjects(parts)
        self._lister = Lister(parts, self._views)
        self._bodies = bodies
        self._guard = parts.guard
        self._bucket = parts.settings.gateway_bucket
        self._region = parts.settings.region
        self._metrics = parts.metrics

    async def run(self, request: S3Request, sender: Sender) -> Answer:
        """Answer a request. Raises an IceDBError for whatever is wrong with it."""
        identity = sender.identity
        if request.method not in ("GET", "HEAD"):
            self._guard.charge(identity)
            raise S3Error(
                "MethodNotAllowed",
                f"{request.method} is not allowed against this resource: this endpoint shows tables and changes "
                "nothing. Send batches to ingest.",
                status=405,
                headers={"Allow": "GET, HEAD"},
            )
        if not request.bucket and not request.key and sender.table is None:
            self._guard.charge(identity)
            _refuse_unknown(request.parameters, (), "ListBuckets")
            return _xml(render_buckets(self._bucket))
        found = await self._objects.parse(request.bucket, request.key)
        if found is not None:
            return await self._find_own(request, sender, found)
        is_own = request.bucket == self._bucket
        if sender.table is not None or (not is_own and await self._objects.is_bucket(request.bucket)):
            self._guard.charge(identity)
            raise not_published(request.key)
        if not is_own:
            self._guard.charge(identity)
            raise no_such_bucket(request.bucket)
        if request.key:
            return await self._find_object(request, identity)
        return await self._read_bucket(request, identity)

    async def open(self, file: FileBody) -> OpenBody:
        """Fetch the first part of a file.

        Raises:
            S3Error: NoSuchKey: it went since it was listed; InternalError: it is live and not there.
            Unavailable: The store did not answer in time.
        """
        try:
            opened = await self._bodies.open(file.path, start=file.part.start, length=file.part.length)
        except NotFound:
            raise await self._explain_missing(file) from None
        if opened.first.info.size_bytes != file.size_bytes:
            get_logger().error("file_of_another_size", key=file.path, logged=file.size_bytes)
            raise S3Error(
                "InternalError", f"{file.path}: has not the size that the log says; run `icedb fsck`", status=500
            )
        return opened

    async def _read_bucket(self, request: S3Request, identity: Identity) -> Answer:
        if request.method == "HEAD":
            self._guard.charge(identity)
            return Answer(headers={"x-amz-bucket-region": self._region})
        for name in ("location", "versioning"):
            if name in request.parameters:
                self._guard.charge(identity)
                _refuse_unknown(request.parameters, (name,), f"?{name}")
                return _xml(render_location(self._region) if name == "location" else render_versioning())
        return _xml(await self._lister.list_objects(request, identity))

    async def _find_own(self, request: S3Request, sender: Sender, found: TableObject) -> Answer:
        """Answer a request for an object of a table by its own key, as Iceberg's metadata names it.

        Whatever may not be read is answered alike, so that nobody learns what is there.
        """
        if sender.table is not None and sender.table != found.table:
            self._guard.charge(sender.identity)
            raise not_published(request.key)
        try:
            self._guard.require(sender.identity, Verb.READ, found.table)
        except (NotFound, PermissionDenied):
            raise not_published(request.key) from None
        _refuse_unknown(request.parameters, (), "An object with the parameter")
        if found.is_metadata:
            return await self._answer_metadata(request, found)
        ref, file = TableRef(found.table), None
        with suppress(NotFound):
            file = await self._views.find(ref, found.rest)
        if file is None:
            raise not_published(request.key)
        return await self._answer_file(request, ref, found.rest, file)

    async def _answer_metadata(self, request: S3Request, found: TableObject) -> Answer:
        try:
            info = await self._bodies.describe(found.path)
        except NotFound:
            raise _gone(request.key) from None
        body = FileBody(None, found.rest, found.path, info.size_bytes, ByteRange(0, info.size_bytes, is_part=False))
        return _answer_body(request, body, etag=info.etag, modified_ms=info.modified_ms, content_type=BINARY)

    async def _find_object(self, request: S3Request, identity: Identity) -> Answer:
        folder, _, rest = request.key.partition("/")
        ref = parse_table_ref(folder)
        if ref is None:
            self._guard.charge(identity)
            raise no_such_key(request.key)
        try:
            self._guard.require(identity, Verb.READ, ref.table)
        except NotFound:
            raise no_such_key(request.key) from None
        if request.parameters.get("versionId", "null") != "null":
            raise S3Error("NoSuchVersion", "Files have no versions: leave out versionId.", status=404)
        _refuse_unknown(request.parameters, ("versionId",), "An object with the parameter")
        if not rest.endswith(FILE_ENDING):  # engines look for folders and markers all the time: no read of the log
            raise no_such_key(request.key)
        found = None
        with suppress(NotFound):
            found = await self._views.find(ref, rest)
        if found is None:
            raise no_such_key(request.key)
        return await self._answer_file(request, ref, rest, found)

    async def _answer_file(self, request: S3Request, ref: TableRef, rest: str, found: FoundFile) -> Answer:
        size_bytes, modified_ms = await self._describe(request.key, found)
        body = FileBody(ref, rest, found.path, size_bytes, ByteRange(0, size_bytes, is_part=False))
        etag = etag_of(found.path, size_bytes)
        return _answer_body(request, body, etag=etag, modified_ms=modified_ms, content_type=PARQUET)

    async def _describe(self, key: str, found: FoundFile) -> tuple[int, int]:
        """Return size and time of a file; of one that is tombstoned, only the store knows the first."""
        if found.marker is not None:
            return found.marker.size_bytes, modified_ms_of(found.marker)
        try:
            info = await self._bodies.describe(found.path)
        except NotFound:
            raise _gone(key) from None
        return info.size_bytes, file_time_ms(found.path) or info.modified_ms

    async def _explain_missing(self, file: FileBody) -> S3Error:
        """Say why a file that the log named a moment ago is not there: the log may have gone on since."""
        if file.ref is None:
            return _gone(file.path)
        try:
            found = await self._views.find(file.ref, file.rest, must_be_fresh=True)
        except IceDBError as error:
            return to_s3_error(error)
        key = f"{file.ref}/{file.rest}"
        if found is None or found.marker is None:
            return _gone(key)
        self._metrics.missing_files.inc()
        get_logger().error("live_file_missing", key=file.path, mitigation="run `icedb fsck`; rows are missing")
        return S3Error(
            "InternalError", f"{key}: is live, but its object is not in the store; run `icedb fsck`", status=500
        )


def _answer_body(request: S3Request, body: FileBody, *, etag: str, modified_ms: int, content_type: str) -> Answer:
    """Return the answer for a file that is there, by the conditions and the range of the request."""
    headers = {"ETag": f'"{etag}"', "Last-Modified": http_date(modified_ms), "Accept-Ranges": "bytes"}
    if check_conditions(request.headers, etag=etag, modified_ms=modified_ms) == "not_modified":
        return Answer(304, headers)
    part = parse_range(request.headers.get("range"), size_bytes=body.size_bytes)
    headers |= {"Content-Type": content_type, "Content-Length": str(part.length)}
    if part.is_part:
        headers["Content-Range"] = f"bytes {part.start}-{part.start + part.length - 1}/{body.size_bytes}"
    status = 206 if part.is_part else 200
    if request.method == "HEAD" or not part.length:
        return Answer(status, headers)
    return Answer(status, headers, file=replace(body, part=part))


def _gone(key: str) -> S3Error:
    return no_such_key(key, "its rows are in other files since, and it is past the table's grace period; list again")


def _xml(body: bytes) -> Answer:
    return Answer(headers={"Content-Type": XML, "Content-Length": str(len(body))}, body=body)


def _refuse_unknown(parameters: Mapping[str, str], known: Sequence[str], what: str) -> None:
    unknown = set(parameters) - {*known, *_IGNORED}
    if unknown:
        raise not_implemented(f"{what} {min(unknown)[:80]!r}")
