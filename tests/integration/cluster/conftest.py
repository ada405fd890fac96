"""One cluster for all tests of this folder."""

import pytest
from cluster_rig import ClusterRig


@pytest.fixture(scope="session")
def rig(s3_server, tmp_path_factory):
    with ClusterRig(tmp_path_factory.mktemp("cluster"), s3_server) as running:
        yield running
