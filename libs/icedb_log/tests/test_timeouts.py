"""A test that hangs fails in time, and none that starts much has too little of it: pyproject.toml and conftest.py."""

import pytest


def limit_of(item):
    marker = item.get_closest_marker("timeout")
    return float(item.config.getini("timeout")) if marker is None else marker.args[0]


def test_a_test_that_hangs_fails_within_minutes(request):
    assert limit_of(request.node) == 600


@pytest.mark.e2e
def test_a_test_with_a_whole_stack_has_more(request):
    assert limit_of(request.node) == 900


@pytest.mark.e2e
@pytest.mark.timeout(700)
def test_a_test_that_names_its_own_limit_keeps_it(request):
    assert limit_of(request.node) == 700
