"""Keeps older releases away from a table before something is written that they do not know of.

A release refuses a ``table.json`` with a field that it does not know, and works on that table no more. A pin, or a
registration of a view, changes nothing in ``table.json``: a janitor of a release from before there were any goes on,
and deletes what they hold. So whoever makes one first sees to it that ``table.json`` has every field of this release
(docs/upgrades.md). A run that began before that is not stopped: janitors of older releases are to be stopped by hand.
"""

from typing import Final

from icedb_log.errors import CommitOutcomeUnknown, PreconditionFailed, Unavailable
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import encode_table_config, load_table_config
from icedb_log.table.table_config import TableConfig

_MAX_ATTEMPTS: Final = 4


def renew_table_config(table: TableStore) -> TableConfig:
    """Read a table's configuration; write it down with every field of this release if one is missing. Idempotent.

    Raises:
        NotFound: No such table, or it is dropped.
        UnsupportedFormat: Not a configuration that this release understands.
        Unavailable: The store did not answer, or others kept changing the configuration.
    """
    for _ in range(_MAX_ATTEMPTS):
        config, etag = load_table_config(table)
        if TableConfig.model_fields.keys() <= config.model_fields_set:
            return config
        try:
            table.store.put_if_match(table.paths.config_key, encode_table_config(config), etag=etag)
        except (PreconditionFailed, CommitOutcomeUnknown):
            continue  # W2: only reading tells
    raise Unavailable(
        f"table {table.name}: others changed {table.paths.config_key} {_MAX_ATTEMPTS} times; try again later"
    )
