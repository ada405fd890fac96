"""The simulated world: one store clock, actors as greenlets, and a seeded scheduler.

An actor runs real, synchronous library code. At each store call and each sleep it gives way, and the scheduler
decides who goes on and how much time has passed. Everything follows from the seed, so a schedule can be run
again; :attr:`World.trace_hash` tells whether it was the same one.
"""

import heapq
import random  # noqa: TID251 - a seeded generator is what the simulation is made of
import zlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from greenlet import GreenletExit, getcurrent, greenlet

from icedb_log.clock import make_uuid7_hex
from icedb_log.testing.simulation_settings import START_MS, Settings

TRACE_TAIL: Final = 60
_STEP_MS: Final = 60
_ID_BITS: Final = 74


class Crash(BaseException):
    """An actor's process dies here. Not an ``Exception``: no handler of the library may catch it."""


class Violation(AssertionError):
    """A rule of the protocol was broken, as a reader, a producer or the store's content shows it."""


@dataclass(eq=False, slots=True)
class Actor:
    """One process that works on the table.

    Attributes:
        kind: ``flusher``, ``merger``, …
        name: Unique within the schedule.
        body: What it does, for ever; called in its own greenlet.
        skew_ms: How far its wall clock is ahead of the store's.
        errors: How often it met which error.
    """

    kind: str
    name: str
    body: Callable[["Actor"], None]
    skew_ms: int
    process: greenlet | None = None
    errors: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TraceLine:
    """One thing that happened."""

    time_ms: int
    actor: str
    what: str
    key: str


class World:
    """Time, randomness and whose turn it is.

    Args:
        seed: Everything follows from it.
        settings: Of this schedule.
        rng: The generator that the settings were drawn from.
    """

    def __init__(self, seed: int, *, settings: Settings, rng: random.Random) -> None:
        self.seed = seed
        self.settings = settings
        self.rng = rng
        self.now_ms = START_MS
        self.step_count = 0
        self.trace_hash = 0
        self.trace: deque[TraceLine] = deque(maxlen=TRACE_TAIL)
        self.failure: BaseException | None = None
        self.on_crash: Callable[[Actor], None] = lambda _: None
        self._main = getcurrent()
        self._current: Actor | None = None
        self._ready: list[Actor] = []
        self._sleeping: list[tuple[int, int, Actor]] = []
        self._in_flight: list[tuple[int, int, Callable[[], None]]] = []
        self._ticket = 0

    @property
    def actor_name(self) -> str:
        """Who acts now."""
        return "-" if self._current is None else self._current.name

    @property
    def actor_kind(self) -> str:
        """The kind of who acts now."""
        return "-" if self._current is None else self._current.kind

    def spawn(self, actor: Actor) -> None:
        """Let an actor begin at one of the next steps."""
        actor.process = greenlet(lambda: self._live(actor), parent=self._main)
        self._ready.append(actor)

    def give_way(self) -> None:
        """Let others act before the current actor's next call."""
        if self._current is not None:
            self._main.switch()

    def sleep(self, duration_ms: int) -> None:
        """Let time pass for the current actor."""
        if self._current is None:
            self.now_ms += max(0, duration_ms)
            return
        self._ready.remove(self._current)
        self._push_sleeper(self._current, self.now_ms + max(0, duration_ms))
        self._main.switch()

    def send_later(self, delay_ms: int, request: Callable[[], None]) -> None:
        """Let a request reach the store when its sender does not wait for it any more."""
        self._ticket += 1
        heapq.heappush(self._in_flight, (self.now_ms + delay_ms, self._ticket, request))

    def land_all(self) -> None:
        """Let everything arrive that is still in flight."""
        while self._in_flight:
            due_ms, _, request = heapq.heappop(self._in_flight)
            self.now_ms = max(self.now_ms, due_ms)
            request()

    def note(self, what: str, key: str) -> None:
        """Put a line into the trace."""
        line = TraceLine(self.now_ms, self.actor_name, what, key)
        self.trace_hash = zlib.crc32(f"{line.time_ms}{line.actor}{what}{key}".encode(), self.trace_hash)
        self.trace.append(line)

    def run(self) -> None:
        """Run the schedule for its number of steps, then let every actor die where it stands.

        Raises:
            Violation: Or whatever else went wrong in an actor.
        """
        settings, rng = self.settings, self.rng
        last: Actor | None = None
        for _ in range(settings.steps):
            self.step_count += 1
            self.now_ms += int(rng.random() * _STEP_MS)
            if rng.random() < settings.jump_rate:
                self.now_ms += int(rng.random() * settings.jump_ms)
            if not self._ready and self._sleeping:
                self.now_ms = max(self.now_ms, self._sleeping[0][0])
            self._wake_and_land()
            if self._ready:
                if last not in self._ready or rng.random() >= settings.burst:
                    last = self._ready[int(rng.random() * len(self._ready))]
                self._switch_to(last)
            if self.failure is not None:
                break
        self.kill_all()
        if self.failure is not None:
            raise self.failure

    def kill_all(self) -> None:
        """Let every actor die where it stands."""
        for actor in [*self._ready, *(entry[2] for entry in self._sleeping)]:
            process = actor.process
            if process is not None and process:
                process.throw(GreenletExit)
        self._ready.clear()
        self._sleeping.clear()

    def _wake_and_land(self) -> None:
        while self._in_flight and self._in_flight[0][0] <= self.now_ms:
            heapq.heappop(self._in_flight)[2]()
        while self._sleeping and self._sleeping[0][0] <= self.now_ms:
            self._ready.append(heapq.heappop(self._sleeping)[2])

    def _push_sleeper(self, actor: Actor, due_ms: int) -> None:
        self._ticket += 1
        heapq.heappush(self._sleeping, (due_ms, self._ticket, actor))

    def _switch_to(self, actor: Actor) -> None:
        self._current = actor
        assert actor.process is not None
        try:
            actor.process.switch()
        finally:
            self._current = None

    def _live(self, actor: Actor) -> None:
        try:
            actor.body(actor)
        except Crash:
            self.note("crash", actor.name)
            self.on_crash(actor)
        except Exception as error:  # noqa: BLE001 - whatever an actor dies of is the schedule's result
            self.failure = self.failure or error
        if actor in self._ready:
            self._ready.remove(actor)


class SimClock:
    """One actor's clock: the store's time and its own error; sleeping lets others act.

    Args:
        world: Where time passes.
        skew_ms: How far this wall clock is ahead.
    """

    def __init__(self, world: World, skew_ms: int = 0) -> None:
        self._world = world
        self._skew_ms = skew_ms

    def now_ms(self) -> int:
        """Return the actor's wall clock."""
        return self._world.now_ms + self._skew_ms

    def monotonic_ms(self) -> int:
        """Return the time that passed in the world."""
        return self._world.now_ms

    def sleep_ms(self, duration_ms: int) -> None:
        """Give way for at least ``duration_ms``."""
        self._world.sleep(duration_ms)

    def new_id(self) -> str:
        """Return a UUIDv7 in hex from the seed."""
        return make_uuid7_hex(self.now_ms(), self._world.rng.getrandbits(_ID_BITS))
