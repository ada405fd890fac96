"""Rows of data files whose markers do not say: what other writers of the log format made live.

Engines take the number of rows from a manifest (``count(*)`` asks for nothing else), so a guess would be a wrong
answer: it is read from the footer.
"""

from collections.abc import Iterable

from icedb_log.model import FileMarker
from icedb_log.store.object_store import ObjectStore

from icedb_iceberg.footers import read_footers


def read_row_counts(store: ObjectStore, markers: Iterable[FileMarker]) -> dict[str, int]:
    """Return the rows of the files whose markers do not say, by path. Raises as :func:`read_footers`."""
    unknown = (marker for marker in markers if marker.row_count is None)
    return {footer.info.key: footer.row_count for footer in read_footers(store, unknown)}
