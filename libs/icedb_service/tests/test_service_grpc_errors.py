"""Errors keep their kind, and what they say besides words, over gRPC."""

from types import SimpleNamespace

import pytest
from icedb_client.grpc_channels import translate
from icedb_log.errors import NotFound, Overloaded, TableNotFound
from icedb_log.table.table_config import table_not_found
from icedb_service.grpc_server import call_status


def travel(error):
    status = call_status(error)
    raised = SimpleNamespace(
        code=lambda: status.code, details=lambda: status.details, trailing_metadata=lambda: status.trailing_metadata
    )
    return translate(raised, address="127.0.0.1:1", timeout_s=1)


def test_a_table_that_is_not_there_is_named_to_the_client_beside_the_words():
    found = travel(table_not_found("evnts"))
    assert (type(found), found.table) == (TableNotFound, "evnts")
    assert "'evnts' does not exist" in str(found)


@pytest.mark.parametrize("name", ["no\r\nname", "Ümlaut", ""])
def test_what_cannot_be_the_name_of_a_table_does_not_travel_as_one(name):
    assert travel(TableNotFound("no such table", table=name)).table == ""


def test_other_errors_keep_their_kind():
    assert type(travel(NotFound("no such tag"))) is NotFound
    assert travel(Overloaded("wait", retry_after_ms=1234)).retry_after_ms == 1234
