"""A failing schedule is recorded, run again from its record, and shrunk to what it takes to fail."""

import re

import pytest
from icedb_log.errors import InvalidRequest
from icedb_sim.rules.catalogue import ALL_RULES
from icedb_sim.rules.mutations import mutated
from icedb_sim.simulation.__main__ import main
from icedb_sim.simulation.scenario import PLAIN, Mix
from icedb_sim.simulation.scenarios import SCENARIOS, draw_mix
from icedb_sim.simulation.schedule import ScheduleFailed, run_schedule
from icedb_sim.simulation.shrink import FailureKind, decode_replay, encode_replay, shrink_failure
from icedb_sim.simulation.soak import find_failure
from icedb_sim.simulation.world import Script, Violation

SECONDS = 60


def acting(run):
    return [step.actor for step in run.script.steps if step.actor]


def rule_named(name):
    (rule,) = [rule for rule in ALL_RULES if rule.name == name]
    return rule


@pytest.mark.parametrize("seed", range(6))
def test_a_schedule_is_the_same_when_it_is_run_from_its_record(seed):
    run = run_schedule(seed)
    again = run_schedule(seed, run.mix, script=run.script)
    assert again == run
    replay = decode_replay(encode_replay(run))
    assert (replay.seed, replay.mix, replay.script) == (seed, run.mix, run.script)


@pytest.mark.parametrize(
    ("name", "most_steps", "most_faults"),
    [("no intent is written", 60, 0), ("ids in the log are not looked at", 60, 1)],
)
def test_what_fails_is_shrunk_to_what_it_takes(name, most_steps, most_faults):
    mutation = rule_named(name)
    failed = find_failure(mutation, range(400))
    with mutated(mutation):
        shrunk = shrink_failure(failed, seconds=SECONDS)
        short = shrunk.failure
        assert FailureKind.of(short.error) == FailureKind.of(failed.error)
        assert len(acting(short.run)) <= most_steps < len(acting(failed.run))
        assert len(short.run.faults) <= most_faults
        lines = str(shrunk).splitlines()
        assert lines[0].startswith(f"seed {failed.run.seed}, mix plain: Violation: ")
        assert lines[2].startswith("shrunk from ")
        assert any(line.startswith("actors: ") for line in lines)
        assert any("flusher" in line and "/_log/" in line for line in lines)
        text = re.search(r"--replay '(.+)'$", str(shrunk))[1]
        replay = decode_replay(text)
        with pytest.raises(ScheduleFailed) as again:
            run_schedule(replay.seed, replay.mix, script=replay.script)
        assert FailureKind.of(again.value.error) == FailureKind.of(failed.error)
        assert again.value.run.trace_hash == short.run.trace_hash
        assert main(["--replay", text]) == 1
    assert main(["--replay", text]) == 0


def first_key(run, kind):
    """Return what an actor of a kind wrote first: its name has the time and the actor's own random bits."""
    return next(line.key for line in run.trace if line.actor.startswith(kind) and line.what == "create")


@pytest.mark.parametrize("seed", [11, 12, 13])
def test_without_an_actor_the_others_draw_what_they_drew(seed):
    run = run_schedule(seed, PLAIN, trace_tail=None)
    left_out = next(name for name in reversed(acting(run)) if not name.startswith("producer"))
    kept = tuple(step._replace(actor="") if step.actor == left_out else step for step in run.script.steps)
    without = run_schedule(seed, PLAIN, script=Script(kept, run.script.faults), trace_tail=None)
    assert left_out in acting(run)
    assert left_out not in acting(without)
    assert first_key(run, "producer") == first_key(without, "producer")


def test_a_fault_that_is_left_out_does_not_happen_and_those_of_others_do():
    run = run_schedule(12, PLAIN)
    left_out = next(iter(run.faults))
    of_another = next(fault for fault in run.faults if not fault.startswith(left_out.partition("#")[0]))
    without = run_schedule(12, PLAIN, script=Script(run.script.steps, run.script.faults - {left_out}))
    assert left_out not in without.faults
    assert of_another in without.faults


def test_failures_are_of_one_kind_whatever_their_keys_and_numbers():
    one = FailureKind.of(
        Violation("batch 018bcfe5-97d8-7e20-9050-31b75cbc9a30 was committed by lake/a/_log/1_2.jsonl (I3)")
    )
    two = FailureKind.of(
        Violation("batch 018bcfe5-6800-782a-bdf3-0e64a3782f6d was committed by lake/a/_log/4_5.jsonl (I3)")
    )
    assert one == two
    assert one != FailureKind.of(Violation("batch 018bcfe5-6800-782a-bdf3-0e64a3782f6d was refused (I5)"))
    assert FailureKind.of(Violation("rows twice [], missing [1, 2]")) == FailureKind.of(
        Violation("rows twice [], missing [3]")
    )
    assert FailureKind.of(Violation("rows twice [], missing [1]")) != FailureKind.of(
        Violation("rows twice [1], missing []")
    )


@pytest.mark.parametrize(
    "text", ["", "1|plain|flusher1", "x|plain||", "1|plain|flusher 1*|", "1|nobody|a|", "1|a:0|a|"]
)
def test_a_text_that_is_no_replay_is_refused(text):
    with pytest.raises(InvalidRequest):
        decode_replay(text)


def test_a_seed_draws_who_plays():
    mixes = [draw_mix(seed) for seed in range(3000)]
    assert 300 < mixes.count(PLAIN) < 2000
    assert {name for mix in mixes for name, _ in mix.sizes} == set(SCENARIOS)
    assert all(Mix.parse(str(mix)) == mix for mix in mixes)
    with pytest.raises(InvalidRequest, match="no scenario"):
        run_schedule(1, Mix.parse("clowns:1"))
