"""Which object keys every store takes: the common ground of S3 and a directory.

Owns the one rule, so that a table can be copied from any store to any other. It knows nothing of tables:
:mod:`icedb_log.keys` builds the keys. Keys are compared by the bytes of their UTF-8 form, which for Python
strings without surrogates is the same as comparing the strings.
"""

import re
from typing import Final

from icedb_log.errors import InvalidRequest
from icedb_log.store.object_store import MAX_KEYS_PER_PAGE

MAX_KEY_BYTES: Final = 1024
"""S3's limit."""

MAX_COMPONENT_BYTES: Final = 255
"""What ext4, xfs, APFS and NTFS take as one file name."""

_SHOWN_CHARS: Final = 120
# Control characters, surrogates and non-characters: XML, in which S3 lists and deletes, cannot carry them.
_FORBIDDEN: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
_PLAIN: Final = re.compile(r"[A-Za-z0-9_=+~-][A-Za-z0-9_=+~.-]{0,200}(/[A-Za-z0-9_=+~-][A-Za-z0-9_=+~.-]{0,200})*")


def check_key(key: str) -> str:
    """Return ``key`` if every store takes it.

    Args:
        key: A full key, without a leading slash.

    Raises:
        InvalidRequest: It is empty, too long, or has a component that is empty, ``.`` or ``..``, or a
            character that no listing could carry. The message says which.
    """
    if len(key) <= MAX_KEY_BYTES and _PLAIN.fullmatch(key):
        return key
    problem = _find_problem(key)
    if problem:
        raise InvalidRequest(
            f"object key {key[:_SHOWN_CHARS]!r} {problem}; use 1 to {MAX_KEY_BYTES} bytes of UTF-8, "
            f"components of at most {MAX_COMPONENT_BYTES} bytes between single slashes, no '.' or '..', "
            "no control characters"
        )
    return key


def is_listable(key: str) -> bool:
    """Whether S3 can hold and list a key at all: a looser rule than :func:`check_key`, for objects of others."""
    return bool(key) and not _FORBIDDEN.search(key) and len(key.encode()) <= MAX_KEY_BYTES


def check_byte_range(start: int, length: int) -> None:
    """Refuse a part of an object that begins before it, or has fewer than no bytes. Raises InvalidRequest."""
    if start < 0 or length < 0:
        raise InvalidRequest(f"byte range from {start}, {length} bytes: neither may be negative; correct the call")


def check_page_limit(limit: int) -> int:
    """Return ``limit`` if it is a number of keys that one page may hold, else raise InvalidRequest."""
    if not 1 <= limit <= MAX_KEYS_PER_PAGE:
        raise InvalidRequest(f"a page of {limit} keys was asked for: use 1 to {MAX_KEYS_PER_PAGE}")
    return limit


def check_folder_prefix(prefix: str) -> str:
    """Return ``prefix`` if it is empty or ends with a slash, else raise InvalidRequest."""
    if prefix and not prefix.endswith("/"):
        raise InvalidRequest(f"folders are listed below a prefix that ends with '/', not {prefix[:_SHOWN_CHARS]!r}")
    return prefix


def _find_problem(key: str) -> str | None:
    """Return what is wrong with a key as the middle of a sentence, or ``None``."""
    if not key:
        return "is empty"
    if _FORBIDDEN.search(key):
        return "has a control character, a surrogate or a non-character"
    if len(key.encode()) > MAX_KEY_BYTES:
        return f"has {len(key.encode())} bytes"
    for component in key.split("/"):
        if component in ("", ".", ".."):
            return f"has the component {component!r}"
        if len(component.encode()) > MAX_COMPONENT_BYTES:
            return f"has a component of {len(component.encode())} bytes"
    return None
