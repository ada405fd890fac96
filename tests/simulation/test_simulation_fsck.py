"""``icedb fsck`` in the simulation: it never reports an error of a table with which nothing is wrong.

That the order of its reads matters is shown in libs/icedb_log/tests/test_fsck_sound.py, call by call.
"""

from icedb_sim.simulation.cast import Cast
from icedb_sim.simulation.schedule import run_schedule

SEEDS = range(300, 312)


def test_no_schedule_makes_a_false_error():
    for seed in SEEDS:
        run_schedule(seed, Cast.parse("checkers:3"))
