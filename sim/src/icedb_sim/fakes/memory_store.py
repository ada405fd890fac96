"""An object store in memory: the base of the simulation and of unit tests.

Owns nothing durable. It behaves as S3 does where that matters to the log: conditional writes are atomic, each
page of a listing is consistent, and a token resumes *after a key*, so that whatever changes between two pages
shows exactly as it does on S3 (R1).
"""

import hashlib
import itertools
import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from pathlib import Path

from icedb_log.errors import InvalidRequest, NotFound, PreconditionFailed
from icedb_log.store.object_store import (
    MAX_KEYS_PER_PAGE,
    DeleteReport,
    FailedDelete,
    ObjectInfo,
    ObjectPage,
    StoredObject,
    check_byte_range,
    check_folder_prefix,
    check_key,
    check_page_limit,
    check_presign_ms,
    probe_conditional_writes,
)

_ETAG_BYTES = 16
_AFTER_SLASH = chr(ord("/") + 1)


class MemoryObjectStore:
    """Objects in a dictionary and their keys in a sorted list. Safe for use by many threads."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        """Make an empty store.

        Args:
            now_ms: The store's clock, unix ms. If it runs backwards the store's time stands still instead.
        """
        self._now_ms = now_ms
        self._latest_ms = 0
        self._objects: dict[str, StoredObject] = {}
        self._keys: list[str] = []
        self._lock = threading.Lock()
        self._probe_ids = itertools.count()

    def probe(self) -> None:
        """Check that conditional writes are honoured."""
        probe_conditional_writes(self, "", scratch_id=f"{next(self._probe_ids):08x}", name="the store in memory")

    def get(self, key: str, *, if_match: str | None = None) -> StoredObject:
        """Return an object. Raises NotFound, PreconditionFailed."""
        stored = self._objects.get(key)
        if stored is None:
            raise _not_found(key)
        if if_match is not None and stored.info.etag != if_match:
            raise PreconditionFailed(f"{key}: its ETag is {stored.info.etag}, not {if_match}; list and read again")
        return stored

    def get_range(self, key: str, *, start: int, length: int, if_match: str | None = None) -> StoredObject:
        """Return a part of an object. Raises NotFound, PreconditionFailed, InvalidRequest."""
        check_byte_range(start, length)
        stored = self.get(key, if_match=if_match)
        return StoredObject(stored.info, stored.body[start : start + length])

    def head(self, key: str) -> ObjectInfo:
        """Return an object's metadata. Raises NotFound."""
        stored = self._objects.get(key)
        if stored is None:
            raise _not_found(key)
        return stored.info

    def holds(self, key: str) -> bool:
        """Return whether an object is there."""
        return key in self._objects

    def put_if_absent(self, key: str, body: bytes) -> str:
        """Create an object. Raises PreconditionFailed if it exists."""
        with self._lock:
            if key in self._objects:
                raise PreconditionFailed(f"{key}: exists already; read it back and compare before concluding (W2)")
            return self._store(key, body)

    def put_if_match(self, key: str, body: bytes, *, etag: str) -> str:
        """Replace an object that still has ``etag``. Raises PreconditionFailed otherwise."""
        with self._lock:
            stored = self._objects.get(key)
            if stored is None:
                check_key(key)
            if stored is None or stored.info.etag != etag:
                found = "is gone" if stored is None else f"has the ETag {stored.info.etag}"
                raise PreconditionFailed(f"{key}: {found}, expected {etag}; read it again (W2)")
            return self._store(key, body)

    def put(self, key: str, body: bytes) -> str:
        """Write an object whatever is there."""
        with self._lock:
            return self._store(key, body)

    def list_page(self, prefix: str, *, token: str | None = None, limit: int = MAX_KEYS_PER_PAGE) -> ObjectPage:
        """List one page; the token is the last key of the page before."""
        check_page_limit(limit)
        with self._lock:
            keys, objects = self._keys, self._objects
            start = bisect_left(keys, prefix) if token is None else bisect_right(keys, max(token, prefix))
            found = keys[start : start + limit + 1]
            if found and not found[-1].startswith(prefix):
                del found[bisect_left(found, 1, key=lambda key: not key.startswith(prefix)) :]
            has_more = len(found) > limit
            if has_more:
                del found[limit:]
            infos = tuple([objects[key].info for key in found])
            return ObjectPage(infos, found[-1] if has_more else None, self._tick())

    def list_folders(self, prefix: str) -> tuple[str, ...]:
        """List the first components below ``prefix``, jumping over what lies inside each."""
        check_folder_prefix(prefix)
        folders: list[str] = []
        with self._lock:
            keys = self._keys
            at = bisect_left(keys, prefix)
            while at < len(keys) and keys[at].startswith(prefix):
                folder, slash, _ = keys[at][len(prefix) :].partition("/")
                if slash:
                    folders.append(folder)
                    at = bisect_left(keys, f"{prefix}{folder}{_AFTER_SLASH}", at)
                else:
                    at += 1
        return tuple(sorted(folders))

    def delete(self, keys: Sequence[str]) -> DeleteReport:
        """Delete objects; missing ones count as deleted, impossible keys as failed."""
        deleted: list[str] = []
        failed: list[FailedDelete] = []
        with self._lock:
            for key in dict.fromkeys(keys):
                if self._objects.pop(key, None) is not None:
                    del self._keys[bisect_left(self._keys, key)]
                else:
                    try:
                        check_key(key)
                    except InvalidRequest as error:
                        failed.append(FailedDelete(key, str(error)))
                        continue
                deleted.append(key)
        return DeleteReport(tuple(deleted), tuple(failed))

    def abort_stale_uploads(self, prefix: str, *, before_ms: int) -> int:
        """Return 0: a write here is done, or was never begun."""
        del prefix, before_ms
        return 0

    def download(self, key: str, path: Path) -> ObjectInfo:
        """Write an object to a local file. Raises NotFound."""
        stored = self.get(key)
        path.write_bytes(stored.body)
        return stored.info

    def upload(self, key: str, path: Path, *, may_move: bool = False) -> None:
        """Read a local file into an object. Raises InvalidRequest if the file cannot be read."""
        try:
            body = path.read_bytes()
            if may_move:
                path.unlink()
        except OSError as error:
            raise InvalidRequest(f"{path}: cannot be uploaded as {key}: {error.strerror}") from error
        self.put(key, body)

    def uri(self, key: str) -> str:
        """Return ``memory://`` and the key; no engine can open it."""
        return f"memory://{key}"

    def presign(self, key: str, *, expires_ms: int) -> str:
        """Return what looks like a URL and tells when it ends, by the store's clock; nothing can open it."""
        check_presign_ms(expires_ms)
        return f"memory://{key}?expires={self._now_ms() + expires_ms}"

    def _tick(self) -> int:
        """Return the store's time, which never runs backwards. The lock is held."""
        now_ms = self._now_ms()
        if now_ms > self._latest_ms:
            self._latest_ms = now_ms
        return self._latest_ms

    def _store(self, key: str, body: bytes) -> str:
        """Set an object. The lock is held."""
        if key not in self._objects:
            check_key(key)
            insort(self._keys, key)
        etag = hashlib.blake2b(body, digest_size=_ETAG_BYTES).hexdigest()
        self._objects[key] = StoredObject(ObjectInfo(key, etag, len(body), self._tick()), bytes(body))
        return etag


def _not_found(key: str) -> NotFound | InvalidRequest:
    """Return the error for a key that is not there; a key that cannot be there gets its own."""
    try:
        check_key(key)
    except InvalidRequest as error:
        return error
    return NotFound(f"{key}: no such object in the store in memory")
