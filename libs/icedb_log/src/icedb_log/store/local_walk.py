"""Keys of a directory in the order of an object store.

Owns the mapping from a tree of folders to a flat, ordered namespace. An order of folders is not an order of
keys: ``a.b`` sorts before ``a/b`` although ``a`` sorts before ``a.b``; so a folder takes its place under its
name *with* the slash. Only folders that can hold keys of the prefix, after the given key, are read.
"""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from icedb_log.errors import InvalidRequest
from icedb_log.key_rules import check_key
from icedb_log.store.local_files import FileVersion, modified_ms_of, version_of

STORE_FOLDER: Final = ".icedb-store"
"""Where a directory store keeps its own files, at the root: temporary files, locks, the clock. Never a key."""


@dataclass(frozen=True, slots=True)
class FoundFile:
    """One object as the walk met it. Two are equal if key and content are the same."""

    key: str
    version: FileVersion
    modified_ms: int

    @property
    def identity(self) -> tuple[str, FileVersion]:
        """What tells whether two walks met the same object (its change time may still move)."""
        return (self.key, self.version)


def walk_keys(root: str, prefix: str, *, after: str | None = None) -> Iterator[FoundFile]:
    """Yield the objects whose keys begin with ``prefix`` and are greater than ``after``, ascending.

    Args:
        root: The store's directory; one that does not exist holds nothing.
        prefix: Any string; a folder only up to its last slash.
        after: A key, or ``None`` for the beginning.

    Raises:
        OSError: A folder cannot be read (one that vanishes meanwhile is empty).
    """
    folder, slash, name_prefix = prefix.rpartition("/")
    if slash and not _is_key(folder):
        return
    yield from _walk(root, folder + slash, name_prefix, after)


def list_subfolders(root: str, prefix: str) -> Iterator[str]:
    """Yield the folders right below ``prefix`` (empty, or ending with ``/``) that hold a key."""
    if prefix and not _is_key(prefix[:-1]):
        return
    for name in _read_folder(root, prefix, ""):
        if name.endswith("/") and any(True for _ in _walk(root, f"{prefix}{name}", "", None)):
            yield name[:-1]


def _walk(root: str, folder_key: str, name_prefix: str, after: str | None) -> Iterator[FoundFile]:
    """Yield what lies in one folder; ``folder_key`` is empty or ends with a slash."""
    for name in _read_folder(root, folder_key, name_prefix):
        key = f"{folder_key}{name}"
        if name.endswith("/"):
            if after is None or after < key:
                yield from _walk(root, key, "", None)
            elif after.startswith(key):
                yield from _walk(root, key, "", after)
        elif after is None or key > after:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                stat = os.stat(f"{root}/{key}")
                yield FoundFile(key, version_of(stat), modified_ms_of(stat))


def _read_folder(root: str, folder_key: str, name_prefix: str) -> list[str]:
    """Return the names in a folder that can be part of a key, folders with a slash, in key order.

    What no key can name (``lost+found`` aside: names that are not UTF-8, devices) was not written by a store.
    """
    names: list[str] = []
    try:
        with os.scandir(f"{root}/{folder_key}") as entries:
            for entry in entries:
                name = entry.name
                if not name.startswith(name_prefix) or not _is_key(f"{folder_key}{name}"):
                    continue
                if entry.is_dir():
                    names.append(f"{name}/")
                elif entry.is_file():
                    names.append(name)
    except (FileNotFoundError, NotADirectoryError):
        return []
    names.sort()
    return names


def _is_key(key: str) -> bool:
    """Whether an object may be called so."""
    if key.partition("/")[0] == STORE_FOLDER:
        return False
    try:
        check_key(key)
    except InvalidRequest:
        return False
    return True
