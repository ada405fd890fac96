"""Looking for schedules that fail: with a rule switched off, one has to be found."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import orjson
from icedb_log.errors import InvariantViolated

from icedb_sim.rules.by_test import run_tests_of_rules
from icedb_sim.rules.catalogue import TEST_OF_RULE
from icedb_sim.rules.mutations import Mutation, mutated
from icedb_sim.rules.switches import BROKEN
from icedb_sim.simulation.scenario import Mix
from icedb_sim.simulation.schedule import ScheduleFailed, run_schedule


def find_failure(mutation: Mutation, seeds: Iterable[int], *, with_invariants: bool = False) -> ScheduleFailed | None:
    """Run schedules with a rule switched off, and with the mix that it needs.

    Args:
        mutation: The rule.
        seeds: Of the schedules.
        with_invariants: Keep the checks at each commit.

    Returns:
        The first failure; ``None`` if nobody noticed.

    Raises:
        InvariantViolated: The edited code does not run: that proves nothing.
    """
    mix = Mix.parse(mutation.mix)
    profiled = Mix.of({**dict(mix.sizes), mutation.profile: 1}) if mutation.profile else mix
    with mutated(mutation, with_invariants=with_invariants):
        for seed in seeds:
            try:
                run_schedule(seed, profiled if seed % 4 else mix)
            except ScheduleFailed as error:
                if isinstance(error.error, BROKEN):
                    raise InvariantViolated(f"{mutation.name}: {error.error}: mend the mutation") from error
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
