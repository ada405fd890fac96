"""delta-rs in the benchmark of appends: one row an append, by one writer, each visible when it has returned."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from bench.append_work import Appends, make_row


class DeltaRs(Appends):
    """``write_deltalake`` to the path of a table. It does not wait for the disk, and nobody compacts."""

    name = "delta-rs"

    def _create(self) -> None:
        DeltaTable.create(str(self._folder), pa.Table.from_pylist([make_row(0)]).schema)

    def _sending(self) -> AbstractContextManager[Callable[[dict[str, Any]], object]]:
        place = str(self._folder)
        return nullcontext(lambda row: write_deltalake(place, pa.Table.from_pylist([row]), mode="append"))

    def _read(self) -> tuple[int, int]:
        uris = DeltaTable(str(self._folder)).file_uris()
        numbers = pa.chunked_array([chunk for uri in uris for chunk in pq.read_table(uri)["n"].chunks], pa.int64())
        return len(numbers), pc.sum(numbers).as_py()
