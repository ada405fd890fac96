"""The first component of a key: which table, and of when. Pure.

``events`` is the newest state, ``events@1767312000000`` the state at that time (unix milliseconds), ``events@pin-eom``
what the pin ``eom`` has pinned. Neither ``:`` nor ``=`` is used: Hadoop takes the one for a scheme, and Hive
partitioning the other for a partition.
"""

import re
from dataclasses import dataclass
from typing import Final

from icedb_log.keys import MAX_MS, PIN_NAME, TABLE_NAME

PIN_MARK: Final = "pin-"
_SEPARATOR: Final = "@"
_TIME: Final = re.compile(r"[0-9]{1,13}")


@dataclass(frozen=True, slots=True)
class TableRef:
    """A table as of one time.

    Attributes:
        table: Its name.
        as_of_ms: Time travel, unix ms; ``None``: not by time.
        pin: Name of a pin; ``None``: not by pin.
    """

    table: str
    as_of_ms: int | None = None
    pin: str | None = None

    @property
    def is_newest(self) -> bool:
        """Whether it is the newest state that is asked for."""
        return self.as_of_ms is None and self.pin is None

    def __str__(self) -> str:
        if self.pin is not None:
            return f"{self.table}{_SEPARATOR}{PIN_MARK}{self.pin}"
        return self.table if self.as_of_ms is None else f"{self.table}{_SEPARATOR}{self.as_of_ms}"


def parse_table_ref(text: str) -> TableRef | None:
    """Return what a first component names; ``None`` if no table can have it. Each ref has one spelling."""
    table, separator, when = text.partition(_SEPARATOR)
    if not TABLE_NAME.fullmatch(table):
        return None
    if not separator:
        return TableRef(table)
    if when.startswith(PIN_MARK) and PIN_NAME.fullmatch(when.removeprefix(PIN_MARK)):
        return TableRef(table, pin=when.removeprefix(PIN_MARK))
    if _TIME.fullmatch(when) and str(int(when)) == when and int(when) <= MAX_MS:
        return TableRef(table, as_of_ms=int(when))
    return None
