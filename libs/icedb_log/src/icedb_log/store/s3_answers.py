"""What S3's answers tell about objects, as the values of :mod:`icedb_log.store.object_store`. Pure."""

from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any

from botocore.utils import parse_timestamp

from icedb_log.store.object_store import ObjectInfo, StoredObject


def if_match_of(etag: str | None) -> dict[str, str]:
    """Return the condition of a read."""
    return {} if etag is None else {"IfMatch": etag}


def part_of(key: str, answer: dict[str, Any], body: bytes, *, start: int, length: int) -> StoredObject:
    """Return what a read of a range found; a server that ignores ranges has sent the whole object."""
    content_range = answer.get("ContentRange")
    if content_range is None:
        return StoredObject(info_of(key, answer, size_bytes=len(body)), body[start : start + length])
    return StoredObject(info_of(key, answer, size_bytes=int(content_range.rpartition("/")[2])), body)


def info_of(key: str, answer: dict[str, Any], *, size_bytes: int) -> ObjectInfo:
    """Describe an object as an answer or an entry of a listing does."""
    modified: datetime = answer["LastModified"]
    return ObjectInfo(key, strip_quotes(answer["ETag"]), size_bytes, int(modified.timestamp()) * 1000)


def parse_time(value: Any) -> datetime:
    """Return a time as botocore's own parser does, a listing's ``2026-11-22T10:11:12.000Z`` fifty times as fast."""
    if isinstance(value, str) and value.endswith("Z"):
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            pass
    parsed: datetime = parse_timestamp(value)
    return parsed


def parse_date_ms(date: str) -> int:
    """Return the time of a ``Date`` header, unix ms, in whole seconds. Raises ValueError."""
    return int(parsedate_to_datetime(date).timestamp()) * 1000


def strip_quotes(etag: str) -> str:
    """Return an ETag without quotes."""
    return etag.strip('"')
