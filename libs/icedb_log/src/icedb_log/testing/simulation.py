"""The deterministic simulation of the log protocol: real library code, simulated time, store and faults.

``run_schedule(seed)`` runs one schedule and raises :class:`~icedb_log.testing.simulation_schedule.ScheduleFailed` if a
rule broke. ``python -m icedb_log.testing.simulation --seconds 600`` runs as many as fit.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterable
from typing import Final

from icedb_log.clock import SystemClock
from icedb_log.testing.simulation_cast import Cast
from icedb_log.testing.simulation_rules import ALL_RULES
from icedb_log.testing.simulation_schedule import ScheduleFailed, run_schedule
from icedb_log.testing.simulation_search import check_mutations, find_failure

__all__ = ["ScheduleFailed", "find_failure", "main", "run_schedule"]

MAX_MUTATED_SCHEDULES: Final = 3000
"""How long to look for a schedule that notices a rule switched off."""


def run_seeds(seeds: Iterable[int], cast: Cast | None, *, seconds: float, keep_going: bool = False) -> int:
    """Run schedules until the seeds or the time are used up; print failures and totals; return how many failed."""
    clock = SystemClock()
    started_ms = clock.monotonic_ms()
    totals: Counter[str] = Counter()
    count = failed = 0
    for seed in seeds:
        if clock.monotonic_ms() - started_ms > seconds * 1000:
            break
        count += 1
        try:
            totals.update(run_schedule(seed, cast).counters)
        except ScheduleFailed as error:
            failed += 1
            sys.stdout.write(f"{error}\n" if failed == 1 else f"{str(error).splitlines()[0]}\n")
            if not keep_going:
                break
    elapsed_s = (clock.monotonic_ms() - started_ms) / 1000
    sys.stdout.write(f"{count} schedules in {elapsed_s:.1f} s, {failed} failed; {dict(totals)}\n")
    return failed


def main(arguments: list[str] | None = None) -> int:
    """Run schedules, or the mutation check, from the command line; exit code 1 if something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m icedb_log.testing.simulation", description=__doc__)
    parser.add_argument("--seeds", default="0..1000000000", help="first..last seed, both included")
    parser.add_argument("--seconds", type=float, default=60.0, help="stop after this time")
    parser.add_argument("--keep-going", action="store_true", help="go on after a failure")
    parser.add_argument(
        "--mutations",
        metavar="RULES",
        help="switch rules off in turn instead: 'all', or ids such as J1,R3; at most 3,000 schedules each",
    )
    parser.add_argument(
        "--cast", type=Cast.parse, help="who plays: erasers:2,lessees:1, or plain; else each seed draws"
    )
    options = parser.parse_args(arguments)
    first, _, last = options.seeds.partition("..")
    seeds = range(int(first), int(last or first) + 1)
    if options.mutations:
        wanted = options.mutations.split(",")
        chosen = [rule for rule in ALL_RULES if options.mutations == "all" or rule.rule in wanted]
        return 1 if check_mutations(chosen, seeds[:MAX_MUTATED_SCHEDULES]) else 0
    return 1 if run_seeds(seeds, options.cast, seconds=options.seconds, keep_going=options.keep_going) else 0


if __name__ == "__main__":
    raise SystemExit(main())
