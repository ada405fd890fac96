"""What small objects say, kept between looks: an object is fetched again when a listing shows another version of it."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Generic, TypeVar

from icedb_log.errors import NotFound
from icedb_log.store.object_store import ObjectInfo, ObjectStore, StoredObject

FETCH_THREADS: Final = 16
_T = TypeVar("_T")


class KnownObjects(Generic[_T]):
    """Reads the objects of listings of one prefix; keeps what it read by key and version. Thread-safe.

    Args:
        decode: Makes a value of an object; must not raise.
        fetch_threads: Objects fetched at once; 1 fetches one after another in the caller's thread.
    """

    def __init__(self, decode: Callable[[StoredObject], _T], *, fetch_threads: int = 1) -> None:
        self._decode = decode
        self._fetch_threads = fetch_threads
        self._known: dict[str, tuple[ObjectInfo, _T]] = {}

    def read(self, store: ObjectStore, infos: Sequence[ObjectInfo]) -> list[_T]:
        """Return what listed objects say, without those that are gone. One GET for each that is new or has changed.

        Raises:
            Unavailable: The store did not answer.
        """
        known = self._known
        current = {info.key: known[info.key] for info in infos if info.key in known and known[info.key][0] == info}
        stale = [info for info in infos if info.key not in current]

        def fetch(info: ObjectInfo) -> tuple[ObjectInfo, _T] | None:
            try:
                # Time and content from one answer: it may have been written again since the listing. It is kept as what
                # was listed: the next listing says otherwise, and it is read again.
                return info, self._decode(store.get(info.key))
            except NotFound:
                return None

        if self._fetch_threads == 1 or len(stale) < 2:  # noqa: PLR2004 - one needs no pool
            fetched = [fetch(info) for info in stale]
        else:
            with ThreadPoolExecutor(min(self._fetch_threads, len(stale)), "icedb-known-objects") as pool:
                fetched = list(pool.map(fetch, stale))
        current |= {found[0].key: found for found in fetched if found is not None}
        self._known = current
        return [current[info.key][1] for info in infos if info.key in current]
