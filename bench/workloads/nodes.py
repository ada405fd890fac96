"""Nodes: merges on a Spark cluster of one machine and on one of three, each with less than half a core. Needs root.

The machines are namespaces and control groups of this one, so that three of them, the store (a folder that all of them
see), the masters and the drivers have two cores together: what is compared is how well the work is divided, not how
fast a machine is.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Final

from icedb_log.units import MIB
from icedb_sim.rigs.cluster_nodes import Node, running_nodes
from icedb_sim.rigs.spark_cluster import SparkCluster

from bench.figures import OURS
from bench.harness import Case, Workload
from bench.merge_events import write_merge_input
from bench.merge_work import MergeInput
from bench.nodes_systems import OnCluster, OnNodes

CLUSTERS: Final = {OURS: 1, f"{OURS}, three machines": 3}
CORES_OF_NODE: Final = 0.4
PARTITIONS: Final = 64
MIN_GROUP_ROWS: Final = 2048
FILES_OF_PARTITION: Final = 4
ROWS_OF_FILE: Final = {"small": 1_024, "middle": 131_072, "full": 524_288}
WIDE_FILES: Final = 32
GROUPS_OF_FILE: Final = {"small": 1, "middle": 4, "full": 4}
TARGET_BYTES: Final = 64 * MIB
WIDE_TARGET_BYTES: Final = 16 * MIB


class NodesWorkload(Workload):
    """Two cases: many partitions, and one large one that is cut by ranges of its sort order."""

    description = (
        f"merges by Spark standalone on one and on three machines of {CORES_OF_NODE} cores (control groups and network "
        "namespaces of this machine, a folder as the store): 64 partitions of four files into files of 64 MiB, and one "
        "partition of 32 files that all overlap into files of 16 MiB, sorted, zstd level 1"
    )

    def cases(self) -> Iterator[Case]:
        """Make the tables, then the clusters, which stay for all turns."""
        size = self.options.size
        many = write_merge_input(
            self.folder / "many" / "wh",
            file_count=PARTITIONS * FILES_OF_PARTITION,
            rows_per_file=ROWS_OF_FILE[size],
            sort=("event", "ts"),
            is_in_time_order=False,
            partition_count=PARTITIONS,
            target_file_bytes=TARGET_BYTES,
        )
        yield from self._case(f"{PARTITIONS} partitions", many)
        rows_per_group = max(MIN_GROUP_ROWS, ROWS_OF_FILE[size])
        wide = write_merge_input(
            self.folder / "wide" / "wh",
            file_count=WIDE_FILES,
            rows_per_file=GROUPS_OF_FILE[size] * rows_per_group,
            sort=("event", "ts"),
            is_in_time_order=False,
            target_file_bytes=WIDE_TARGET_BYTES,
            row_group_rows=rows_per_group,
        )
        yield from self._case("one partition", wide)

    def _case(self, name: str, source: MergeInput) -> Iterator[Case]:
        if not self.wants(name):
            return
        with ExitStack() as stack:
            nodes = stack.enter_context(running_nodes(source.root.parent / "nodes", count=sum(CLUSTERS.values())))
            if not nodes.are_isolated:
                raise RuntimeError("bench nodes makes network namespaces and control groups: run it as root")
            for node in nodes.all:
                node.slow_down(CORES_OF_NODE)
            free = iter(nodes.all)
            systems = [
                self._start(stack, system, source, nodes=[next(free) for _ in range(node_count)], hub=nodes.hub)
                for system, node_count in CLUSTERS.items()
            ]
            yield Case(name, source.row_count, systems, size_bytes=source.size_bytes, warm_turn_count=1)

    def _start(self, stack: ExitStack, name: str, source: MergeInput, *, nodes: Sequence[Node], hub: str) -> OnCluster:
        folder = source.root.parent / f"on-{len(nodes)}"
        cluster = stack.enter_context(SparkCluster(folder / "spark", nodes=nodes, worker_cores=1, host=hub))
        work = OnNodes(name, source, folder / "table", master=cluster.url, host=hub, node_count=len(nodes))
        system = OnCluster(work)
        stack.callback(system.close)
        return system
