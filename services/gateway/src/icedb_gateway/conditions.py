"""Which bytes of a file a request wants, and whether it wants them at all: ranges and conditions. Pure.

Source: RFC 9110, sections 13 and 14, as S3 applies them: one range; conditions on the ETag win over those on times.
"""

import email.utils
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from icedb_gateway.errors import S3Error

_RANGE: Final = re.compile(r"bytes\s*=\s*(?P<first>[0-9]{0,19})\s*-\s*(?P<last>[0-9]{0,19})\s*")


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes ``start`` to ``start + length``; never empty, but for a whole file that is.

    Attributes:
        start: First byte.
        length: How many.
        is_part: Whether the answer says so (206).
    """

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
    """Return what the conditions of a request lead to.

    Args:
        headers: Of the request, names in lower case.
        etag: Of the file, without quotes.
        modified_ms: Its time, unix ms; compared in whole seconds.

    Raises:
        S3Error: PreconditionFailed.
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
