"""What threads of one process stage at once becomes durable by one PUT; a process that was forked goes on by itself."""

import os
import threading

import pytest
from icedb_client import staging
from icedb_client.bodies import BatchBody
from icedb_client.staging import StagingGate
from icedb_log.clock import SystemClock, new_batch_id
from icedb_log.ingest.staging import list_all_staged
from icedb_log.store.local_store import LocalObjectStore
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import TableConfig
from icedb_log.warehouse import Warehouse
from waiting import LIMIT_S, wait_until

CLOCK = SystemClock()


class GatedStore(LocalObjectStore):
    """A directory whose PUTs to staging wait until the test lets them."""

    def __init__(self, folder):
        super().__init__(folder)
        self.gate = threading.Event()
        self.arrived = threading.Semaphore(0)

    def put_if_absent(self, key, body):
        if "/staging/" in key:
            self.arrived.release()
            assert self.gate.wait(LIMIT_S)
        return super().put_if_absent(key, body)


@pytest.fixture
def gate(tmp_path):
    warehouse = Warehouse(GatedStore(tmp_path))
    create_table(warehouse.first("events"), TableConfig.create(name="events"))
    return StagingGate(warehouse, clock=CLOCK, wake=lambda _: True)


def stage(gate):
    body = BatchBody(b'{"a":1}\n', "ndjson", row_count=1, raw_bytes=8)
    return gate.stage("events", body, new_batch_id(CLOCK)).key


def keys(gate):
    return [batch.key for batch in list_all_staged(gate.warehouse.table("events")).batches]


def test_what_threads_stage_at_once_shares_an_object(gate, monkeypatch):
    monkeypatch.setattr(staging, "LINGER_MS", 1000 * LIMIT_S)  # it is not the time that ends the wait
    store = gate.warehouse.store
    first = threading.Thread(target=lambda: (stage(gate), stage(gate)))
    others = [threading.Thread(target=stage, args=(gate,)) for _ in range(2)]
    first.start()
    assert store.arrived.acquire(timeout=LIMIT_S)
    for thread in others:
        thread.start()
    writer = gate._group_writer()
    wait_until(lambda: sum(len(group.batches) for groups in writer._waiting.values() for group in groups) == 2)
    store.gate.set()
    for thread in (first, *others):
        thread.join(LIMIT_S)
    found = keys(gate)
    assert sorted(found.count(key) for key in set(found)) == [1, 3]


def test_a_process_that_was_forked_stages_by_itself(gate):
    gate.warehouse.store.gate.set()
    stage(gate)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            stage(gate)
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    stage(gate)
    assert len(keys(gate)) == 3
