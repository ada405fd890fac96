"""What the log proves of values before a column becomes wider (S2), and what may come between the proof and the commit."""

from dataclasses import replace

import orjson
import pytest
from icedb_log.changes.table_changes import alter_table_config
from icedb_log.errors import CommitConflict, CorruptLog, Fenced
from icedb_log.jobs import MergedGroup
from icedb_log.log.codec import decode_log_file, encode_log_file
from icedb_log.log.fold import union_schema
from icedb_log.log.widening import LoggedSchema, state_inexact
from icedb_log.model import FileMarker, LogFile, Widening
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import read_table_config
from icedb_sim.fakes.scripted_store import Fault
from icedb_sim.tables.row_files import RowFileMerger, RowFileWriter, read_rows, write_rows
from icedb_sim.tables.small_table import SmallTable

LONG = 2**53 + 1


@pytest.fixture
def table():
    return SmallTable(evolution="widen", on_bad_rows="quarantine_batch", data_grace_ms=1000, log_grace_ms=1000)


def append(table, *values, p="a", number=1):
    table.stage([{"id": number, "p": p, "n": value} for value in values])
    return table.flush()


def said(table):
    """What each log file says of its columns, in order."""
    return [decode_log_file(key, body).inexact for key, body in table.log_objects()]


def known(table):
    return dict(union_schema("t", table.view().files).inexact)


def type_of(table):
    return dict(table.snapshot().schema)["n"]


def data_reads(table):
    return [key for key in table.store.keys_of("get", "get_range") if key.startswith(table.paths.data_prefix)]


class LongMerger(RowFileMerger):
    """Stands for a merge by a query, or a rewrite, that makes large integers."""

    def merge_groups(self, job):
        return tuple(self._make_long(job, group) for group in job.groups)

    def _make_long(self, job, group):
        rows = [row for marker in group.inputs for row in read_rows(self.store, marker.path)]
        marker = write_rows(
            TableStore(self.store, job.paths),
            partition=group.partition,
            rows=[{**row, "n": LONG} for row in rows],
            config=job.config,
            clock=self.clock,
            time_ms=job.time_ms,
        )
        return MergedGroup(group, (marker,), len(rows), None)


def merge_long(table):
    """Make every integer a long one, by a merge query."""
    change = {"merge_query": "select * from source_files"}
    alter_table_config(table, change, clock=table.clock)
    return table.merge(full=True, merger=LongMerger(table.store, table.clock))


def test_s2_the_log_proves_it_and_no_data_file_is_read(table):
    append(table, 1, -(2**53), 2**53, None)
    append(table, 5)
    assert said(table) == [{}, {}]
    assert known(table) == {}
    table.store.calls.clear()
    assert append(table, 0.5).batch_count == 1
    assert type_of(table) == "DOUBLE"
    assert data_reads(table) == []


def test_s2_a_long_integer_is_remembered_and_no_data_file_is_read(table):
    append(table, 1)
    append(table, LONG)
    append(table, 2)
    assert said(table) == [{}, {"n": True}, {}]
    for _ in range(2):
        table.store.calls.clear()
        assert len(append(table, 0.5).rejected) == 1
        assert data_reads(table) == []
    assert type_of(table) == "BIGINT"


def clean(table):
    table.clock.advance(5000)
    table.vacuum()


def test_s2_a_merge_says_what_its_outputs_hold(table):
    append(table, 1)
    append(table, LONG, number=7)
    table.merge(full=True)
    clean(table)
    assert said(table) == [{"n": True}]
    table.delete("id = 7")
    clean(table)
    assert said(table) == [{}], "what took the last one away has looked at what is left"
    append(table, 0.5)
    assert type_of(table) == "DOUBLE"


def test_s2_a_merge_that_takes_log_files_along_carries_what_they_say(table):
    """Two data files in one log file, one of them merged: the other one is live by the merge's log file alone."""
    table.stage([{"id": 1, "p": "a", "n": 1}, {"id": 2, "p": "b", "n": LONG}])
    table.flush()
    append(table, 2, p="a")
    table.merge(full=True)
    assert said(table)[-1] == {"n": True}
    clean(table)
    assert len(table.log_objects()) == 1
    assert known(table) == {"n": True}
    assert len(append(table, 0.5).rejected) == 1


def forget(table, key):
    """Leave a log file as another writer writes it, which says nothing of its values."""
    log = decode_log_file(key, table.store.get(key).body)
    table.store.put(key, encode_log_file(replace(log, inexact=None)))


def test_s2_readers_hear_of_a_double_of_which_nobody_said_anything_until_a_merge_has_written_it_anew(table):
    """Its files may have it as FLOAT, or NaN beside bounds that leave it out."""
    append(table, 0.5)
    append(table, 1.5)
    assert table.snapshot().narrow_types == {}
    forget(table, table.keys(table.paths.log_prefix)[-1])
    assert table.snapshot().narrow_types == {"n": "FLOAT"}
    table.merge(full=True)
    assert table.snapshot().narrow_types == {"n": "FLOAT"}, "the log file that said nothing is there still"
    clean(table)
    assert table.snapshot().narrow_types == {}


@pytest.mark.parametrize(("value", "is_wide"), [(3, True), (LONG, False)])
def test_s2_where_another_writer_said_nothing_data_files_are_looked_at(table, value, is_wide):
    append(table, 1)
    append(table, value)
    forget(table, table.keys(table.paths.log_prefix)[-1])
    assert known(table) == {"id": False, "n": False}
    table.store.calls.clear()
    append(table, 0.5)
    assert (type_of(table) == "DOUBLE") == is_wide
    assert data_reads(table)


def test_s2_what_was_looked_up_and_refused_is_said_by_the_commit(table):
    class Looking(RowFileWriter):
        def write_batches(self, job):
            return replace(super().write_batches(job), inexact=("n",))

    append(table, LONG)
    forget(table, table.keys(table.paths.log_prefix)[-1])
    table.stage([{"id": 1, "p": "a", "n": 0.5}])
    table.flush(writer=Looking(table.store, table.clock))
    assert said(table) == [None, {"n": True}]
    table.store.calls.clear()
    assert len(append(table, 0.5).rejected) == 1
    assert data_reads(table) == []


def test_nx_that_is_malformed_is_damage(table):
    append(table, 1)
    (key,) = table.keys(table.paths.log_prefix)
    first, _, rest = table.store.get(key).body.partition(b"\n")
    metadata = orjson.loads(first)
    assert metadata["nx"] == {}
    for wrong in ([], "n", {"n": 1}, {"n": None}):
        with pytest.raises(CorruptLog, match="nx is"):
            decode_log_file(key, orjson.dumps({**metadata, "nx": wrong}) + b"\n" + rest)


def test_s2_a_file_of_which_nobody_said_anything_proves_nothing():
    schema = LoggedSchema({"n": "BIGINT", "d": "DATE", "s": "VARCHAR", "w": "BIGINT"}, {"w": Widening("DOUBLE", 1)})
    exact, long = FileMarker("a", 1, 1, inexact=()), FileMarker("b", 1, 1, inexact=("n",))
    silent = FileMarker("c", 1, 1)
    assert state_inexact(schema, ()) == {}
    assert state_inexact(schema, (exact, long)) == {"n": True}
    assert state_inexact(schema, (exact, silent)) == {"n": False, "d": False}
    assert state_inexact(schema, (silent, long)) == {"n": True, "d": False}
    assert state_inexact(schema, (exact,), carried=[LogFile(1, {"n": "BIGINT"})]) == {"n": False}


def test_s2_a_merge_that_makes_long_integers_after_the_proof_keeps_the_column_narrow(table):
    """The flush has proven it, and a merge by a query commits before the flush does."""
    append(table, 1)
    append(table, 2)

    class Late(RowFileWriter):
        def write_batches(self, job):
            output = super().write_batches(job)
            assert output.schema["n"] == "DOUBLE"
            merge_long(table)
            return output

    table.stage([{"id": 3, "p": "a", "n": 0.5}])
    with pytest.raises(CommitConflict, match="column 'n' was about to become wider"):
        table.flush(writer=Late(table.store, table.clock))
    assert type_of(table) == "BIGINT"
    assert len(table.flush().rejected) == 1, "the next flush goes by what the merge said"
    assert (type_of(table), table.ids()) == ("BIGINT", [1, 1])


def test_s2_a_merge_that_is_at_work_loses_its_fence_to_a_widening(table):
    """The merge has read the log, the column becomes wider, the merge would commit larger integers as BIGINT."""
    append(table, 1)
    append(table, 2)

    class Slow(LongMerger):
        def merge_groups(self, job):
            append(table, 0.5, number=3)
            return super().merge_groups(job)

    change = {"merge_query": "select * from source_files"}
    alter_table_config(table, change, clock=table.clock)
    with pytest.raises(Fenced):
        table.merge(full=True, merger=Slow(table.store, table.clock))
    assert (type_of(table), table.ids()) == ("DOUBLE", [1, 1, 3])


def test_s2_a_widening_that_stalls_before_its_put_is_settled_by_the_next_merge(table):
    """The flush has announced its commit and sleeps; a merge acquires its fence, reads the log, and makes it long."""
    append(table, 1)
    append(table, 2)
    table.stage([{"id": 3, "p": "a", "n": 0.5}])
    table.store.script = [Fault("put_if_absent", None, table.paths.log_prefix, before=lambda: merge_long(table))]
    with pytest.raises(Fenced):
        table.flush()
    assert type_of(table) == "BIGINT"
    assert len(table.flush().rejected) == 1
    assert table.ids() == [1, 1]


def test_s2_a_silent_commit_after_the_proof_keeps_the_column_narrow(table):
    """Another writer has committed since: nobody knows what it wrote."""
    append(table, 1)
    append(table, 2)

    class Late(RowFileWriter):
        def write_batches(self, job):
            output = super().write_batches(job)
            table.merge(full=True)
            forget(table, table.keys(table.paths.log_prefix)[-1])
            return output

    table.stage([{"id": 3, "p": "a", "n": 0.5}])
    with pytest.raises(CommitConflict):
        table.flush(writer=Late(table.store, table.clock))
    assert table.flush().batch_count == 1, "the next flush looks at the data files"
    assert type_of(table) == "DOUBLE"


def test_a_declared_widening_takes_no_fence_from_anybody(table):
    append(table, 1)
    alter_table_config(table, {"declared": {"n": "DOUBLE"}}, clock=table.clock)
    assert read_table_config(table).declared == {"n": "DOUBLE"}
    append(table, 0.5)
    assert type_of(table) == "DOUBLE"
    assert not table.keys(table.paths.fence_key("merge"))
