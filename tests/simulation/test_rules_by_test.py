"""Rules that few schedules miss, or none: for each there is a test that fails without it, and here it does."""

import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from icedb_log.errors import InvariantViolated
from icedb_sim.rules.by_test import run_tests_of_rules
from icedb_sim.rules.catalogue import ALL_RULES, TEST_OF_RULE
from icedb_sim.rules.mutations import Mutation
from icedb_sim.simulation import soak
from icedb_sim.simulation.soak import check_mutations


def test_each_test_fails_without_its_rule():
    outcomes = run_tests_of_rules(TEST_OF_RULE.keys())
    assert {name: outcome for name, outcome in outcomes.items() if outcome != "noticed"} == {}


def test_the_rules_exist_and_are_not_harmless():
    assert {rule.name for rule in ALL_RULES if not rule.is_harmless} >= TEST_OF_RULE.keys()


def test_a_test_that_does_not_run_says_so(monkeypatch):
    name, test = next(iter(TEST_OF_RULE.items()))
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(stdout="no tests ran"))
    with pytest.raises(InvariantViolated, match=f"{test} did not run: no tests ran"):
        run_tests_of_rules([name])


def test_a_rule_counts_as_noticed_only_by_who_is_written_down(monkeypatch, capsys):
    nothing = Mutation("-", "nothing", ())
    assert check_mutations([nothing], range(2)) == 1  # schedules should
    monkeypatch.setitem(TEST_OF_RULE, "nothing", "a::b")
    for outcome, unexpected in (("noticed", 0), ("passed", 1), ("broken", 1)):
        monkeypatch.setattr(soak, "run_tests_of_rules", lambda _, outcome=outcome: {"nothing": outcome})
        assert check_mutations([nothing], range(2)) == unexpected
    assert "noticed by a::b" in capsys.readouterr().out


def test_the_page_says_of_each_rule_who_notices_it():
    page = (Path(__file__).parents[2] / "docs" / "internals" / "simulation.md").read_text()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("| ")]
    said = {(row[0], row[1]): row[2] for row in rows if len(row) == 4}
    for rule in ALL_RULES:
        who = said.pop((rule.rule, rule.name))
        if rule.is_harmless:
            assert who.startswith("harmless")
        elif rule.name in TEST_OF_RULE:
            assert who == f"test `{TEST_OF_RULE[rule.name].rpartition('::')[2]}`"
        else:
            assert who.startswith("schedules")
            assert rule.profile in who
    assert said.keys() == {("rule", "the code does instead"), ("---", "---")}
