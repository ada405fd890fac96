"""The deterministic simulation of the log protocol: real library code, simulated time, store and faults.

``run_schedule(seed)`` runs one schedule and raises :class:`~icedb_sim.simulation.schedule.ScheduleFailed` if a
rule broke. ``python -m icedb_sim.simulation --seconds 600`` runs as many as fit.
"""

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import Final

from icedb_log.errors import InvalidRequest

from icedb_sim.rules.catalogue import ALL_RULES
from icedb_sim.simulation.scenario import PLAIN, Mix
from icedb_sim.simulation.scenarios import find_scenarios
from icedb_sim.simulation.schedule import ScheduleFailed, run_schedule
from icedb_sim.simulation.shrink import decode_replay
from icedb_sim.simulation.soak import Soak, check_mutations, run_soak

MAX_MUTATED_SCHEDULES: Final = 3000
"""How long to look for a schedule that notices a rule switched off."""


def main(arguments: list[str] | None = None) -> int:
    """Run schedules, or the mutation check, from the command line; exit code 1 if something is wrong."""
    parser = argparse.ArgumentParser(prog="python -m icedb_sim.simulation", description=__doc__)
    parser.add_argument("--seeds", type=_parse_seeds, default="0..1000000000", help="first..last seed, both included")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; as many as there are cores")
    parser.add_argument("--seconds", type=float, default=60.0, help="stop after this time")
    parser.add_argument("--keep-going", action="store_true", help="go on after a failure")
    parser.add_argument(
        "--mutations",
        metavar="RULES",
        help="switch rules off in turn instead: 'all', or ids such as J1,R3; at most 3,000 schedules each",
    )
    parser.add_argument("--remember", type=Path, metavar="FILE", help="write the seeds down that notice mutations")
    parser.add_argument("--cast", type=Mix.parse, help="scenarios: erasers:2,lessees:1, or plain; else each seed draws")
    parser.add_argument("--replay", metavar="TEXT", help="run one schedule as a failure has printed it")
    options = parser.parse_args(arguments)
    seeds: range = options.seeds
    try:
        find_scenarios(options.cast or PLAIN)
        if options.replay:
            return _replay(options.replay)
    except InvalidRequest as error:
        parser.error(str(error))
    if options.mutations:
        wanted = options.mutations.split(",")
        known = {rule.rule for rule in ALL_RULES}
        if options.mutations != "all" and (unknown := [name for name in wanted if name not in known]):
            parser.error(f"no rule {', '.join(unknown)}; give 'all', or some of {', '.join(sorted(known))}")
        chosen = [rule for rule in ALL_RULES if options.mutations == "all" or rule.rule in wanted]
        return 1 if check_mutations(chosen, seeds[:MAX_MUTATED_SCHEDULES], remember=options.remember) else 0
    jobs = min(options.jobs, len(seeds))
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # it says what was done so far
    soak = Soak(seeds, options.cast, options.seconds, jobs, options.keep_going)
    return 1 if run_soak(soak).failed else 0


def _parse_seeds(text: str) -> range:
    first, _, last = text.partition("..")
    try:
        seeds = range(int(first), int(last or first) + 1)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text[:80]!r}: give first..last, for example 0..999") from error
    if not seeds or first.startswith("-"):
        raise argparse.ArgumentTypeError(f"{text[:80]!r} holds no seed: give first..last, for example 0..999")
    return seeds


def _replay(text: str) -> int:
    replay = decode_replay(text)
    try:
        run_schedule(replay.seed, replay.mix, script=replay.script, trace_tail=None)
    except ScheduleFailed as error:
        sys.stdout.write(f"{error}\n")
        return 1
    sys.stdout.write("nothing fails\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
