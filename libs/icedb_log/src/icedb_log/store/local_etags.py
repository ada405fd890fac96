"""ETags of the files of a directory store.

Up to ``MAX_HASHED_BYTES`` an ETag is a hash of the content. Above that (data files, which are never edited) it is
inode, size and modification time, so that no listing ever reads a large file: there, equal ETags mean equal content,
but equal content written twice has two ETags.
"""

import hashlib
from collections.abc import Callable
from typing import Final

from icedb_log.store.local_files import FileVersion

MAX_HASHED_BYTES: Final = 64 * 1024
"""Up to this size an ETag is a hash of the content."""

_MAX_CACHED: Final = 65_536
_HASH_BYTES: Final = 16


class ETags:
    """The ETags of small files that this process has hashed. Safe for use by many threads."""

    def __init__(self) -> None:
        self._found: dict[FileVersion, str] = {}

    def known(self, version: FileVersion) -> str | None:
        """Return the ETag of a version that was hashed before, else ``None``."""
        return self._found.get(version)

    def find(self, version: FileVersion, read: Callable[[], bytes]) -> str:
        """Return the ETag of a version, hashing what ``read`` returns if it is small and new to this process."""
        if version.size_bytes > MAX_HASHED_BYTES:
            return f"{version.inode:x}-{version.size_bytes:x}-{version.mtime_ns:x}"
        etag = self._found.get(version)
        if etag is None:
            etag = hashlib.blake2b(read(), digest_size=_HASH_BYTES).hexdigest()
            if len(self._found) >= _MAX_CACHED:
                self._found.clear()
            self._found[version] = etag
        return etag
