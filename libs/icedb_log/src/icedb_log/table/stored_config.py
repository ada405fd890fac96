"""``_icedb/table.json`` in the store: how a table's configuration is read, and how a table is created.

Owns the bytes. A configuration is created by one conditional PUT, and in place of a purged table's by one that names
the ETag of what it replaces (T6): two creators never both win.
"""

from functools import lru_cache
from typing import Final

from pydantic import ValidationError

from icedb_log.errors import InvalidRequest, NotFound, PreconditionFailed, UnsupportedFormat
from icedb_log.keys import TablePaths
from icedb_log.store.object_store import ObjectInfo, ObjectStore
from icedb_log.table.drop_mark import describe_drop, describe_missing, require_purged
from icedb_log.table.table_config import TableConfig, first_message

_parse: Final = lru_cache(maxsize=256)(TableConfig.model_validate_json)
"""Each run reads its table's configuration again, and hardly ever another one."""


def read_table_config(store: ObjectStore, paths: TablePaths) -> TableConfig:
    """Read a table's configuration.

    Raises:
        NotFound: No such table, or it is dropped; the message says how to list, create or undrop tables.
        UnsupportedFormat: Not a configuration that this release understands.
    """
    return load_table_config(store, paths)[0]


def load_table_config(store: ObjectStore, paths: TablePaths) -> tuple[TableConfig, str]:
    """Read a table's configuration with its ETag. Raises as :func:`read_table_config`."""
    config, info = load_any_config(store, paths)
    if config.dropped is not None:
        raise NotFound(describe_drop(paths.name, config.dropped, modified_ms=info.modified_ms))
    return config, info.etag


def load_any_config(store: ObjectStore, paths: TablePaths) -> tuple[TableConfig, ObjectInfo]:
    """Read a configuration, also of a dropped table, and what the store says of its object: for the trash alone.

    Raises:
        NotFound: There is no ``table.json``.
        UnsupportedFormat: Not a configuration that this release understands.
    """
    try:
        stored = store.get(paths.config_key)
    except NotFound as error:
        raise NotFound(describe_missing(paths.name)) from error
    return decode_table_config(paths, stored.body), stored.info


def decode_table_config(paths: TablePaths, body: bytes) -> TableConfig:
    """Read a configuration from its bytes. Raises UnsupportedFormat."""
    try:
        return _parse(body)
    except ValidationError as error:
        what_to_do = "upgrade, or bring it back from a backup"
        raise UnsupportedFormat(f"{paths.config_key}: {first_message(error)}; {what_to_do}") from error


def encode_table_config(config: TableConfig) -> bytes:
    """Return what stands in ``table.json``."""
    return config.model_dump_json(indent=2).encode()


def create_table(store: ObjectStore, paths: TablePaths, config: TableConfig) -> None:
    """Create a table: one conditional PUT. Not idempotent: a second call is refused.

    Where a table of the name was purged, the new one takes its place, fences and seals (T6).

    Raises:
        InvalidRequest: The table exists already, or one of that name is dropped and not purged for certain.
        CommitOutcomeUnknown: No answer; look with ``icedb table show``.
    """
    try:
        store.put_if_absent(paths.config_key, encode_table_config(config))
    except PreconditionFailed as error:
        if not _replace_purged(store, paths, config):
            raise InvalidRequest(f"table {config.name!r} exists already ({paths.config_key})") from error


def _replace_purged(store: ObjectStore, paths: TablePaths, config: TableConfig) -> bool:
    """Create a table in place of one that was purged; return whether there was one, and still is."""
    found, info = load_any_config(store, paths)
    mark = found.dropped
    if mark is None:
        return False
    age_ms = store.list_page(paths.config_key, limit=1).store_now_ms - info.modified_ms
    require_purged(
        config.name,
        mark,
        modified_ms=info.modified_ms,
        age_ms=age_ms,
        seal_age_ms=found.seal_age_ms,
        log_grace_ms=found.log_grace_ms,
    )
    try:
        body = encode_table_config(config.model_copy(update={"incarnation": mark.drop_id}))
        store.put_if_match(paths.config_key, body, etag=info.etag)
    except PreconditionFailed:
        return False
    return True
