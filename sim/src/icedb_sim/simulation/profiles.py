"""Profiles: what a whole schedule is like, so that one sort of fault meets little else. Nobody comes with most of them.

A rule about who wakes up too late is seen when somebody stalls at the right call and everybody else works on; crashes
and refusals only get in the way. So in a profile one thing goes wrong, and often: actors of one kind stall anywhere, or
where one rule is decided. A stall (:mod:`.faulty_store`) may come at any call; a :class:`StallAt` comes just where a
profile wants it, before a merge's log file is sent, say. Each is a fault with a name, so a failing
schedule is shrunk and replayed with them. A rule switched off names the profile in which it is missed
(:class:`~icedb_sim.rules.mutations.Mutation`), and a quarter of all schedules has one.
"""

import random  # noqa: TID251 - a seeded generator is what the simulation is made of
import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Final

from icedb_log.store.object_store import MAX_KEYS_PER_PAGE, DeleteReport, ObjectInfo, ObjectPage, StoredObject

from icedb_sim.simulation.actors import Simulation
from icedb_sim.simulation.faulty_store import FaultyStore
from icedb_sim.simulation.repeats import flush_by_size_for_ever, read_afresh_for_ever, send_again_for_ever
from icedb_sim.simulation.scenario import Body, Part, Scenario, Surroundings
from icedb_sim.simulation.settings import MINUTE_MS, SECOND_MS, FaultRates, Settings
from icedb_sim.simulation.world import Actor, World

_STALLS: Final = (0.02, 0.05)
_JUMP_RATES: Final = (0.01, 0.03)


@dataclass(frozen=True, slots=True)
class StallAt:
    """Where actors of one kind stall, and for how long.

    Attributes:
        kind: Of the actors.
        call: ``get``, ``head``, ``list`` (the first page), ``next`` (each other one), ``create`` (if it is not there),
            ``replace`` (if it is what was read), ``put`` or ``delete``.
        key: How the key, or the prefix that is listed, ends, as a glob: ``/_log/*_m_*``.
        seconds: The shortest and the longest stall.
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


@dataclass(frozen=True, slots=True)
class Profile:
    """A calm schedule with short grace periods, and what it has of its own; of several values it draws one.

    Attributes:
        name: In mixes; any size is the same.
        about: What goes wrong, and which rules miss it.
        wants: Other scenario without which this makes no sense; with it no other profile does as well.
        stalls: Kind of actor that stalls, at any call.
        settings: Fields of the settings.
        faults: Rates of faults.
        graces: How much longer data files stay than log files.
        at: Who stalls where.
        bodies: What actors of a kind do instead.
    """

    name: str
    about: str
    wants: str = ""
    stalls: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    faults: Mapping[str, Any] = field(default_factory=dict)
    graces: tuple[int, ...] = (1,)
    at: tuple[StallAt, ...] = ()
    bodies: Mapping[str, Body] = field(default_factory=dict)
    runs_alone: bool = False

    def change_settings(self, settings: Settings, seed: int) -> Settings:
        """Return the settings without any fault but those of this profile."""
        rng = random.Random(seed << 32 | zlib.crc32(self.name.encode()))
        data_grace_ms = settings.config.log_grace_ms * rng.choice(self.graces)
        periods = {"data_grace_ms": data_grace_ms, "orphan_age_ms": MINUTE_MS}
        rates = _draw(rng, self.faults)
        if self.stalls:
            rates["stall"] = rng.choice(_STALLS)
        calm = {"skew_ms": 0, "page_keys": 1000, "jump_rate": rng.choice(_JUMP_RATES)}
        return replace(
            settings,
            config=settings.config.model_copy(update=periods),
            faults=FaultRates(**rates),
            sleepy_kind=self.stalls,
            **(calm | _draw(rng, self.settings)),
        )

    def __call__(self, surroundings: Surroundings) -> Scenario:
        """Return nobody who lets the others stall."""
        return _Profiled(surroundings, self)


class _Profiled(Scenario):
    def __init__(self, surroundings: Surroundings, profile: Profile) -> None:
        super().__init__(surroundings)
        self._profile = profile

    def arrange(self, sim: Simulation) -> None:
        """Let actors do what they do here, and stall where they do."""
        sim.bodies.update(self._profile.bodies)
        stalls = self._profile.at
        for kind in {stall.kind for stall in stalls} & sim.bodies.keys():
            sim.bodies[kind] = _stalling(sim.bodies[kind], [stall for stall in stalls if stall.kind == kind])


def _draw(rng: random.Random, values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: rng.choice(each if isinstance(each, tuple) else (each,)) for name, each in sorted(values.items())}


def _stalling(body: Body, stalls: Sequence[StallAt]) -> Body:
    def run(sim: Simulation, actor: Actor) -> None:
        body(replace(sim, store=_StallingStore(sim.store, world=sim.world, stalls=stalls)), actor)

    return run


class _StallingStore(FaultyStore):
    """The store as an actor sees it who stalls now and then before some of its calls.

    Args:
        inner_store: The store as the others see it.
        world: Where time passes.
        stalls: Of this actor's kind.
    """

    def __init__(self, inner_store: FaultyStore, *, world: World, stalls: Sequence[StallAt]) -> None:
        super().__init__(inner_store.inner, world=world, observers=inner_store.observers)
        self._time = world
        self._stalls = tuple(stalls)
        self._stall_count = 0

    def get(self, key: str, *, if_match: str | None = None) -> StoredObject:
        """Stall, perhaps, and read."""
        self._perhaps_stall("get", key)
        return super().get(key, if_match=if_match)

    def get_range(self, key: str, *, start: int, length: int, if_match: str | None = None) -> StoredObject:
        """Stall, perhaps, and read a part."""
        self._perhaps_stall("get", key)
        return super().get_range(key, start=start, length=length, if_match=if_match)

    def put_if_absent(self, key: str, body: bytes) -> str:
        """Stall, perhaps, and create."""
        self._perhaps_stall("create", key)
        return super().put_if_absent(key, body)

    def put_if_match(self, key: str, body: bytes, *, etag: str) -> str:
        """Stall, perhaps, and replace."""
        self._perhaps_stall("replace", key)
        return super().put_if_match(key, body, etag=etag)

    def put(self, key: str, body: bytes) -> str:
        """Stall, perhaps, and write."""
        self._perhaps_stall("put", key)
        return super().put(key, body)

    def list_page(self, prefix: str, *, token: str | None = None, limit: int = MAX_KEYS_PER_PAGE) -> ObjectPage:
        """Stall, perhaps, and list: ``list`` is the first page, ``next`` each other one."""
        self._perhaps_stall("list" if token is None else "next", prefix)
        return super().list_page(prefix, token=token, limit=limit)

    def head(self, key: str) -> ObjectInfo:
        """Stall, perhaps, and read metadata."""
        self._perhaps_stall("head", key)
        return super().head(key)

    def delete(self, keys: Sequence[str]) -> DeleteReport:
        """Stall, perhaps, and delete."""
        for key in keys[:1]:
            self._perhaps_stall("delete", key)
        return super().delete(keys)

    def _perhaps_stall(self, call: str, key: str) -> None:
        world = self._time
        actor = world.actor
        if actor is None:
            return  # all faults are over
        for stall in self._stalls:
            if not stall.fits(call, key):
                continue
            self._stall_count += 1
            name = f"{actor.name} nap {self._stall_count}"
            rng = world.make_rng(name)
            if rng.random() < stall.rate and world.lets_happen(name, "nap"):
                shortest_s, longest_s = stall.seconds
                duration_ms = int(rng.uniform(shortest_s, longest_s) * SECOND_MS)
                world.note("nap", f"{duration_ms} {call} {key}")
                world.sleep(duration_ms)


PROFILES: Final[dict[str, Profile]] = {
    profile.name: profile
    for profile in (
        # Who stalls anywhere, while those of the others clean up behind them.
        Profile(
            "sleepyflushers",
            "Flushes stall: many of them while policies change, or one, whom nobody fences off.",
            stalls="flusher",
            settings={"janitors": 2, "flushers": (1, 3), "operators": 1, "producers": 2},
        ),
        Profile(
            "sleepymergers",
            "Merges stall: many of them, or one, whom nobody fences off.",
            stalls="merger",
            settings={"janitors": 2, "mergers": (1, 3), "changers": (0, 1)},
        ),
        Profile(
            "sleepyjanitors",
            "Janitors stall, and leases rely on them.",
            stalls="janitor",
            settings={"janitors": 3, "lease_holders": 2, "producers": 2},
        ),
        Profile(
            "sleepyreaders",
            "Readers stall in the middle of a read.",
            stalls="reader",
            settings={"janitors": 2, "readers": 2},
        ),
        Profile(
            "sleepychangers",
            "Those who delete rows stall, while others merge.",
            stalls="changer",
            settings={"janitors": 2, "changers": 2},
        ),
        Profile(
            "sleepyoutsiders",
            "Jobs that append files stall, and die with their requests under way; nobody takes the fence from them.",
            wants="outsiders",
            stalls="appender",
            settings={"janitors": 2, "flushers": 0, "producers": 0},
            faults={"crash": (0.0, 0.03), "lost": (0.0, 0.05)},
        ),
        Profile(
            "sleepyfollowers",
            "A follower stalls before it reads the log, what it left is merged and goes; time passes (L2, A2).",
            wants="outsiders",
            settings={
                "janitors": 3,
                "mergers": 2,
                "changers": 0,
                "think_ms": 10 * SECOND_MS,
                "jump_rate": 0.001,
                "steps": 1500,
            },
            at=(StallAt("follower", "list", "/_log/", (5, 30), 0.3),),
        ),
        Profile("sleepyerasers", "Erasures stall.", wants="erasers", stalls="eraser", settings={"janitors": 2}),
        # Who stalls where one rule is decided.
        Profile(
            "sleepyintents",
            "A merge stalls before it says what it is about to commit; nobody takes the fence from it (W3).",
            settings={"janitors": 3, "mergers": 1, "changers": 0, "steps": 800},
            at=(StallAt("merger", "replace", "fence/merge.json", (60, 300)),),
        ),
        Profile(
            "sleepyputs",
            "Committers stall before their log file is sent; nobody takes the fence from them (J1, J5).",
            settings={"janitors": 3, "mergers": 1, "flushers": 1, "changers": 0, "readers": 2},
            graces=(1, 3),
            at=(
                StallAt("merger", "create", "/_log/*", (30, 240)),
                StallAt("flusher", "create", "/_log/*", (30, 240), 0.2),
            ),
        ),
        Profile(
            "sleepysettlers",
            "Committers stall before their log file is sent, and sweeps before they settle that commit (J5).",
            settings={"janitors": 3, "mergers": 1, "flushers": 1, "changers": 0},
            at=(
                StallAt("merger", "create", "/_log/*", (90, 300)),
                StallAt("flusher", "create", "/_log/*", (90, 300), 0.2),
                StallAt("janitor", "get", "/fence/*", (30, 200)),
            ),
        ),
        Profile(
            "sleepylookers",
            "Janitors stall before they read the log, while leases and tags come and what they hold dies (J4).",
            settings={"janitors": 2, "lease_holders": 3, "producers": 2, "mergers": 2, "steps": 800},
            at=(StallAt("janitor", "list", "/_log/", (40, 200)),),
        ),
        Profile(
            "sleepypages",
            "Readers stall between two pages of a listing, while committers with slow clocks land behind them (R1).",
            settings={
                "janitors": 2,
                "flushers": 3,
                "mergers": 2,
                "producers": 2,
                "page_keys": 2,
                "readers": 2,
                "skew_ms": MINUTE_MS,
                "think_ms": SECOND_MS,
                "jump_rate": 0.003,
                "steps": 1500,
            },
            at=(StallAt("reader", "next", "/_log/", (3, 12), 0.25),),
        ),
        Profile(
            "sleepyfetchers",
            "Readers that know nothing stall before they fetch a merge's log file, while it is stripped (R1).",
            settings={"janitors": 3, "readers": 3, "think_ms": SECOND_MS, "jump_rate": (0.03, 0.06)},
            at=(StallAt("reader", "get", "/_log/*_m_*", (1, 14)),),
            bodies={"reader": read_afresh_for_ever},
        ),
        Profile(
            "sleepycopies",
            "Flushes stall before they delete what they committed, and before they read the log; it comes again (I2).",
            settings={
                "janitors": 3,
                "flushers": 2,
                "mergers": 2,
                "producers": 2,
                "changers": 0,
                "think_ms": 4 * SECOND_MS,
                "jump_rate": 0.003,
                "steps": 2500,
            },
            at=(
                StallAt("flusher", "delete", "/staging/*", (300, 600), 0.9),
                StallAt("flusher", "list", "/_log/", (100, 240)),
            ),
            bodies={"producer": send_again_for_ever},
        ),
        Profile(
            "hastyproducers",
            "Producers whose clocks are ahead by more than is allowed, and who send again what they sent before (I3).",
            settings={"janitors": 3, "producers": 3, "mergers": 2, "skew_ms": SECOND_MS, "steps": 800},
            bodies={"producer": send_again_for_ever},
        ),
        Profile(
            "sizedflushes",
            "Flushes that leave batches of the other size staged, and die or stall meanwhile (I6).",
            stalls="flusher",
            settings={"janitors": 2, "flushers": (2, 3), "producers": 2},
            faults={"crash": (0.0, 0.01), "lost": (0.0, 0.05)},
            bodies={"flusher": flush_by_size_for_ever},
        ),
        Profile(
            "sleepyreasons",
            "Flushes stall, or die, before they write a reason, while policies change (I5, J2).",
            settings={"janitors": 2, "flushers": 3, "operators": 3, "producers": 2, "steps": 800},
            at=(
                StallAt("flusher", "create", "/quarantine/*.json", (30, 300), 0.7),
                StallAt("flusher", "put", "/quarantine/*.json", (30, 300), 0.7),
            ),
        ),
        Profile(
            "sleepyuploads",
            "Merges stall between reading and uploading, erasures before they write down what they saw (E5).",
            wants="erasers",
            settings={"janitors": 3, "mergers": 6, "changers": 0, "jump_rate": 0.01, "steps": 2000},
            at=(
                StallAt("merger", "put", "/_data/*", (60, 400), 0.7),
                StallAt("eraser", "replace", "/erasures/*", (40, 200)),
            ),
        ),
        Profile(
            "sleepyproofs",
            "As before; erasures stall before they read again what the record says, with a listing in hand (E1).",
            wants="erasers",
            settings={"janitors": 3, "mergers": 6, "changers": 0, "jump_rate": 0.01, "steps": 2000},
            at=(
                StallAt("merger", "put", "/_data/*", (60, 400), 0.7),
                StallAt("eraser", "replace", "/erasures/*", (40, 150), 0.2),
                StallAt("eraser", "get", "/erasures/*", (40, 150), 0.3),
            ),
        ),
        Profile(
            "sleepytaggers",
            "Who makes a tag stalls before it is written, and janitors before they read the log (J4).",
            wants="taggers",
            settings={"janitors": 2, "mergers": 2},
            at=(
                StallAt("tagger", "create", "/holds/tag.*", (40, 240)),
                StallAt("janitor", "list", "/_log/", (40, 200), 0.3),
            ),
        ),
        Profile(
            "sleepypublishers",
            "Who publishes stalls before the record and before the head, janitors before they read the log (J4).",
            wants="publishers",
            settings={"janitors": 2, "mergers": 2, "producers": 2},
            graces=(1, 2),
            at=(
                StallAt("publisher", "create", "/holds/publication.*", (20, 240), 0.2),
                StallAt("publisher", "replace", "/iceberg/head.json", (20, 300), 0.2),
                StallAt("janitor", "list", "/_log/", (40, 200), 0.3),
                StallAt("publication-sweeper", "list", "/holds/publication.", (20, 200), 0.3),
            ),
        ),
        Profile(
            "sleepypaths",
            "Flushes that know fewer paths than the log will stall before the fence, and before they commit (S4).",
            wants="promoters",
            settings={
                "flushers": 3,
                "mergers": 2,
                "producers": 2,
                "changers": 0,
                "think_ms": SECOND_MS,
                "jump_rate": 0.003,
                "steps": 1200,
            },
            at=(
                StallAt("flusher", "replace", "/fence/ingest.json", (20, 120), 0.3),
                StallAt("flusher", "put", "/_data/*", (20, 120), 0.3),
            ),
        ),
        Profile(
            "sleepyfeeders",
            "Feeds stall before they take the fence, while appends with old names land, or with a log file read (V2).",
            wants="feeders",
            settings={
                "janitors": 3,
                "flushers": 3,
                "mergers": 2,
                "producers": 2,
                "changers": 0,
                "skew_ms": (0, MINUTE_MS),
                "think_ms": SECOND_MS,
                "steps": 1200,
            },
            at=(
                StallAt("feeder", "replace", "/view/_icedb/fence/ingest.json", (10, 60)),
                StallAt("feeder", "get", "/events/_data/*", (60, 300), 0.1),
            ),
        ),
        Profile(
            "sleepypurgers",
            "Janitors stall before they read the log, purgers before they delete: they touch no later table (T4).",
            wants="droppers",
            settings={"janitors": 3, "producers": 2, "steps": 1500},
            at=(
                StallAt("janitor", "list", "/_log/", (60, 400), 0.3),
                StallAt("purger", "delete", "/staging/*", (60, 400)),
            ),
        ),
        Profile(
            "sleepyclaims",
            "Committers stall before their log file is sent, longer than their claim lasts (F6).",
            wants="embedders",
            settings={"janitors": 2, "flushers": 2, "mergers": 2, "producers": 2, "changers": 0, "think_ms": SECOND_MS},
            at=tuple(StallAt(kind, "create", "/_log/*", (5, 60), 0.3) for kind in ("merger", "flusher", "embedder")),
        ),
        Profile(
            "fairappends",
            "Nobody stalls and nothing is lost: nobody may wait for a fence for long (F6).",
            wants="embedders",
            settings={
                "janitors": 1,
                "flushers": 2,
                "mergers": 2,
                "producers": 2,
                "changers": 0,
                "think_ms": SECOND_MS,
                "jump_rate": 0.0,
                "burst": 0.0,
                "patience_ms": 3 * SECOND_MS,
                "steps": 2500,
            },
        ),
        # Other things that go wrong, and often.
        Profile(
            "longgraces",
            "Dead data files stay for long, and lived for long; readers count on them (J5).",
            settings={"janitors": 2, "readers": 2, "steps": 1200},
            graces=(6,),
        ),
        Profile(
            "pages",
            "Listings come in pages of two keys, and many read and write meanwhile (R1).",
            settings={"page_keys": 2, "readers": 2, "producers": 2, "think_ms": SECOND_MS},
        ),
        Profile(
            "skews",
            "Clocks are wrong by minutes, merges stall, and leases are held: tombstones lie about their age (J1, J4).",
            stalls="merger",
            settings={"skew_ms": 3 * MINUTE_MS, "lease_holders": 2, "producers": 2},
        ),
        Profile(
            "losses",
            "Processes die, answers get lost, deletes fail; nobody stalls (W2, J2).",
            settings={"janitors": 2},
            faults={"crash": 0.02, "lost": 0.1, "unavailable": 0.03, "partial": 0.3, "stubborn": (0.0, 0.2)},
        ),
    )
}
"""By name, as mixes have them."""


def find_profiles(names: Collection[str]) -> list[str]:
    """Return the profiles that suit some scenarios, by name."""
    own = [name for name, profile in PROFILES.items() if profile.wants in names]
    return own or [name for name, profile in PROFILES.items() if not profile.wants]


_STEPS_MS: Final = (0, 5 * SECOND_MS, 60 * SECOND_MS, 150 * SECOND_MS)
_DRIFT: Final = 0.005


class ClockScenario(Scenario):
    """Nobody; but the clocks of all others go wrong. Any size is the same."""

    name = "clocks"

    @classmethod
    def change_settings(cls, settings: Settings, seed: int) -> Settings:
        """Let clocks jump by so much, and half of the time drift, too."""
        return replace(
            settings, clock_step_ms=_STEPS_MS[seed % 4], clock_drift=_DRIFT * (seed // 4 % 2 or not seed % 4)
        )

    def parts(self, count: int) -> tuple[Part, ...]:
        """Return nobody."""
        del count
        return ()
