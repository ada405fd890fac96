"""The check of an ``insert_query``, with an engine that only remembers what it was asked."""

from types import SimpleNamespace

import pytest
from icedb_ingest.query_checks import QueryTasks
from icedb_log.errors import InvalidRequest
from icedb_log.table_config import TableConfig


def test_the_schema_of_a_query_is_returned_and_a_broken_configuration_refused():
    asked = []

    def check(config):
        asked.append(config)
        return {"n": "BIGINT"}

    tasks = QueryTasks(SimpleNamespace(engine=SimpleNamespace(check_insert_query=check)))
    config = TableConfig.create(name="events", insert_query="SELECT n FROM _rows", source={"n": "BIGINT"})
    work = tasks.check_query("events", config=config.model_dump(mode="json"))
    assert (work.is_idle, work.details) == (False, {"schema": {"n": "BIGINT"}})
    assert asked == [config]
    with pytest.raises(InvalidRequest, match=r"table events: configuration: .*name"):
        tasks.check_query("events", config={})
