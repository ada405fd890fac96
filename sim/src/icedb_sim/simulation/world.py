"""The simulated world: one store clock, actors as greenlets, and a seeded scheduler.

An actor runs real, synchronous library code. At each store call and each sleep it gives way, and the scheduler
decides who goes on and how much time has passed. Everything follows from the seed, so a schedule can be run
again; :attr:`World.trace_hash` tells whether it was the same one. Instead of its dice the scheduler takes a
:class:`Script`, too: then it does what stands there.

Each actor has generators of its own, for what it does and for what goes wrong with its calls, and so has the
scheduler: without one actor, or without one fault, the others draw what they drew before.
"""

import heapq
import random  # noqa: TID251 - a seeded generator is what the simulation is made of
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from zlib import crc32

from greenlet import GreenletExit, getcurrent, greenlet
from icedb_log.clock import make_uuid7_hex

from icedb_sim.simulation.settings import MAX_CLOCK_STEPS, START_MS, Settings

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
        name: Unique within the schedule: place and, after crashes, number of the process there, ``flusher2.3``.
        body: What it does, for ever; called in its own greenlet.
        skew_ms: How far its wall clock is ahead of the store's.
        rng: For what it does.
        fault_rng: For what goes wrong with its calls.
        go_on: Lets it act until its next call.
        call_count: Its calls of the store so far.
        errors: How often it met which error.
        roll: Draws whether something goes wrong with a call.
    """

    kind: str
    name: str
    body: Callable[["Actor"], None]
    skew_ms: int
    rng: random.Random
    fault_rng: random.Random
    process: greenlet | None = None
    go_on: Callable[[], object] = lambda: None
    call_count: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    roll: Callable[[], float] = field(init=False)

    def __post_init__(self) -> None:
        """Keep at hand what each call needs."""
        self.roll = self.fault_rng.random


class TraceLine(NamedTuple):
    """One thing that happened."""

    time_ms: int
    actor: str
    what: str
    key: str


class Step(NamedTuple):
    """One decision of the scheduler: so much time passes, and then an actor goes on until its next call.

    Attributes:
        wait_ms: How much time passes.
        actor: Who goes on; nobody if it is empty, or if this actor sleeps or is not there (any more).
    """

    wait_ms: int
    actor: str


@dataclass(frozen=True, slots=True)
class Script:
    """A schedule as a record of what was decided, to be run again with parts left out.

    Attributes:
        steps: What the scheduler does.
        faults: The faults that happen, of those that the seed draws.
    """

    steps: tuple[Step, ...]
    faults: frozenset[str]


class ClockError(NamedTuple):
    """What is wrong with the clock of one host, besides that it is ahead.

    Attributes:
        drift: By which part it runs too fast; negative: too slow.
        steps: When it is set, by the world's time, and by how much.
    """

    drift: float
    steps: tuple[tuple[int, int], ...]


class World:
    """Time, randomness and whose turn it is.

    Args:
        seed: Everything follows from it.
        settings: Of this schedule.
        script: What the scheduler does instead of drawing it, and which faults happen.
        trace_tail: How many lines of the trace to keep; ``None``: all of them.
    """

    def __init__(
        self, seed: int, *, settings: Settings, script: Script | None = None, trace_tail: int | None = TRACE_TAIL
    ) -> None:
        self.seed = seed
        self.settings = settings
        self.now_ms = START_MS
        self.trace_hash = 0
        self.trace: deque[tuple[int, str, str, str]] = deque(maxlen=trace_tail)
        self.decided: list[tuple[int, str]] = []
        self.faults: dict[str, str] = {}
        self._script = script
        self._dice = self.make_rng("scheduler")
        self._rest_rng = self.make_rng("rest")
        self.failure: BaseException | None = None
        self.on_crash: Callable[[Actor], None] = lambda _: None
        self._main = getcurrent()
        self._switch_to_main: Callable[[], object] = self._main.switch
        self.actor: Actor | None = None
        """Who acts now."""
        self._ready: list[Actor] = []
        self._sleeping: list[tuple[int, int, Actor]] = []
        self._in_flight: list[tuple[int, int, Callable[[], None]]] = []
        self._ticket = 0

    @property
    def step_count(self) -> int:
        """Steps so far."""
        return len(self.decided)

    @property
    def rng(self) -> random.Random:
        """The generator of who acts now."""
        return self._rest_rng if self.actor is None else self.actor.rng

    def make_rng(self, name: str) -> random.Random:
        """Return a generator of its own for whoever has this name."""
        return random.Random(self.seed << 32 | crc32(name.encode()))

    def draw_clock_error(self) -> ClockError | None:
        """Return what is wrong with the clock of who acts now: each time the same; ``None``: it goes as it should."""
        actor, settings = self.actor, self.settings
        if actor is None or not (settings.clock_drift or settings.clock_step_ms):
            return None
        rng = self.make_rng(f"{actor.name} clock")
        most_ms = settings.clock_step_ms
        steps = tuple(
            (START_MS + int(rng.random() * settings.steps * _STEP_MS), rng.randint(-most_ms, most_ms))
            for _ in range(rng.randint(0, MAX_CLOCK_STEPS))
        )
        return ClockError(settings.clock_drift * rng.choice((-1, 0, 1)), steps)

    def lets_happen(self, fault: str, kind: str) -> bool:
        """Whether a fault that the seed has drawn happens, and take note of it.

        Args:
            fault: Names it within the schedule.
            kind: What sort it is.
        """
        if self._script is not None and fault not in self._script.faults:
            return False
        self.faults[fault] = kind
        return True

    def spawn(self, actor: Actor) -> None:
        """Let an actor begin at one of the next steps."""
        actor.process = greenlet(lambda: self._live(actor), parent=self._main)
        actor.go_on = actor.process.switch
        self._ready.append(actor)

    def give_way(self) -> None:
        """Let others act before the current actor's next call."""
        if self.actor is not None:
            self._switch_to_main()

    def sleep(self, duration_ms: int) -> None:
        """Let time pass for the current actor."""
        actor, due_ms = self.actor, self.now_ms
        if duration_ms > 0:
            due_ms += duration_ms
        if actor is None:
            self.now_ms = due_ms
            return
        self._ready.remove(actor)
        self._ticket += 1
        heapq.heappush(self._sleeping, (due_ms, self._ticket, actor))
        self._switch_to_main()

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
        current, now_ms = self.actor, self.now_ms
        # Who it was, and what he did, is in the steps and in the keys: a hash of all of it would cost too much.
        self.trace_hash = crc32(key.encode(), self.trace_hash ^ now_ms)  # of which it takes 32 bits
        self.trace.append((now_ms, "-" if current is None else current.name, what, key))

    def run(self) -> None:
        """Run the schedule for its number of steps, then let every actor die where it stands.

        Raises:
            Violation: Or whatever else went wrong in an actor.
        """
        try:
            if self._script is None:
                self._run_by_dice()
            else:
                self._run_by_script(self._script.steps)
        finally:
            self.actor = None
        self.kill_all()
        if self.failure is not None:
            raise self.failure

    def _run_by_dice(self) -> None:
        settings, dice = self.settings, self._dice.random
        jump_rate, jump_ms, burst = settings.jump_rate, settings.jump_ms, settings.burst
        ready, sleeping, in_flight = self._ready, self._sleeping, self._in_flight
        decide, step_ms = self.decided.append, _STEP_MS
        last: Actor | None = None
        for _ in range(settings.steps):
            before_ms = now_ms = self.now_ms
            now_ms += int(dice() * step_ms)
            if dice() < jump_rate:
                now_ms += int(dice() * jump_ms)
            if not ready and sleeping and sleeping[0][0] > now_ms:
                now_ms = sleeping[0][0]
            self.now_ms = now_ms
            if in_flight or (sleeping and sleeping[0][0] <= now_ms):
                self._wake_and_land()
            if not ready:
                decide((now_ms - before_ms, ""))
                continue
            if last not in ready or dice() >= burst:
                last = ready[int(dice() * len(ready))]
            decide((now_ms - before_ms, last.name))
            self.actor = last
            last.go_on()
            if self.failure is not None:
                break

    def _run_by_script(self, steps: Sequence[Step]) -> None:
        for step in steps:
            self.now_ms += step.wait_ms
            self._wake_and_land()
            actor = next((actor for actor in self._ready if actor.name == step.actor), None)
            self.decided.append((step.wait_ms, "" if actor is None else step.actor))
            if actor is not None:
                self.actor = actor
                actor.go_on()
            if self.failure is not None:
                break

    def kill_all(self) -> None:
        """Let every actor die where it stands."""
        for actor in [*self._ready, *(entry[2] for entry in self._sleeping)]:
            process = actor.process
            if process is not None and process:
                process.throw(GreenletExit)
        self._ready.clear()
        self._sleeping.clear()

    def _wake_and_land(self) -> None:
        now_ms, in_flight, sleeping = self.now_ms, self._in_flight, self._sleeping
        self.actor = None  # nobody waits for what lands now
        while in_flight and in_flight[0][0] <= now_ms:
            heapq.heappop(in_flight)[2]()
        while sleeping and sleeping[0][0] <= now_ms:
            self._ready.append(heapq.heappop(sleeping)[2])

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
        self._error = world.draw_clock_error()

    def now_ms(self) -> int:
        """Return the actor's wall clock."""
        world = self._world
        if self._error is None:
            return world.now_ms + self._skew_ms
        steps_ms = sum(by_ms for at_ms, by_ms in self._error.steps if at_ms <= world.now_ms)
        return self.monotonic_ms() + self._skew_ms + steps_ms

    def monotonic_ms(self) -> int:
        """Return the time that passed in the world, as far as this host can tell."""
        now_ms = self._world.now_ms
        return now_ms if self._error is None else now_ms + int((now_ms - START_MS) * self._error.drift)

    def sleep_ms(self, duration_ms: int) -> None:
        """Give way for at least ``duration_ms``."""
        self._world.sleep(duration_ms)

    def new_id(self) -> str:
        """Return a UUIDv7 in hex from the seed."""
        return make_uuid7_hex(self.now_ms(), self._world.rng.getrandbits(_ID_BITS))
