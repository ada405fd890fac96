"""Turns of a benchmark: who takes how many, what counts, and what is written of it."""

import importlib
import os
import pkgutil
from types import SimpleNamespace

import pytest

from bench import __main__ as command
from bench import harness, machine, processes
from bench.figures import Figure, latency_figures
from bench.harness import Case, Options, run_workload


class System:
    def __init__(self, name, values=(1.0,), log=None):
        self.name = name
        self.values = list(values)
        self.log = log if log is not None else []

    def prepare(self):
        self.log.append(f"{self.name} prepares")

    def run(self):
        self.log.append(self.name)

    def check(self):
        return [Figure("rows", "rows", self.values.pop(0) if len(self.values) > 1 else self.values[0])]


def run(monkeypatch, *cases, **options):
    monkeypatch.setattr(harness, "look_at_others", lambda: 0.5)
    workload = SimpleNamespace(name="fake", description="what is done", cases=lambda: iter(cases))
    return run_workload(workload, Options(**{"repeat_count": 3, "event_count": 1, "batch_count": 1} | options))


def test_systems_take_turns_and_the_first_two_do_not_count(monkeypatch):
    log = []
    systems = [System("icedb", (100, 100, 2, 4, 9), log), System("duckdb", (100, 100, 1, 1, 1), log)]
    report = run(monkeypatch, Case("case", 10, systems, is_timed=False))
    assert [word for word in log if "prepares" not in word] == ["icedb", "duckdb"] * 5
    (ours, theirs) = report.rows
    assert (ours.median, ours.min, ours.max, ours.turn_count, ours.ratio_to_ours) == (4, 2, 9, 3, 1.0)
    assert (theirs.median, theirs.ratio_to_ours) == (1, 0.25)


def test_no_round_begins_after_the_limit_but_one_always_is(monkeypatch):
    log = []
    run(monkeypatch, Case("case", 10, [System("icedb", log=log), System("duckdb", log=log)]), case_limit_s=-1)
    assert [word for word in log if "prepares" not in word] == ["icedb", "duckdb"] * 3


@pytest.mark.parametrize(("after", "told"), [({1: 6.0, 2: 4.0, 3: 1.0}, [3.0]), ({1: 6.0}, [])])
def test_time_of_processors_is_told_if_no_process_has_taken_its_own_with_it(monkeypatch, after, told):
    answers = iter([{1: 5.0, 2: 3.0}, after])
    monkeypatch.setattr(processes, "read_cpu_by_process", lambda _: next(answers))
    monkeypatch.setattr(processes, "Remote", lambda **_: SimpleNamespace(pid=os.getpid(), take=str, ask=lambda _: []))
    system = processes.SystemInProcess("work")
    system.run()
    assert [figure.value for figure in system.check() if figure.metric == "cpu_time"] == told


def test_who_was_given_enough_time_takes_no_more_turns(monkeypatch):
    log = []
    run(monkeypatch, Case("case", 10, [System("icedb", log=log)], warm_turn_count=0, patience_s=0.0))
    assert log == []
    run(monkeypatch, Case("case", 10, [System("icedb", log=log)], warm_turn_count=0, patience_s=1e-9))
    assert log == ["icedb prepares", "icedb"]


def test_a_report_says_how_busy_others_were_and_where_on_its_axis_a_case_is(monkeypatch):
    report = run(monkeypatch, Case("case", 1, [System("icedb")], axis="tables", at=30), load_average=7.0)
    assert (report.load.average, report.load.busy_share, report.load.is_high) == (7.0, 0.5, True)
    assert {(row.axis, row.at) for row in report.rows} == {("tables", 30)}
    assert report.size == "middle"
    assert report.machine


def test_a_workload_that_fails_is_named_and_the_others_run(monkeypatch, tmp_path):
    monkeypatch.setattr(harness, "look_at_others", lambda: 0.0)

    class Broken(System):
        def check(self):
            raise AssertionError("a row is missing")

    def make(name, system):
        return lambda *_: SimpleNamespace(name=name, description="what", cases=lambda: [Case("case", 1, [system])])

    made = {"GoodWorkload": make("good", System("icedb")), "BadWorkload": make("bad", Broken("icedb"))}
    monkeypatch.setattr(command.importlib, "import_module", lambda _: SimpleNamespace(**made))
    written, failed = command.run_all(["bad", "good"], Options(1, 1, 1), tmp_path)
    assert written == [tmp_path / "good.json"]
    assert failed == ["bad"]


@pytest.mark.parametrize("size", command.SIZES)
def test_no_workload_refuses_the_options_of_a_size(tmp_path, size):
    names = sorted(module.name for module in pkgutil.iter_modules(command.workloads.__path__))
    for name in names:
        module = importlib.import_module(f"bench.workloads.{name}")
        kind = getattr(module, f"{name.title().replace('_', '')}Workload")
        assert kind(tmp_path, command.SIZES[size]).name == name


def test_the_middle_latency_and_the_slowest_of_few():
    p50, p99 = latency_figures([0.005, 0.001, 0.003])
    assert (p50.value, p99.value) == pytest.approx((3, 5))


@pytest.mark.parametrize(("idle_s", "user_s", "share"), [(0.6, 0.0, 0.0), (0.3, 0.3, 0.5), (0.0, 0.6, 1.0)])
def test_an_idle_machine_is_not_taken_for_a_busy_one(monkeypatch, idle_s, user_s, share):
    looks = iter([SimpleNamespace(user=5.0, system=1.0, idle=9.0),
                  SimpleNamespace(user=5.0 + user_s, system=1.0, idle=9.0 + idle_s)])  # fmt: skip
    monkeypatch.setattr(machine.psutil, "cpu_times", lambda: next(looks))
    monkeypatch.setattr(machine, "sleep", lambda _: None)
    monkeypatch.setattr(machine, "read_cpu_s", lambda _: 7.0)
    monkeypatch.setattr(machine.os, "cpu_count", lambda: 2)
    assert machine.look_at_others() == pytest.approx(share)
