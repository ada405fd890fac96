"""The import task: what may be asked for, what comes back, what is counted."""

import io
from contextlib import contextmanager
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from icedb_engine.imports.import_unit import copy_unit, inspect_unit, open_source
from icedb_engine.limits import EngineLimits
from icedb_engine.work import CopyUnit
from icedb_ingest.imports import LOCK_WAIT_MS, ImportTasks
from icedb_ingest.metrics import IngestMetrics
from icedb_ingest.settings import IngestSettings
from icedb_log.errors import InvalidRequest, NotFound
from icedb_log.names import MERGE_MERGE
from icedb_log.table.table_config import PartitionField
from icedb_service.redis_clients import LockBusy
from icedb_sim.rigs.task_context import MemoryContext
from pydantic import ValidationError


class DirectImporter:
    """Runs each job as one unit, in this process."""

    def __init__(self, context, folder):
        self.context = context
        self.engine = EngineLimits(scratch_folder=str(folder))

    def inspect_files(self, job):
        return inspect_unit(job, open_source(None))

    def copy_files(self, paths, files):
        store, clock = self.context.warehouse.store, self.context.clock
        return copy_unit(CopyUnit(paths, files, self.engine), store, open_source(None), clock=clock)


@pytest.fixture
def context(tmp_path):
    context = MemoryContext(IngestMetrics())
    context.engine = SimpleNamespace(importer=DirectImporter(context, tmp_path / "scratch"))
    context.create_table("events", partition=(PartitionField.parse("kind"),), sort=("n",))
    (tmp_path / "in" / "deep").mkdir(parents=True)
    return context


@pytest.fixture
def tasks(context, tmp_path):
    settings = IngestSettings(store="s3://bucket/root", import_sources=(f"file://{tmp_path}/in",))
    return ImportTasks(context, settings=settings, metrics=context.metrics, wake_views=print)


def write(path, *numbers, kind="a"):
    pq.write_table(pa.table({"n": list(numbers), "kind": [kind] * len(numbers)}), path)


def live_numbers(context):
    bodies = [context.warehouse.store.get(marker.path).body for marker in context.snapshot().live]
    return sorted(n for body in bodies for n in pq.read_table(io.BytesIO(body)).column("n").to_pylist())


def test_files_of_a_folder_become_live_and_the_result_accounts_for_each(context, tasks, tmp_path):
    write(tmp_path / "in" / "x.parquet", 1, 2)
    write(tmp_path / "in" / "deep" / "y.parquet", 3, kind="b")
    write(tmp_path / "in" / "empty.parquet")
    (tmp_path / "in" / "bad.parquet").write_bytes(b"this is no parquet")
    sources = [f"file://{tmp_path}/in/**/*.parquet"]
    planned = tasks.import_files("events", sources, dry_run=True)
    assert live_numbers(context) == []
    work = tasks.import_files("events", sources)
    assert live_numbers(context) == [1, 2, 3]
    details = dict(work.details)
    (refused,) = details.pop("reasons")
    assert refused["file"] == f"file://{tmp_path}/in/bad.parquet"
    assert details.pop("bytes") > 0
    assert details == {
        "mode": "copy", "dry_run": False, "sources": 4, "commits": 1, "files": 2, "rows": 3, "unsorted": 2,
        "imported_before": 0, "empty": 1, "refused": 1, "partition_count": 2,
        "partitions": [{"partition": "kind=a", "rows": 2}, {"partition": "kind=b", "rows": 1}],
    }  # fmt: skip
    same = ("sources", "files", "rows", "bytes", "partitions", "refused", "reasons", "empty", "unsorted")
    assert {name: planned.details[name] for name in same} == {name: work.details[name] for name in same}
    assert (planned.details["dry_run"], planned.details["commits"], planned.is_idle) == (True, 0, False)
    assert context.wakeups.woken == [(MERGE_MERGE, "events")]
    assert context.metric("icedb_ingest_rows_total") == 3
    again = tasks.import_files("events", [f"file://{tmp_path}/in/**/[xy].parquet"])
    assert (again.is_idle, again.details["imported_before"]) == (True, 2)


def test_a_worker_reads_no_file_that_it_may_not(tasks, tmp_path, context):
    write(tmp_path / "secret.parquet", 1)
    with pytest.raises(InvalidRequest, match="ICEDB_IMPORT_SOURCES"):
        tasks.import_files("events", [f"file://{tmp_path}/secret.parquet"])
    with pytest.raises(InvalidRequest, match="ICEDB_IMPORT_SOURCES"):
        tasks.import_files("events", ["s3://bucket/x.parquet"])
    by_default = ImportTasks(
        context, settings=IngestSettings(store="s3://b/w"), metrics=context.metrics, wake_views=print
    )
    with pytest.raises(InvalidRequest, match="may read s3:// only"):
        by_default.import_files("events", [f"file://{tmp_path}/in/x.parquet"])
    own = ImportTasks(
        context, settings=IngestSettings(store=f"file://{tmp_path}/in"), metrics=context.metrics, wake_views=print
    )
    write(tmp_path / "in" / "x.parquet", 1)
    assert own.import_files("events", [f"file://{tmp_path}/in/x.parquet"]).details["files"] == 1
    with pytest.raises(InvalidRequest, match="ICEDB_IMPORT_SOURCES"):
        own.import_files("events", [f"file://{tmp_path}/secret.parquet"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"mode": "move"}, "mode is one of copy, in_place"),
        ({"assume": "yes"}, "assume landed or lost"),
        ({"partition": {"d": "1"}}, "no partition 'd', only kind"),
        ({"partition": {"kind": 1}}, "values are text"),
        ({"sources": "s3://b/x"}, "a list of URLs"),
        ({"sources": []}, "0 import sources"),
        ({"sources": ["in/*.parquet"]}, "use s3://bucket"),
    ],
)
def test_a_request_that_is_wrong_is_refused(tasks, arguments, words):
    with pytest.raises(InvalidRequest, match=words):
        tasks.import_files("events", **{"sources": ["s3://b/x"], **arguments})


def test_what_is_not_there_is_named(tasks, tmp_path):
    with pytest.raises(NotFound, match="'nowhere' does not exist"):
        tasks.import_files("nowhere", [f"file://{tmp_path}/in/*.parquet"])
    with pytest.raises(NotFound, match="matches no object"):
        tasks.import_files("events", [f"file://{tmp_path}/in/*.parquet"])


def test_the_commit_waits_for_a_flush_of_the_same_table_and_not_for_ever(tasks, tmp_path, context, monkeypatch):
    write(tmp_path / "in" / "x.parquet", 1)
    sources = [f"file://{tmp_path}/in/*.parquet"]
    context.busy.add("events")
    with pytest.raises(LockBusy):
        tasks.import_files("events", sources)
    assert sum(context.clock.slept_ms) >= LOCK_WAIT_MS
    attempts = iter([True, True, False])

    @contextmanager
    def lock(table):
        if next(attempts):
            raise LockBusy("busy")
        yield

    monkeypatch.setattr(MemoryContext, "lock", lambda self, table: lock(table))
    assert tasks.import_files("events", sources).details["files"] == 1
    assert live_numbers(context) == [1]


def test_the_setting_takes_urls_separated_by_commas(monkeypatch):
    monkeypatch.setenv("ICEDB_IMPORT_SOURCES", "s3://lake/in, file:///data")
    assert IngestSettings(store="s3://b").import_sources == ("s3://lake/in", "file:///data")
    for wrong in ("/data", "file://host/x", "file:///data/../etc"):
        monkeypatch.setenv("ICEDB_IMPORT_SOURCES", wrong)
        with pytest.raises(ValidationError, match="is no URL prefix"):
            IngestSettings(store="s3://b")
