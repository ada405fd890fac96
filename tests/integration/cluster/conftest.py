"""One cluster for all tests of this folder."""

from contextlib import ExitStack

import pytest
from cluster_rig import ClusterRig


@pytest.fixture(scope="session")
def rig(s3_server, tmp_path_factory):
    with ClusterRig(tmp_path_factory.mktemp("cluster"), s3_server) as running:
        yield running


@pytest.fixture(scope="session")
def drivers(rig):
    """Drivers by the options of their session; one that was killed is replaced."""
    with ExitStack() as stack:
        running = {}

        def find(options):
            key = tuple(options.items())
            if key not in running or running[key].process.poll() is not None:
                stack.close()
                running.clear()
                running[key] = stack.enter_context(rig.running_driver(**options))
            return running[key]

        yield find
