"""Steps of the state machine that change rows: deletions, rewrites, imports, removed partitions, erasures."""

from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import (
    precondition,
    rule,
)
from icedb_engine.local_engine import LocalEngine
from icedb_log.changes.partition_removal import remove_partitions
from icedb_log.commit.table import Table
from icedb_log.erasure.erasure_run import advance_erasure
from icedb_log.errors import InvalidRequest
from icedb_log.holds.erasures import create_erasure
from icedb_log.imports.imports import ImportOptions, import_files
from icedb_log.table.partitions import encode_partition_value, select_partitions
from icedb_sim.tables.row_imports import describe_source
from table_model import PLACES, TableModel, present


class ChangesOfRows(TableModel):
    """What users and operators change."""

    CONDITIONS = {
        "id % 3 = 0": lambda row: row["id"] % 3 == 0,
        "p = 'a'": lambda row: row["p"] == "a",
        "id < 4 OR p = 'b'": lambda row: row["id"] < 4 or row["p"] == "b",
        "id > 1000000": lambda _row: False,
        "id >= 0": lambda _row: True,
    }

    @present
    @rule(condition=st.sampled_from(sorted(CONDITIONS)), dry_run=st.booleans())
    def delete(self, condition, dry_run):
        gone = self.CONDITIONS[condition]
        result = self.table.delete(condition, dry_run=dry_run, changer=LocalEngine(self.store, clock=self.clock).merger)
        assert result.rows_removed == sum(map(gone, self.live)), (condition, result)
        if not dry_run:
            self.live = [row for row in self.live if not gone(row)]
            self.committed(result.committed_key)

    QUERIES = {
        "SELECT * FROM _rows WHERE id % 2 = 0": lambda rows: [row for row in rows if row["id"] % 2 == 0],
        "SELECT * FROM _rows WHERE id < 0": lambda _rows: [],
        "SELECT id, p FROM _rows": lambda rows: [{"id": row["id"], "p": row["p"]} for row in rows],
        "SELECT * FROM _rows UNION ALL SELECT * FROM _rows WHERE id % 5 = 0": lambda rows: [
            *rows,
            *(row for row in rows if row["id"] % 5 == 0),
        ],
    }

    @present
    @rule(query=st.sampled_from(sorted(QUERIES)), place=st.sampled_from([*PLACES, "nope"]), dry_run=st.booleans())
    def rewrite(self, query, place, dry_run):
        changer = LocalEngine(self.store, clock=self.clock).merger
        old = [row for row in self.live if row["p"] == place]
        new = self.QUERIES[query](old)
        result = self.table.rewrite(query, f"p={place}", dry_run=dry_run, changer=changer)
        assert result.rows_read == len(old)
        if dry_run:
            return
        assert result.rows_removed == len(old) - len(new)
        self.live = [row for row in self.live if row["p"] != place] + new
        self.committed(result.committed_key)
        if new:
            with pytest.raises(InvalidRequest, match="leave each row in its partition"):
                self.table.rewrite("SELECT id, 'elsewhere' AS p FROM _rows", f"p={place}", changer=changer)
        event("rewritten")

    @present
    @rule(
        count=st.sampled_from([2, 1, 3, 0]),
        place=st.sampled_from(PLACES),
        value=st.sampled_from([None, 1, 2.5]),
        mode=st.sampled_from(["copy", "in_place"]),
        is_split=st.sampled_from([False, False, True]),
    )
    def import_file(self, count, place, value, mode, is_split):
        rows = self.rows(count, place, value)
        written = rows + self.rows(1, "elsewhere", value) if is_split else rows
        folder = "in/" if mode == "copy" else f"{self.paths.data_prefix}p={encode_partition_value(place)}/"
        key = f"{folder}{self.ids}-{len(self.sources)}.parquet"
        sink = pa.BufferOutputStream()
        columns = {"id": pa.int64(), "p": pa.string(), **({} if value is None else {"v": pa.scalar(value).type})}
        pq.write_table(pa.Table.from_pylist(written, pa.schema(columns)), sink)
        self.store.put(key, sink.getvalue().to_pybytes())
        self.clock.advance(1)
        sql_type = "DOUBLE" if isinstance(value, float) else "BIGINT"
        fits = value is None or self.table.snapshot().schema.get("v", sql_type) == sql_type  # imports widen nothing
        result = self.run_import(key, mode)
        is_elsewhere = is_split and (count or mode == "in_place")
        if written and (is_elsewhere or not fits):
            assert len(result.refused) == 1, result
            assert not result.committed_keys
        elif not written:
            assert (result.empty_count, result.committed_keys) == (1, []), result
        else:
            assert (result.file_count, result.row_count, result.refused) == (1, len(written), []), result
            self.live += written
            self.committed(result.committed_keys[0])
            if mode == "copy":
                self.sources.append(key)
                self.import_again(-1)
            event(f"imported: {mode}")
            return
        self.store.delete([key])

    @present
    @precondition(lambda self: self.sources)
    @rule(number=st.integers(0, 5))
    def import_again(self, number):
        result = self.run_import(self.sources[number % len(self.sources)], "copy")
        assert (result.imported_before_count, result.file_count, result.refused) == (1, 0, []), result
        event("imported twice")

    def run_import(self, key, mode):
        source = describe_source(self.store, key)
        result = import_files(
            Table.open(self.table, clock=self.clock, owner="import", reader=self.table.reader()),
            LocalEngine(self.store, clock=self.clock, sources=lambda _: self.store).importer,
            [replace(source, url=f"file://{source.url}")],
            options=ImportOptions(mode=mode),
        )
        self.clock.advance(1)
        return result

    @present
    @rule(place=st.sampled_from(["a", "b", "*"]))
    def remove_partitions(self, place):
        there = any(place in ("*", row["p"]) for row in self.live)
        try:
            result = remove_partitions(
                Table.open(self.table, clock=self.clock, owner="drop", reader=self.table.reader()),
                lambda _, infos: select_partitions(
                    "events", [f"p={place}"], [info.path for info in infos], may_match_all=True
                ),
            )
        except InvalidRequest:
            assert not there
            return
        self.clock.advance(1)
        self.live = [row for row in self.live if place not in ("*", row["p"])]
        self.committed(result.committed_key)

    @present
    @precondition(lambda self: not self.tags and not self.leases)
    @rule(condition=st.sampled_from(["p = 'a'", "id % 3 = 0"]))
    def erase(self, condition):
        self.flush()
        gone = self.CONDITIONS[condition]
        erasure = create_erasure(self.table, condition=condition, clock=self.clock)
        for _ in range(40):
            progress = advance_erasure(
                Table.open(self.table, clock=self.clock, owner="erase", reader=self.table.reader()),
                LocalEngine(self.store, clock=self.clock).merger,
                erasure.erasure_id,
            )
            if progress.erasure.has_ended:
                break
            self.clock.advance(22_000)
            self.table.vacuum()
            self.table.sweep()
        assert progress.erasure.has_ended, progress
        self.live = [row for row in self.live if not gone(row)]
        event("erased")
        # What was before is gone for good: rows of the past may be asked for no more.
        newest = max([time for time, _ in self.history] + [0])
        self.history.append((max(newest + 1, self.clock.now_ms()), list(self.live)))
        self.clock.advance(2)
        self.erased_ms = self.clock.now_ms()

    erased_ms = 0
