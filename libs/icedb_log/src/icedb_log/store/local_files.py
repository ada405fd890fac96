"""Files of a directory store: durable, atomic steps on them, and their order as keys.

Owns fsync, locks between processes, folders that appear and vanish under other processes' feet, the translation of
``OSError`` into this project's errors, and the mapping from a tree of folders to a flat, ordered namespace.
The ordering rule: content is fsynced before it gets its name, and the folder is fsynced before the write is
acknowledged. What a key means is decided in :mod:`icedb_log.store.local_store`; the steps know paths.

An order of folders is not an order of keys: ``a.b`` sorts before ``a/b`` although ``a`` sorts before ``a.b``; so a
folder takes its place under its name *with* the slash. Only folders that can hold keys of the prefix, after the given
key, are read.
"""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from icedb_log.clock import Clock
from icedb_log.errors import IceDBError, InvalidRequest, PreconditionFailed, Unavailable
from icedb_log.key_rules import check_key

STORE_FOLDER: Final = ".icedb-store"
"""Where a directory store keeps its own files, at the root: temporary files, locks, the clock. Never a key."""

LOCK_WAIT_MS: Final = 30_000
"""How long a write waits for another process that holds a key's lock before it gives up."""

_LOCK_POLL_MS: Final = 1
_NS_PER_MS: Final = 1_000_000
_COPY_BYTES: Final = 1024 * 1024
_ID_DIGITS: Final = 5

_REMEDIES: Final = {
    errno.ENOSPC: "free disk space, or move the store to a larger disk",
    errno.EFBIG: "free disk space, or raise the limit of file sizes (ulimit -f)",
    errno.EDQUOT: "raise the disk quota of the user that runs this",
    errno.EACCES: "give the user that runs this read and write permission on the store",
    errno.EPERM: "give the user that runs this read and write permission on the store",
    errno.EROFS: "mount the file system read-write",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "raise the system's limit of open files",
    errno.EXDEV: "keep the whole store on one file system, without mounts or links to others inside",
    errno.ENOTSUP: "put the store on a local file system with hard links and locks",
    errno.ENOLCK: "put the store on a local file system with hard links and locks",
    errno.EIO: "check the disk",
}


@dataclass(frozen=True, slots=True)
class FileVersion:
    """Which content a file has, without reading it.

    Attributes:
        inode: Number of the inode: every write makes a new one, but numbers are used again.
        mtime_ns: Time of the content; files written here carry random digits below the millisecond, so that
            a number that is used again within one tick of the file system's clock is still told apart.
        size_bytes: Size.
    """

    inode: int
    mtime_ns: int
    size_bytes: int


def version_of(stat: os.stat_result) -> FileVersion:
    """Return the version that a ``stat`` shows."""
    return FileVersion(stat.st_ino, stat.st_mtime_ns, stat.st_size)


def modified_ms_of(stat: os.stat_result) -> int:
    """Return when a file got its name, unix ms by the file system's clock.

    It is the change time: set by the kernel with the link or rename that makes the object visible. The
    modification time is that of the bytes, which a stalled process may have written long before (J1). Whatever
    else moves it (a new mode, a hard link) makes the object look younger, never older.
    """
    return stat.st_ctime_ns // _NS_PER_MS


def explain(error: OSError, path: str, doing: str) -> IceDBError:
    """Return what an ``OSError`` means for the caller.

    Args:
        error: What the system said.
        path: The path that it said it about.
        doing: The failed step as words after "cannot", e.g. ``write``.
    """
    if error.errno == errno.ENAMETOOLONG:
        return InvalidRequest(f"{path}: cannot {doing}: the path is too long for this file system; shorten the key")
    if error.errno in (errno.ENOTDIR, errno.EISDIR):
        return InvalidRequest(
            f"{path}: cannot {doing}: a directory store cannot hold an object and others below its key and '/'; "
            "use another key"
        )
    remedy = _REMEDIES.get(error.errno or 0, "check the directory of the store, then try again")
    return Unavailable(f"{path}: cannot {doing}: {error.strerror or error}; {remedy}")


def exists_error(path: str) -> PreconditionFailed:
    """Return the error of a create that came too late."""
    return PreconditionFailed(f"{path}: exists already; read it back and compare before concluding (W2)")


def other_etag_error(path: str, found: str, expected: str) -> PreconditionFailed:
    """Return the error of a read that insists on another content."""
    return PreconditionFailed(f"{path}: its ETag is {found}, not {expected}; list and read again")


def sync_folder(path: str) -> None:
    """Make the names in a folder durable. A folder that is gone needs nothing."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folders(path: str) -> None:
    """Create a folder with its parents, each durable in its own parent. Idempotent."""
    missing: list[str] = []
    current = path
    while not os.path.isdir(current):
        missing.append(current)
        parent = os.path.dirname(current)
        if parent == current:
            break
        current = parent
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder)
        sync_folder(os.path.dirname(folder))


def remove_empty_folders(path: str, root: str) -> str:
    """Remove a folder and its parents below ``root`` as long as they are empty; return the first that stays.

    A racing write that finds its folder gone makes it anew; ``rmdir`` itself refuses a folder with content.
    """
    current = path
    while current != root and current.startswith(f"{root}/"):
        try:
            os.rmdir(current)
        except FileNotFoundError:
            pass  # another process was faster
        except OSError:
            break
        current = os.path.dirname(current)
    return current


@contextlib.contextmanager
def hold_lock(path: str, clock: Clock) -> Iterator[None]:
    """Hold a lock file against all threads and processes of this machine.

    The lock is taken on a description of its own, so that threads exclude each other too, and is released by
    name, so that a child forked meanwhile does not keep it. It dies with its process. Lock files stay.

    Raises:
        Unavailable: Somebody held it for longer than ``LOCK_WAIT_MS``.
    """
    handle = _open_lock(path)
    try:
        _take_lock(handle, path, clock)
        try:
            yield
        finally:
            fcntl.flock(handle, fcntl.LOCK_UN)
    finally:
        os.close(handle)


def write_new_file(path: str, chunks: Iterator[bytes], unique_id: str) -> os.stat_result:
    """Write a file that nobody else knows yet, durably, and return its ``stat``.

    Args:
        path: Must not exist.
        chunks: The content.
        unique_id: Hex digits, unique: the last ones go into the modification time (see :class:`FileVersion`).

    Raises:
        OSError: As the system says; what was written may be left at ``path``.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        for chunk in chunks:
            rest = memoryview(chunk)
            while rest:
                rest = rest[os.write(handle, rest) :]
        whole_ms = os.fstat(handle).st_mtime_ns // _NS_PER_MS - 1
        stamp_ns = whole_ms * _NS_PER_MS + int(unique_id[-_ID_DIGITS:], 16) % _NS_PER_MS
        os.utime(handle, ns=(stamp_ns, stamp_ns))
        os.fsync(handle)
        return os.fstat(handle)
    finally:
        os.close(handle)


def read_chunks(handle: int) -> Iterator[bytes]:
    """Yield a file's content from where it stands."""
    while chunk := os.read(handle, _COPY_BYTES):
        yield chunk


def read_part(handle: int, start: int, length: int) -> bytes:
    """Return bytes of a file, fewer where it ends before. Where the file stands does not change."""
    chunks: list[bytes] = []
    while length and (chunk := os.pread(handle, length, start)):
        chunks.append(chunk)
        start += len(chunk)
        length -= len(chunk)
    return b"".join(chunks)


def touch_clock(path: str) -> int | None:
    """Return the file system's own clock in unix ms, read off a file that is touched; ``None`` if it cannot be."""
    try:
        try:
            os.utime(path)
        except FileNotFoundError:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666))
            os.utime(path)
        return modified_ms_of(os.stat(path))
    except OSError:
        return None


def remove_stale_files(folder: str, *, older_than_ms: int) -> int:
    """Remove the files of a folder that were last changed before ``older_than_ms``, unix ms; return how many."""
    count = 0
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                if modified_ms_of(entry.stat()) < older_than_ms:
                    os.unlink(entry.path)
                    count += 1
    return count


def _open_lock(path: str) -> int:
    """Open a lock file, making it and its folder on first use."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
    try:
        return os.open(path, flags, 0o666)
    except FileNotFoundError:
        make_folders(os.path.dirname(path))
        return os.open(path, flags, 0o666)


def _take_lock(handle: int, path: str, clock: Clock) -> None:
    """Take the lock on an open file, waiting in small steps up to ``LOCK_WAIT_MS``."""
    deadline_ms = clock.monotonic_ms() + LOCK_WAIT_MS
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if clock.monotonic_ms() >= deadline_ms:
                raise Unavailable(
                    f"{path}: another process has held this lock for {LOCK_WAIT_MS // 1000} s; see which with "
                    "'fuser', and resume or end it"
                ) from None
            clock.sleep_ms(_LOCK_POLL_MS)
        else:
            return


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
