"""Messages of Celery tasks: whatever stands in one is done, or refused with one clear error; it is never a crash.

Every task of every worker runs here without a broker, on a warehouse in memory. A message that is refused says which
argument is wrong, and is not tried again.
"""

import inspect
import json
import math
import threading

import pytest
from celery import Celery
from hypothesis import event, example, given
from hypothesis import strategies as st
from icedb_ingest.frontend.enqueue_task import EnqueueWork
from icedb_ingest.frontend.metrics import FrontendMetrics
from icedb_ingest.frontend.staging_gate import StagingGate
from icedb_ingest.metrics import IngestMetrics
from icedb_ingest.settings import IngestSettings
from icedb_ingest.tasks import register_tasks as register_ingest
from icedb_janitor.metrics import JanitorMetrics
from icedb_janitor.settings import JanitorSettings
from icedb_janitor.tasks import register_tasks as register_janitor
from icedb_log.clock import new_batch_id
from icedb_log.errors import InvalidRequest, NotFound
from icedb_log.ingest.staging import Acceptance, list_staged
from icedb_log.names import INGEST_CHECK_QUERY, INGEST_IMPORT
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import PartitionField, TableConfig
from icedb_log.warehouse import Warehouse
from icedb_merger.metrics import MergeMetrics
from icedb_merger.settings import MergerSettings
from icedb_merger.tasks import register_tasks as register_merger
from icedb_service.access.credentials import TaskAccess
from icedb_service.access.guard import AccessGuard
from icedb_sim.fakes.fake_clock import FakeClock
from icedb_sim.fakes.memory_store import MemoryObjectStore
from icedb_sim.rigs.task_context import MemoryContext
from icedb_sim.tables.profiles import fuzz_examples

HANDLED = {"done", "idle", "refused", "not_found"}
"""What may become of a message here: nothing is down, damaged or held by others."""

WORDS = ["events", "nope", "events\n", "", "../events", "a/b", "x" * 5000, "d=2026-01-01", "d=*", "*", "[", "id = 1", "id =", "delete", "rewrite", "copy", "in_place", "landed", "false", "1", "\x00", "\ud800", "SELECT * FROM _rows", "s3://bucket/x", "file:///etc/passwd", "memory://x", "s3://", "://", "id = " + "(" * 3000, "array[" * 40 + "]" * 40]  # fmt: skip
SCALARS = st.one_of(
    st.sampled_from(WORDS),
    st.sampled_from([None, True, False, 0, 1, -1, 2**63, 10**400, 0.5, math.nan, math.inf]),
    st.text(max_size=10),
)
JSON = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=3),
    st.dictionaries(st.sampled_from(["d", "id", "name", "partition", "declared", ""]), SCALARS, max_size=3),
    st.builds(lambda depth: _nest(depth), st.sampled_from([50, 500])),
)
NAMES = ["table", "kind", "sql", "partitions", "dry_run", "globs", "may_match_all", "force", "preview", "sources", "mode", "partition", "changed", "assume", "config", "schema", "older_than_ms", "full", "self", "nonsense"]  # fmt: skip


def _nest(depth):
    value = 1
    for _ in range(depth):
        value = [value]
    return value


class Workers:
    """All tasks of all workers, on one warehouse each."""

    def __init__(self):
        self.tasks = {}
        for metrics, settings, register in (
            (IngestMetrics(), IngestSettings(store="file:///nowhere", import_sources=()), register_ingest),
            (MergeMetrics(), MergerSettings(store="file:///nowhere"), register_merger),
            (JanitorMetrics(), JanitorSettings(store="file:///nowhere"), register_janitor),
        ):
            context = MemoryContext(metrics)
            context.create_table(
                "events", partition=(PartitionField.parse("d=day(ts)"),), declared={"id": "BIGINT"}, merge_fan_in=2
            )
            app = Celery("fuzz", broker="memory://", set_as_current=False)
            register(app, context, settings=settings, metrics=metrics)
            self.tasks |= {name: task for name, task in app.tasks.items() if name.startswith("icedb.")}
            # Queries need Spark, and sources of imports a store of their own: that of this test has neither.
        for name in (INGEST_CHECK_QUERY, INGEST_IMPORT):
            del self.tasks[name]


@pytest.fixture(scope="module")
def workers():
    return Workers()


@st.composite
def messages(draw):
    """Some arguments, most of them by names that a task has."""
    args = draw(st.lists(JSON, max_size=2)) if draw(st.integers(0, 4)) == 0 else []
    kwargs = draw(st.dictionaries(st.sampled_from(NAMES), JSON, max_size=4))
    if draw(st.booleans()):
        kwargs["table"] = draw(st.sampled_from(["events", "events", "nope"]))
    return args, kwargs


def is_bound(signature, args, kwargs):
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


@fuzz_examples(60)
@given(messages(), st.booleans())
@example(([], {"table": 5}), False)
@example(([], {"table": "events", "force": "false"}), True)
def test_every_task_takes_or_refuses_every_message(workers, message, is_trimmed):
    args, kwargs = message
    for name, task in workers.tasks.items():
        known = task.signature_of_run.parameters
        given_names = {key: value for key, value in kwargs.items() if key in known} if is_trimmed else kwargs
        if name.endswith(".change") and given_names.get("kind") == "delete" and "id" not in str(given_names.get("sql")):
            continue  # what SQL is, the engine of this test cannot say
        result = task(*args, **given_names)
        assert result["outcome"] in HANDLED, (name, args, given_names, result)
        event(f"{name}: {result['outcome']}")
        if not is_bound(task.signature_of_run, args, given_names):
            assert result["outcome"] == "refused"
        if result["outcome"] in ("refused", "not_found"):
            assert 0 < len(result["error"]["message"]) < 4000, (name, result)
        json.dumps(result)


@fuzz_examples(30)
@given(st.sampled_from(["full", "dry_run", "force", "may_match_all"]), SCALARS)
@example("force", "false")
@example("full", 0)
def test_what_is_no_boolean_never_counts_as_one(workers, name, value):
    if isinstance(value, bool):
        return
    for task in workers.tasks.values():
        if name in task.signature_of_run.parameters:
            required = {
                each.name: ["d=x"] if each.name == "globs" else "events"
                for each in task.signature_of_run.parameters.values()
                if each.default is inspect.Parameter.empty
            }
            result = task(**{**required, name: value})
            assert result["outcome"] == "refused"
            assert f"argument {name}: " in result["error"]["message"]


# ---- the one task whose message carries rows --------------------------------------------------------------------


class EnqueueBench:
    def __init__(self):
        self.clock = FakeClock()
        self.store = MemoryObjectStore(self.clock.now_ms)
        self.warehouse = Warehouse(self.store)
        self.paths = self.warehouse.table("events").paths
        create_table(TableStore(self.store, self.paths), TableConfig.create(name="events"))
        acceptance = Acceptance(self.warehouse, clock=self.clock, max_age_ms=30_000)
        gate = StagingGate(acceptance, clock=self.clock, on_staged=lambda _: None)
        self.work = EnqueueWork(
            gate,
            metrics=FrontendMetrics(),
            clock=self.clock,
            max_batch_bytes=10_000,
            is_stopping=threading.Event(),
            access=TaskAccess(AccessGuard()),
        )

    def staged(self):
        return {
            batch.batch_id: self.store.get(batch.key).body
            for batch in list_staged(TableStore(self.store, self.paths)).batches
        }


ROW_VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "b", "é"]), inner, max_size=2)
)  # fmt: skip
ENQUEUE_FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "table": st.sampled_from(["events", "nope", "../events", "events\n", "", None, 5, ["events"]]),
        "batch_id": st.sampled_from(["", None, 5, "x" * 100, "018bcfe5-6800-7a4a-b39f-cbe7cb116932", "018BCFE5-6800-7A4A-B39F-CBE7CB116932", "018bcfe5-6800-4a4a-b39f-cbe7cb116932"]),
        "format": st.sampled_from(["ndjson", "json", "csv", "parquet", "xml", None, 5]),
        "rows": st.one_of(JSON, st.lists(st.dictionaries(st.sampled_from(["a", "b", ""]), ROW_VALUES, max_size=3), max_size=3)),
        "data": st.one_of(JSON, st.just('{"a":1}\n')),
        "data_base64": st.one_of(JSON, st.sampled_from(["eyJhIjoxfQo=", "eyJh", "====", "é", "x" * 20_000])),
        "nonsense": JSON,
    },
)  # fmt: skip


@fuzz_examples(80)
@given(ENQUEUE_FIELDS, st.booleans(), st.booleans())
def test_a_message_with_rows_is_staged_or_refused(fields, is_completed, is_positional):
    bench = EnqueueBench()
    if is_completed:
        fields = {"table": "events", "batch_id": new_batch_id(bench.clock), **fields}
    try:
        result = bench.work.run((fields,), {}) if is_positional else bench.work.run((), fields)
    except (InvalidRequest, NotFound) as error:
        event("refused")
        assert 0 < len(str(error)) < 4000
        assert bench.staged() == {}
        return
    event("staged")
    assert bench.staged().keys() == {result["staged_as"]}
    if "rows" in fields:
        body = bench.staged()[result["staged_as"]]
        assert [json.loads(line) for line in body.splitlines()] == fields["rows"], "a row was changed"
