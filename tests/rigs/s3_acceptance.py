"""The acceptance suite of stores for one on S3: a module gives the fixture ``handles``, two of them on one bucket."""

import pytest
from icedb_log.store.object_store import list_all
from icedb_sim.fakes.store_acceptance import StoreAcceptance


class S3Acceptance(StoreAcceptance):
    race_count = 8

    @pytest.fixture
    def store(self, handles):
        yield handles[0]
        handles[0].delete([info.key for info in list_all(handles[0], "").objects])

    @pytest.fixture(autouse=True)
    def _second_handle(self, handles):
        self._second = handles[1]

    def reopen(self, store):
        return self._second
