"""Answers of S3 as XML. Pure.

Source: Amazon S3's API reference; element names and their order are as clients parse them. Text that XML cannot carry
stands as U+FFFD, unless the client asked for ``encoding-type=url``, under which keys and prefixes are percent-encoded.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from urllib.parse import quote
from xml.sax.saxutils import escape  # it writes XML, and parses none  # nosec B406

from icedb_gateway.listing import ListedFile
from icedb_gateway.visible import etag_of, modified_ms_of

NAMESPACE: Final = "http://s3.amazonaws.com/doc/2006-03-01/"
OWNER: Final = "<Owner><ID>icedb</ID><DisplayName>icedb</DisplayName></Owner>"
_HEAD: Final = '<?xml version="1.0" encoding="UTF-8"?>\n'
_NOT_XML: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class ListAnswer:
    """One page of a listing, ready to be written.

    Attributes:
        bucket: Its name.
        prefix: As the client sent it.
        delimiter: The same; empty: none.
        max_keys: The same.
        is_url_encoded: Whether keys and prefixes are percent-encoded.
        files: Ascending by key.
        common_prefixes: Ascending.
        is_truncated: Whether there is another page.
    """

    bucket: str
    prefix: str
    delimiter: str
    max_keys: int
    is_url_encoded: bool
    files: Sequence[ListedFile]
    common_prefixes: Sequence[str]
    is_truncated: bool


def render_list_v2(
    answer: ListAnswer, *, token: str | None, next_token: str | None, start_after: str | None, with_owner: bool
) -> bytes:
    """Return the answer of ListObjectsV2."""
    name = _encoder(answer)
    fields = [
        _element("KeyCount", len(answer.files) + len(answer.common_prefixes)),
        _element("ContinuationToken", token),
        _element("NextContinuationToken", next_token),
        _element("StartAfter", None if start_after is None else name(start_after), is_escaped=True),
    ]
    return _render_list(answer, fields, owner=OWNER if with_owner else "")


def render_list_v1(answer: ListAnswer, *, marker: str, next_marker: str | None) -> bytes:
    """Return the answer of ListObjects, the first version."""
    name = _encoder(answer)
    fields = [
        _element("Marker", name(marker), is_escaped=True),
        _element("NextMarker", None if next_marker is None else name(next_marker), is_escaped=True),
    ]
    return _render_list(answer, fields, owner=OWNER)


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


def render_error(code: str, message: str, *, resource: str, request_id: str) -> bytes:
    """Return an error; errors have no namespace."""
    fields = (("Code", code), ("Message", message), ("Resource", resource), ("RequestId", request_id))
    return f"{_HEAD}<Error>{''.join(_element(name, value) for name, value in fields)}</Error>".encode()


def _render_list(answer: ListAnswer, fields: Iterable[str], *, owner: str) -> bytes:
    name = _encoder(answer)
    parts = [
        _element("Name", answer.bucket),
        f"<Prefix>{name(answer.prefix)}</Prefix>",
        *fields,
        _element("MaxKeys", answer.max_keys),
        _element("Delimiter", name(answer.delimiter) if answer.delimiter else None, is_escaped=True),
        _element("EncodingType", "url" if answer.is_url_encoded else None),
        _element("IsTruncated", "true" if answer.is_truncated else "false"),
    ]
    parts += [
        f"<Contents><Key>{name(file.key)}</Key><LastModified>{_iso(modified_ms_of(file.marker))}</LastModified>"
        f"<ETag>&quot;{etag_of(file.marker.path, file.marker.size_bytes)}&quot;</ETag>"
        f"<Size>{file.marker.size_bytes}</Size>{owner}<StorageClass>STANDARD</StorageClass></Contents>"
        for file in answer.files
    ]
    parts += [f"<CommonPrefixes><Prefix>{name(each)}</Prefix></CommonPrefixes>" for each in answer.common_prefixes]
    return _document("ListBucketResult", "".join(parts))


def _encoder(answer: ListAnswer) -> Callable[[str], str]:
    return _quote if answer.is_url_encoded else _escape


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
