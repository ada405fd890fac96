"""What keeps the objects of an erasure from being deleted, for people who wait: pins, and kept versions (J7, J8).

Reads only, and decides nothing: an erasure is complete when its objects are gone (E5).
"""

from collections.abc import Collection
from dataclasses import dataclass

from icedb_log.clean.pins import PinReader
from icedb_log.store.table_store import TableStore
from icedb_log.table.table_config import TableConfig


@dataclass(frozen=True, slots=True)
class PinHold:
    """A pin that keeps objects of an erasure.

    Attributes:
        name: Name of the pin.
        object_count: How many of the objects it keeps.
        until_ms: Until when, by the store's clock; ``None``: until somebody unpins it.
    """

    name: str
    object_count: int
    until_ms: int | None


def find_pin_holds(table: TableStore, keys: Collection[str], *, config: TableConfig) -> tuple[PinHold, ...]:
    """Return the pins that keep objects, those that keep most of them first.

    Args:
        table: Its store and keys.
        keys: Keys of data files.
        config: Of the table.

    Raises:
        Unavailable: The store did not answer.
    """
    held = PinReader().read(table, data_grace_ms=config.data_grace_ms)
    found = [PinHold(pin.name, sum(1 for key in keys if pin.holds(key)), pin.until_ms) for pin in held]
    return tuple(sorted((hold for hold in found if hold.object_count), key=lambda hold: -hold.object_count))
