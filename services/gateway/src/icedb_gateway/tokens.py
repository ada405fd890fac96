"""Where the next page of a listing begins: after which key, and in which snapshot. Pure.

A continuation token names the snapshot of the table in whose middle the page ended, so that all pages of a table show
one state, whichever replica answers. Version 1 of the listing has no token, but a marker, which is a key: the next
marker is the last key with ``#`` and the token behind it. That sorts right after the key, and no key of ours has a
``#``, so that it also means the right thing to whoever takes it for a key.
"""

import base64
import binascii
from dataclasses import dataclass
from typing import Any, Final

import orjson

from icedb_gateway.errors import S3Error, invalid_argument

MAX_TOKEN_CHARS: Final = 8192
_MARK: Final = "#"
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class SnapshotName:
    """Which state of a table a listing shows.

    Attributes:
        folder: First component of its keys, e.g. ``events`` or ``events@pin-eom``.
        snapshot_id: As of :class:`icedb_log.model.Snapshot`.
        last_commit_ms: Time of its newest commit: how another replica finds it again.
    """

    folder: str
    snapshot_id: str
    last_commit_ms: int


@dataclass(frozen=True, slots=True)
class Resume:
    """Where a listing goes on.

    Attributes:
        after: The last key or common prefix that was listed.
        snapshot: Of the table in whose middle that was; ``None``: between two tables.
    """

    after: str
    snapshot: SnapshotName | None = None


def encode_token(resume: Resume) -> str:
    """Return a token of URL-safe characters."""
    name = resume.snapshot
    fields: list[Any] = [_VERSION, resume.after]
    if name is not None:
        fields += [name.folder, name.snapshot_id, name.last_commit_ms]
    return base64.urlsafe_b64encode(orjson.dumps(fields)).decode().rstrip("=")


def decode_token(token: str) -> Resume:
    """Return what a token says.

    Raises:
        S3Error: It is none of ours.
    """
    if not token or len(token) > MAX_TOKEN_CHARS:
        raise _wrong_token()
    try:
        fields = orjson.loads(base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError):
        raise _wrong_token() from None
    match fields:
        case [int(version), str(after)] if version == _VERSION:
            return Resume(after)
        case [int(version), str(after), str(folder), str(snapshot_id), int(commit_ms)] if version == _VERSION:
            return Resume(after, SnapshotName(folder, snapshot_id, commit_ms))
        case _:
            raise _wrong_token()


def encode_marker(resume: Resume) -> str:
    """Return a marker for version 1 of the listing."""
    return f"{resume.after}{_MARK}{encode_token(resume)}"


def decode_marker(marker: str) -> Resume:
    """Return what a marker says; one that is a key alone says no snapshot.

    Raises:
        S3Error: It has a token that is none of ours.
    """
    key, mark, token = marker.rpartition(_MARK)
    if not mark:
        return Resume(marker)
    resume = decode_token(token)
    if resume.after != key:
        raise _wrong_token()
    return resume


def _wrong_token() -> S3Error:
    return invalid_argument("The continuation token provided is incorrect. List again from the beginning.")
