"""Reading a log that may be damaged: every log file on its own, so that the first damage hides no other.

The listing is consistent as for every reader (R1). A log file that the decoder refuses counts as empty, and whoever
concludes something from what the log does *not* say has to ask :attr:`CheckedLog.is_whole` first.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from icedb_log.errors import HaltError
from icedb_log.keys import TablePaths
from icedb_log.log.codec import decode_log_file
from icedb_log.log.reader import LogReader, require_own_time
from icedb_log.model import FileMarker, ListedLogFile, LogFile, LogView
from icedb_log.repair.wire_check import WireProblem, find_wire_problems, is_log_key
from icedb_log.store.object_store import ObjectInfo

_LINE: Final = re.compile(r"line (\d+)")


@dataclass(frozen=True, slots=True)
class CheckedLogFile(ListedLogFile):
    """A log file with what is wrong with it.

    Attributes:
        wire: What existing readers refuse or misread.
        damage: Why the decoder refuses it; empty: it is readable. ``log`` is empty then.
        damaged_line: The line, if one is named.
        is_misnamed: It is no log file at all, and was not read.
    """

    wire: tuple[WireProblem, ...] = ()
    damage: str = ""
    damaged_line: int | None = None
    is_misnamed: bool = False

    @property
    def is_readable(self) -> bool:
        """Whether the decoder takes it."""
        return not self.damage and not self.is_misnamed


class CheckedLog:
    """A log as one consistent read found it, and what follows from it.

    Args:
        view: Of a :class:`LogChecker`.
    """

    def __init__(self, view: LogView) -> None:
        self.store_now_ms: Final = view.store_now_ms
        self.files: Final[tuple[CheckedLogFile, ...]] = tuple(
            file for file in view.files if isinstance(file, CheckedLogFile)
        )
        self.readable: Final[tuple[CheckedLogFile, ...]] = tuple(file for file in self.files if file.is_readable)

    @property
    def is_whole(self) -> bool:
        """Whether every log file could be read: what is not said here is said nowhere."""
        return len(self.files) == len(self.readable)

    @cached_property
    def dead_logs(self) -> frozenset[str]:
        """Log files that another one replaces."""
        return frozenset(tombstone.path for file in self.readable for tombstone in file.log.log_tombstones)

    @cached_property
    def remaining(self) -> tuple[CheckedLogFile, ...]:
        """The log files that are left when the janitor has deleted the dead ones."""
        return tuple(file for file in self.readable if file.key not in self.dead_logs)

    @cached_property
    def dead(self) -> frozenset[str]:
        """Data files with a tombstone anywhere (S1)."""
        return frozenset(
            marker.path for file in self.readable for marker in file.log.markers if marker.tombstoned_ms is not None
        )

    @cached_property
    def live(self) -> Mapping[str, FileMarker]:
        """Path to marker of the live data files (S1), one of them where there are several."""
        dead = self.dead
        return {marker.path: marker for file in self.readable for marker in file.log.markers if marker.path not in dead}


class LogChecker(LogReader):
    """Reads the log of one table and never stops at damage; keeps what it read by key and ETag. Thread-safe."""

    @property
    def paths(self) -> TablePaths:
        """Keys of the table."""
        return self._paths

    def check(self) -> CheckedLog:
        """Read the whole log. Raises Unavailable: the store did not answer, or the log never held still."""
        return CheckedLog(self.read())

    def _fetch_one(self, info: ObjectInfo) -> ListedLogFile:
        place = (info.key, info.etag, info.modified_ms, info.size_bytes)
        if not is_log_key(self._paths, info.key):
            return CheckedLogFile(*place, LogFile(time_ms=0), is_misnamed=True)
        body = self._store.get(info.key, if_match=info.etag).body  # R1
        wire = find_wire_problems(self._paths, info.key, body)
        try:
            log = decode_log_file(info.key, body)
            require_own_time(info.key, log)
        except HaltError as error:
            return CheckedLogFile(*place, LogFile(time_ms=0), wire, *_describe(error))
        return CheckedLogFile(*place, log, wire)


def _describe(error: HaltError) -> tuple[str, int | None]:
    """Return what is wrong without the key, and in which line."""
    text = str(error).partition(": ")[2] or str(error)
    found = _LINE.match(text)
    return (text, None) if found is None else (text.removeprefix(f"{found[0]}: "), int(found[1]))
