"""``_icedb/table.json`` in the store: how a table's configuration is read, renewed, and how a table is created.

Owns the bytes. A configuration is created by one conditional PUT, and in place of a purged table's by one that names
the ETag of what it replaces (T6): two creators never both win.
"""

from functools import lru_cache
from typing import Final

from icedb_log.errors import Fenced, InvalidRequest, NotFound, PreconditionFailed, Unavailable, UnsupportedFormat
from icedb_log.keys import TablePaths
from icedb_log.store.object_store import ObjectInfo
from icedb_log.store.records import replace_record
from icedb_log.store.table_store import TableStore
from icedb_log.table.table_config import TableConfig, describe_drop, describe_missing
from icedb_log.texts import first_message
from icedb_log.units import MINUTE_MS

MAX_CHANGE_ATTEMPTS: Final = 8
"""How often ``table.json`` is read and changed by compare-and-set, if others change it meanwhile."""
_parse: Final = lru_cache(maxsize=256)(TableConfig.model_validate_json)
"""Each run reads its table's configuration again, and hardly ever another one."""


def read_table_config(table: TableStore) -> TableConfig:
    """Read a table's configuration.

    Raises:
        NotFound: No such table, or it is dropped; the message says how to list, create or undrop tables.
        UnsupportedFormat: Not a configuration that this release understands.
    """
    return load_table_config(table)[0]


def load_table_config(table: TableStore) -> tuple[TableConfig, str]:
    """Read a table's configuration with its ETag. Raises as :func:`read_table_config`."""
    config, info = load_any_config(table)
    if config.dropped is not None:
        raise NotFound(describe_drop(table.name, config.dropped, modified_ms=info.modified_ms))
    return config, info.etag


def load_any_config(table: TableStore) -> tuple[TableConfig, ObjectInfo]:
    """Read a configuration, also of a dropped table, and what the store says of its object: for the trash alone.

    Raises:
        NotFound: There is no ``table.json``.
        UnsupportedFormat: Not a configuration that this release understands.
    """
    try:
        stored = table.store.get(table.paths.config_key)
    except NotFound as error:
        raise NotFound(describe_missing(table.name)) from error
    return decode_table_config(table.paths, stored.body), stored.info


def require_same_table(table: TableStore, config: TableConfig) -> None:
    """Check that what was read since belongs to the table of a configuration. Costs one small GET.

    For those who delete by age and hold no fence (T4).

    WARN: to be called *after* the log or the listing that decides was read. A run reads the configuration and sleeps;
    the table is dropped, purged and created anew, with longer grace periods; the run reads the log of the new one, and
    deletes by the grace periods of the old one.

    Raises:
        NotFound: The table is dropped, or gone.
        Fenced: It is another one of the same name. What the caller does: stop.
        Unavailable: The store did not answer.
    """
    if read_table_config(table).incarnation != config.incarnation:
        raise Fenced(f"table {table.name}: it was dropped, purged and created anew since this run began: run again")


def renew_table_config(table: TableStore) -> TableConfig:
    """Read a table's configuration; write it down with every field of this release if one is missing. Idempotent.

    It keeps older releases away before something is written that they do not know of: a release refuses a
    ``table.json`` with a field that it does not know, and works on that table no more. A pin, or a registration of a
    view, changes nothing in ``table.json``: a janitor of a release from before there were any goes on, and deletes what
    they hold. So whoever makes one comes here first (docs/upgrades.md). A run that began before that is not stopped:
    janitors of older releases are to be stopped by hand.

    Raises:
        NotFound: No such table, or it is dropped.
        UnsupportedFormat: Not a configuration that this release understands.
        Unavailable: The store did not answer, or others kept changing the configuration.
    """
    key = table.paths.config_key
    for _ in range(MAX_CHANGE_ATTEMPTS):
        config, etag = load_table_config(table)
        is_whole = TableConfig.model_fields.keys() <= config.model_fields_set
        if is_whole or replace_record(table.store, key, encode_table_config(config), etag=etag):
            return config
    raise kept_changing(table)


def kept_changing(table: TableStore) -> Unavailable:
    """Return the error for a change of ``table.json`` before which others changed it, each time."""
    key = table.paths.config_key
    return Unavailable(f"table {table.name}: others changed {key} {MAX_CHANGE_ATTEMPTS} times; try again later")


def decode_table_config(paths: TablePaths, body: bytes) -> TableConfig:
    """Read a configuration from its bytes. Raises UnsupportedFormat."""
    try:
        return _parse(body)
    except ValueError as error:
        what_to_do = "upgrade, or bring it back from a backup"
        raise UnsupportedFormat(f"{paths.config_key}: {first_message(error)}; {what_to_do}") from error


def encode_table_config(config: TableConfig) -> bytes:
    """Return what stands in ``table.json``."""
    return config.model_dump_json(indent=2).encode()


def create_table(table: TableStore, config: TableConfig) -> None:
    """Create a table: one conditional PUT. Not idempotent: a second call is refused.

    Where a table of the name was purged, the new one takes its place, fences and seals (T6).

    Raises:
        InvalidRequest: The table exists already, or one of that name is dropped and not purged for certain.
        CommitOutcomeUnknown: No answer; look with ``icedb table show``.
    """
    try:
        table.store.put_if_absent(table.paths.config_key, encode_table_config(config))
    except PreconditionFailed as error:
        if not _replace_purged(table, config):
            raise InvalidRequest(f"table {config.name!r} exists already ({table.paths.config_key})") from error


def _replace_purged(table: TableStore, config: TableConfig) -> bool:
    """Create a table in place of one that was purged; return whether there was one, and still is."""
    found, info = load_any_config(table)
    if found.dropped is None:
        return False
    age_ms = table.read_store_clock() - info.modified_ms
    require_purged(found, info, age_ms=age_ms)
    body = encode_table_config(config.model_copy(update={"incarnation": found.dropped.drop_id}))
    try:
        table.store.put_if_match(table.paths.config_key, body, etag=info.etag)
    except PreconditionFailed:
        return False
    return True


def require_purged(config: TableConfig, info: ObjectInfo, *, age_ms: int) -> None:
    """Refuse a new table in place of a dropped one that is not purged for certain (T6).

    Args:
        config: Of the dropped one.
        info: Of its ``table.json``.
        age_ms: How long ago that was written last, by the store's clock.

    Raises:
        InvalidRequest: It is not; the message says what to do.
    """
    name, mark, modified_ms = config.name, config.dropped, info.modified_ms
    if mark is None:
        return
    if mark.state != "purged":
        raise InvalidRequest(
            f"{describe_drop(name, mark, modified_ms=modified_ms)}; until it is purged no other table can have its "
            f"name (`icedb table drop {name} --force` purges it)"
        )
    # WARN: T6: a flush has committed a batch, or refused it, and sleeps before it deletes the staged copy. With --force
    # there is a new table at once, the producer sends the batch again, and the flush deletes what was accepted.
    wait_ms = (mark.dropped_ms or modified_ms) + config.log_grace_ms - modified_ms - age_ms
    if wait_ms > 0:
        raise InvalidRequest(
            f"table {name!r} was dropped just now: workers may still delete what was sent to it, and producers send "
            f"again; the name is free in {-(-wait_ms // MINUTE_MS)} minutes; take another one until then"
        )
    # WARN: T5: a run of the purge that was cut off may be asleep just before its last deletes, of names that can come
    # again, such as a pin's. Nothing sleeps for longer than a seal is kept.
    if mark.purgers and age_ms < config.seal_age_ms:
        raise InvalidRequest(
            f"table {name!r} was purged, but a run of the purge was cut off, whose last deletes may still be under "
            f"way: the name is free in {(config.seal_age_ms - age_ms) // MINUTE_MS + 1} minutes; take another one"
        )
