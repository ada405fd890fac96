"""``format("icedb")`` in a user's own session over Spark Connect: read and append. Workers have classic sessions only."""

import subprocess
import sys

import pytest
from icedb_log.store.table_store import TableStore
from icedb_log.store_settings import StoreSettings
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import TableConfig
from icedb_sim.rigs.spark_cluster import running_connect_server
from waiting import LIMIT_S

pytestmark = [pytest.mark.spark, pytest.mark.soak]


# A process of its own: PySpark knows one kind of session in a process.
USER = """
import sys
from icedb_spark import register
from pyspark.sql import SparkSession

address, store = sys.argv[1:]
spark = SparkSession.builder.remote(address).getOrCreate()
register(spark)
place = {"table": "events", "store": store}
for numbers in ([1, 2, 3], [4]):
    frame = spark.createDataFrame([(n, f"e{n % 2}") for n in numbers], "n long, event string")
    frame.write.format("icedb").options(**place).mode("append").save()
read = spark.read.format("icedb").options(**place).load()
print(sorted(row["n"] for row in read.filter("event = 'e1'").select("n").collect()))
spark.stop()
"""


def test_a_user_reads_and_appends_over_spark_connect(tmp_path):
    settings = StoreSettings(f"file://{tmp_path / 'warehouse'}")
    warehouse = settings.open()
    create_table(TableStore(warehouse.store, warehouse.table("events").paths), TableConfig.create(name="events"))
    with running_connect_server(tmp_path / "server", master="local[1]") as address:
        command = [sys.executable, "-c", USER, address, settings.url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        log = (tmp_path / "server" / "log").read_text()[-3000:]
    assert done.returncode == 0, done.stderr[-3000:] + log
    assert done.stdout.splitlines()[-1] == "[1, 3]"
