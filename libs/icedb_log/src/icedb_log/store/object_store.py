"""What IceDB asks of an object store, and the small values that go in and out.

Owns the :class:`ObjectStore` protocol. Implementations: :class:`icedb_log.store.s3.S3ObjectStore`,
:class:`icedb_log.store.local_store.LocalObjectStore`, :class:`icedb_sim.fakes.memory_store.MemoryObjectStore`;
all pass :mod:`icedb_sim.fakes.store_acceptance`.

What every implementation promises:

* A conditional write is atomic: of any number of racing ``put_if_absent`` for one key exactly one returns.
* A write that raised :class:`~icedb_log.errors.PreconditionFailed` did not happen *by this request*; an earlier
  try of the same call may have landed (W2). A write that raised
  :class:`~icedb_log.errors.CommitOutcomeUnknown` may have landed, now or later. A conditional write is sent
  once: implementations never retry it on their own, except on 409.
* Listings are strongly consistent per page, in ascending key order (UTF-8 bytes), but a listing of several
  pages is not atomic (R1).
* Times are the store's own (J1): ``modified_ms`` and ``store_now_ms`` come from one clock, not from the caller's.
* Keys are what :func:`check_key` takes, the common ground of S3 and a directory, so that a table can be copied from any
  store to any other. They are compared by the bytes of their UTF-8 form, which for Python strings without surrogates
  is the same as comparing the strings.

Some S3-compatible servers accept ``If-None-Match`` and ``If-Match`` and ignore them. On such a store two committers
overwrite each other and acknowledged rows vanish, so it is refused before the first commit
(:func:`probe_conditional_writes`). That only finds a store that *ignores* conditions; one that honours them without
being atomic shows in a race only.
"""

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol, TypeVar, get_args

from icedb_log.errors import IceDBError, InvalidRequest, PreconditionFailed, Unavailable, UnsupportedFormat
from icedb_log.keys import PROBE_FOLDER

MAX_KEYS_PER_PAGE = 1000
MAX_KEYS_PER_DELETE = 1000
MIN_PRESIGN_MS = 1000
MAX_PRESIGN_MS = 7 * 24 * 60 * 60 * 1000
"""What SigV4 allows. Credentials of a role end earlier, and the URL with them."""

MAX_KEY_BYTES: Final = 1024
"""S3's limit."""

MAX_COMPONENT_BYTES: Final = 255
"""What ext4, xfs, APFS and NTFS take as one file name."""

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")

_SHOWN_CHARS: Final = 120
# Control characters, surrogates and non-characters: XML, in which S3 lists and deletes, cannot carry them.
_FORBIDDEN: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff\ufffe\uffff]")
_PLAIN: Final = re.compile(r"[A-Za-z0-9_=+~-][A-Za-z0-9_=+~.-]{0,200}(/[A-Za-z0-9_=+~-][A-Za-z0-9_=+~.-]{0,200})*")
_WRONG_ETAG: Final = "00000000000000000000000000000000"
_REMEDY: Final = (
    "use a store with conditional writes (AWS S3, MinIO or Ceph in a current version, or a file:// directory)"
)


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One object as a listing or a HEAD names it.

    Attributes:
        key: The full key, no leading slash.
        etag: Version of the content, without quotes. Opaque; equal means equal content.
        size_bytes: Size.
        modified_ms: When the store finished the last write, unix ms by the store's clock.
    """

    key: str
    etag: str
    size_bytes: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object with its content."""

    info: ObjectInfo
    body: bytes


@dataclass(frozen=True, slots=True)
class ObjectPage:
    """One page of a listing.

    Attributes:
        objects: At most as many as were asked for, ascending by key.
        next_token: Where the next page begins; ``None`` on the last page.
        store_now_ms: The store's clock when it answered, unix ms. Never later than the truth by more
            than the clock's resolution (1 s on S3), so that ages are never overestimated by more than that.
    """

    objects: tuple[ObjectInfo, ...]
    next_token: str | None
    store_now_ms: int


DeleteFailure = Literal["denied", "throttled", "unanswered", "ignored", "other"]
"""Why a key is not known to be gone. A label of metrics, so the set is closed:

* ``denied``: no permission, or the object is locked; somebody has to change that.
* ``throttled``: the store asked for patience until the patience was used up; the next run tries again.
* ``unanswered``: no usable answer came, or the server failed. The object may be gone all the same.
* ``ignored``: the store said that all went well, and did not say that this key is gone.
* ``other``: the reason tells, e.g. a key that the store cannot hold.
"""

DELETE_FAILURES: Final[tuple[DeleteFailure, ...]] = get_args(DeleteFailure)


@dataclass(frozen=True, slots=True)
class FailedDelete:
    """A key that is not known to be deleted.

    Attributes:
        key: The key.
        reason: The store's words, and what to do.
        kind: The same for metrics and alerts.
    """

    key: str
    reason: str
    kind: DeleteFailure = "other"


@dataclass(frozen=True, slots=True)
class DeleteReport:
    """What became of each key of a delete: each is in one of both, once. "Not found" counts as deleted (J6).

    Attributes:
        deleted: What the store said is gone, or was not there; in a bucket that keeps versions: has a delete marker.
        failed: All others.
    """

    deleted: tuple[str, ...]
    failed: tuple[FailedDelete, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """A whole listing, all pages.

    Attributes:
        objects: All objects below the prefix, ascending by key.
        page_count: Number of pages; more than one means that the listing was not atomic (R1).
        store_now_ms: The store's clock at the *first* page (the earliest, hence the careful choice for ages).
    """

    objects: tuple[ObjectInfo, ...]
    page_count: int
    store_now_ms: int


class ObjectStore(Protocol):
    """A flat namespace of objects with conditional writes. Safe for use by many threads."""

    def probe(self) -> None:
        """Check that conditional writes are honoured, with a scratch object that is removed again.

        Raises:
            UnsupportedFormat: The store ignores conditions: it cannot be used, the message says so.
            Unavailable: The store cannot be reached, or refuses access; the message names the address.
        """
        ...

    def get(self, key: str, *, if_match: str | None = None) -> StoredObject:
        """Read one object, whole.

        Raises:
            NotFound: No such key.
            PreconditionFailed: ``if_match`` was given and the object's ETag is another.
            Unavailable: No answer after the store's own retries.
        """
        ...

    def get_range(self, key: str, *, start: int, length: int, if_match: str | None = None) -> StoredObject:
        """Read bytes ``start`` to ``start + length`` of one object; less where it ends before, none beyond its end.

        ``info`` tells of the whole object. Raises as :meth:`get`, and InvalidRequest for a negative bound.
        """
        ...

    def head(self, key: str) -> ObjectInfo:
        """Read one object's metadata. Raises NotFound, Unavailable."""
        ...

    def put_if_absent(self, key: str, body: bytes) -> str:
        """Create an object and return its ETag. Not idempotent under retry (W2).

        Raises:
            PreconditionFailed: The key exists.
            CommitOutcomeUnknown: No usable answer; the write may land at any time.
        """
        ...

    def put_if_match(self, key: str, body: bytes, *, etag: str) -> str:
        """Replace an object if its ETag is still ``etag``; return the new ETag. Not idempotent under retry (W2).

        Raises:
            PreconditionFailed: The ETag is another, or the object is gone.
            CommitOutcomeUnknown: No usable answer; the write may land at any time.
        """
        ...

    def put(self, key: str, body: bytes) -> str:
        """Write an object whatever is there; return its ETag. Only for keys whose content follows from their name."""
        ...

    def list_page(self, prefix: str, *, token: str | None = None, limit: int = MAX_KEYS_PER_PAGE) -> ObjectPage:
        """List keys that begin with ``prefix``: one page, at most ``limit`` objects (1 to :func:`largest_page`)."""
        ...

    def list_folders(self, prefix: str) -> tuple[str, ...]:
        """List the distinct first path components below ``prefix`` (which ends with ``/`` or is empty), all pages.

        Only components that are followed by a ``/`` in some key; returned without the slash, ascending.
        """
        ...

    def delete(self, keys: Sequence[str]) -> DeleteReport:
        """Delete any number of keys, and say of each what became of it. Idempotent. Waits where the store asks for it.

        A caller that looks only at errors uses :func:`delete_or_raise`: here, a key that was refused is none.

        Raises:
            Unavailable: The store cannot be used at all: nothing came back, or there is no such bucket.
        """
        ...

    def abort_stale_uploads(self, prefix: str, *, before_ms: int) -> int:
        """End uploads that began long ago and were never finished: no listing shows what they cost. Idempotent.

        An upload that is still under way fails: its caller gets Unavailable. Rule W3 bounds how long one may take.

        Args:
            prefix: Of the keys; a directory store cannot tell whose they are, and takes all that are old enough.
            before_ms: Those that began before this, unix ms by the store's clock. At least an orphan age ago.

        Returns:
            How many were ended. 0, too, from a store that does not have such requests.

        Raises:
            Unavailable: The store did not answer, or refused some; the others are ended.
        """
        ...

    def download(self, key: str, path: Path) -> ObjectInfo:
        """Copy an object to a local file, streaming. Raises NotFound, Unavailable."""
        ...

    def upload(self, key: str, path: Path, *, may_move: bool = False) -> None:
        """Copy a local file to an object, streaming, whatever is there. Only for keys with a fresh unique id.

        When it returns, the object is there, whole and durable: nobody has to look.

        Args:
            key: The key.
            path: The file.
            may_move: Nobody needs the file any more, and nobody writes it: it may become the object, and be gone then,
                or if this fails.
        """
        ...

    def uri(self, key: str) -> str:
        """Return where an engine finds the object: ``s3://bucket/key`` or an absolute file path."""
        ...

    def presign(self, key: str, *, expires_ms: int) -> str:
        """Return a URL by which anybody can read an object without credentials, until it ends. Asks nobody.

        The object need not exist. Whoever has the URL can read the object: it is a secret, and not to be logged.

        Args:
            key: The key.
            expires_ms: How long the URL lasts from now, whole seconds, ``MIN_PRESIGN_MS`` to ``MAX_PRESIGN_MS``; a
                part of a second is cut off.

        Raises:
            InvalidRequest: The store has no such URLs (a directory), or the time is not allowed.
            Unavailable: There are no credentials to sign with.
        """
        ...


def check_key(key: str) -> str:
    """Return ``key`` if every store takes it.

    Args:
        key: A full key, without a leading slash.

    Raises:
        InvalidRequest: It is empty, too long, or has a component that is empty, ``.`` or ``..``, or a
            character that no listing could carry. The message says which.
    """
    if len(key) <= MAX_KEY_BYTES and _PLAIN.fullmatch(key):
        return key
    problem = _find_problem(key)
    if problem:
        raise InvalidRequest(
            f"object key {key[:_SHOWN_CHARS]!r} {problem}; use 1 to {MAX_KEY_BYTES} bytes of UTF-8, "
            f"components of at most {MAX_COMPONENT_BYTES} bytes between single slashes, no '.' or '..', "
            "no control characters"
        )
    return key


def is_listable(key: str) -> bool:
    """Whether S3 can hold and list a key at all: a looser rule than :func:`check_key`, for objects of others."""
    return bool(key) and not _FORBIDDEN.search(key) and len(key.encode()) <= MAX_KEY_BYTES


def check_byte_range(start: int, length: int) -> None:
    """Refuse a part of an object that begins before it, or has fewer than no bytes. Raises InvalidRequest."""
    if start < 0 or length < 0:
        raise InvalidRequest(f"byte range from {start}, {length} bytes: neither may be negative; correct the call")


def check_page_limit(limit: int, most: int = MAX_KEYS_PER_PAGE) -> int:
    """Return ``limit`` if it is a number of keys that one page may hold, else raise InvalidRequest."""
    if not 1 <= limit <= most:
        raise InvalidRequest(f"a page of {limit} keys was asked for: use 1 to {most}")
    return limit


def check_folder_prefix(prefix: str) -> str:
    """Return ``prefix`` if it is empty or ends with a slash, else raise InvalidRequest."""
    if prefix and not prefix.endswith("/"):
        raise InvalidRequest(f"folders are listed below a prefix that ends with '/', not {prefix[:_SHOWN_CHARS]!r}")
    return prefix


def _find_problem(key: str) -> str | None:
    """Return what is wrong with a key as the middle of a sentence, or ``None``."""
    if not key:
        return "is empty"
    if _FORBIDDEN.search(key):
        return "has a control character, a surrogate or a non-character"
    if len(key.encode()) > MAX_KEY_BYTES:
        return f"has {len(key.encode())} bytes"
    for component in key.split("/"):
        if component in ("", ".", ".."):
            return f"has the component {component!r}"
        if len(component.encode()) > MAX_COMPONENT_BYTES:
            return f"has a component of {len(component.encode())} bytes"
    return None


def check_presign_ms(expires_ms: int) -> int:
    """Return the whole seconds of the lifetime of a URL. Raises InvalidRequest."""
    if not MIN_PRESIGN_MS <= expires_ms <= MAX_PRESIGN_MS:
        raise InvalidRequest(f"a URL lasts {MIN_PRESIGN_MS} to {MAX_PRESIGN_MS} ms, not {expires_ms}")
    return expires_ms // 1000


def delete_or_raise(store: ObjectStore, keys: Sequence[str]) -> None:
    """Delete objects for a caller that goes on if some stay, and not if all do. Idempotent; missing ones are fine.

    Raises:
        Unavailable: Not one is known to be gone.
    """
    report = store.delete(keys)
    if report.failed and not report.deleted:
        first = report.failed[0]
        raise Unavailable(
            f"none of {len(report.failed)} objects could be deleted ({first.kind}); the first: {first.key}: "
            f"{first.reason}"
        )


def map_each(work: Callable[[_Item], _Made], items: Sequence[_Item], *, threads: int, name: str) -> list[_Made]:
    """Return what work makes of each of some items, in their order; ``threads`` at once, of one pool of that name.

    One item needs no pool, and one thread is the caller's own.
    """
    if threads <= 1 or len(items) <= 1:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(threads, len(items)), name) as pool:
        return list(pool.map(work, items))


def limit_reads(store: ObjectStore, wanted: int) -> int:
    """Return how many reads to have under way at once: ``wanted``, or fewer where more would only be in the way.

    A store that answers without a wait says so in an attribute ``max_parallel_reads``.
    """
    return min(wanted, getattr(store, "max_parallel_reads", wanted))


def largest_page(store: ObjectStore) -> int:
    """Return how many keys a page of this store may hold: an attribute ``max_keys_per_page`` says where it is more."""
    return getattr(store, "max_keys_per_page", MAX_KEYS_PER_PAGE)


def list_all(store: ObjectStore, prefix: str, *, page_size: int = MAX_KEYS_PER_PAGE) -> Listing:
    """List every key below ``prefix``, page after page.

    Args:
        store: The object store.
        prefix: A string prefix, not necessarily a folder.
        page_size: Keys per page, at most :func:`largest_page`.
    """
    pages = list(list_pages(store, prefix, page_size=page_size))
    objects = pages[0].objects if len(pages) == 1 else tuple(info for page in pages for info in page.objects)
    return Listing(objects, len(pages), pages[0].store_now_ms)


def list_pages(store: ObjectStore, prefix: str, *, page_size: int = MAX_KEYS_PER_PAGE) -> Iterator[ObjectPage]:
    """Yield a listing page by page, for who need not hold all of it: at least one. Arguments as :func:`list_all`."""
    token: str | None = None
    while True:
        page = store.list_page(prefix, token=token, limit=page_size)
        yield page
        token = page.next_token
        if token is None:
            return


def probe_conditional_writes(store: ObjectStore, prefix: str, *, scratch_id: str, name: str) -> None:
    """Check that a second create and a replace with a wrong ETag are refused.

    Args:
        store: The store to check.
        prefix: Where scratch keys may lie: empty, or ending with ``/``.
        scratch_id: Unique for each call, so that probes of several processes do not meet.
        name: How messages call the store, e.g. ``bucket events at http://localhost:9000``.

    Raises:
        UnsupportedFormat: A condition was ignored, or a fulfilled one was refused.
        Unavailable: The store cannot be reached or refuses access.
        CommitOutcomeUnknown: The store stopped answering in the middle.

    Idempotency: may be repeated; the scratch object is removed, also after a failure where that is possible.
    """
    key = f"{prefix}{PROBE_FOLDER}/{scratch_id}"
    try:
        etag = store.put_if_absent(key, b"first")
        _expect_refusal(store, key, name)
        try:
            store.put_if_match(key, b"third", etag=etag)
        except PreconditionFailed as error:
            raise UnsupportedFormat(
                f"{name} refused to replace {key} although it had given the ETag {etag!r} for it: its ETags "
                f"cannot be used for If-Match; {_REMEDY}"
            ) from error
    finally:
        # A scratch object that stays costs a few bytes; hiding why the probe failed would cost more.
        with contextlib.suppress(IceDBError):
            store.delete([key])


def _expect_refusal(store: ObjectStore, key: str, name: str) -> None:
    """Try the two writes that must not succeed."""
    for condition in ("If-None-Match: *", "If-Match"):
        try:
            if condition == "If-Match":
                store.put_if_match(key, b"second", etag=_WRONG_ETAG)
            else:
                store.put_if_absent(key, b"second")
        except PreconditionFailed:
            continue
        raise UnsupportedFormat(
            f"{name} ignores conditional writes ({condition} had no effect on {key}): committers would "
            f"overwrite each other and lose rows; {_REMEDY}"
        )
