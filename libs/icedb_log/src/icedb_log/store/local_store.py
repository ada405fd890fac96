"""An object store in a directory: the embedded default, durable, for many processes of one machine.

An object is a file below the root; its key is the path. Temporary files and locks live in ``.icedb-store/`` at the root
and are never listed. The ordering rule: content is fsynced before it gets its name, and the folder is fsynced before
the write is acknowledged.

* **Create** writes and fsyncs a temporary file, then links it to its name: the kernel refuses the second link.
* **Replace, overwrite and delete** hold a lock file chosen by the key's folder, so that nothing changes between the
  comparison of an ETag and the rename. (A create needs no lock: while a replace holds it nobody can delete.)
* **ETags** of small files are a hash of the content. Those of large ones (data files, which are never edited) are
  inode, size and modification time, so that no listing ever reads a large file: there, equal ETags mean equal content,
  but equal content written twice has two ETags.
* **Deletes** below several locks are made by two threads: more are not faster. The keys of a folder are deleted
  together under its lock; a file is not looked at before, but where its unlink failed.
* **Times** are the file system's: ``modified_ms`` is when the object got its name, and the store's "now" is read
  off a file that is touched for it. So they agree on a network disk, too (J1).
* **Listings** read the folders until two looks in a row agree: a page is a state that the store really had, as
  on S3. A reader of a single page relies on it (R1). An order of folders is not an order of keys: ``a.b`` sorts before
  ``a/b`` although ``a`` sorts before ``a.b``; so a folder takes its place under its name *with* the slash.

It must never be shared by several machines: locks and atomic links are only known to work on one.
"""

import contextlib
import errno
import fcntl
import hashlib
import os
import stat as stat_module
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Final, NamedTuple

from icedb_log.clock import Clock, SystemClock
from icedb_log.errors import (
    CommitOutcomeUnknown,
    IceDBError,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    StoreRefused,
    Unavailable,
)
from icedb_log.store.object_store import (
    MAX_KEYS_PER_PAGE,
    DeleteFailure,
    DeleteReport,
    FailedDelete,
    ObjectInfo,
    ObjectPage,
    StoredObject,
    check_byte_range,
    check_folder_prefix,
    check_key,
    check_page_limit,
    check_presign_ms,
    probe_conditional_writes,
)

STORE_FOLDER: Final = ".icedb-store"
"""Where a directory store keeps its own files, at the root: temporary files, locks, the clock. Never a key."""

LOCK_COUNT: Final = 256
"""Number of lock files; folders share them by hash, so that they need no clean-up."""

LOCK_WAIT_MS: Final = 30_000
"""How long a write waits for another process that holds a key's lock before it gives up."""

DELETE_THREADS: Final = 2
"""Locks below which files are deleted at once."""

MAX_LOOKS: Final = 100
"""How often a page is read again because it changed meanwhile."""

STALE_TEMPORARY_MS: Final = 24 * 3600 * 1000
"""Age from which a temporary file belongs to a process that died."""

MAX_HASHED_BYTES: Final = 64 * 1024
"""Up to this size an ETag is a hash of the content."""

_READING: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_MAX_PLACE_TRIES: Final = 100
_MAX_CACHED: Final = 65_536
_HASH_BYTES: Final = 16
_LOCK_POLL_MS: Final = 1
_NS_PER_MS: Final = 1_000_000
_COPY_BYTES: Final = 1024 * 1024
_ID_DIGITS: Final = 5
_DENIED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_LASTING: Final = _DENIED | {errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EXDEV, errno.ENOTSUP, errno.ENOLCK}
"""What stays so until somebody mends it."""
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


class FileVersion(NamedTuple):
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


class FoundFile(NamedTuple):
    """One object as the walk met it."""

    key: str
    version: FileVersion
    modified_ms: int


_content_of: Final = itemgetter(0, 1)
"""Key and content of a found file: its change time may still move."""


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


class LocalObjectStore:
    """Objects as files below a directory. Safe for use by many threads and processes, also after a fork.

    Attributes:
        max_parallel_reads: Small files come from the page cache: threads would wait for the interpreter alone, and
            2,000 log files take them more than twice as long.
        max_keys_per_page: A page costs a look at the whole folder, however few keys it takes: a long log is one page,
            of one moment, and no reader has to list it again (R1).
        time_listeners: See :class:`icedb_log.store.store_clock.TellsTime`.
    """

    max_parallel_reads: Final = 1
    max_keys_per_page: Final = 10 * MAX_KEYS_PER_PAGE

    def __init__(self, root: Path, *, clock: Clock | None = None) -> None:
        """Open a directory. Nothing is created before the first write or :meth:`probe`.

        Args:
            root: The directory, absolute; on a local file system with hard links.
            clock: For waits and for the names of temporary files; never for the times of objects.

        Raises:
            InvalidRequest: ``root`` is relative, or not a directory.
        """
        if not root.is_absolute():
            raise InvalidRequest(f"directory store {str(root)!r}: give an absolute path")
        if root.exists() and not root.is_dir():
            raise InvalidRequest(f"directory store {root}: is a file; give a directory")
        self.time_listeners: list[Callable[[int], None]] = []
        self._root = str(root).rstrip("/")
        self._own = f"{self._root}/{STORE_FOLDER}"
        self._clock = clock or SystemClock()
        self._etags = _ETags()

    def probe(self) -> None:
        """Create the directory if needed, check conditional writes, remove what dead processes left."""
        try:
            make_folders(f"{self._own}/new")
            oldest_ms = self._store_now_ms() - STALE_TEMPORARY_MS
            remove_stale_files(f"{self._own}/new", older_than_ms=oldest_ms)
        except OSError as error:
            raise explain(error, self._root, "create the store's directory") from error
        probe_conditional_writes(self, "", scratch_id=self._clock.new_id(), name=f"the directory {self._root or '/'}")

    def get(self, key: str, *, if_match: str | None = None) -> StoredObject:
        """Read an object. Raises NotFound, PreconditionFailed, Unavailable, InvalidRequest."""
        return self._read(key, 0, None, if_match)

    def get_range(self, key: str, *, start: int, length: int, if_match: str | None = None) -> StoredObject:
        """Read a part of an object. Raises NotFound, PreconditionFailed, Unavailable, InvalidRequest."""
        check_byte_range(start, length)
        return self._read(key, start, length, if_match)

    def head(self, key: str) -> ObjectInfo:
        """Read an object's metadata. Raises NotFound, Unavailable, InvalidRequest."""
        with self._open(key) as (handle, stat):
            return self._info(key, handle, stat)

    def put_if_absent(self, key: str, body: bytes) -> str:
        """Create an object, durably. Raises PreconditionFailed, CommitOutcomeUnknown, Unavailable (no room)."""
        path = self._path(key)
        if os.path.isfile(path):
            raise _exists_error(path)
        with self._temporary(iter((body,)), key) as (temporary, stat):
            self._place(path, lambda: os.link(temporary, path))
        self._make_durable(path, CommitOutcomeUnknown)
        return self._etags.find(version_of(stat), lambda: body)

    def put_if_match(self, key: str, body: bytes, *, etag: str) -> str:
        """Replace an object that still has ``etag``, durably. Raises as :meth:`put_if_absent` does."""
        path = self._path(key)
        with self._temporary(iter((body,)), key) as (temporary, stat), self._locked(key):
            try:
                found = self.head(key).etag
            except NotFound:
                raise PreconditionFailed(f"{path}: is gone, expected the ETag {etag}; read again (W2)") from None
            if found != etag:
                raise PreconditionFailed(f"{path}: its ETag is {found}, not {etag}; read it again (W2)")
            self._place(path, lambda: os.replace(temporary, path))
        self._make_durable(path, CommitOutcomeUnknown)
        return self._etags.find(version_of(stat), lambda: body)

    def put(self, key: str, body: bytes) -> str:
        """Write an object whatever is there, durably. Raises Unavailable, InvalidRequest."""
        stat = self._overwrite(key, iter((body,)))
        return self._etags.find(version_of(stat), lambda: body)

    def list_page(self, prefix: str, *, token: str | None = None, limit: int = MAX_KEYS_PER_PAGE) -> ObjectPage:
        """List one page, a state that the store really had; the token is the last key of the page before."""
        check_page_limit(limit, self.max_keys_per_page)
        for _ in range(MAX_LOOKS):
            try:
                first = list(islice(walk_keys(self._root, prefix, after=token), limit + 1))
                second = list(islice(walk_keys(self._root, prefix, after=token), limit + 1))
                if list(map(_content_of, first)) != list(map(_content_of, second)):
                    continue
                infos = [self._info_of_found(found) for found in second[:limit]]
            except OSError as error:
                raise explain(error, error.filename or self._root, "list") from error
            # An object that was replaced before its content could be hashed: look again.
            page = tuple(info for info in infos if info is not None)
            if len(page) == len(infos):
                next_token = page[-1].key if len(second) > limit else None
                return ObjectPage(page, next_token, self._store_now_ms())
        raise Unavailable(
            f"{self._root}/{prefix}: changed {MAX_LOOKS} times while one page was being listed; try again later"
        )

    def list_folders(self, prefix: str) -> tuple[str, ...]:
        """List the folders right below ``prefix`` that hold objects. Raises Unavailable, InvalidRequest."""
        check_folder_prefix(prefix)
        try:
            return tuple(sorted(list_subfolders(self._root, prefix)))
        except OSError as error:
            raise explain(error, error.filename or self._root, "list") from error

    def delete(self, keys: Sequence[str]) -> DeleteReport:
        """Delete objects, durably, and the folders that are empty then. Raises nothing: the report says what failed."""
        failed: dict[str, FailedDelete] = {}
        by_folder: dict[str, list[tuple[str, str]]] = {}
        asked = dict.fromkeys(keys)
        for key in asked:
            try:
                path = self._path(key)
            except InvalidRequest as error:
                failed[key] = FailedDelete(key, str(error))
                continue
            by_folder.setdefault(path[: path.rindex("/")], []).append((key, path))
        there = [folder for folder in by_folder if not _is_missing(folder)]
        by_lock: dict[int, list[tuple[str, str]]] = {}
        for sharing in map(by_folder.__getitem__, there):
            by_lock.setdefault(_lock_number(sharing[0][0]), []).extend(sharing)
        with ThreadPoolExecutor(DELETE_THREADS, "icedb-delete") if len(by_lock) > 1 else nullcontext() as pool:
            for found in (map if pool is None else pool.map)(self._delete_together, by_lock.values()):
                failed.update(found)
        self._tidy_folders(there)
        return DeleteReport(tuple(key for key in asked if key not in failed), tuple(failed.values()))

    def _delete_together(self, sharing: Sequence[tuple[str, str]]) -> dict[str, FailedDelete]:
        """Delete objects that share a lock, each a key and its path; return what failed."""
        failed: dict[str, FailedDelete] = {}
        try:
            with self._locked(sharing[0][0]):
                for key, path in sharing:
                    try:
                        os.unlink(path)
                    except OSError as error:
                        # A missing one is fine, whatever the error (of a disk that is read-only it is not the
                        # absence), and a folder is no object.
                        if not _is_missing(path) and not os.path.isdir(path):
                            failed[key] = FailedDelete(key, str(explain(error, path, "delete")), _kind_of(error))
        except IceDBError as error:
            # The lock: held by another process, or not to be opened. Nothing was deleted under it.
            kind = _kind_of(error.__cause__) if isinstance(error.__cause__, OSError) else "unanswered"
            failed.update((key, FailedDelete(key, str(error), kind)) for key, _ in sharing)
        return failed

    def abort_stale_uploads(self, prefix: str, *, before_ms: int) -> int:
        """Remove the temporary files of writers that died, whatever key they were for. Raises Unavailable."""
        del prefix
        try:
            return remove_stale_files(f"{self._own}/new", older_than_ms=before_ms)
        except OSError as error:
            raise explain(error, error.filename or self._own, "remove what dead writers left in") from error

    def download(self, key: str, path: Path) -> ObjectInfo:
        """Copy an object to a local file. Raises NotFound, Unavailable."""
        with self._open(key) as (handle, stat):
            try:
                with path.open("wb") as file:
                    file.writelines(_read_chunks(handle))
            except OSError as error:
                raise explain(error, str(path), f"write the copy of {key}") from error
            return self._info(key, handle, stat)

    def upload(self, key: str, path: Path, *, may_move: bool = False) -> None:
        """Copy a local file to an object, durably. Raises InvalidRequest if it cannot be read, Unavailable."""
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise InvalidRequest(f"{path}: cannot be uploaded as {key}: {error.strerror}") from error
        try:
            self._overwrite(key, _read_chunks(handle), moved=path if may_move else None)
        finally:
            os.close(handle)

    def uri(self, key: str) -> str:
        """Return the absolute path of an object's file."""
        return self._path(key)

    def presign(self, key: str, *, expires_ms: int) -> str:
        """Refuse: a directory has no URLs."""
        check_presign_ms(expires_ms)
        raise InvalidRequest(f"{self.uri(key)}: files of a directory have no URLs; leave presign_ms out, or use S3")

    def _path(self, key: str) -> str:
        """Return where an object lies. Raises InvalidRequest for a key that would lie elsewhere."""
        check_key(key)
        if key.partition("/")[0] == STORE_FOLDER:
            raise InvalidRequest(f"object key {key!r}: {STORE_FOLDER} belongs to the store; use another key")
        return f"{self._root}/{key}"

    @contextlib.contextmanager
    def _open(self, key: str) -> Iterator[tuple[int, os.stat_result]]:
        """Open an object for reading: one content, whatever happens to its name meanwhile."""
        path = self._path(key)
        try:
            handle = os.open(path, _READING)
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound(f"{path}: no such object") from None
        except OSError as error:
            raise explain(error, path, "read") from error
        try:
            stat = os.fstat(handle)
            if not stat_module.S_ISREG(stat.st_mode):
                raise NotFound(f"{path}: no such object")
            yield handle, stat
        except OSError as error:
            raise explain(error, path, "read") from error
        finally:
            os.close(handle)

    def _read(self, key: str, start: int, length: int | None, if_match: str | None) -> StoredObject:
        """Read a part of an object, ``None``: all of it."""
        with self._open(key) as (handle, stat):
            info = self._info(key, handle, stat)
            body = _read_part(handle, start, info.size_bytes if length is None else length)
        if if_match is not None and info.etag != if_match:
            raise PreconditionFailed(f"{self._path(key)}: its ETag is {info.etag}, not {if_match}; list and read again")
        return StoredObject(info, body)

    def _info(self, key: str, handle: int, stat: os.stat_result) -> ObjectInfo:
        """Describe an open object."""
        etag = self._etags.find(version_of(stat), lambda: os.pread(handle, MAX_HASHED_BYTES + 1, 0))
        return ObjectInfo(key, etag, stat.st_size, modified_ms_of(stat))

    def _info_of_found(self, found: FoundFile) -> ObjectInfo | None:
        """Describe an object of a walk; ``None`` if it has been replaced or deleted since."""
        version = found.version
        etag = self._etags.known(version)
        if etag is None:
            body = b""
            if version.size_bytes <= MAX_HASHED_BYTES:
                try:
                    handle = os.open(f"{self._root}/{found.key}", _READING)
                except (FileNotFoundError, NotADirectoryError):
                    return None
                try:
                    if version_of(os.fstat(handle)) != version:
                        return None
                    body = os.pread(handle, version.size_bytes + 1, 0)
                finally:
                    os.close(handle)
            etag = self._etags.find(version, lambda: body)
        return ObjectInfo(found.key, etag, version.size_bytes, found.modified_ms)

    @contextlib.contextmanager
    def _temporary(
        self, chunks: Iterator[bytes], key: str, *, moved: Path | None = None
    ) -> Iterator[tuple[str, os.stat_result]]:
        """Write a durable temporary file that is gone in the end, under whatever name it got meanwhile."""
        unique_id = self._clock.new_id()
        path = f"{self._own}/new/{unique_id}"
        try:
            try:
                stat = write_new_file(path, chunks, unique_id, moved=moved)
            except FileNotFoundError:
                make_folders(os.path.dirname(path))
                stat = write_new_file(path, chunks, unique_id, moved=moved)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(path)
            raise explain(error, path, f"write {key}") from error
        try:
            yield path, stat
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)

    def _place(self, path: str, action: Callable[[], None]) -> None:
        """Give a temporary file its name, making folders again that a racing delete removes."""
        for _ in range(_MAX_PLACE_TRIES):
            try:
                action()
            except FileNotFoundError:
                try:
                    with contextlib.suppress(FileNotFoundError):
                        make_folders(os.path.dirname(path))
                except OSError as error:
                    raise explain(error, path, "write") from error
            except FileExistsError:
                if os.path.isdir(path):
                    raise explain(IsADirectoryError(errno.EISDIR, "is a folder"), path, "write") from None
                raise _exists_error(path) from None
            except OSError as error:
                raise explain(error, path, "write") from error
            else:
                return
        raise Unavailable(f"{path}: its folder, or the file in {self._own}/new, vanishes again and again; try later")

    def _overwrite(self, key: str, chunks: Iterator[bytes], *, moved: Path | None = None) -> os.stat_result:
        """Write an object whatever is there; return the ``stat`` of the new file before it got its name."""
        path = self._path(key)
        with self._temporary(chunks, key, moved=moved) as (temporary, stat), self._locked(key):
            self._place(path, lambda: os.replace(temporary, path))
        self._make_durable(path, Unavailable)
        return stat

    def _make_durable(self, path: str, outcome: type[CommitOutcomeUnknown] | type[Unavailable]) -> None:
        """Make an object's name survive a loss of power; ``outcome`` is what a failure means for the write."""
        try:
            sync_folder(os.path.dirname(path))
        except OSError as error:
            raise outcome(
                f"{path}: written, but the disk did not confirm it: {error.strerror}; read it back, check the disk"
            ) from error

    @contextlib.contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        """Hold the lock that a key shares with others, against all threads and processes of this machine.

        Never two at once: that could deadlock.

        The lock is taken on a description of its own, so that threads exclude each other too, and is released by
        name, so that a child forked meanwhile does not keep it. It dies with its process. Lock files stay.

        Raises:
            Unavailable: Somebody held it for longer than ``LOCK_WAIT_MS``.
        """
        path = f"{self._own}/locks/{_lock_number(key):02x}"
        with contextlib.ExitStack() as stack:
            try:
                handle = _open_lock(path)
                stack.callback(os.close, handle)
                self._take_lock(handle, path)
            except OSError as error:
                raise explain(error, path, "lock") from error
            stack.callback(fcntl.flock, handle, fcntl.LOCK_UN)
            yield

    def _take_lock(self, handle: int, path: str) -> None:
        """Take the lock on an open file, waiting in small steps up to ``LOCK_WAIT_MS``."""
        deadline_ms = self._clock.monotonic_ms() + LOCK_WAIT_MS
        while True:
            try:
                return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if self._clock.monotonic_ms() >= deadline_ms:
                    raise Unavailable(
                        f"{path}: another process has held this lock for {LOCK_WAIT_MS // 1000} s; see which with "
                        "'fuser', and resume or end it"
                    ) from None
                self._clock.sleep_ms(_LOCK_POLL_MS)

    def _tidy_folders(self, folders: Iterable[str]) -> None:
        """Remove folders that became empty, and make deletes durable: in each folder that stays, once."""
        stay = {remove_empty_folders(folder, self._root) for folder in sorted(folders, key=len, reverse=True)}
        for folder in stay:
            # A delete that a loss of power undoes is made again by the janitor's next round (J6).
            with contextlib.suppress(OSError):
                sync_folder(folder)

    def _store_now_ms(self) -> int:
        """Return the file system's clock, read off a file that is touched; the host's if nothing can be written."""
        path = f"{self._own}/clock"
        try:
            try:
                os.utime(path)
            except FileNotFoundError:
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666))
                os.utime(path)
            now_ms = modified_ms_of(os.stat(path))
        except OSError:
            now_ms = self._clock.now_ms()
        for tell in self.time_listeners:
            tell(now_ms)
        return now_ms


def _lock_number(key: str) -> int:
    """Return which lock a key has: that of its folder."""
    folder = key.rpartition("/")[0].encode()
    return int.from_bytes(hashlib.blake2b(folder, digest_size=2).digest(), "big") % LOCK_COUNT


class _ETags:
    """The ETags of small files that this process has hashed. Safe for use by many threads."""

    def __init__(self) -> None:
        self._found: dict[FileVersion, str] = {}

    def known(self, version: FileVersion) -> str | None:
        """Return the ETag of a version that was hashed before, else ``None``."""
        return self._found.get(version)

    def find(self, version: FileVersion, read: Callable[[], bytes]) -> str:
        """Return the ETag of a version, hashing what ``read`` returns if it is small and new to this process."""
        if version.size_bytes > MAX_HASHED_BYTES:
            return f"{version.inode:x}-{version.size_bytes:x}-{version.mtime_ns:x}"
        etag = self._found.get(version)
        if etag is None:
            etag = hashlib.blake2b(read(), digest_size=_HASH_BYTES).hexdigest()
            if len(self._found) >= _MAX_CACHED:
                self._found.clear()
            self._found[version] = etag
        return etag


def _is_missing(path: str) -> bool:
    """Whether nothing is there for certain: what may not be looked at may be there (J6)."""
    try:
        os.stat(path)
    except OSError as error:
        return isinstance(error, FileNotFoundError | NotADirectoryError)
    return False


def _kind_of(error: BaseException) -> DeleteFailure:
    return "denied" if isinstance(error, OSError) and error.errno in _DENIED else "other"


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
    kind = StoreRefused if error.errno in _LASTING else Unavailable
    return kind(f"{path}: cannot {doing}: {error.strerror or error}; {remedy}")


def _exists_error(path: str) -> PreconditionFailed:
    return PreconditionFailed(f"{path}: exists already; read it back and compare before concluding (W2)")


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


def write_new_file(path: str, chunks: Iterator[bytes], unique_id: str, *, moved: Path | None = None) -> os.stat_result:
    """Write a file that nobody else knows yet, durably, and return its ``stat``.

    Args:
        path: Must not exist.
        chunks: The content.
        unique_id: Hex digits, unique: the last ones go into the modification time (see :class:`FileVersion`).
        moved: A file of the same content that becomes this one, if it lies on the same file system.

    Raises:
        OSError: As the system says; what was written may be left at ``path``.
    """
    is_there = moved is not None and _move(moved, path)
    flags = 0 if is_there else os.O_CREAT | os.O_EXCL
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC | flags, 0o666)
    try:
        for chunk in () if is_there else chunks:
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


def _move(source: Path, path: str) -> bool:
    """Give a file another name, and return whether that was possible: mostly not if it lies on another disk."""
    try:
        os.rename(source, path)
    except OSError:
        return False
    return True


def _read_chunks(handle: int) -> Iterator[bytes]:
    """Yield a file's content from where it stands."""
    while chunk := os.read(handle, _COPY_BYTES):
        yield chunk


def _read_part(handle: int, start: int, length: int) -> bytes:
    """Return bytes of a file, fewer where it ends before. Where the file stands does not change."""
    chunks: list[bytes] = []
    while length and (chunk := os.pread(handle, length, start)):
        chunks.append(chunk)
        start += len(chunk)
        length -= len(chunk)
    return b"".join(chunks)


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
        is_folder = name.endswith("/")
        holds_after = after is not None and is_folder and after.startswith(key)
        if after is not None and key <= after and not holds_after:
            continue
        if not _is_key(key.removesuffix("/")):  # only now: of a large folder a page takes few names
            continue
        if is_folder:
            yield from _walk(root, key, "", after if holds_after else None)
            continue
        try:
            stat = os.stat(f"{root}/{key}")
        except (FileNotFoundError, NotADirectoryError):
            continue
        yield FoundFile(key, version_of(stat), modified_ms_of(stat))


def _read_folder(root: str, folder_key: str, name_prefix: str) -> list[str]:
    """Return the names of files and folders in a folder, folders with a slash, in key order; not all can name keys."""
    names: list[str] = []
    try:
        with os.scandir(f"{root}/{folder_key}") as entries:
            for entry in entries:
                name = entry.name
                if not name.startswith(name_prefix):
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
    """Whether an object may be called so. What cannot (names that are not UTF-8) was not written by a store."""
    if key.partition("/")[0] == STORE_FOLDER:
        return False
    try:
        check_key(key)
    except InvalidRequest:
        return False
    return True
