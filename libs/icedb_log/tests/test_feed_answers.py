"""Answers of the data path of a feed, and what the log says of it, when they do not add up."""

import pytest
from icedb_log.commit.invariants import require_merge
from icedb_log.commit.merge_log import build_merge_log
from icedb_log.errors import CorruptLog, InvariantViolated
from icedb_log.jobs import FeedJob, FeedOutput, RefusedCommit, SourceCommit, require_commits_accounted
from icedb_log.keys import log_name
from icedb_log.log.codec import decode_log_file
from icedb_log.log.state import LogState
from icedb_log.model import FeedState, FileMarker, LogFile
from icedb_log.table.table_config import TableConfig
from icedb_sim.tables.small_view import SmallView


def test_a_merge_that_forgets_what_was_taken_is_not_committed(table):
    view = SmallView(table)
    table.append(1)
    view.feed()
    seen = view.view()
    log = build_merge_log(
        LogState.of(seen),
        merged=(),
        folded_log_keys=[file.key for file in seen.files],
        commit_id="ab",
        now_ms=table.clock.now_ms(),
    )
    key = view.paths.log_key(time_ms=log.time_ms, commit_id="ab", is_merged=True)
    require_merge(view.paths, LogState.of(seen), log, merged=(), commit_key=key)
    for wrong in (None, FeedState(1, ())):
        forgetful = LogFile(**{**{name: getattr(log, name) for name in log.__dataclass_fields__}, "feed": wrong})
        with pytest.raises(InvariantViolated, match="forgets what the view has taken"):
            require_merge(view.paths, LogState.of(seen), forgetful, merged=(), commit_key=key)


def job_of(table, *commits):
    return FeedJob(
        paths=table.paths.sibling("v"),
        config=TableConfig.create(name="v", view_of="t", view_query="q"),
        schema={},
        source=table.paths,
        source_schema={},
        commits=commits,
        commit_id="ab",
        time_ms=1,
    )


def commit_of(name, rows=2):
    return SourceCommit(name, 1, (FileMarker(f"wh/t/_data/{name}.parquet", 10, 1, row_count=rows),))


def output_of(*taken, refused=(), deferred=(), files=(), row_count=0, rows_read=None):
    read = sum(marker.row_count for commit in taken for marker in commit.files) if rows_read is None else rows_read
    refused = tuple(RefusedCommit(commit, "no") for commit in refused)
    return FeedOutput(files, {}, taken, refused, tuple(deferred), row_count, read)


A, B = commit_of("a"), commit_of("b")


FILE = FileMarker("wh/v/_data/x.parquet", 1, 1, row_count=1)


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        (output_of(A), "did not decide each"),
        (output_of(A, B, deferred=(A,)), "did not decide each"),
        (output_of(deferred=(A, B)), "deferred all"),
        (output_of(refused=(A, B), files=(FILE,), row_count=1), "took no commit"),
        (output_of(A, B, files=(FILE,), row_count=2), "its files differ"),
        (output_of(A, B, rows_read=3), "hold 4 rows by the log of t, 3 were read"),
    ],
)
def test_an_answer_of_the_data_path_that_does_not_add_up_is_not_committed(table, output, problem):
    with pytest.raises(InvariantViolated, match=problem):
        require_commits_accounted(job_of(table, A, B), output)


def test_a_good_answer_passes(table):
    require_commits_accounted(job_of(table, A, B), output_of(A, refused=(B,), files=(FILE,), row_count=1))


@pytest.mark.parametrize(
    "text",
    [b'"fed":7', b'"fed":{"log":[]}', b'"fed":{"seq":0,"log":[]}', b'"fed":{"seq":1,"log":[1]}',
     b'"fed":{"seq":1,"log":[],"rej":{"a":1}}'],
)  # fmt: skip
def test_a_damaged_statement_of_what_was_taken_is_corrupt(text):
    body = b'{"v":1,"t":5,"sch":1,"f":2,' + text + b"}\n{}"
    with pytest.raises(CorruptLog, match="line 0"):
        decode_log_file("wh/v/_log/0000000000005_ab.jsonl", body)


def test_names_of_log_files_have_no_folder_and_no_suffix(table):
    assert log_name(table.paths.log_key(time_ms=5, commit_id="ab", is_merged=False)) == "0000000000005_ab"
