"""Which files of a directory store go, and what became of each: what ``LocalObjectStore.delete`` is made of.

One thread does it all: several were measured not to be faster. What costs is the lock of each key, so that keys which
share one are deleted under it together.
"""

import contextlib
import errno
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Final

from icedb_log.errors import IceDBError
from icedb_log.store.local_files import explain, remove_empty_folders, sync_folder
from icedb_log.store.object_store import DeleteFailure, FailedDelete

_DENIED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def delete_files(
    files: Iterable[tuple[str, str]],
    *,
    lock_number: Callable[[str], int],
    locked: Callable[[int], AbstractContextManager[None]],
) -> list[FailedDelete]:
    """Remove files, each under the lock of its key; return those that stay. A missing one is fine, a folder is no file.

    Args:
        files: Keys and paths.
        lock_number: Which lock a key has.
        locked: Holds a lock.
    """
    by_lock: dict[int, list[tuple[str, str]]] = {}
    for key, path in files:
        if os.path.isfile(path):
            by_lock.setdefault(lock_number(key), []).append((key, path))
    failed: list[FailedDelete] = []
    for number, sharing in by_lock.items():
        try:
            with locked(number):
                failed += _unlink_all(sharing)
        except IceDBError as error:
            # The lock: held by another process, or not to be opened. Nothing was deleted under it.
            kind = _kind_of(error.__cause__) if isinstance(error.__cause__, OSError) else "unanswered"
            failed += [FailedDelete(key, str(error), kind) for key, _ in sharing]
    return failed


def tidy_folders(folders: Iterable[str], root: str) -> None:
    """Remove folders that became empty, and make deletes durable: in each folder that stays, once."""
    stay = {remove_empty_folders(folder, root) for folder in sorted(folders, key=len, reverse=True)}
    for folder in stay:
        # A delete that a loss of power undoes is made again by the janitor's next round (J6).
        with contextlib.suppress(OSError):
            sync_folder(folder)


def _unlink_all(files: Sequence[tuple[str, str]]) -> list[FailedDelete]:
    failed: list[FailedDelete] = []
    for key, path in files:
        try:
            os.unlink(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            failed.append(FailedDelete(key, str(explain(error, path, "delete")), _kind_of(error)))
    return failed


def _kind_of(error: BaseException) -> DeleteFailure:
    return "denied" if isinstance(error, OSError) and error.errno in _DENIED else "other"
