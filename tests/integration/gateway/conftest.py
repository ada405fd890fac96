"""A gateway that the tests of a file share; its store is let go after each."""

import pytest
from gateway_boto import client, open_shared


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A gateway over a small table, a large one, and one that is empty."""
    with open_shared(tmp_path_factory.mktemp("gateway")) as rig:
        yield rig


@pytest.fixture
def rig(shared):
    yield shared
    shared.warehouse.store.gate.set()
    shared.warehouse.store.failure = None


@pytest.fixture(scope="module")
def s3(shared):
    return client(shared)
