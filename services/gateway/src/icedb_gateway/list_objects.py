"""ListObjects in both versions: pages of at most 1,000 keys over one table or many. And all answers of S3 as XML.

Owns how a page goes from table to table. Each table is shown in one snapshot, on as many pages as it takes; between two
tables a page names none. A common prefix that is a whole table costs no read of it.

Element names and their order are as clients parse them (Amazon S3's API reference). Text that XML cannot carry stands
as U+FFFD, unless the client asked for ``encoding-type=url``, under which keys and prefixes are percent-encoded.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote
from xml.sax.saxutils import escape  # it writes XML, and parses none  # nosec B406

from icedb_log.errors import NotFound
from icedb_service.access.access_file import Identity, Verb

from icedb_gateway.errors import S3Error, invalid_argument, not_implemented
from icedb_gateway.listing import (
    ListedFile,
    ListQuery,
    Resume,
    TableRef,
    decode_marker,
    decode_token,
    encode_marker,
    encode_token,
    etag_of,
    list_table,
    modified_ms_of,
    parse_table_ref,
)
from icedb_gateway.requests import GatewayParts, S3Request
from icedb_gateway.views import TableViews

NAMESPACE: Final = "http://s3.amazonaws.com/doc/2006-03-01/"
OWNER: Final = "<Owner><ID>icedb</ID><DisplayName>icedb</DisplayName></Owner>"
_HEAD: Final = '<?xml version="1.0" encoding="UTF-8"?>\n'
_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


MAX_KEYS: Final = 1000
_NUMBER: Final = re.compile(r"[0-9]{1,10}")
_COMMON: Final = {"prefix", "delimiter", "max-keys", "encoding-type", "x-id"}
_V1: Final = {*_COMMON, "marker"}
_V2: Final = {*_COMMON, "list-type", "continuation-token", "start-after", "fetch-owner"}
_AFTER_SLASH: Final = chr(ord("/") + 1)


@dataclass(frozen=True, slots=True)
class ListRequest:
    """A checked request for a page: what it has, where it begins, and its parameters as they were sent."""

    query: ListQuery
    resume: Resume
    is_v2: bool
    parameters: Mapping[str, str]


@dataclass(slots=True)
class ListPage:
    """A page of a listing, while it is being filled, both ascending; ``next``: where another one would begin."""

    files: list[ListedFile] = field(default_factory=list)
    common_prefixes: list[str] = field(default_factory=list)
    next: Resume | None = None

    def __len__(self) -> int:
        return len(self.files) + len(self.common_prefixes)


def render_buckets(bucket: str) -> bytes:
    """Return the answer of ListBuckets."""
    entry = f"<Bucket>{_element('Name', bucket)}{_element('CreationDate', _iso(0))}</Bucket>"
    return _document("ListAllMyBucketsResult", f"{OWNER}<Buckets>{entry}</Buckets>")


def render_location(region: str) -> bytes:
    """Return the answer of GetBucketLocation; us-east-1 is spelt as nothing."""
    return _document("LocationConstraint", "" if region == "us-east-1" else escape(region))


def render_versioning() -> bytes:
    """Return the answer of GetBucketVersioning: never turned on."""
    return _document("VersioningConfiguration", "")


def render_list(bucket: str, asked: ListRequest, page: ListPage) -> bytes:
    """Return the answer of ListObjects or of ListObjectsV2."""
    parameters, query = asked.parameters, asked.query
    is_url_encoded = "encoding-type" in parameters
    name = _quote if is_url_encoded else _escape
    if asked.is_v2:
        owner = OWNER if parameters.get("fetch-owner") == "true" else ""
        start_after = parameters.get("start-after")
        own = [
            _element("KeyCount", len(page)),
            _element("ContinuationToken", parameters.get("continuation-token")),
            _element("NextContinuationToken", None if page.next is None else encode_token(page.next)),
            _element("StartAfter", None if start_after is None else name(start_after), is_escaped=True),
        ]
    else:
        owner = OWNER
        own = [
            _element("Marker", name(parameters.get("marker", "")), is_escaped=True),
            _element("NextMarker", None if page.next is None else name(encode_marker(page.next)), is_escaped=True),
        ]
    content = [
        _element("Name", bucket),
        _element("Prefix", name(query.prefix), is_escaped=True),
        *own,
        _element("MaxKeys", query.limit),
        _element("Delimiter", name(query.delimiter) if query.delimiter else None, is_escaped=True),
        _element("EncodingType", "url" if is_url_encoded else None),
        _element("IsTruncated", "false" if page.next is None else "true"),
    ]
    content += [
        f"<Contents><Key>{name(file.key)}</Key><LastModified>{_iso(modified_ms_of(file.marker))}</LastModified>"
        f"<ETag>&quot;{etag_of(file.marker.path, file.marker.size_bytes)}&quot;</ETag>"
        f"<Size>{file.marker.size_bytes}</Size>{owner}<StorageClass>STANDARD</StorageClass></Contents>"
        for file in page.files
    ]
    content += [f"<CommonPrefixes><Prefix>{name(each)}</Prefix></CommonPrefixes>" for each in page.common_prefixes]
    return _document("ListBucketResult", "".join(content))


def render_error(code: str, message: str, *, resource: str, request_id: str) -> bytes:
    """Return an error; errors have no namespace."""
    fields = (("Code", code), ("Message", message), ("Resource", resource), ("RequestId", request_id))
    return f"{_HEAD}<Error>{''.join(_element(name, value) for name, value in fields)}</Error>".encode()


def _quote(text: str) -> str:
    return quote(text, safe="/-_.~", errors="replace")


def _escape(text: str) -> str:
    return escape(_NOT_XML.sub("\ufffd", text))


def _element(name: str, value: str | int | None, *, is_escaped: bool = False) -> str:
    """Return an element; nothing where there is no value."""
    if value is None:
        return ""
    return f"<{name}>{value if is_escaped else _escape(str(value))}</{name}>"


def _document(name: str, content: str) -> bytes:
    return f'{_HEAD}<{name} xmlns="{NAMESPACE}">{content}</{name}>'.encode()


def _iso(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")


class Lister:
    """Answers listings."""

    def __init__(self, parts: GatewayParts, views: TableViews) -> None:
        self._parts = parts
        self._views = views
        self._guard = parts.guard
        self._compute = parts.reads.work.run_compute

    async def list_objects(self, request: S3Request, identity: Identity) -> bytes:
        """Return one page.

        Raises:
            IceDBError: What is wrong with the request, the token, the caller's rights, or a table.
        """
        try:
            asked = parse_list_request(request.parameters)
        except S3Error:
            self._guard.charge(identity)
            raise
        page = ListPage()
        if asked.query.limit:
            await self._fill(page, asked, identity)
        else:
            self._guard.charge(identity)
        bucket = self._parts.settings.gateway_bucket
        return await self._compute(lambda: render_list(bucket, asked, page))

    async def _fill(self, page: ListPage, asked: ListRequest, identity: Identity) -> None:
        query = asked.query
        finished = ""  # after which the next page begins, if another table has something for it
        for ref in await self._find_tables(query.prefix, identity):
            folder = f"{ref}/"
            if folder < query.after and not query.after.startswith(folder):
                continue
            common_prefix = query.roll_up(folder)
            if common_prefix is not None and common_prefix in (query.after, finished):
                continue
            if len(page) == query.limit:
                page.next = Resume(finished)
                return
            if common_prefix is not None:
                page.common_prefixes.append(common_prefix)
                finished = common_prefix
            elif await self._list_one(page, asked, ref):
                return
            else:
                finished = f"{ref}{_AFTER_SLASH}"

    async def _list_one(self, page: ListPage, asked: ListRequest, ref: TableRef) -> bool:
        """Add what a table has; return whether the page ends in its middle."""
        query, name = asked.query, asked.resume.snapshot
        try:
            if name is not None and name.folder == str(ref):
                snapshot = await self._views.same_snapshot(ref, name)
            else:
                snapshot = await self._views.snapshot(ref)
        except NotFound:
            return False
        rest = replace(query, limit=query.limit - len(page))
        data_prefix = self._views.data_prefix(ref)
        part = await self._compute(lambda: list_table(snapshot.live, rest, folder=f"{ref}/", data_prefix=data_prefix))
        page.files += part.files
        page.common_prefixes += part.common_prefixes
        if part.is_truncated:
            page.next = Resume(part.last, self._views.keep(ref, snapshot))
        return part.is_truncated

    async def _find_tables(self, prefix: str, identity: Identity) -> list[TableRef]:
        """Return the tables that may have keys with a prefix and that the caller may read, ascending."""
        first, slash, _ = prefix.partition("/")
        if slash or "@" in first:
            ref = parse_table_ref(first)
            if ref is None:
                self._guard.charge(identity)
                return []
            try:
                self._guard.require(identity, Verb.READ, ref.table)
            except NotFound:
                return []
            return [ref]
        self._guard.charge(identity)
        names = await self._parts.names.read()
        return [
            TableRef(name)
            for name in names
            if name.startswith(prefix) and self._guard.allows(identity, Verb.READ, name)
        ]


def parse_list_request(parameters: Mapping[str, str]) -> ListRequest:
    """Check the parameters of a listing.

    Raises:
        S3Error: InvalidArgument, NotImplemented; names the parameter.
    """
    is_v2 = "list-type" in parameters
    unknown = set(parameters) - (_V2 if is_v2 else _V1)
    if unknown:
        raise not_implemented(f"A listing with the parameter {min(unknown)[:80]!r}")
    if is_v2 and parameters["list-type"] != "2":
        raise invalid_argument("list-type: use 2, or leave it out for the first version")
    if parameters.get("encoding-type", "url") != "url":
        raise invalid_argument("Invalid Encoding Method specified in Request: use url")
    if is_v2:
        token = parameters.get("continuation-token")
        resume = Resume(parameters.get("start-after", "")) if token is None else decode_token(token)
    else:
        resume = decode_marker(parameters.get("marker", ""))
    query = ListQuery(
        prefix=parameters.get("prefix", ""),
        delimiter=parameters.get("delimiter", ""),
        after=resume.after,
        limit=_read_max_keys(parameters.get("max-keys")),
    )
    return ListRequest(query, resume, is_v2, parameters)


def _read_max_keys(text: str | None) -> int:
    if text is None:
        return MAX_KEYS
    if not _NUMBER.fullmatch(text):
        raise S3Error("InvalidArgument", f"max-keys {text[:40]!r} is not an integer from 0 to 2147483647")
    return min(int(text), MAX_KEYS)
