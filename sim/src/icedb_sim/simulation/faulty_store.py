"""A store that fails as the world's dice fall: crashes, stalls, lost answers, late requests, failed deletes.

Wraps a :class:`~icedb_sim.fakes.memory_store.MemoryObjectStore`. Each call first gives way to other actors. Every
change that reaches the inner store is told to observers, in the order in which the store takes it.

Whether something goes wrong with an actor's call is one draw from the actor's own generator; all else about it
follows from the seed, the actor and the number of the call. So a fault has a name (``flusher2#17``), and can be left
out without moving the others.
"""

import random  # noqa: TID251 - a seeded generator is what the simulation is made of
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from icedb_log.errors import CommitOutcomeUnknown, IceDBError, InvalidRequest, PreconditionFailed, Unavailable
from icedb_log.store.object_store import (
    MAX_KEYS_PER_PAGE,
    DeleteReport,
    FailedDelete,
    ObjectInfo,
    ObjectPage,
    StoredObject,
)

from icedb_sim.fakes.memory_store import MemoryObjectStore
from icedb_sim.simulation.settings import MAX_STALL_MS, REQUEST_LIFE_MS, SECOND_MS, FaultRates
from icedb_sim.simulation.world import Actor, Crash, World

_SLEEPY: Final = 2
"""How much more often an actor stalls that is the only one to do so."""

_READ: Final = ("stall", "crash", "unavailable")
_WRITE: Final = ("stall", "unavailable", "crash", "lost", "late stall")
_DELETE: Final = ("stall", "crash", "unavailable", "lost", "partial", "late stall")
"""What may go wrong with calls of each sort, in the order in which it would."""

_HASH_SPACE: Final = 1 << 32


class StoreObserver(Protocol):
    """Who is told what the store took."""

    def on_put(self, key: str, body: bytes) -> None:
        """Take note of an object that was just written."""
        ...

    def on_delete(self, key: str) -> None:
        """Take note of an object that is about to be deleted; it is still there."""
        ...


@dataclass(frozen=True, slots=True)
class _Fault:
    """What goes wrong with one call.

    Attributes:
        kind: One of :data:`_DELETE`.
        rng: For all else about it.
        stall_rate: How often this actor stalls as well.
    """

    kind: str
    rng: random.Random
    stall_rate: float


class _Odds:
    """How often which sort of call meets which fault, for those who stall and for those who do not."""

    def __init__(self, rates: FaultRates, kinds: Sequence[str], *, stall_rate: float) -> None:
        by_kind = {
            "stall": stall_rate,
            "late stall": stall_rate,
            "crash": rates.crash,
            "unavailable": rates.unavailable,
            "lost": rates.lost,
            "partial": rates.partial,
        }
        self.stall_rate = stall_rate
        self.total = 0.0
        self._bounds: list[tuple[float, str]] = []
        for kind in kinds:
            self.total += by_kind[kind] * (1 - self.total)
            self._bounds.append((self.total, kind))

    def kind_of(self, dice: float) -> str:
        """Return which fault it is; the dice lie below the total."""
        return next(kind for bound, kind in self._bounds if dice < bound)


class FaultyStore:
    """An object store with the world's faults.

    Args:
        inner: Where the objects are.
        world: Time, dice and scheduler.
        observers: Told about every change, one after the other.

    Attributes:
        max_parallel_reads: An actor is one thread.
    """

    max_parallel_reads: Final = 1

    def __init__(self, inner: MemoryObjectStore, *, world: World, observers: Sequence[StoreObserver]) -> None:
        self.inner = inner
        self.faults = world.settings.faults
        self._page_keys = world.settings.page_keys
        self._sleepy_kind = world.settings.sleepy_kind
        self._world = world
        self.observers = tuple(observers)
        self._on_put = tuple(observer.on_put for observer in observers)
        self._on_delete = tuple(observer.on_delete for observer in observers)
        self._stubborn: dict[str, bool] = {}
        rates = self.faults
        sleepy_rate = _SLEEPY * rates.stall if self._sleepy_kind else rates.stall
        other_rate = 0.0 if self._sleepy_kind else rates.stall
        self._read_odds, self._write_odds, self._delete_odds = (
            (_Odds(rates, kinds, stall_rate=other_rate), _Odds(rates, kinds, stall_rate=sleepy_rate))
            for kinds in (_READ, _WRITE, _DELETE)
        )

    def stop_faults(self) -> None:
        """Be a good store from now on, and a quick one: listings are as long as they were asked for."""
        self.faults = FaultRates()
        self._page_keys = MAX_KEYS_PER_PAGE

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
        world = self._world
        world.give_way()
        fault = self._meet(self._delete_odds)
        keys = list(dict.fromkeys(keys))
        possible = [key for key in keys if not self._is_stubborn(key)]
        is_partial = False
        if fault is not None:
            self._stall_before(fault)
            rng = fault.rng
            if fault.kind == "crash":
                if rng.random() < 0.5:
                    world.send_later(_flight_ms(rng), lambda: self._delete_all(possible))
                raise Crash(f"at the delete of {keys[:1]}")
            if fault.kind == "unavailable":
                self._delete_all([key for key in possible if rng.random() < 0.5])
                raise Unavailable(f"delete of {keys[:1]}: no answer")
            if fault.kind == "lost":
                world.send_later(_flight_ms(rng), lambda: self._delete_all(possible))
                raise Unavailable(f"delete of {keys[:1]}: no answer yet")
            is_partial = fault.kind == "partial"
        deleted = possible
        if fault is not None and is_partial:
            deleted = [key for key in possible if fault.rng.random() < 0.5]
        self._delete_all(deleted)
        if fault is not None:
            self._stall_after(fault)
        failed = tuple(
            FailedDelete(key, "simulated", "denied" if key not in possible else "throttled")
            for key in keys
            if key not in deleted
        )
        if failed and not deleted and zlib.crc32(keys[0].encode()) % 2:
            raise Unavailable(f"delete of {keys[:1]}: nothing worked")
        return DeleteReport(tuple(deleted), failed)

    def abort_stale_uploads(self, prefix: str, *, before_ms: int) -> int:
        """Ask the inner store, or fail."""
        self._before_read("uploads", prefix)
        return self.inner.abort_stale_uploads(prefix, before_ms=before_ms)

    def download(self, key: str, path: Path) -> ObjectInfo:
        """Not part of the simulation: its data files are objects, never files."""
        raise InvalidRequest(f"{key}: the simulation has no files; {path} stays as it is")

    def upload(self, key: str, path: Path, *, may_move: bool = False) -> None:
        """Not part of the simulation: its data files are objects, never files."""
        del may_move
        raise InvalidRequest(f"{key}: the simulation has no files; {path} stays as it is")

    def uri(self, key: str) -> str:
        """Return the inner store's address of a key."""
        return self.inner.uri(key)

    def presign(self, key: str, *, expires_ms: int) -> str:
        """Return the inner store's URL of a key."""
        return self.inner.presign(key, expires_ms=expires_ms)

    def _before_read(self, what: str, key: str) -> None:
        world = self._world
        actor = world.actor
        if actor is None:
            world.note(what, key)
            return  # all faults are over
        world.give_way()
        world.note(what, key)
        actor.call_count += 1
        dice = actor.roll()
        odds = self._read_odds[actor.kind == self._sleepy_kind]
        if dice >= odds.total:
            return
        fault = self._draw(actor, odds.kind_of(dice), odds.stall_rate)
        if fault is None:
            return
        self._stall_before(fault)
        if fault.kind == "crash":
            raise Crash(f"at the {what} of {key}")
        if fault.kind == "unavailable":
            raise Unavailable(f"{key}: no answer")

    def _write(self, what: str, key: str, body: bytes, send: Callable[[], str]) -> str:
        self._world.give_way()
        fault = self._meet(self._write_odds)
        if fault is None:
            return self._land(what, key, body, send)
        self._stall_before(fault)
        if fault.kind == "unavailable":
            raise Unavailable(f"{key}: no answer, surely not written")
        if fault.kind == "crash":
            fate = fault.rng.random()
            if fate < 0.3:
                self._world.send_later(_flight_ms(fault.rng), lambda: self._land_late(what, key, body, send))
            elif fate < 0.6:
                self._land_late(what, key, body, send)
            raise Crash(f"at the {what} of {key}")
        if fault.kind == "lost":
            self._lose(fault, what, key, body, send)
        etag = self._land(what, key, body, send)
        self._stall_after(fault)
        return etag

    def _lose(self, fault: _Fault, what: str, key: str, body: bytes, send: Callable[[], str]) -> None:
        """Lose the answer of a write that landed, did not, or lands later; or let a retry meet its first try (W2)."""
        fate = fault.rng.random()
        if fate < 0.4:
            self._world.note(f"late {what}", key)
            self._world.send_later(_flight_ms(fault.rng), lambda: self._land_late(what, key, body, send))
        elif fate < 0.8:
            self._land_late(what, key, body, send)
            if fate < 0.6 and what != "put":
                raise PreconditionFailed(f"{key}: refused; perhaps by the first try of this very request")
        self._stall_after(fault)
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
        for on_put in self._on_put:
            on_put(key, body)
        return etag

    def _delete_all(self, keys: Sequence[str]) -> None:
        for key in keys:
            if self.inner.holds(key):
                self._world.note("delete", key)
                for on_delete in self._on_delete:
                    on_delete(key)
        self.inner.delete(keys)

    def _is_stubborn(self, key: str) -> bool:
        if not self.faults.stubborn:
            return False
        if key not in self._stubborn:
            dice = zlib.crc32(key.encode(), self._world.seed % _HASH_SPACE) / _HASH_SPACE
            is_drawn = dice < self.faults.stubborn and self.inner.holds(key)
            self._stubborn[key] = is_drawn and self._world.lets_happen(f"stubborn {key}", "stubborn")
        return self._stubborn[key]

    def _meet(self, either: tuple[_Odds, _Odds]) -> _Fault | None:
        """Draw what goes wrong with the call that the actor is about to make.

        Args:
            either: The odds of those who do not sleep, and of those who do.
        """
        actor = self._world.actor
        if actor is None:
            return None  # all faults are over
        actor.call_count += 1
        dice = actor.roll()
        odds = either[actor.kind == self._sleepy_kind]
        if dice >= odds.total:
            return None
        return self._draw(actor, odds.kind_of(dice), odds.stall_rate)

    def _draw(self, actor: Actor, kind: str, stall_rate: float) -> _Fault | None:
        name = f"{actor.name}#{actor.call_count}"
        if not self._world.lets_happen(name, kind):
            return None
        self._world.note("fault", f"{name} {kind}")
        return _Fault(kind, self._world.make_rng(name), stall_rate)

    def _stall_before(self, fault: _Fault) -> None:
        if fault.kind == "stall" or (fault.kind != "late stall" and fault.rng.random() < fault.stall_rate):
            self._stall(fault)

    def _stall_after(self, fault: _Fault) -> None:
        if fault.kind == "late stall" or fault.rng.random() < fault.stall_rate:
            self._stall(fault)

    def _stall(self, fault: _Fault) -> None:
        # Log-uniform: seconds are as likely as half hours.
        duration_ms = int(5 * SECOND_MS * (MAX_STALL_MS / (5 * SECOND_MS)) ** fault.rng.random())
        self._world.note("stall", str(duration_ms))
        self._world.sleep(duration_ms)


def _flight_ms(rng: random.Random) -> int:
    return int(REQUEST_LIFE_MS * rng.random() ** 3)
