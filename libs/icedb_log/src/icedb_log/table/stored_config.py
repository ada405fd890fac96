"""``_icedb/table.json`` in the store: how a table's configuration is read, and how a table is created.

Owns the bytes, and which prefix is a name's (T4): a purged name's next table lies under another prefix, which the mark
of its first one names. A configuration is created by one conditional PUT, and never deleted: two creators never both
win, and no prefix has two tables in its life.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from icedb_log.errors import InvalidRequest, NotFound, PreconditionFailed, Unavailable, UnsupportedFormat
from icedb_log.keys import TablePaths
from icedb_log.store.object_store import ObjectInfo, StoredObject
from icedb_log.store.records import MAX_CHANGE_ATTEMPTS, CasObject, Change
from icedb_log.store.table_store import TableStore
from icedb_log.table.table_config import TableConfig, describe_drop, table_not_found
from icedb_log.texts import first_message

_parse: Final = lru_cache(maxsize=256)(TableConfig.model_validate_json)
"""Each run reads its table's configuration again, and hardly ever another one."""


def read_table_config(table: TableStore) -> TableConfig:
    """Read a table's configuration.

    Raises:
        NotFound: No such table, or it is dropped; the message says how to list, create or undrop tables.
        Unavailable: The store did not answer; or the table is purged, and there is a newer one of its name.
        UnsupportedFormat: Not a configuration that this release understands.
    """
    config, info = load_any_config(table)
    require_usable(table, config, info)
    return config


def require_usable(table: TableStore, config: TableConfig, info: ObjectInfo) -> None:
    """Raise as :func:`read_table_config` unless a configuration that was just read is that of a table in use."""
    if config.dropped is not None and config.dropped.state == "purged":
        table.on_purged()
        newest = find_newest(table).place
        if newest.paths != table.paths:
            raise Unavailable(
                f"table {table.name}: it was purged, and the newest table of that name lies at {newest.paths.prefix} "
                "now (T4): run again"
            )
    _require_kept(table, config, info)


def require_there(newest: "Newest") -> TableConfig:
    """Return the configuration of a table that was just looked for. Raises NotFound: it is not there, or dropped."""
    if newest.config is None or newest.info is None:
        raise table_not_found(newest.place.name)
    _require_kept(newest.place, newest.config, newest.info)
    return newest.config


def _require_kept(table: TableStore, config: TableConfig, info: ObjectInfo) -> None:
    if config.dropped is not None:
        raise NotFound(describe_drop(table.name, config.dropped, modified_ms=info.modified_ms))


def load_any_config(table: TableStore) -> tuple[TableConfig, ObjectInfo]:
    """Read a configuration, also of a dropped table, and what the store says of its object: for the trash alone.

    Raises:
        NotFound: There is no ``table.json``.
        UnsupportedFormat: Not a configuration that this release understands.
    """
    try:
        stored = table.store.get(table.paths.config_key)
    except NotFound as error:
        raise table_not_found(table.name) from error
    return decode_table_config(table.paths, stored.body), stored.info


def change_config(
    table: TableStore, change: Callable[[TableConfig, ObjectInfo], TableConfig], *, in_steps: bool = False
) -> Change[tuple[TableConfig, ObjectInfo]]:
    """Change ``table.json`` by compare-and-set; return what it says then, and what was said of its object last.

    Args:
        table: The table.
        change: Returns the new configuration, given the one that is there, also of a dropped table, and what the store
            says of its object.
        in_steps: See :meth:`~icedb_log.store.records.CasObject.update`.

    Raises:
        NotFound: There is no ``table.json``.
        UnsupportedFormat: Not a configuration that this release understands.
        IceDBError: What ``change`` raises.
        CommitOutcomeUnknown: A write got no answer; look with ``icedb table show``.
        Unavailable: The store did not answer, or others kept changing it.
    """

    def decode(stored: StoredObject) -> tuple[TableConfig, ObjectInfo]:
        return decode_table_config(table.paths, stored.body), stored.info

    def change_it(found: tuple[TableConfig, ObjectInfo] | None) -> tuple[TableConfig, ObjectInfo]:
        if found is None:
            raise table_not_found(table.name)
        return change(*found), found[1]

    place = CasObject(table.store, table.paths.config_key, decode, lambda each: encode_table_config(each[0]))
    return place.update(change_it, gave_up=Unavailable, in_steps=in_steps)


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


def create_table(table: TableStore, config: TableConfig) -> TableStore:
    """Create a table, and return where it lies. Not idempotent: a second call is refused.

    One conditional PUT. Where tables of the name were purged, the new one lies under the next prefix (T4), which the
    mark of the first one names before anything is written there.

    Raises:
        InvalidRequest: The table exists already, or one of that name is dropped and not purged.
        CommitOutcomeUnknown: No answer; look with ``icedb table show``.
        Unavailable: The store did not answer, or others kept creating and purging tables of the name.
    """
    place = table
    for _ in range(MAX_CHANGE_ATTEMPTS):
        try:
            # Of those who create one at once, one wins; nothing that was there is ever deleted (T4), so that one who
            # slept through a whole life of this prefix is refused, too, and looks again.
            place.store.put_if_absent(place.paths.config_key, encode_table_config(config))
        except PreconditionFailed:
            found = find_newest(table)
            if found.config is not None:
                _require_purged(found.place, found.config, found.info)
                # WARN: T4: the name of the prefix before its first object. A creator that dies in between leaves a
                # prefix without a table, which the next one takes. The other way round nobody finds the table.
                name_next(table, number=found.place.paths.number + 1)
            place = find_newest(table).place
            continue
        table.on_purged()  # who remembers that there is none looks again
        return place
    raise Unavailable(f"table {table.name}: others created and purged it {MAX_CHANGE_ATTEMPTS} times; try again later")


def name_next(table: TableStore, *, number: int) -> None:
    """Say in the mark of the first table of a name that a later one is the newest (T4), unless it says so already.

    Raises:
        Unavailable: The store did not answer.
    """

    def name(config: TableConfig, _info: ObjectInfo) -> TableConfig:
        mark = config.dropped
        if mark is None or mark.state != "purged" or (mark.newest or 1) >= number:
            return config
        return config.model_copy(update={"dropped": mark.model_copy(update={"newest": number})})

    change_config(table.numbered(1), name)


@dataclass(frozen=True, slots=True)
class Newest:
    """Where the newest table of a name lies, and what its ``table.json`` says; ``None``: there is none yet."""

    place: TableStore
    config: TableConfig | None
    info: ObjectInfo | None


def find_newest(table: TableStore) -> Newest:
    """Find the newest table of a name (T4): one GET, and a second one where tables of the name were purged.

    A run finds it once, when it begins, and works on that one to its end.

    Raises:
        UnsupportedFormat: A configuration that this release does not understand.
        Unavailable: The store did not answer.
    """
    first = table.numbered(1)
    found = load_place(first)
    mark = None if found.config is None else found.config.dropped
    return found if mark is None or mark.newest is None else load_place(first.numbered(mark.newest))


def load_place(place: TableStore) -> Newest:
    """Return what stands in the ``table.json`` of one prefix. Raises as :func:`find_newest`."""
    try:
        return Newest(place, *load_any_config(place))
    except NotFound:
        return Newest(place, None, None)


def _require_purged(place: TableStore, config: TableConfig, info: ObjectInfo | None) -> None:
    """Refuse a new table beside one that is there, or in the trash."""
    mark = config.dropped
    if mark is None or info is None:
        raise InvalidRequest(f"table {place.name!r} exists already ({place.paths.config_key})")
    if mark.state != "purged":
        raise InvalidRequest(
            f"{describe_drop(place.name, mark, modified_ms=info.modified_ms)}; until it is purged no other table can "
            f"have its name (`icedb table drop {place.name} --purge` purges it)"
        )
