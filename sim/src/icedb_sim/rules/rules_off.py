"""Tests that play the one history which a rule is there for, run with that rule switched off: they have to fail.

A plugin of pytest, for :func:`~icedb_sim.rules.by_test.run_tests_of_rules`: each collected test runs
once for each of its rules, and what it did is written to a file. The checks at each commit are as in the product: only
the rule is missing. Without the option nothing changes.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import orjson
import pytest
from icedb_log.errors import InvariantViolated

from icedb_sim.rules.by_test import OPTION, Outcome
from icedb_sim.rules.catalogue import ALL_RULES, TEST_OF_RULE
from icedb_sim.rules.mutations import BROKEN, Mutation, mutated

_PARAMETER: Final = "rule_off"
_RULES: Final[dict[str, Mutation]] = {rule.name: rule for rule in ALL_RULES}
_OUTCOMES: Final = pytest.StashKey[dict[str, Outcome]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the option."""
    parser.addoption(OPTION, metavar="OUT", help="run tests with the rule switched off that each is there for")


def pytest_configure(config: pytest.Config) -> None:
    """Begin with nothing."""
    config.stash[_OUTCOMES] = {}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test once for each of its rules."""
    if metafunc.config.getoption(OPTION):
        path = metafunc.definition.path.relative_to(metafunc.config.rootpath).as_posix()
        name = f"{path}::{metafunc.function.__name__}"
        metafunc.fixturenames.append(_PARAMETER)
        metafunc.parametrize(_PARAMETER, [rule for rule, test in TEST_OF_RULE.items() if test == name])


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out a test with other parameters than those that have noticed."""
    if item.config.stash[_OUTCOMES].get(_rule_of(item)) == "noticed":
        pytest.skip("noticed already")


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Iterator[None]:
    """Switch the rule off, and take note of what the test does."""
    name = _rule_of(pyfuncitem)
    if not name:
        return (yield)
    outcomes, is_off = pyfuncitem.config.stash[_OUTCOMES], False
    try:
        with mutated(_RULES[name], with_invariants=True, beside=(pyfuncitem.module,)):
            is_off = True
            yield
    except BaseException as error:  # whatever a test fails of: pytest's own failures are no exceptions
        if not is_off or isinstance(error, BROKEN):
            outcomes[name] = "broken"
            raise InvariantViolated(f"{name}: {error}: mend the rule") from error
        if outcomes.get(name) != "broken":
            outcomes[name] = "noticed"
    else:
        outcomes.setdefault(name, "passed")
    return True  # type: ignore[return-value] # the test has run


def _rule_of(item: pytest.Item) -> str:
    """Return the rule that a test runs without; empty: none."""
    callspec = getattr(item, "callspec", None)
    return "" if callspec is None else str(callspec.params.get(_PARAMETER, ""))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write down what each rule's test did."""
    out = session.config.getoption(OPTION)
    if out:
        Path(out).write_bytes(orjson.dumps(session.config.stash[_OUTCOMES]))
