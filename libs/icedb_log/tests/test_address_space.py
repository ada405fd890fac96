"""The bound of processes that run SQL of users: where there is none, they run all the same."""

import builtins
import resource

from icedb_log import address_space


def test_a_process_gets_so_much_more_and_writes_no_core(monkeypatch):
    limits = {}
    monkeypatch.setattr(resource, "setrlimit", lambda which, pair: limits.update({which: pair}))
    address_space.bound_address_space(2**30)
    assert limits[resource.RLIMIT_CORE] == (0, 0)
    assert limits[resource.RLIMIT_AS][0] > 2**30 + address_space.SLACK_BYTES


def test_a_system_that_does_not_say_how_much_it_has_bounds_nothing(monkeypatch):
    """macOS has no /proc."""
    limits = {}

    def gone(*_given, **_options):
        raise FileNotFoundError

    monkeypatch.setattr(resource, "setrlimit", lambda which, pair: limits.update({which: pair}))
    monkeypatch.setattr(builtins, "open", gone)
    address_space.bound_address_space(2**30)
    assert limits == {resource.RLIMIT_CORE: (0, 0)}
