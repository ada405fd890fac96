"""Is it still the table whose configuration was read? Asked by those who delete by age and hold no fence (T4)."""

from icedb_log.errors import Fenced
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import read_table_config
from icedb_log.table.table_config import TableConfig


def require_same_table(table: TableStore, config: TableConfig) -> None:
    """Check that what was read since belongs to the table of a configuration. Costs one small GET.

    WARN: to be called *after* the log or the listing that decides was read. A run reads the configuration and sleeps;
    the table is dropped, purged and created anew, with longer grace periods; the run reads the log of the new one, and
    deletes by the grace periods of the old one.

    Args:
        table: Its store and keys.
        config: Read before.

    Raises:
        NotFound: The table is dropped, or gone.
        Fenced: It is another one of the same name. What the caller does: stop.
        Unavailable: The store did not answer.
    """
    if read_table_config(table).incarnation != config.incarnation:
        raise Fenced(f"table {table.name}: it was dropped, purged and created anew since this run began: run again")
