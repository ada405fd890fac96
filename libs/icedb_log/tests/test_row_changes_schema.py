"""Deletions while the schema grows: what was counted with other types of columns does not count any more."""

from icedb_log.jobs import CountJob, MergedGroup, MergeGroup, MergeJob
from icedb_log.store.table_store import TableStore
from icedb_sim.fakes.scripted_store import Fault
from icedb_sim.tables.row_files import RowFileChanger, read_rows, write_rows
from icedb_sim.tables.small_table import SmallTable


class TextChanger(RowFileChanger):
    """Removes rows, whatever the condition, by how Spark writes ``x`` as a text: ``7`` or ``1.0``."""

    def is_hit(self, row, schema):
        return row.get("x") == (7 if schema["x"] == "BIGINT" else 1)

    def count_rows(self, job: CountJob):
        return tuple(
            sum(self.is_hit(row, job.schema) for row in read_rows(self.store, marker.path)) for marker in job.files
        )

    def _merge(self, job: MergeJob, group: MergeGroup):
        rows = [row for marker in group.inputs for row in read_rows(self.store, marker.path)]
        left = [row for row in rows if not self.is_hit(row, job.schema)]
        output = write_rows(
            TableStore(self.store, job.paths),
            partition=group.partition,
            rows=left,
            config=job.config,
            clock=self.clock,
            time_ms=job.time_ms,
        )
        return MergedGroup(group, (output,), len(rows), len(rows) - len(left))


def append(table, *rows):
    table.stage([{"id": number, "p": p, "x": x} for number, p, x in rows])
    table.flush()


def test_files_are_counted_again_under_the_fence_if_a_column_has_become_wider():
    table = SmallTable(evolution="widen")
    append(table, (1, "a", 1), (2, "a", 2))
    append(table, (3, "b", 7), (4, "b", 4))
    table.store.script.append(
        Fault("put_if_absent", None, key="fence/merge", before=lambda: append(table, (5, "c", 1.0), (6, "c", 5.5)))
    )
    result = table.delete("id = 0", changer=TextChanger(table.store, table.clock))
    assert (result.rows_removed, result.file_count) == (2, 2)
    assert table.ids() == [2, 3, 4, 6]
