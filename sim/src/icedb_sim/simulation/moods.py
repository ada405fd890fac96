"""Moods: what a whole schedule is like, so that one sort of fault meets little else. Nobody comes with most of them.

A rule about who wakes up too late is seen when somebody sleeps at the right call and everybody else works on; crashes
and refusals only get in the way. So in a mood one thing goes wrong, and often: actors of one kind sleep anywhere, or
where one rule is decided (:mod:`~icedb_sim.simulation.naps`). A rule switched off names the mood in which it is
missed (:class:`~icedb_sim.rules.mutations.Mutation`), and a quarter of all schedules has one.
"""

from collections.abc import Collection
from typing import ClassVar, Final

from icedb_sim.simulation.actors import Simulation
from icedb_sim.simulation.mood import Mood
from icedb_sim.simulation.naps import Nap
from icedb_sim.simulation.repeats import flush_by_size_for_ever, read_afresh_for_ever, send_again_for_ever
from icedb_sim.simulation.settings import MINUTE_MS, SECOND_MS

_SKEW_MS: Final = 180 * SECOND_MS


# Who sleeps anywhere, while those of the others clean up behind them.


class SleepyFlushers(Mood):
    """Flushes sleep: many of them while policies change, or one, whom nobody fences off."""

    name = "sleepyflushers"
    sleeps = "flusher"
    has: ClassVar = {"janitors": (2,), "flushers": (1, 3), "operators": (1,), "producers": (2,)}


class SleepyMergers(Mood):
    """Merges sleep: many of them, or one, whom nobody fences off."""

    name = "sleepymergers"
    sleeps = "merger"
    has: ClassVar = {"janitors": (2,), "mergers": (1, 3), "changers": (0, 1)}


class SleepyJanitors(Mood):
    """Janitors sleep, and leases rely on them."""

    name = "sleepyjanitors"
    sleeps = "janitor"
    has: ClassVar = {"janitors": (3,), "lease_holders": (2,), "producers": (2,)}


class SleepyReaders(Mood):
    """Readers sleep in the middle of a read."""

    name = "sleepyreaders"
    sleeps = "reader"
    has: ClassVar = {"janitors": (2,), "readers": (2,)}


class SleepyChangers(Mood):
    """Those who delete rows sleep, while others merge."""

    name = "sleepychangers"
    sleeps = "changer"
    has: ClassVar = {"janitors": (2,), "changers": (2,)}


class SleepyOutsiders(Mood):
    """Jobs that append files sleep, and die with their requests under way; nobody else takes the fence from them."""

    name = "sleepyoutsiders"
    sleeps = "appender"
    wants = "outsiders"
    has: ClassVar = {"janitors": (2,), "flushers": (0,), "producers": (0,)}
    faults: ClassVar = {"crash": (0.0, 0.03), "lost": (0.0, 0.05)}


class SleepyErasers(Mood):
    """Erasures sleep."""

    name = "sleepyerasers"
    sleeps = "eraser"
    wants = "erasers"
    has: ClassVar = {"janitors": (2,)}


# Who sleeps where one rule is decided.


class SleepyIntents(Mood):
    """A merge sleeps before it says what it is about to commit; nobody takes the fence from it (W3)."""

    name = "sleepyintents"
    has: ClassVar = {"janitors": (3,), "mergers": (1,), "changers": (0,), "steps": (800,)}
    naps = (Nap("merger", "replace", "fence/merge.json", (60, 300)),)


class SleepyPuts(Mood):
    """Committers sleep before their log file is sent; nobody takes the fence from them (J1, J5)."""

    name = "sleepyputs"
    graces = (1, 3)
    has: ClassVar = {"janitors": (3,), "mergers": (1,), "flushers": (1,), "changers": (0,), "readers": (2,)}
    naps = (Nap("merger", "create", "/_log/*", (30, 240)), Nap("flusher", "create", "/_log/*", (30, 240), 0.2))


class SleepySettlers(Mood):
    """Committers sleep before their log file is sent, and sweeps before they settle that commit (J5)."""

    name = "sleepysettlers"
    has: ClassVar = {"janitors": (3,), "mergers": (1,), "flushers": (1,), "changers": (0,)}
    naps = (
        Nap("merger", "create", "/_log/*", (90, 300)),
        Nap("flusher", "create", "/_log/*", (90, 300), 0.2),
        Nap("janitor", "get", "/fence/*", (30, 200)),
    )


class SleepyLookers(Mood):
    """Janitors sleep before they read the log, while leases and pins come and what they hold dies (J4, J7)."""

    name = "sleepylookers"
    has: ClassVar = {"janitors": (2,), "lease_holders": (3,), "producers": (2,), "mergers": (2,), "steps": (800,)}
    naps = (Nap("janitor", "list", "/_log/", (40, 200)),)


class SleepyPages(Mood):
    """Readers sleep between two pages of a listing, while committers with slow clocks land behind them (R1)."""

    name = "sleepypages"
    has: ClassVar = {
        "janitors": (2,),
        "flushers": (3,),
        "mergers": (2,),
        "producers": (2,),
        "page_keys": (2,),
        "readers": (2,),
        "skew_ms": (MINUTE_MS,),
        "think_ms": (SECOND_MS,),
        "jump_rate": (0.003,),
        "steps": (1500,),
    }
    naps = (Nap("reader", "next", "/_log/", (3, 12), 0.25),)


class SleepyFetchers(Mood):
    """Readers that know nothing sleep before they fetch a merge's log file, while it is stripped (R1)."""

    name = "sleepyfetchers"
    has: ClassVar = {"janitors": (3,), "readers": (3,), "think_ms": (SECOND_MS,), "jump_rate": (0.03, 0.06)}
    naps = (Nap("reader", "get", "/_log/*_m_*", (1, 14)),)

    def arrange(self, sim: Simulation) -> None:
        """Let readers be new processes each time."""
        sim.bodies["reader"] = read_afresh_for_ever
        super().arrange(sim)


class SleepyCopies(Mood):
    """Flushes sleep before they delete what they committed, and before they read the log; it is sent again (I2)."""

    name = "sleepycopies"
    has: ClassVar = {
        "janitors": (3,),
        "flushers": (2,),
        "mergers": (2,),
        "producers": (2,),
        "changers": (0,),
        "think_ms": (4 * SECOND_MS,),
        "jump_rate": (0.003,),
        "steps": (2500,),
    }
    naps = (Nap("flusher", "delete", "/staging/*", (300, 600), 0.9), Nap("flusher", "list", "/_log/", (100, 240)))

    def arrange(self, sim: Simulation) -> None:
        """Let producers send again what they sent a while ago."""
        sim.bodies["producer"] = send_again_for_ever
        super().arrange(sim)


class HastyProducers(Mood):
    """Producers whose clocks are ahead by more than is allowed, and who send again what they sent a while ago (I3)."""

    name = "hastyproducers"
    has: ClassVar = {"janitors": (3,), "producers": (3,), "mergers": (2,), "skew_ms": (SECOND_MS,), "steps": (800,)}

    def arrange(self, sim: Simulation) -> None:
        """Let producers send again."""
        sim.bodies["producer"] = send_again_for_ever
        super().arrange(sim)


class SizedFlushes(Mood):
    """Flushes that leave batches of the other size staged, and die or sleep meanwhile (I6)."""

    name = "sizedflushes"
    sleeps = "flusher"
    has: ClassVar = {"janitors": (2,), "flushers": (2, 3), "producers": (2,)}
    faults: ClassVar = {"crash": (0.0, 0.01), "lost": (0.0, 0.05)}

    def arrange(self, sim: Simulation) -> None:
        """Let flushers go by size."""
        sim.bodies["flusher"] = flush_by_size_for_ever
        super().arrange(sim)


class SleepyReasons(Mood):
    """Flushes sleep, or die, before they write a reason, while policies change (I5, J2)."""

    name = "sleepyreasons"
    has: ClassVar = {"janitors": (2,), "flushers": (3,), "operators": (3,), "producers": (2,), "steps": (800,)}
    naps = (
        Nap("flusher", "create", "/quarantine/*.json", (30, 300), 0.7),
        Nap("flusher", "put", "/quarantine/*.json", (30, 300), 0.7),
    )


class SleepyUploads(Mood):
    """Merges sleep between what they read and what they upload, erasures before they write down what they saw (E6)."""

    name = "sleepyuploads"
    wants = "erasers"
    has: ClassVar = {"janitors": (3,), "mergers": (6,), "changers": (0,), "jump_rate": (0.01,), "steps": (2000,)}
    naps = (
        Nap("merger", "put", "/_data/*", (60, 400), 0.7),
        Nap("eraser", "replace", "/erasures/open/*", (40, 200)),
    )


class SleepyProofs(Mood):
    """As before; erasures sleep before they read again what the record says, with a listing in hand (E5)."""

    name = "sleepyproofs"
    wants = "erasers"
    has = SleepyUploads.has
    naps = (
        Nap("merger", "put", "/_data/*", (60, 400), 0.7),
        Nap("eraser", "replace", "/erasures/open/*", (40, 150), 0.2),
        Nap("eraser", "get", "/erasures/open/*", (40, 150), 0.3),
    )


class SleepyPinners(Mood):
    """Who makes a pin sleeps before it is written, and janitors before they read the log (J7)."""

    name = "sleepypinners"
    wants = "pinners"
    has: ClassVar = {"janitors": (2,), "mergers": (2,)}
    naps = (
        Nap("pinner", "create", "/pins/*", (40, 240)),
        Nap("janitor", "list", "/_log/", (40, 200), 0.3),
    )


class SleepyFeeders(Mood):
    """Feeds sleep before they take the fence, while appends with old names land, or with a log file in hand (V2)."""

    name = "sleepyfeeders"
    wants = "feeders"
    has: ClassVar = {
        "janitors": (3,),
        "flushers": (3,),
        "mergers": (2,),
        "producers": (2,),
        "changers": (0,),
        "skew_ms": (0, MINUTE_MS),
        "think_ms": (SECOND_MS,),
        "steps": (1200,),
    }
    naps = (
        Nap("feeder", "replace", "/view/_icedb/fence/ingest.json", (10, 60)),
        Nap("feeder", "get", "/events/_data/*", (60, 300), 0.1),
    )


class SleepyPurgers(Mood):
    """Janitors sleep before they read the log, purgers before they delete what was staged: for whole lives (T4, T6)."""

    name = "sleepypurgers"
    wants = "droppers"
    has: ClassVar = {"janitors": (3,), "producers": (2,), "steps": (1500,)}
    naps = (
        Nap("janitor", "list", "/_log/", (60, 400), 0.3),
        Nap("purger", "delete", "/staging/*", (60, 400)),
    )


# Other things that go wrong, and often.


class LongGraces(Mood):
    """Dead data files stay for long, and lived for long; readers count on them (J5)."""

    name = "longgraces"
    graces = (6,)
    has: ClassVar = {"janitors": (2,), "readers": (2,), "steps": (1200,)}


class Pages(Mood):
    """Listings come in pages of two keys, and many read and write meanwhile (R1)."""

    name = "pages"
    has: ClassVar = {"page_keys": (2,), "readers": (2,), "producers": (2,), "think_ms": (SECOND_MS,)}


class Skews(Mood):
    """Clocks are wrong by minutes, merges sleep, and leases are held: tombstones lie about their age (J1, J4)."""

    name = "skews"
    sleeps = "merger"
    has: ClassVar = {"skew_ms": (_SKEW_MS,), "lease_holders": (2,), "producers": (2,)}


class Losses(Mood):
    """Processes die, answers get lost, deletes fail; nobody sleeps (W2, J2)."""

    name = "losses"
    has: ClassVar = {"janitors": (2,)}
    faults: ClassVar = {
        "crash": (0.02,),
        "lost": (0.1,),
        "unavailable": (0.03,),
        "partial": (0.3,),
        "stubborn": (0.0, 0.2),
    }


MOODS: Final[dict[str, type[Mood]]] = {
    mood.name: mood
    for mood in (
        SleepyFlushers,
        SleepyMergers,
        SleepyJanitors,
        SleepyReaders,
        SleepyChangers,
        SleepyOutsiders,
        SleepyErasers,
        SleepyIntents,
        SleepyPuts,
        SleepySettlers,
        SleepyLookers,
        SleepyPages,
        SleepyFetchers,
        SleepyCopies,
        HastyProducers,
        SizedFlushes,
        SleepyReasons,
        SleepyUploads,
        SleepyProofs,
        SleepyPinners,
        SleepyFeeders,
        SleepyPurgers,
        LongGraces,
        Pages,
        Skews,
        Losses,
    )
}
"""By name, as casts have them."""


def find_moods(names: Collection[str]) -> list[str]:
    """Return the moods that suit some troupes, by name."""
    own = [name for name, mood in MOODS.items() if mood.wants in names]
    return own or [name for name, mood in MOODS.items() if not mood.wants]
