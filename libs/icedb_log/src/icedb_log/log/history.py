"""What the last commits of a table did, from its log, for people. Pure.

A log file tells as long as it exists. That of a merge names the replaced files until the janitor has deleted
these and stripped the log file (J3): there is less information about old commits than about new ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from icedb_log.keys import find_log_name, parse_log_key
from icedb_log.log.markers import Markers, markers_of
from icedb_log.model import ListedLogFile, LogView

DEFAULT_COMMITS: Final = 20


@dataclass(frozen=True, slots=True)
class Volume:
    """Some data files of one commit: how many, their rows (``None``: some file does not say), their bytes."""

    file_count: int = 0
    row_count: int | None = 0
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class CommitInfo:
    """What one commit did.

    Attributes:
        key: Its log file.
        time_ms: When, by the committer's clock.
        what: ``append``, ``merge``, ``delete``, ``rewrite``, ``merge_query``, ``removal``; ``feed``: a view took rows
            of its source; ``fold``: log files became one, no data file changed; ``refusal``: only refused batches;
            ``other``: it does not say (another writer, a rebuild). Whatever a later release calls it stands as it is.
        added: Data files that it made; ``None``: the log does not tell any more.
        removed: Data files that it replaced or removed, as far as the log still names them.
        batch_count: Batches that became live by it.
        refused_count: Batches that it refused.
        log_file_count: Log files that it replaced, as far as it still names them.
    """

    key: str
    time_ms: int
    what: str
    added: Volume | None
    removed: Volume
    batch_count: int
    refused_count: int
    log_file_count: int


class CommitHistory:
    """The newest commits of one table. Keeps what it has worked out: what a log file says changes only by a strip (J3).

    For one thread at a time.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], CommitInfo] = {}

    def read(self, view: LogView, *, limit: int = DEFAULT_COMMITS) -> tuple[CommitInfo, ...]:
        """Return the newest commits, the newest first; dead log files count as long as they are there."""
        files = sorted((f for f in view.files if not f.log.is_seal), key=lambda file: (file.log.time_ms, file.key))
        newest = {(file.key, file.etag): file for file in reversed(files[max(0, len(files) - limit) :])}
        self._known = {name: self._known.get(name) or describe_commit(file) for name, file in newest.items()}
        return tuple(self._known.values())


def describe_commit(file: ListedLogFile) -> CommitInfo:
    """Return what the commit of one log file did. Looks at each of its markers once, and decodes none."""
    log, markers = file.log, markers_of(file.key, file.log.markers)
    removed = [at for at, time_ms in markers.dead.items() if time_ms == log.time_ms]
    replaced = [each.path for each in log.log_tombstones if each.tombstoned_ms == log.time_ms]
    live = [at for at in range(len(markers)) if at not in markers.dead]
    added: list[int] | None = live
    if removed:
        # M1: outputs come first, then what they replace, then what is carried from the log files that are replaced.
        added = [at for at in live if at < min(removed)]
    elif replaced:
        # What is carried is older than the log files that it was in.
        carried_ms = max((name.time_ms for name in map(find_log_name, replaced) if name is not None), default=0)
        added = [at for at in live if markers.created_ms(at) > carried_ms]
    elif parse_log_key(file.key).is_merged:
        added = None
    return CommitInfo(
        key=file.key,
        time_ms=log.time_ms,
        what=_name(file, is_fold=added == [] and not removed),
        added=None if added is None else _measure(markers, added),
        removed=_measure(markers, removed),
        batch_count=len(log.batch_ids),
        refused_count=len(log.refused_ids),
        log_file_count=len(replaced),
    )


def _name(file: ListedLogFile, *, is_fold: bool) -> str:
    log = file.log
    if log.change == "append":
        if log.feed is not None:
            return "feed"
        return "refusal" if log.refused_ids and not log.markers else "append"
    if is_fold and log.change in (None, "merge"):
        return "fold"
    return log.change or "other"


def _measure(markers: Markers, chosen: Sequence[int]) -> Volume:
    rows = [markers.row_count(at) for at in chosen]
    known = [count for count in rows if count is not None]
    return Volume(
        len(chosen),
        sum(known) if len(known) == len(rows) else None,
        sum(markers.size_bytes(at) for at in chosen),
    )
