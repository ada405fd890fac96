"""Naps: actors of one kind that often sleep at one sort of call, which is where a rule about sleepers is decided.

A stall (:mod:`icedb_sim.fakes.faulty_store`) may come at any call. A nap comes just where a mood wants it: before a
merge's log file is sent, say. Each is a fault with a name, so a failing schedule is shrunk and replayed with them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from icedb_log.store.object_store import MAX_KEYS_PER_PAGE, DeleteReport, ObjectInfo, ObjectPage, StoredObject

from icedb_sim.fakes.faulty_store import FaultyStore
from icedb_sim.simulation.actors import Simulation
from icedb_sim.simulation.settings import SECOND_MS
from icedb_sim.simulation.world import Actor, World


@dataclass(frozen=True, slots=True)
class Nap:
    """Where actors of one kind sleep, and for how long.

    Attributes:
        kind: Of the actors.
        call: ``get``, ``head``, ``list`` (the first page), ``next`` (each other one), ``create`` (if it is not there),
            ``replace`` (if it is what was read), ``put`` or ``delete``.
        key: How the key, or the prefix that is listed, ends, as a glob: ``/_log/*_m_*``.
        seconds: The shortest and the longest nap.
        rate: Before how many of these calls.
    """

    kind: str
    call: str
    key: str
    seconds: tuple[int, int]
    rate: float = 0.5

    def fits(self, call: str, key: str) -> bool:
        """Whether it may come before a call."""
        return call == self.call and fnmatchcase(key, f"*{self.key}")


class NappingStore(FaultyStore):
    """The store as an actor sees it who sleeps now and then before some of its calls.

    Args:
        awake: The store as the others see it.
        world: Where time passes.
        naps: Of this actor's kind.
    """

    def __init__(self, awake: FaultyStore, *, world: World, naps: Sequence[Nap]) -> None:
        super().__init__(awake.inner, world=world, observers=awake.observers)
        self._bed = world
        self._naps = tuple(naps)
        self._nap_count = 0

    def get(self, key: str, *, if_match: str | None = None) -> StoredObject:
        """Sleep, perhaps, and read."""
        self._nap("get", key)
        return super().get(key, if_match=if_match)

    def get_range(self, key: str, *, start: int, length: int, if_match: str | None = None) -> StoredObject:
        """Sleep, perhaps, and read a part."""
        self._nap("get", key)
        return super().get_range(key, start=start, length=length, if_match=if_match)

    def put_if_absent(self, key: str, body: bytes) -> str:
        """Sleep, perhaps, and create."""
        self._nap("create", key)
        return super().put_if_absent(key, body)

    def put_if_match(self, key: str, body: bytes, *, etag: str) -> str:
        """Sleep, perhaps, and replace."""
        self._nap("replace", key)
        return super().put_if_match(key, body, etag=etag)

    def put(self, key: str, body: bytes) -> str:
        """Sleep, perhaps, and write."""
        self._nap("put", key)
        return super().put(key, body)

    def list_page(self, prefix: str, *, token: str | None = None, limit: int = MAX_KEYS_PER_PAGE) -> ObjectPage:
        """Sleep, perhaps, and list: ``list`` is the first page, ``next`` each other one."""
        self._nap("list" if token is None else "next", prefix)
        return super().list_page(prefix, token=token, limit=limit)

    def head(self, key: str) -> ObjectInfo:
        """Sleep, perhaps, and read metadata."""
        self._nap("head", key)
        return super().head(key)

    def delete(self, keys: Sequence[str]) -> DeleteReport:
        """Sleep, perhaps, and delete."""
        for key in keys[:1]:
            self._nap("delete", key)
        return super().delete(keys)

    def _nap(self, call: str, key: str) -> None:
        world = self._bed
        actor = world.actor
        if actor is None:
            return  # all faults are over
        for nap in self._naps:
            if not nap.fits(call, key):
                continue
            self._nap_count += 1
            name = f"{actor.name} nap {self._nap_count}"
            rng = world.make_rng(name)
            if rng.random() < nap.rate and world.lets_happen(name, "nap"):
                shortest_s, longest_s = nap.seconds
                duration_ms = int(rng.uniform(shortest_s, longest_s) * SECOND_MS)
                world.note("nap", f"{duration_ms} {call} {key}")
                world.sleep(duration_ms)


def put_to_bed(sim: Simulation, naps: Sequence[Nap]) -> None:
    """Let actors sleep where naps say so. Before they are spawned."""
    for kind in {nap.kind for nap in naps} & sim.bodies.keys():
        sim.bodies[kind] = _napping(sim.bodies[kind], [nap for nap in naps if nap.kind == kind])


def _napping(body: Callable[[Simulation, Actor], None], naps: Sequence[Nap]) -> Callable[[Simulation, Actor], None]:
    def run(sim: Simulation, actor: Actor) -> None:
        body(replace(sim, store=NappingStore(sim.store, world=sim.world, naps=naps)), actor)

    return run
