"""What a log file says that its commit does with rows (M3, ``chg``): its own word, and nobody else's."""

from dataclasses import replace

import orjson
import pytest
from icedb_log.commit.exchange import ExchangeCommit
from icedb_log.errors import CorruptLog, InvariantViolated
from icedb_log.jobs import MergedGroup, MergeGroup
from icedb_log.log.codec import decode_log_file, decode_log_head, encode_log_file
from icedb_log.model import LogFile
from icedb_log.repair.fsck import fsck_table
from icedb_sim.tables.small_table import SmallTable


def changes(table):
    return [file.log.change for file in table.view().files]


def test_each_change_is_told_by_its_log_file(table):
    for number in (1, 3, 5):
        table.append(number, p="a")
        table.append(number + 1, p="b")
    assert set(changes(table)) == {"append"}
    table.merge(full=True)
    table.delete("id = 1")
    table.rewrite("select * from _rows where id != 2", "p=b")
    table.drop("p=b")
    assert changes(table)[6:] == ["merge", "delete", "rewrite", "removal"]
    assert table.ids() == [3, 5]
    assert [head.log.change for head in table.opened().read_heads().files] == changes(table)
    assert not fsck_table(table, clock=table.clock).findings


def test_a_merge_by_a_query_may_change_rows_and_one_that_folds_log_files_does_not():
    table = SmallTable(merge_query="select * from source_files where id != 2")
    table.append(1)
    table.append(2)
    table.merge(full=True)
    assert changes(table)[2:] == ["merge_query"]
    with ExchangeCommit(table.opened("fold")) as commit:
        commit.land([], folded_log_keys=[file.key for file in commit.view.files])
    assert changes(table)[3:] == ["merge"]


def test_m3_a_change_that_calls_itself_a_merge_is_not_committed(table):
    table.append(1, 2)
    with ExchangeCommit(table.opened("liar")) as commit:
        (live,) = commit.snapshot.live
        marker = replace(live, path=live.path.replace(".parquet", "x.parquet"), row_count=1)
        merged = MergedGroup(MergeGroup("p=a", (live,)), (marker,), rows_read=2, rows_removed=1)
        with pytest.raises(InvariantViolated, match="M3"):
            commit.land([merged])
    assert table.ids() == [1, 2]


def test_a_change_is_not_carried_by_merges_and_kept_by_strips(table):
    table.append(1, 2, 3)
    table.delete("id = 1")
    table.append(4)
    table.merge(full=True)
    assert changes(table)[-1] == "merge"
    table.delete("id = 2")
    table.clock.advance(table.config.log_grace_ms + 1)
    table.vacuum()
    (file,) = table.view().files
    assert (file.log.change, file.log.log_tombstones) == ("delete", ())


def log_with(**fields):
    return LogFile(10, {"a": "BIGINT"}, commit_id="c1", **fields)


def test_chg_says_what_its_commit_does():
    body = encode_log_file(log_with(change="removal"))
    assert orjson.loads(body.split(b"\n")[0])["chg"] == "removal"
    assert decode_log_file("k", body).change == "removal"
    assert decode_log_head("k", body).change == "removal"
    assert b"chg" not in encode_log_file(log_with())
    assert decode_log_file("k", encode_log_file(log_with())).change is None


def test_a_change_of_a_later_release_is_kept_as_it_is():
    body = encode_log_file(log_with(extra={"chg": "compact"}))
    assert decode_log_file("k", body).change == "compact"
    assert encode_log_file(decode_log_file("k", body)) == body


@pytest.mark.parametrize("chg", [3, "", ["merge"], {"is": "merge"}])
def test_chg_that_is_malformed_is_damage(chg):
    body = encode_log_file(log_with(extra={"chg": chg}))
    with pytest.raises(CorruptLog, match="line 0: "):
        decode_log_file("k", body)
