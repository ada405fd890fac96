"""A store that fails as the world's dice fall: crashes, stalls, lost answers, late requests, failed deletes.

Wraps a :class:`~icedb_log.testing.memory_store.MemoryObjectStore`. Each call first gives way to other actors. Every
change that reaches the inner store is told to an observer, in the order in which the store takes it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

from icedb_log.errors import CommitOutcomeUnknown, IceDBError, InvalidRequest, NotFound, PreconditionFailed, Unavailable
from icedb_log.storage.object_store import (
    MAX_KEYS_PER_PAGE,
    DeleteReport,
    FailedDelete,
    ObjectInfo,
    ObjectPage,
    StoredObject,
)
from icedb_log.testing.memory_store import MemoryObjectStore
from icedb_log.testing.simulation_settings import MAX_STALL_MS, REQUEST_LIFE_MS, SECOND_MS, FaultRates
from icedb_log.testing.simulation_world import Crash, World

_SLEEPY: Final = 2
"""How much more often an actor stalls that is the only one to do so."""


class StoreObserver(Protocol):
    """Who is told what the store took."""

    def on_put(self, key: str, body: bytes) -> None:
        """Take note of an object that was just written."""
        ...

    def on_delete(self, key: str) -> None:
        """Take note of an object that is about to be deleted; it is still there."""
        ...


class FaultyStore:
    """An object store with the world's faults.

    Args:
        inner: Where the objects are.
        world: Time, dice and scheduler.
        observer: Told about every change.
    """

    def __init__(self, inner: MemoryObjectStore, *, world: World, observer: StoreObserver) -> None:
        self.inner = inner
        self.faults = world.settings.faults
        self._page_keys = world.settings.page_keys
        self._sleepy_kind = world.settings.sleepy_kind
        self._world = world
        self._observer = observer
        self._stubborn: dict[str, bool] = {}

    def stop_faults(self) -> None:
        """Be a good store from now on."""
        self.faults = FaultRates()

    def probe(self) -> None:
        """Take the inner store as it is."""

    def get(self, key: str, *, if_match: str | None = None) -> StoredObject:
        """Read, or fail."""
        self._before_read("get", key)
        return self.inner.get(key, if_match=if_match)

    def get_range(self, key: str, *, start: int, length: int, if_match: str | None = None) -> StoredObject:
        """Read a part, or fail."""
        self._before_read("get", key)
        return self.inner.get_range(key, start=start, length=length, if_match=if_match)

    def head(self, key: str) -> ObjectInfo:
        """Read metadata, or fail."""
        self._before_read("head", key)
        return self.inner.head(key)

    def put_if_absent(self, key: str, body: bytes) -> str:
        """Create, or fail."""
        return self._write("create", key, body, lambda: self.inner.put_if_absent(key, body))

    def put_if_match(self, key: str, body: bytes, *, etag: str) -> str:
        """Replace, or fail."""
        return self._write("replace", key, body, lambda: self.inner.put_if_match(key, body, etag=etag))

    def put(self, key: str, body: bytes) -> str:
        """Write, or fail: this kind of write is repeated by the client, so its answer is ``Unavailable``."""
        try:
            return self._write("put", key, body, lambda: self.inner.put(key, body))
        except CommitOutcomeUnknown as error:
            raise Unavailable(str(error)) from error

    def list_page(self, prefix: str, *, token: str | None = None, limit: int = MAX_KEYS_PER_PAGE) -> ObjectPage:
        """List a page of at most ``Settings.page_keys``, or fail."""
        self._before_read("list", prefix)
        return self.inner.list_page(prefix, token=token, limit=min(limit, self._page_keys))

    def list_folders(self, prefix: str) -> tuple[str, ...]:
        """List folders, or fail."""
        self._before_read("folders", prefix)
        return self.inner.list_folders(prefix)

    def delete(self, keys: Sequence[str]) -> DeleteReport:
        """Delete, or fail for some or all keys, or later than the caller believes."""
        world, rng, faults = self._world, self._world.rng, self.faults
        world.give_way()
        self._maybe_stall()
        keys = list(dict.fromkeys(keys))
        possible = [key for key in keys if not self._is_stubborn(key)]
        if rng.random() < faults.crash:
            if rng.random() < 0.5:
                world.send_later(self._flight_ms(), lambda: self._delete_all(possible))
            raise Crash(f"at the delete of {keys[:1]}")
        if rng.random() < faults.unavailable:
            self._delete_all([key for key in possible if rng.random() < 0.5])
            raise Unavailable(f"delete of {keys[:1]}: no answer")
        if rng.random() < faults.lost:
            world.send_later(self._flight_ms(), lambda: self._delete_all(possible))
            raise Unavailable(f"delete of {keys[:1]}: no answer yet")
        some = rng.random() < faults.partial
        deleted = tuple(key for key in possible if not (some and rng.random() < 0.5))
        self._delete_all(deleted)
        self._maybe_stall()
        failed = tuple(
            FailedDelete(key, "simulated", "denied" if key not in possible else "throttled")
            for key in keys
            if key not in deleted
        )
        if failed and not deleted and rng.random() < 0.5:
            raise Unavailable(f"delete of {keys[:1]}: nothing worked")
        return DeleteReport(deleted, failed)

    def abort_stale_uploads(self, prefix: str, *, before_ms: int) -> int:
        """Ask the inner store, or fail."""
        self._before_read("uploads", prefix)
        return self.inner.abort_stale_uploads(prefix, before_ms=before_ms)

    def download(self, key: str, path: Path) -> ObjectInfo:
        """Not part of the simulation: its data files are objects, never files."""
        raise InvalidRequest(f"{key}: the simulation has no files; {path} stays as it is")

    def upload(self, key: str, path: Path) -> ObjectInfo:
        """Not part of the simulation: its data files are objects, never files."""
        raise InvalidRequest(f"{key}: the simulation has no files; {path} stays as it is")

    def uri(self, key: str) -> str:
        """Return the inner store's address of a key."""
        return self.inner.uri(key)

    def presign(self, key: str, *, expires_ms: int) -> str:
        """Return the inner store's URL of a key."""
        return self.inner.presign(key, expires_ms=expires_ms)

    def _before_read(self, what: str, key: str) -> None:
        rng, faults = self._world.rng, self.faults
        self._world.give_way()
        self._world.note(what, key)
        self._maybe_stall()
        if rng.random() < faults.crash:
            raise Crash(f"at the {what} of {key}")
        if rng.random() < faults.unavailable:
            raise Unavailable(f"{key}: no answer")

    def _write(self, what: str, key: str, body: bytes, send: Callable[[], str]) -> str:
        world, rng, faults = self._world, self._world.rng, self.faults
        world.give_way()
        self._maybe_stall()
        if rng.random() < faults.unavailable:
            raise Unavailable(f"{key}: no answer, surely not written")
        if rng.random() < faults.crash:
            fate = rng.random()
            if fate < 0.3:
                world.send_later(self._flight_ms(), lambda: self._land_late(what, key, body, send))
            elif fate < 0.6:
                self._land_late(what, key, body, send)
            raise Crash(f"at the {what} of {key}")
        if rng.random() < faults.lost:
            self._lose(what, key, body, send)
        etag = self._land(what, key, body, send)
        self._maybe_stall()
        return etag

    def _lose(self, what: str, key: str, body: bytes, send: Callable[[], str]) -> None:
        """Lose the answer of a write that landed, did not, or lands later; or let a retry meet its first try (W2)."""
        fate = self._world.rng.random()
        if fate < 0.4:
            self._world.note(f"late {what}", key)
            self._world.send_later(self._flight_ms(), lambda: self._land_late(what, key, body, send))
        elif fate < 0.8:
            self._land_late(what, key, body, send)
            if fate < 0.6 and what != "put":
                raise PreconditionFailed(f"{key}: refused; perhaps by the first try of this very request")
        self._maybe_stall()
        raise CommitOutcomeUnknown(f"{key}: the answer got lost")

    def _land_late(self, what: str, key: str, body: bytes, send: Callable[[], str]) -> None:
        try:
            self._land(what, key, body, send)
        except PreconditionFailed:
            return

    def _land(self, what: str, key: str, body: bytes, send: Callable[[], str]) -> str:
        try:
            etag = send()
        except IceDBError:
            self._world.note(f"{what} refused", key)
            raise
        self._world.note(what, key)
        self._observer.on_put(key, body)
        return etag

    def _delete_all(self, keys: Sequence[str]) -> None:
        for key in keys:
            if holds(self.inner, key):
                self._world.note("delete", key)
                self._observer.on_delete(key)
        self.inner.delete(keys)

    def _is_stubborn(self, key: str) -> bool:
        if not self.faults.stubborn:
            return False
        if key not in self._stubborn:
            self._stubborn[key] = self._world.rng.random() < self.faults.stubborn and holds(self.inner, key)
        return self._stubborn[key]

    def _maybe_stall(self) -> None:
        rng = self._world.rng
        rate = self.faults.stall
        if rate and self._sleepy_kind:
            rate = _SLEEPY * rate if self._world.actor_kind == self._sleepy_kind else 0.0
        if rate and rng.random() < rate:
            # Log-uniform: seconds are as likely as half hours.
            duration_ms = int(5 * SECOND_MS * (MAX_STALL_MS / (5 * SECOND_MS)) ** rng.random())
            self._world.note("stall", str(duration_ms))
            self._world.sleep(duration_ms)

    def _flight_ms(self) -> int:
        return int(REQUEST_LIFE_MS * self._world.rng.random() ** 3)


def holds(store: MemoryObjectStore, key: str) -> bool:
    """Return whether an object is there."""
    try:
        store.head(key)
    except NotFound:
        return False
    return True
