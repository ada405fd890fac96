"""A test that hangs fails soon, and none that starts much has too little time: pyproject.toml and conftest.py."""

import pytest


def limit_of(item):
    marker = item.get_closest_marker("timeout")
    return float(item.config.getini("timeout")) if marker is None else marker.args[0]


def test_a_test_that_hangs_fails_within_a_minute(request):
    assert limit_of(request.node) == 60


@pytest.mark.spark
def test_a_test_with_spark_has_more(request):
    assert limit_of(request.node) == 300


@pytest.mark.spark
@pytest.mark.timeout(7)
def test_a_test_that_names_its_own_limit_keeps_it(request):
    assert limit_of(request.node) == 7
