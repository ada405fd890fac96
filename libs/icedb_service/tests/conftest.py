import pytest
from icedb_sim.rigs.guard_rig import GuardRig
from prometheus_client import CollectorRegistry


@pytest.fixture
def rig(tmp_path):
    return GuardRig(tmp_path)


@pytest.fixture
def clock(rig):
    return rig.clock


@pytest.fixture
def issuer(rig):
    return rig.issuer


@pytest.fixture
def document(rig):
    return rig.document


@pytest.fixture
def make(rig):
    def make(document):
        registry = CollectorRegistry()
        guard = rig.make(document, registry=registry)
        guard.registry = registry
        return guard

    return make


@pytest.fixture
def guard(make, document):
    return make(document)
