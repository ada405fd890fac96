"""Ours in the benchmark of merges on several machines. Each driver is a process of its own, see `bench.processes`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from icedb_engine.spark.spark_session import SparkSettings

from bench.figures import Figure
from bench.merge_systems import IceDB
from bench.merge_work import MergeInput
from bench.processes import SystemInProcess

EXECUTOR_MEMORY: Final = "512m"


class OnNodes(IceDB):
    """The whole merge with its tasks on a standalone cluster, one at a time on each machine.

    Args:
        name: What it is called.
        source: The table.
        folder: For the copy of the table that a turn merges.
        master: Where the master listens.
        host: The address at which the machines reach the driver.
        node_count: Machines of the cluster.
    """

    def __init__(self, name: str, source: MergeInput, folder: Path, *, master: str, host: str, node_count: int) -> None:
        super().__init__(source, folder)
        self.name = name
        self._settings = SparkSettings(
            master=master,
            options={
                "spark.driver.host": host,
                "spark.driver.bindAddress": host,
                "spark.cores.max": str(node_count),
                "spark.executor.cores": "1",
                "spark.executor.memory": EXECUTOR_MEMORY,
            },
        )

    def _open_session(self, settings: SparkSettings) -> None:
        """Start it on the cluster."""
        del settings
        super()._open_session(self._settings)


class OnCluster(SystemInProcess):
    """A driver, whose memory and processor time say nothing of the tasks: these run elsewhere."""

    def check(self) -> Sequence[Figure]:
        """Return the figures of the merge alone."""
        return [each for each in super().check() if each.metric not in ("peak_memory", "cpu_time")]
