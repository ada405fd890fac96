"""A directory whose times a test sets: objects in memory under a fake clock, and each of them also as a file.

What reads keys goes by the store, with LastModified as the test wants it; an engine that opens files by their address
finds them below the directory.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from icedb_log.store.object_store import DeleteReport, ObjectInfo, StoredObject

from icedb_sim.fakes.memory_store import MemoryObjectStore


class MirroredStore(MemoryObjectStore):
    """Objects in memory that are files below ``root`` as well. For one thread.

    Args:
        root: The directory; what lies there already is no object.
        now_ms: The store's clock, unix ms.
    """

    def __init__(self, root: Path, now_ms: Callable[[], int]) -> None:
        super().__init__(now_ms)
        self.root: Final = root

    def restore(self, key: str, body: bytes, *, modified_ms: int) -> None:
        """Put an object there as it was written long ago."""
        self._store(key, body)
        found = self._objects[key]
        info = ObjectInfo(key, found.info.etag, len(body), modified_ms)
        self._objects[key] = StoredObject(info, found.body)

    def dump(self, prefix: str) -> Mapping[str, StoredObject]:
        """Return all objects below a prefix."""
        return {key: self._objects[key] for key in self._keys if key.startswith(prefix)}

    def delete(self, keys: Sequence[str]) -> DeleteReport:
        """Delete objects and their files."""
        report = super().delete(keys)
        for key in report.deleted:
            (self.root / key).unlink(missing_ok=True)
        return report

    def uri(self, key: str) -> str:
        """Return the path of an object's file."""
        return str(self.root / key)

    def _store(self, key: str, body: bytes) -> str:
        etag = super()._store(key, body)
        path = self.root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
        return etag
