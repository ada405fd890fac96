"""An object store in a directory: the embedded default, durable, for many processes of one machine.

Owns what a key means on disk. An object is a file below the root; its key is the path. Temporary files and
locks live in ``.icedb-store/`` at the root and are never listed.

* **Create** writes and fsyncs a temporary file, then links it to its name: the kernel refuses the second link.
* **Replace, overwrite and delete** hold a lock file chosen by the key, so that nothing changes between the
  comparison of an ETag and the rename. (A create needs no lock: while a replace holds it nobody can delete.)
* **ETags** of small files are a hash of the content. Those of large ones (data files, which are never edited) are
  inode, size and modification time, so that no listing ever reads a large file: there, equal ETags mean equal content,
  but equal content written twice has two ETags.
* **Deletes** are made by one thread: several were measured not to be faster. What costs is the lock of each key, so
  that keys which share one are deleted under it together.
* **Times** are the file system's: ``modified_ms`` is when the object got its name, and the store's "now" is read
  off a file that is touched for it. So they agree on a network disk, too (J1).
* **Listings** read the folders until two looks in a row agree: a page is a state that the store really had, as
  on S3. A reader of a single page relies on it (R1).

It must never be shared by several machines: locks and atomic links are only known to work on one.
"""

import contextlib
import errno
import hashlib
import os
import stat as stat_module
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Final

from icedb_log.clock import Clock, SystemClock
from icedb_log.errors import CommitOutcomeUnknown, IceDBError, InvalidRequest, NotFound, PreconditionFailed, Unavailable
from icedb_log.key_rules import check_byte_range, check_folder_prefix, check_key, check_page_limit
from icedb_log.store.local_files import (
    STORE_FOLDER,
    FileVersion,
    FoundFile,
    exists_error,
    explain,
    hold_lock,
    list_subfolders,
    make_folders,
    modified_ms_of,
    other_etag_error,
    read_chunks,
    read_part,
    remove_empty_folders,
    remove_stale_files,
    sync_folder,
    touch_clock,
    version_of,
    walk_keys,
    write_new_file,
)
from icedb_log.store.object_store import (
    MAX_KEYS_PER_PAGE,
    DeleteFailure,
    DeleteReport,
    FailedDelete,
    ObjectInfo,
    ObjectPage,
    StoredObject,
    check_presign_ms,
)
from icedb_log.store.probe import probe_conditional_writes

LOCK_COUNT: Final = 256
"""Number of lock files; keys share them by hash, so that they need no clean-up."""

MAX_LOOKS: Final = 100
"""How often a page is read again because it changed meanwhile."""

STALE_TEMPORARY_MS: Final = 24 * 3600 * 1000
"""Age from which a temporary file belongs to a process that died."""

MAX_HASHED_BYTES: Final = 64 * 1024
"""Up to this size an ETag is a hash of the content."""

_MAX_PLACE_TRIES: Final = 100
_MAX_CACHED: Final = 65_536
_HASH_BYTES: Final = 16
_DENIED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


class LocalObjectStore:
    """Objects as files below a directory. Safe for use by many threads and processes, also after a fork.

    Attributes:
        max_parallel_reads: Small files come from the page cache: threads would wait for the interpreter alone, and
            2,000 log files take them more than twice as long.
        time_listeners: See :class:`icedb_log.store.store_clock.TellsTime`.
    """

    max_parallel_reads: Final = 1

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
        with self._open(key) as handle:
            stat = os.fstat(handle)
            with os.fdopen(handle, "rb", closefd=False) as file:
                body = file.read()
            etag = self._etags.find(version_of(stat), lambda: body)
        info = ObjectInfo(key, etag, len(body), modified_ms_of(stat))
        if if_match is not None and etag != if_match:
            raise other_etag_error(self._path(key), info.etag, if_match)
        return StoredObject(info, body)

    def get_range(self, key: str, *, start: int, length: int, if_match: str | None = None) -> StoredObject:
        """Read a part of an object. Raises NotFound, PreconditionFailed, Unavailable, InvalidRequest."""
        check_byte_range(start, length)
        with self._open(key) as handle:
            info = self._info(key, handle)
            body = read_part(handle, start, length)
        if if_match is not None and info.etag != if_match:
            raise other_etag_error(self._path(key), info.etag, if_match)
        return StoredObject(info, body)

    def head(self, key: str) -> ObjectInfo:
        """Read an object's metadata. Raises NotFound, Unavailable, InvalidRequest."""
        with self._open(key) as handle:
            return self._info(key, handle)

    def put_if_absent(self, key: str, body: bytes) -> str:
        """Create an object, durably. Raises PreconditionFailed, CommitOutcomeUnknown, Unavailable (no room)."""
        path = self._path(key)
        if os.path.isfile(path):
            raise exists_error(path)
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
        check_page_limit(limit)
        for _ in range(MAX_LOOKS):
            try:
                first = list(islice(walk_keys(self._root, prefix, after=token), limit + 1))
                second = list(islice(walk_keys(self._root, prefix, after=token), limit + 1))
                if [found.identity for found in first] != [found.identity for found in second]:
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
        files: list[tuple[str, str]] = []
        asked = dict.fromkeys(keys)
        for key in asked:
            try:
                files.append((key, self._path(key)))
            except InvalidRequest as error:
                failed[key] = FailedDelete(key, str(error))
        for each in self._delete_files(files):
            failed[each.key] = each
        _tidy_folders({os.path.dirname(path) for _, path in files}, self._root)
        return DeleteReport(tuple(key for key in asked if key not in failed), tuple(failed.values()))

    def abort_stale_uploads(self, prefix: str, *, before_ms: int) -> int:
        """Remove the temporary files of writers that died, whatever key they were for. Raises Unavailable."""
        del prefix
        try:
            return remove_stale_files(f"{self._own}/new", older_than_ms=before_ms)
        except OSError as error:
            raise explain(error, error.filename or self._own, "remove what dead writers left in") from error

    def download(self, key: str, path: Path) -> ObjectInfo:
        """Copy an object to a local file. Raises NotFound, Unavailable."""
        with self._open(key) as handle:
            try:
                with path.open("wb") as file:
                    for chunk in read_chunks(handle):
                        file.write(chunk)
            except OSError as error:
                raise explain(error, str(path), f"write the copy of {key}") from error
            return self._info(key, handle)

    def upload(self, key: str, path: Path) -> ObjectInfo:
        """Copy a local file to an object, durably. Raises InvalidRequest if it cannot be read, Unavailable."""
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise InvalidRequest(f"{path}: cannot be uploaded as {key}: {error.strerror}") from error
        try:
            self._overwrite(key, read_chunks(handle))
        finally:
            os.close(handle)
        return self.head(key)

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
    def _open(self, key: str) -> Iterator[int]:
        """Open an object for reading: one content, whatever happens to its name meanwhile."""
        path = self._path(key)
        try:
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound(f"{path}: no such object") from None
        except OSError as error:
            raise explain(error, path, "read") from error
        try:
            if not stat_module.S_ISREG(os.fstat(handle).st_mode):
                raise NotFound(f"{path}: no such object")
            yield handle
        except OSError as error:
            raise explain(error, path, "read") from error
        finally:
            os.close(handle)

    def _info(self, key: str, handle: int) -> ObjectInfo:
        """Describe an open object."""
        stat = os.fstat(handle)
        etag = self._etags.find(version_of(stat), lambda: os.pread(handle, MAX_HASHED_BYTES + 1, 0))
        return ObjectInfo(key, etag, stat.st_size, modified_ms_of(stat))

    def _info_of_found(self, found: FoundFile) -> ObjectInfo | None:
        """Describe an object of a walk; ``None`` if it has been replaced or deleted since."""
        etag = self._etags.known(found.version)
        if etag is None:
            try:
                with self._open(found.key) as handle:
                    if version_of(os.fstat(handle)) != found.version:
                        return None
                    etag = self._info(found.key, handle).etag
            except NotFound:
                return None
        return ObjectInfo(found.key, etag, found.version.size_bytes, found.modified_ms)

    @contextlib.contextmanager
    def _temporary(self, chunks: Iterator[bytes], key: str) -> Iterator[tuple[str, os.stat_result]]:
        """Write a durable temporary file that is gone in the end, under whatever name it got meanwhile."""
        unique_id = self._clock.new_id()
        path = f"{self._own}/new/{unique_id}"
        try:
            try:
                stat = write_new_file(path, chunks, unique_id)
            except FileNotFoundError:
                make_folders(os.path.dirname(path))
                stat = write_new_file(path, chunks, unique_id)
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
                raise exists_error(path) from None
            except OSError as error:
                raise explain(error, path, "write") from error
            else:
                return
        raise Unavailable(f"{path}: its folder, or the file in {self._own}/new, vanishes again and again; try later")

    def _overwrite(self, key: str, chunks: Iterator[bytes]) -> os.stat_result:
        """Write an object whatever is there; return the ``stat`` of the new file before it got its name."""
        path = self._path(key)
        with self._temporary(chunks, key) as (temporary, stat), self._locked(key):
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

    def _locked(self, key: str) -> contextlib.AbstractContextManager[None]:
        """Hold the lock that a key shares with others. Never two at once: that could deadlock."""
        return self._lock_numbered(_lock_number(key))

    @contextlib.contextmanager
    def _lock_numbered(self, number: int) -> Iterator[None]:
        """Hold a lock."""
        path = f"{self._own}/locks/{number:02x}"
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(hold_lock(path, self._clock))
            except OSError as error:
                raise explain(error, path, "lock") from error
            yield

    def _delete_files(self, files: Iterable[tuple[str, str]]) -> list[FailedDelete]:
        """Remove files (keys and paths), each under the lock of its key; return those that stay.

        A missing one is fine, a folder is no file.
        """
        by_lock: dict[int, list[tuple[str, str]]] = {}
        for key, path in files:
            if os.path.isfile(path):
                by_lock.setdefault(_lock_number(key), []).append((key, path))
        failed: list[FailedDelete] = []
        for number, sharing in by_lock.items():
            try:
                with self._lock_numbered(number):
                    failed += _unlink_all(sharing)
            except IceDBError as error:
                # The lock: held by another process, or not to be opened. Nothing was deleted under it.
                kind = _kind_of(error.__cause__) if isinstance(error.__cause__, OSError) else "unanswered"
                failed += [FailedDelete(key, str(error), kind) for key, _ in sharing]
        return failed

    def _store_now_ms(self) -> int:
        """Return the file system's clock, read off a file that is touched; the host's if nothing can be written."""
        now_ms = touch_clock(f"{self._own}/clock")
        now_ms = self._clock.now_ms() if now_ms is None else now_ms
        for tell in self.time_listeners:
            tell(now_ms)
        return now_ms


def _lock_number(key: str) -> int:
    """Return which lock a key has."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=2).digest(), "big") % LOCK_COUNT


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


def _tidy_folders(folders: Iterable[str], root: str) -> None:
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
