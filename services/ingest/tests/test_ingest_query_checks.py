"""The check of an ``insert_query``, with checks that only remember what they were asked."""

import pytest
from icedb_ingest.metrics import IngestMetrics
from icedb_ingest.settings import IngestSettings
from icedb_ingest.tasks import IngestTasks
from icedb_log.errors import InvalidRequest
from icedb_log.table.table_config import TableConfig
from icedb_sim.rigs.task_context import MemoryContext


def make_tasks(monkeypatch, **checks):
    for name, check in checks.items():
        monkeypatch.setattr(f"icedb_engine.sql.checks.{name}", check)
    context = MemoryContext(IngestMetrics())
    return IngestTasks(context, settings=IngestSettings(store="file:///tmp/w"), metrics=context.metrics)


def test_the_schema_of_a_query_is_returned_and_a_broken_configuration_refused(monkeypatch):
    asked = []

    def check(config):
        asked.append(config)
        return {"n": "BIGINT"}

    tasks = make_tasks(monkeypatch, check_insert_query=check)
    config = TableConfig.create(name="events", insert_query="SELECT n FROM _rows", source={"n": "BIGINT"})
    work = tasks.check_query("events", config=config.model_dump(mode="json"))
    assert (work.is_idle, work.details) == (False, {"schema": {"n": "BIGINT"}})
    assert asked == [config]
    with pytest.raises(InvalidRequest, match=r"table events: configuration: .*name"):
        tasks.check_query("events", config={})


def test_a_merge_query_is_checked_with_the_columns_that_other_queries_give(monkeypatch):
    asked = []
    tasks = make_tasks(
        monkeypatch,
        check_insert_query=lambda _config: {"n": "BIGINT", "m": "BIGINT"},
        check_merge_query=lambda config, schema: asked.append((config.declared, schema)),
    )
    merge_query = "SELECT max(n) AS n FROM source_files"
    plain = TableConfig.create(name="events", merge_query=merge_query, declared={"n": "BIGINT"})
    work = tasks.check_query("events", config=plain.model_dump(mode="json"), schema={"k": "DATE"})
    assert work.details == {"schema": {}}
    both = TableConfig.create(
        name="events", merge_query=merge_query, insert_query="SELECT n FROM _rows", source={"n": "BIGINT"},
        declared={"m": "DOUBLE"},
    )  # fmt: skip
    assert tasks.check_query("events", config=both.model_dump(mode="json")).details["schema"]["m"] == "BIGINT"
    assert asked == [({"n": "BIGINT"}, {"k": "DATE"}), ({"n": "BIGINT", "m": "DOUBLE"}, {})]
