"""The native engine of a unit of work: a private, bounded DuckDB, and the scratch folder it works in.

A task may die at any moment, by ``kill -9`` as well. While it lives it holds a lock on a file in its scratch folder
(``flock``), which ends with the process; the next unit that works in the same place removes the folders that nobody
holds. Names of hosts and numbers of processes would not tell: containers that share a volume may have the same. The
engine never reaches the network and loads no extension that the package does not bring.
"""

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
from icedb_log.errors import Unavailable
from icedb_log.texts import first_line

from icedb_engine.limits import EngineLimits
from icedb_engine.sql import quote_text

_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SCRATCH_PREFIX: Final = "icedb-scratch-"
_OWNER: Final = "owner"
"""The file whose lock the folder's process holds."""


@contextmanager
def open_scratch(limits: EngineLimits) -> Iterator[Path]:
    """Make a private folder, and remove it with all that is in it, whatever happens.

    Raises:
        Unavailable: The disk is full.
    """
    parent = Path(limits.scratch_folder or tempfile.gettempdir())
    parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned_scratch(parent)
    folder, owner = _make_owned(parent)
    try:
        yield folder
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise Unavailable(
            f"the disk of the scratch folder {parent} is full ({error.strerror}): free space there, give tasks a "
            "larger one (TMPDIR of the executors), or merge smaller groups"
        ) from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(owner)


def remove_abandoned_scratch(parent: Path) -> int:
    """Remove scratch folders whose process is gone, of whatever host or container; return how many."""
    with os.scandir(parent) as entries:  # the folder of all temporary files may have thousands, and each unit looks
        found = [entry.path for entry in entries if entry.name.startswith(_SCRATCH_PREFIX)]
    return sum(_remove_if_abandoned(folder) for folder in found)


def _make_owned(parent: Path) -> tuple[Path, int]:
    """Make a scratch folder, and hold its lock: return both.

    WARN: until the lock is held the folder looks abandoned, and another process may remove it: it is made anew then.
    """
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_SCRATCH_PREFIX, dir=parent))
        try:
            owner = os.open(folder / _OWNER, os.O_RDWR | os.O_CREAT)
        except FileNotFoundError:
            continue
        fcntl.flock(owner, fcntl.LOCK_EX)
        if (folder / _OWNER).exists():
            return folder, owner
        os.close(owner)


def _remove_if_abandoned(folder: str) -> bool:
    try:
        owner = os.open(f"{folder}/{_OWNER}", os.O_RDWR)
    except FileNotFoundError:  # its process was killed before it held the lock, or holds it in a moment
        with suppress(OSError):
            Path(folder).rmdir()
            return True
        return False
    except OSError:
        return False
    try:
        fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:  # somebody is at work in it
        return False
    finally:
        os.close(owner)
    return True


@contextmanager
def open_engine(limits: EngineLimits, scratch: Path) -> Iterator[Any]:
    """Open a DuckDB connection that spills to ``scratch`` instead of exceeding its memory.

    Raises:
        Unavailable: Memory and scratch together did not suffice; the message names both settings.
    """
    spill = scratch / "spill"
    connection = duckdb.connect(
        config={
            "memory_limit": f"{limits.memory_bytes}B",
            "threads": limits.thread_count,
            # WARN: it goes by name and time of change: of a file that took the place of another one within one tick of
            # the clock it hands out bytes of the other one (DuckDB 1.5). Scratch files often have the same names.
            "enable_external_file_cache": False,
            "temp_directory": str(spill),
            "preserve_insertion_order": False,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
    )
    try:
        # Given at connect it would be shown, and not held (DuckDB 1.5).
        connection.execute(f"SET max_temp_directory_size = '{limits.scratch_bytes}B'")
        connection.execute("SET GLOBAL TimeZone = 'UTC'")
        with suppress(duckdb.InvalidInputException):  # a notebook without ipywidgets has no bar, nor takes the setting
            connection.execute("SET enable_progress_bar = false")  # it writes to standard output
        connection.execute(f"SET allowed_directories = [{quote_text(str(scratch))}]")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        yield connection
    except (duckdb.OutOfMemoryException, duckdb.IOException) as error:
        raise Unavailable(
            f"the native engine ran out of room (memory {limits.memory_bytes} bytes, scratch "
            f"{limits.scratch_bytes} bytes): give it more of either, or smaller jobs: {first_line(error)}"
        ) from error
    finally:
        connection.close()


class CapturedRows:
    """Rows that the native engine takes from a stream: what making them raises is kept, for the engine words it anew.

    Attributes:
        row_count: How many it has taken.
    """

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = batches
        self._error: Exception | None = None
        self.row_count = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        try:
            for batch in self._batches:
                self.row_count += batch.num_rows
                yield batch
        except Exception as error:
            self._error = error
            raise

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Raise what making the rows raised, whatever the engine made of it."""
        try:
            yield
        except Exception as error:
            if self._error is not None and error is not self._error:
                raise self._error from error
            raise


def release_memory() -> None:
    """Give memory that Arrow keeps for later back to the machine: Spark's workers live long, and others need it."""
    pa.default_memory_pool().release_unused()
