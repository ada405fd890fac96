"""Many schedules on all cores, and one line that says what they did; or until a rule switched off is noticed."""

import gc
import hashlib
import platform
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Final

import icedb_log
import orjson
from icedb_log.clock import SystemClock
from icedb_log.errors import InvariantViolated

from icedb_sim.rules.by_test import run_tests_of_rules
from icedb_sim.rules.catalogue import ALL_RULES, TEST_OF_RULE
from icedb_sim.rules.mutations import BROKEN, Mutation, mutated
from icedb_sim.simulation.scenario import Mix
from icedb_sim.simulation.schedule import ScheduleFailed, run_schedule
from icedb_sim.simulation.shrink import SHRINK_SECONDS, shrink_failure


def find_failure(mutation: Mutation, seeds: Iterable[int], *, with_invariants: bool = False) -> ScheduleFailed | None:
    """Run schedules with a rule switched off, and with the mix that it needs.

    Args:
        mutation: The rule.
        seeds: Of the schedules.
        with_invariants: Keep the checks at each commit.

    Returns:
        The first failure; ``None`` if nobody noticed.

    Raises:
        InvariantViolated: What stands in for the rule does not run: that proves nothing.
    """
    mix = Mix.parse(mutation.mix)
    profiled = Mix.of({**dict(mix.sizes), mutation.profile: 1}) if mutation.profile else mix
    with mutated(mutation, with_invariants=with_invariants):
        for seed in seeds:
            try:
                run_schedule(seed, profiled if seed % 4 else mix)
            except ScheduleFailed as error:
                if isinstance(error.error, BROKEN):
                    raise InvariantViolated(f"{mutation.name}: {error.error}: mend the rule") from error
                return error
    return None


def check_mutations(rules: Iterable[Mutation], seeds: Sequence[int], *, remember: Path | None = None) -> int:
    """Switch rules off in turn and print who noticed; return how many results were not as it is written down.

    Written down is for each rule that it is harmless, that a test notices, or else that schedules do.

    Args:
        rules: The rules.
        seeds: Of the schedules that look.
        remember: Where the seeds are written that noticed, rule by rule, for a test to begin with; what is known of
            other rules stays there.
    """
    rules = tuple(rules)
    by_test = run_tests_of_rules([rule.name for rule in rules if rule.name in TEST_OF_RULE])
    unexpected = 0
    known: dict[str, int] = orjson.loads(remember.read_bytes()) if remember and remember.exists() else {}
    by_schedules = {rule.name for rule in ALL_RULES} - TEST_OF_RULE.keys()
    known = {name: seed for name, seed in known.items() if name in by_schedules}
    for mutation in rules:
        outcome = by_test.get(mutation.name)
        try:
            failure = None if outcome else find_failure(mutation, seeds)
        except InvariantViolated as error:
            unexpected += 1
            sys.stdout.write(f"BAD {mutation.rule:3} {mutation.name}: {error}\n")
            continue
        is_expected = outcome == "noticed" if outcome else (failure is None) == mutation.is_harmless
        unexpected += not is_expected
        known.pop(mutation.name, None)
        if failure is not None:
            known[mutation.name] = failure.run.seed
        if remember:
            remember.write_bytes(orjson.dumps(known, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n")
        seen = "not noticed" if failure is None else f"{str(failure).splitlines()[0][:150]}"
        if outcome:
            seen = f"{outcome} by {TEST_OF_RULE[mutation.name]}"
        mark = "ok " if is_expected else "BAD"
        sys.stdout.write(f"{mark} {mutation.rule:3} {mutation.name}: {seen}\n")
        sys.stdout.flush()
    return unexpected


_BLOCK: Final = 25
"""Schedules that a process is given at once."""

_WAITING: Final = 2
"""Blocks that wait for each process, so that it never does."""

_GC_THRESHOLDS: Final = (50_000, 20, 1000)
"""Objects that a process may make before it looks for cycles: a schedule makes more than Python expects."""

_PROGRESS_MS: Final = 60_000


@dataclass(slots=True)
class Totals:
    """What some schedules did.

    Attributes:
        schedules: How many were run.
        failed: Seed and first line of each that failed.
        steps: Store calls and sleeps of all actors, without the quiet at the end.
        faults: How many of each sort happened.
        mixes: How many schedules each scenario played in.
        counters: How often what happened.
    """

    schedules: int = 0
    failed: dict[int, str] = field(default_factory=dict)
    steps: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    mixes: Counter[str] = field(default_factory=Counter)
    counters: Counter[str] = field(default_factory=Counter)

    def add(self, other: "Totals") -> None:
        """Take what other schedules did."""
        self.schedules += other.schedules
        self.failed.update(other.failed)
        self.steps += other.steps
        self.faults.update(other.faults)
        self.mixes.update(other.mixes)
        self.counters.update(other.counters)


@dataclass(frozen=True, slots=True)
class Soak:
    """What to run.

    Attributes:
        seeds: Of the schedules, in this order.
        mix: The scenarios; ``None``: drawn from each seed.
        seconds: No block of schedules begins later than this after the first one; those begun are finished.
        jobs: Processes.
        keep_going: Go on after a failure.
        shrink_seconds: For how long to look for the shortest form of the first failure.
    """

    seeds: range
    mix: Mix | None = None
    seconds: float = 60.0
    jobs: int = 1
    keep_going: bool = False
    shrink_seconds: float = SHRINK_SECONDS


def run_soak(soak: Soak) -> Totals:
    """Run schedules until the seeds or the time are used up, or one has failed; print failures and totals.

    The first failure is shrunk; of the others the first line is printed. Progress goes to stderr, once a minute.
    """
    clock = SystemClock()
    code = fingerprint()  # of what is run: the files may change meanwhile
    started_ms = clock.monotonic_ms()
    ends_ms = started_ms + int(soak.seconds * 1000)
    totals = Totals()
    told_ms = started_ms
    interrupted = False
    try:
        for done in _run_blocks(soak, ends_ms):
            is_first = not totals.failed
            totals.add(done)
            _tell_failures(done, soak, is_first=is_first)
            if totals.failed and not soak.keep_going:
                break
            if clock.monotonic_ms() - told_ms >= _PROGRESS_MS:
                told_ms = clock.monotonic_ms()
                sys.stderr.write(_summarize(soak, totals, code=code, elapsed_ms=told_ms - started_ms) + "\n")
    except KeyboardInterrupt:
        interrupted = True
    sys.stdout.write(_summarize(soak, totals, code=code, elapsed_ms=clock.monotonic_ms() - started_ms) + "\n")
    if interrupted:
        sys.stdout.write("interrupted\n")
    sys.stdout.flush()
    return totals


def run_block(seeds: range, mix: Mix | None) -> Totals:
    """Run some schedules.

    Args:
        seeds: Of the schedules.
        mix: The scenarios; ``None``: drawn from each seed.
    """
    gc.set_threshold(*_GC_THRESHOLDS)
    if not gc.get_freeze_count():
        gc.freeze()  # what is loaded stays: nobody has to look through it again and again
    totals = Totals()
    for seed in seeds:
        totals.schedules += 1
        try:
            run = run_schedule(seed, mix)
        except ScheduleFailed as error:
            run = error.run
            totals.failed[seed] = str(error).partition("\n")[0]
        totals.steps += len(run.decided)
        totals.faults.update(run.faults.values())
        totals.mixes.update([name for name, _ in run.mix.sizes] or ["plain"])
        totals.counters.update(run.counters)
    return totals


def fingerprint() -> str:
    """Return what tells this code of the library from any other, whatever version control says."""
    digest = hashlib.sha256()
    root = Path(icedb_log.__file__).parent
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _run_blocks(soak: Soak, ends_ms: int) -> Iterator[Totals]:
    blocks = _split(soak.seeds)
    clock = SystemClock()
    if soak.jobs == 1:
        for block in blocks:
            if clock.monotonic_ms() > ends_ms:
                return
            yield run_block(block, soak.mix)
        return
    with ProcessPoolExecutor(soak.jobs, mp_context=get_context("spawn")) as pool:
        try:
            running: set[Future[Totals]] = set()
            for block in blocks:
                if clock.monotonic_ms() > ends_ms:
                    break
                running.add(pool.submit(run_block, block, soak.mix))
                if len(running) >= _WAITING * soak.jobs:
                    done, running = wait(running, return_when=FIRST_COMPLETED)
                    yield from (future.result() for future in done)
            for future in running:
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _split(seeds: range) -> Iterable[range]:
    return (seeds[at : at + _BLOCK] for at in range(0, len(seeds), _BLOCK))


def _tell_failures(done: Totals, soak: Soak, *, is_first: bool) -> None:
    failed = iter(sorted(done.failed))
    if is_first:
        for seed in islice(failed, 1):
            try:
                run_schedule(seed, soak.mix)
            except ScheduleFailed as error:
                sys.stdout.write(f"{shrink_failure(error, seconds=soak.shrink_seconds)}\n")
            else:
                sys.stdout.write(f"{done.failed[seed]}\nnot so when run again: the code is another one by now\n")
    for seed in failed:
        sys.stdout.write(f"{done.failed[seed]}\n")
    sys.stdout.flush()


def _summarize(soak: Soak, totals: Totals, *, code: str, elapsed_ms: int) -> str:
    summary = {
        "schedules": totals.schedules,
        "failed": len(totals.failed),
        "first_seed": soak.seeds[0],
        "last_seed": soak.seeds[max(0, totals.schedules - 1)],
        "elapsed_s": elapsed_ms / 1000,
        "jobs": soak.jobs,
        "steps": totals.steps,
        "faults": dict(totals.faults),
        "mixes": dict(totals.mixes),
        "counters": dict(totals.counters),
        "code": code,
        "python": platform.python_version(),
    }
    return orjson.dumps(summary).decode()
