"""Does a store honour conditional writes? Asked once at start, because everything rests on it.

Some S3-compatible servers accept ``If-None-Match`` and ``If-Match`` and ignore them. On such a store two
committers overwrite each other and acknowledged rows vanish, so it is refused before the first commit. The
probe can only find a store that *ignores* conditions; one that honours them without being atomic shows in a
race only.
"""

import contextlib
from typing import Final

from icedb_log.errors import IceDBError, PreconditionFailed, UnsupportedFormat
from icedb_log.store.object_store import ObjectStore

PROBE_FOLDER: Final = "_icedb_probe"
"""First component of every scratch key. No table's name begins with ``_``: no log file lies below it."""

_WRONG_ETAG: Final = "00000000000000000000000000000000"
_REMEDY: Final = (
    "use a store with conditional writes (AWS S3, MinIO or Ceph in a current version, or a file:// directory)"
)


def probe_conditional_writes(store: ObjectStore, prefix: str, *, scratch_id: str, name: str) -> None:
    """Check that a second create and a replace with a wrong ETag are refused.

    Args:
        store: The store to check.
        prefix: Where scratch keys may lie: empty, or ending with ``/``.
        scratch_id: Unique for each call, so that probes of several processes do not meet.
        name: How messages call the store, e.g. ``bucket events at http://localhost:9000``.

    Raises:
        UnsupportedFormat: A condition was ignored, or a fulfilled one was refused.
        Unavailable: The store cannot be reached or refuses access.
        CommitOutcomeUnknown: The store stopped answering in the middle.

    Idempotency: may be repeated; the scratch object is removed, also after a failure where that is possible.
    """
    key = f"{prefix}{PROBE_FOLDER}/{scratch_id}"
    try:
        etag = store.put_if_absent(key, b"first")
        _expect_refusal(store, key, name)
        try:
            store.put_if_match(key, b"third", etag=etag)
        except PreconditionFailed as error:
            raise UnsupportedFormat(
                f"{name} refused to replace {key} although it had given the ETag {etag!r} for it: its ETags "
                f"cannot be used for If-Match; {_REMEDY}"
            ) from error
    finally:
        # A scratch object that stays costs a few bytes; hiding why the probe failed would cost more.
        with contextlib.suppress(IceDBError):
            store.delete([key])


def _expect_refusal(store: ObjectStore, key: str, name: str) -> None:
    """Try the two writes that must not succeed."""
    for condition in ("If-None-Match: *", "If-Match"):
        try:
            if condition == "If-Match":
                store.put_if_match(key, b"second", etag=_WRONG_ETAG)
            else:
                store.put_if_absent(key, b"second")
        except PreconditionFailed:
            continue
        raise UnsupportedFormat(
            f"{name} ignores conditional writes ({condition} had no effect on {key}): committers would "
            f"overwrite each other and lose rows; {_REMEDY}"
        )
