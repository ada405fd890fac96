"""What a task of a flush takes of the machine: no more than its setting says, whatever came in how few bytes."""

import os
import subprocess
import sys

import pytest
from icedb_engine.spark.spark_session import PURGE_ENV, TASK_ENV
from icedb_log.units import MIB

pytestmark = pytest.mark.soak

ROWS = 6_000_000
MEMORY_BYTES = 1024 * MIB
TASK = """
import gzip, resource, sys
from icedb_log.clock import SystemClock, new_batch_id
from icedb_log.jobs import StagedBatch
from icedb_log.store_settings import StoreSettings
from icedb_log.table.table_config import TableConfig
from icedb_engine.limits import MIB, EngineLimits, FlushUnitLimits
from icedb_engine.units.flush_unit import flush_unit
from icedb_engine.work import FlushUnit

folder, shape, rows, memory_bytes = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
line = {
    "columns": b'{"a":%d,"b":2,"c":3,"d":4,"e":5,"f":6}\\n',
    "text": b'{"a":"%09d","b":"xyzxyzxyzx"}\\n',
    "nested": b'{"a":%d,"b":{"c":3,"d":4},"e":[5,6]}\\n',
}[shape]
with gzip.open(f"{folder}/body.gz", "wb") as file:
    for first in range(0, rows, 1000):
        file.write(line % (first // 1000 % 10) * 1000)
with open(f"{folder}/body.gz", "rb") as file:
    body = file.read()
clock, warehouse = SystemClock(), StoreSettings(f"file://{folder}/warehouse").open()
paths, batch_id = warehouse.table("events").paths, new_batch_id(clock)
key = paths.staging_key(batch_id=batch_id, staging_format="ndjson.gz")
warehouse.store.put(key, body)
unit = FlushUnit(
    paths=paths,
    config=TableConfig.create(name="events", sort=("a",)),
    schema={},
    batches=(StagedBatch(key, batch_id, "ndjson.gz", len(body), clock.now_ms()),),
    commit_id="c0ffee",
    time_ms=clock.now_ms(),
    limits=FlushUnitLimits(batch_decoded_bytes=memory_bytes // 4),
    engine=EngineLimits(memory_bytes=memory_bytes, scratch_folder=f"{folder}/scratch"),
)
result = flush_unit(unit, warehouse.store, clock=clock)
print(result.row_count, len(body), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.parametrize("shape", ["columns", "text", "nested"])
def test_a_batch_of_six_million_rows_in_600_kilobytes_fits_into_the_memory_of_a_task(tmp_path, shape):
    """In a process as Spark starts it."""
    done = subprocess.run(
        [sys.executable, "-c", TASK, str(tmp_path), shape, str(ROWS), str(MEMORY_BYTES)],
        env={**os.environ, **TASK_ENV, **PURGE_ENV},
        check=True,
        capture_output=True,
        text=True,
    )
    row_count, staged_bytes, peak_bytes = map(int, done.stdout.split())
    assert row_count == ROWS
    assert staged_bytes < 1 * MIB
    assert peak_bytes <= 1.1 * MEMORY_BYTES, f"{peak_bytes / MIB:.0f} MiB"
