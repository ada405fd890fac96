"""Under which URI engines find a warehouse: its public location.

Manifests hold absolute URIs, so a warehouse has one location, kept in it: ``<root>/_icedb/iceberg-location.json``, made
with the first publication and changed by a command alone. By default it is the store's own URL. A directory that was
moved is found out here: what was published names files where they are no more.
"""

from typing import Final
from urllib.parse import urlsplit

import orjson
from icedb_log.errors import CorruptLog, InvalidRequest
from icedb_log.store.object_store import ObjectStore, StoredObject
from icedb_log.store.records import CasObject
from icedb_log.store.table_store import TableStore

_FORMAT: Final = 1
_NAME: Final = "_icedb/iceberg-location.json"
_FORMS: Final = "use s3://bucket/prefix or file:///absolute/directory, without a slash at the end"


def location_key(root: str) -> str:
    """Return the key of the record, given the root of the warehouse."""
    return f"{root}/{_NAME}" if root else _NAME


def root_of(table: TableStore) -> str:
    """Return the root of the warehouse that a table is in."""
    return table.paths.prefix.removesuffix(table.name).rstrip("/")


def read_location(store: ObjectStore, root: str) -> str:
    """Return the public location of a warehouse: what it was fixed to, else what it would be. Writes nothing.

    Raises:
        CorruptLog: The record cannot be understood.
        InvalidRequest: The warehouse is a directory that was moved; the message says what to do.
        Unavailable: The store did not answer.
    """
    found = _record(store, root).read()
    return own_location(store, root) if found is None else _check(store, root, found)


def fix_location(store: ObjectStore, root: str) -> str:
    """Return the public location of a warehouse, fixed by now. One read, and one write if it was not. Idempotent.

    Raises as :func:`read_location`, and CommitConflict.
    """
    own = own_location(store, root)
    return _check(store, root, _record(store, root).update(lambda found: found or own).state)


def set_location(store: ObjectStore, root: str, location: str | None) -> str:
    """Set the public location of a warehouse; every table has to be published anew. Idempotent.

    Args:
        store: The object store.
        root: Of the warehouse.
        location: Where engines find it; ``None``: where the store is now.

    Raises:
        InvalidRequest: It is no location, or another one than that of a directory.
        CommitConflict: Others kept changing it.
        Unavailable: The store did not answer.
    """
    wanted = own_location(store, root) if location is None else location
    parts = urlsplit(wanted)
    is_place = parts.path.startswith("/") if parts.scheme == "file" else bool(parts.netloc)
    if parts.scheme not in ("s3", "file") or not is_place or wanted.endswith("/") or parts.query or parts.fragment:
        raise InvalidRequest(f"public location {wanted[:200]!r}: {_FORMS}")
    own = own_location(store, root)
    if own.startswith("file:") and wanted != own:
        raise InvalidRequest(f"public location {wanted[:200]!r}: a directory is found where it lies, {own[:200]}")
    return _record(store, root).update(lambda _: wanted).state


def own_location(store: ObjectStore, root: str) -> str:
    """Return the store's own URL of a warehouse."""
    # A directory's path stands as it is: engines take what follows file:// for a path, without decoding it.
    probe = f"{root}/x" if root else "x"
    uri = store.uri(probe).removesuffix("/x")
    return uri if "://" in uri else f"file://{uri}"


def locate_table(table: TableStore) -> str:
    """Return the public URI of a table, without a slash at its end. Raises as :func:`read_location`; writes nothing."""
    return f"{read_location(table.store, root_of(table))}/{table.name}"


def _check(store: ObjectStore, root: str, location: str) -> str:
    """Return the location if files are there. Raises InvalidRequest if a directory was moved."""
    own = own_location(store, root)
    if location != own and own.startswith("file:"):
        raise InvalidRequest(
            f"this warehouse is published to engines as {location[:200]}, but lies at {own[:200]}: it was moved or "
            "copied. What was published names files at the old place; `icedb iceberg publish --location store` "
            "publishes it anew"
        )
    return location


def _record(store: ObjectStore, root: str) -> CasObject[str]:
    return CasObject(store, location_key(root), _decode, _encode)


def _decode(stored: StoredObject) -> str:
    try:
        said = orjson.loads(stored.body)
        location = said["location"]
        is_known = said["format"] == _FORMAT and isinstance(location, str)
    except (ValueError, KeyError, TypeError):
        is_known = False
    if not is_known:
        raise CorruptLog(
            f"{stored.info.key}: cannot be understood; use a newer release, or set the location again with "
            "`icedb iceberg publish --location store`"
        )
    return str(location)


def _encode(location: str) -> bytes:
    return orjson.dumps({"format": _FORMAT, "location": location})
