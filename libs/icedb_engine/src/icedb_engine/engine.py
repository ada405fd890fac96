"""The native engine of a unit of work: a private, bounded DuckDB, and the scratch folder it works in.

A task may die at any moment, by ``kill -9`` as well: a scratch folder is named after its host and process, and the
next unit on the same host removes those whose process is gone. The engine never reaches the network and loads no
extension that the package does not bring.
"""

import errno
import os
import re
import shutil
import socket
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

_HOST: Final = re.sub(r"[^A-Za-z0-9]", "", socket.gethostname())
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SCRATCH_PREFIX: Final = f"icedb-{_HOST}-"
_SCRATCH_NAME: Final = re.compile(rf"{_SCRATCH_PREFIX}(?P<pid>[0-9]+)-.+")


@contextmanager
def open_scratch(limits: EngineLimits) -> Iterator[Path]:
    """Make a private folder, and remove it with all that is in it, whatever happens.

    Raises:
        Unavailable: The disk is full.
    """
    parent = Path(limits.scratch_folder or tempfile.gettempdir())
    parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned_scratch(parent)
    folder = Path(tempfile.mkdtemp(prefix=f"{_SCRATCH_PREFIX}{os.getpid()}-", dir=parent))
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


def remove_abandoned_scratch(parent: Path) -> int:
    """Remove scratch folders of this host whose process is gone; return how many."""
    removed_count = 0
    with os.scandir(parent) as entries:  # the folder of all temporary files may have thousands, and each unit looks
        found = [entry for entry in entries if entry.name.startswith(_SCRATCH_PREFIX)]
    for entry in found:
        match = _SCRATCH_NAME.fullmatch(entry.name)
        if match and entry.is_dir(follow_symlinks=False) and not _is_running(int(match["pid"])):
            shutil.rmtree(entry.path, ignore_errors=True)
            removed_count += 1
    return removed_count


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
        connection.execute("SET TimeZone = 'UTC'")
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


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
