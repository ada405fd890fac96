"""What keeps a table from being dropped, or one in the trash from being purged (rules T2, T3)."""

from dataclasses import dataclass
from typing import Literal

from icedb_log.clean.leases import read_leases
from icedb_log.clean.pins import PinReader, is_lasting, list_pins
from icedb_log.erasure.erasures import list_open_ids
from icedb_log.feed.views import is_view_there, list_registrations
from icedb_log.store.table_store import TableStore
from icedb_log.table.table_config import TableConfig

ClaimKind = Literal["view", "erasure", "pin", "lease"]


@dataclass(frozen=True, slots=True)
class Claim:
    """Somebody who needs the table.

    Attributes:
        kind: Who.
        name: Name of the view or the pin, id of the erasure or the lease.
        until_ms: Until when, unix ms by the store's clock, as far as is known; ``None``: until somebody acts.
    """

    kind: ClaimKind
    name: str
    until_ms: int | None = None


def find_claims(table: TableStore) -> tuple[Claim, ...]:
    """Find views that a table feeds and erasures that have not ended. Costs two listings, and two GETs for each view.

    Raises:
        CorruptLog: A registration of a view cannot be read.
        Unavailable: The store did not answer.
    """
    views = [
        Claim("view", each.view)
        for each in list_registrations(table.store, table.paths)
        if each.state != "detached" and is_view_there(table.store, table.paths, each.view)
    ]
    return (*views, *(Claim("erasure", erasure_id) for erasure_id in list_open_ids(table)))


def find_lasting_pins(table: TableStore) -> tuple[Claim, ...]:
    """Find the pins that nobody has ended and whose time is not over. Raises Unavailable."""
    listed = list_pins(table)
    return tuple(
        Claim("pin", pin.name, pin.ends_ms) for pin in listed.pins if is_lasting(pin.status(listed.store_now_ms))
    )


def find_holds(table: TableStore, config: TableConfig) -> tuple[Claim, ...]:
    """Find leases and pins that hold data files of a table (J4, J7). Raises Unavailable."""
    pins = PinReader().read(table, data_grace_ms=config.data_grace_ms)
    leases = read_leases(table)
    return (
        *(Claim("pin", pin.name, pin.until_ms) for pin in pins),
        *(Claim("lease", str(lease), lease.held_until_ms) for lease in leases),
    )
