"""Which commits are lost: a fence says that they landed, and their log files are not there (rule F5). Pure.

A history proves what it names and nothing else: it is short, and older releases drop it. Must never call a commit lost
that a merge replaced, or a vacuum deleted: so the log has to be read *after* the fences.
"""

from collections.abc import Iterable
from typing import Final

from icedb_log.errors import CorruptLog
from icedb_log.keys import log_name, parse_log_key
from icedb_log.log.fold import read_horizon_ms
from icedb_log.model import LogView

MAX_LANDED: Final = 100
"""So many commits a fence remembers. Each takes 51 bytes of an object that is written twice for each commit."""


def add_landed(landed: tuple[str, ...], key: str) -> tuple[str, ...]:
    """Return a history with one more commit that certainly landed, the newest last.

    Args:
        landed: Names of log files (:func:`~icedb_log.keys.log_name`).
        key: Of the log file.
    """
    name = log_name(key)
    return (*(each for each in landed if each != name), name)[-MAX_LANDED:]


def find_lost(landed: Iterable[str], view: LogView) -> tuple[str, ...]:
    """Return the commits whose log files were lost, ascending.

    Args:
        landed: Names of log files of commits that landed, as fences said.
        view: The log, read after the fences: what had landed by then is in it, or a merge replaced it before.
    """
    missing = drop_known(landed, view)
    if not missing:
        return ()
    # R3: a log file that the janitor has deleted was replaced by a merge with a later time (S1), which is part of the
    # horizon for as long as the table lives.
    horizon_ms = read_horizon_ms(view)
    return tuple(sorted(name for name in missing if _time_ms(name) > horizon_ms))


def drop_known(names: Iterable[str], view: LogView) -> set[str]:
    """Return those of some log files that are not there (nor renamed, W2), not sealed and not dead by the log."""
    missing = set(names) - {log_name(file.key) for file in view.files}
    if not missing:
        return missing
    missing -= {log_name(tombstone.path) for file in view.files for tombstone in file.log.log_tombstones}
    commit_ids = {file.log.commit_id for file in view.files}
    return {name for name in missing if name.rpartition("_")[2] not in commit_ids}


def _time_ms(name: str) -> int:
    """Return the time in a log file's name; -1 for what is none: it proves nothing."""
    try:
        return parse_log_key(f"{name}.jsonl").time_ms
    except CorruptLog:
        return -1
