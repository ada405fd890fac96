"""What a table at which nothing happens costs: each service's sweeps over simulated hours, every request counted."""

import pytest
from icedb_ingest.tasks import MAX_STAGED_REST_MS
from icedb_log.intervals import MAX_REST_MS
from icedb_log.names import MERGE_MERGE
from icedb_log.units import HOUR_MS, SECOND_MS
from swept_services import Services


@pytest.fixture(scope="module", params=[1, 10], ids=["one worker each", "ten workers each"])
def rested(request):
    """Services of a table that took one batch, hours ago."""
    services = Services(request.param)
    services.ingest.stage([{"n": 1}])
    services.run(6 * HOUR_MS)
    assert services.figure("data_files") == 1
    return services


def test_a_table_that_rests_costs_two_requests_a_minute(rested):
    assert len(rested.run(HOUR_MS)) <= 2 * 60


def test_a_batch_that_nobody_was_woken_for_waits_five_minutes_at_most(rested):
    rested.ingest.stage([{"n": 2}])
    rested.run(MAX_STAGED_REST_MS + 2 * SECOND_MS)
    assert len(rested.ingest.snapshot().live) == 2
    rested.run(MAX_REST_MS)
    assert rested.figure("data_files") == 2
    assert MERGE_MERGE not in {task for task, _ in rested.merger.wakeups.woken}


def test_a_busy_table_is_looked_at_by_each_sweep(rested):
    rested.ingest.stage([{"n": 3}])
    for worker in rested.flushers:
        worker.flush("events")
    before = len(rested.ingest.snapshot().live)
    for n in range(3):
        rested.ingest.stage([{"n": n}])
        rested.run(4 * SECOND_MS)
        assert len(rested.ingest.snapshot().live) == before + n + 1
