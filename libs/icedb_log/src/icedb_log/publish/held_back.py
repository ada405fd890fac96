"""What keeps the newest state of a table from being published: written down for operators, readers and merges.

``_icedb/iceberg/held-back.json``: ``{"format": 1, "as_of": <ms>, "reason": <text>, "files": [<paths>], "narrow":
[<paths>]}``. It is advice: written over without a condition, never taken away, and void as soon as none of its files is
live, or a publication shows a later state. Merges write the narrow files anew before anything else
(:mod:`icedb_log.merge.merge_plan`), so that a table whose columns became wider mends itself.
"""

from dataclasses import dataclass, replace
from typing import Final

import orjson

from icedb_log.errors import NotFound
from icedb_log.log.live_files import LiveFiles
from icedb_log.model import LogView
from icedb_log.store.table_store import TableStore

_FORMAT: Final = 1
MAX_PATHS: Final = 1000
"""So many files are written down; others are found when these have gone."""


@dataclass(frozen=True, slots=True)
class HeldBack:
    """Why a state was not published.

    Attributes:
        as_of_ms: The store's clock before its log was listed.
        reason: In words, with what to do.
        files: Paths of live data files that cannot be published; not all of them if they are many.
        narrow: Those of them that a merge writes anew rightly: older than a column's wider type.
    """

    as_of_ms: int
    reason: str
    files: tuple[str, ...]
    narrow: tuple[str, ...] = ()

    def is_over(self, live: LiveFiles, *, published_ms: int) -> bool:
        """Whether it says nothing any more, given what is live, and which time the current publication shows."""
        return published_ms >= self.as_of_ms or all(live.find(path) is None for path in self.files)


def write_held_back(table: TableStore, held: HeldBack) -> None:
    """Write down why a state was not published. Idempotent. Raises Unavailable."""
    held = replace(held, files=held.files[:MAX_PATHS], narrow=held.narrow[:MAX_PATHS])
    known = read_held_back(table)
    # The same files are live, so that no later state was published meanwhile.
    if known is None or (known.reason, known.files, known.narrow) != (held.reason, held.files, held.narrow):
        _put(table, held)


def forget_held_back(table: TableStore) -> None:
    """Write over what stands there: paths of data files say values of partitions (E5). Raises Unavailable."""
    known = read_held_back(table)
    if known is not None and known.files:
        _put(table, HeldBack(0, "", ()))


def _put(table: TableStore, held: HeldBack) -> None:
    fields = {
        "format": _FORMAT,
        "as_of": held.as_of_ms,
        "reason": held.reason,
        "files": held.files,
        "narrow": held.narrow,
    }
    table.store.put(table.paths.held_back_key, orjson.dumps(fields))


def read_held_back(table: TableStore) -> HeldBack | None:
    """Return what stands there, over or not; ``None``: nothing, or nothing that this release understands. One request.

    Raises:
        Unavailable: The store did not answer.
    """
    try:
        said = orjson.loads(table.store.get(table.paths.held_back_key).body)
        if said["format"] != _FORMAT:
            return None
        return HeldBack(int(said["as_of"]), str(said["reason"]), tuple(said["files"]), tuple(said["narrow"]))
    except NotFound:
        return None
    except (ValueError, KeyError, TypeError):
        return None  # advice that nobody understands is none


def find_narrow(table: TableStore, view: LogView) -> frozenset[str]:
    """Return data files that are older than a column's wider type and keep the table from being published.

    One request, and none for a table without widened columns.

    Raises:
        Unavailable: The store did not answer.
    """
    if not any(file.log.widened for file in view.files):
        return frozenset()
    held = read_held_back(table)
    return frozenset() if held is None else frozenset(held.narrow)
