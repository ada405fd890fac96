"""Reading all pages of Parquet files in an object store against their checksums, without an engine.

A file is copied to the local disk and read there, mapped: memory stays small, however large it is. Nothing that a file
holds can end the process (:mod:`icedb_log.parquet.pages`).
"""

import tempfile
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from icedb_log.errors import IceDBError, InvalidRequest, NotFound
from icedb_log.parquet.pages import DamagedPages, check_file_sums
from icedb_log.repair.pages import PageLook
from icedb_log.store.object_store import ObjectInfo, ObjectStore

from icedb_client.batches import zstd

PAGE_THREADS: Final = 4
_ZSTD: Final = 6
"""In Parquet's list of codecs."""


class ParquetPageReader:
    """Reads pages; implements :class:`~icedb_log.repair.pages.PageReader`.

    Args:
        store: Where the files are.
        threads: Files read, and copies on the local disk, at once.
    """

    def __init__(self, store: ObjectStore, *, threads: int = PAGE_THREADS) -> None:
        self._store = store
        self._threads = threads

    def read_pages(self, infos: Iterable[ObjectInfo]) -> Iterator[PageLook]:
        """Read all bytes of any number of files: one result each, in the same order."""
        waiting: deque[Future[PageLook]] = deque()
        with tempfile.TemporaryDirectory(prefix="icedb-pages-") as folder:
            pool = ThreadPoolExecutor(self._threads, "icedb-pages")
            try:
                for number, info in enumerate(infos):
                    waiting.append(pool.submit(self._look, info, Path(folder) / f"{number}.parquet"))
                    if len(waiting) >= self._threads:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
            finally:
                pool.shutdown(cancel_futures=True)

    def _look(self, info: ObjectInfo, path: Path) -> PageLook:
        try:
            self._store.download(info.key, path)
            counts = check_file_sums(path, unpack=_unpack)
        except DamagedPages as error:
            return PageLook(info, cause="damaged", reason=str(error))
        except (NotFound, InvalidRequest):  # no store has a key that none takes
            return PageLook(info, cause="gone", reason="it is gone since it was listed")
        except (IceDBError, OSError) as error:
            return PageLook(info, cause="unanswered", reason=str(error))
        finally:
            path.unlink(missing_ok=True)
        return PageLook(info, page_count=counts.pages, unsummed_count=counts.unsummed)


def _unpack(codec: int, data: bytes, size_bytes: int) -> str | None:
    """Say what is wrong with a page that has no checksum, as far as its compression can tell."""
    if codec != _ZSTD or not size_bytes:
        return None
    try:
        found = zstd.ZstdDecompressor().decompress(data, size_bytes + 1)
    except zstd.ZstdError as error:
        return f"cannot be decompressed ({error})"
    return None if len(found) == size_bytes else f"has {len(found)} bytes without compression, not {size_bytes}"
