"""A small table into which files are imported."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from icedb_log.commit.table import Table
from icedb_log.imports.import_records import read_records
from icedb_log.imports.imports import ImportLimits, ImportOptions, ImportResult, import_files
from icedb_log.store.table_store import TableStore

from icedb_sim.tables.row_files import encode_rows
from icedb_sim.tables.row_imports import RowFileImporter, describe_source
from icedb_sim.tables.small_table import SmallTable


class ImportTable(SmallTable):
    """A table with files to import below ``in/``. Each step takes one millisecond."""

    def put_source(self, name: str, *ids: int, p: str = "a", **more: object) -> str:
        """Write a file of rows to import, and return its key."""
        return self._put(f"in/{name}.parquet", [{"id": number, "p": p, **more} for number in ids])

    def put_in_place(self, name: str, *ids: int, p: str = "a", folder: str | None = None) -> str:
        """Write a file of rows where data files lie, and return its key."""
        key = f"{self.paths.data_prefix}{folder or f'p={p}'}/{name}.parquet"
        return self._put(key, [{"id": number, "p": p} for number in ids])

    def run_import(
        self,
        *keys: str,
        options: ImportOptions | None = None,
        limits: ImportLimits | None = None,
        hold: Callable[[], AbstractContextManager[object]] = nullcontext,
        **fields: Any,
    ) -> ImportResult:
        """Import some files; without keys, all below ``in/``. Options may be given field by field."""
        sources = [describe_source(self.store, key) for key in keys or self.keys("in/")]
        result = import_files(
            Table.open(TableStore(self.store, self.paths), clock=self.clock, owner="import", reader=self.reader()),
            RowFileImporter(self.store, self.clock),
            sources,
            options=options or ImportOptions(**fields),
            limits=limits,
            hold=hold,
        )
        self.clock.advance(1)
        return result

    def states(self) -> list[str]:
        """Return the states of all import records, oldest first."""
        return [record.state for record in read_records(TableStore(self.store, self.paths))]

    def _put(self, key: str, rows: list[dict[str, object]]) -> str:
        self.store.put(key, encode_rows(rows))
        self.clock.advance(1)
        return key
