"""Which live files of a snapshot a query wants: by partition filters and by a condition on columns. Pure.

The one place that prunes for readers: the snapshot service, the S3 gateway and the client without a service.
"""

from collections.abc import Sequence

from icedb_log.keys import TablePaths
from icedb_log.model import FileMarker, Snapshot
from icedb_log.pruning.file_pruning import FilePruner
from icedb_log.tables.partition_filter import PartitionFilter, PartitionMatcher, read_partition_values
from icedb_log.tables.table_config import TableConfig


def select_files(
    paths: TablePaths,
    config: TableConfig,
    snapshot: Snapshot,
    *,
    filters: Sequence[PartitionFilter] = (),
    where: str | None = None,
) -> Sequence[FileMarker]:
    """Return the live files that can hold rows of a query, ascending by path.

    Args:
        paths: Keys of the table.
        config: The table's configuration.
        snapshot: What is live.
        filters: Conditions on partition values, all of which must hold.
        where: A condition on columns, SQL in DuckDB's dialect; leaves out files in which it cannot be true.

    Raises:
        InvalidRequest: A filter or the condition is malformed, or names a field or column that is not there.
    """
    matcher = PartitionMatcher(filters, config)
    files: Sequence[FileMarker] = snapshot.live
    if not matcher.keeps_all:
        wanted: dict[str, bool] = {}
        for marker in files:
            partition = paths.partition_of(marker.path)
            if partition not in wanted:
                wanted[partition] = matcher.matches(read_partition_values(partition))
        files = tuple(marker for marker in files if wanted[paths.partition_of(marker.path)])
    if where is not None:
        files = FilePruner(where, config, schema=snapshot.schema, dialect="duckdb").select(files)
    return files
