"""What errors become, for a producer and in metrics."""

import json

import pytest
from icedb_ingest.frontend import errors
from icedb_ingest.frontend.errors import KeyExpired, KeyReused, NotAuthorized
from icedb_ingest.frontend.http_endpoint import problem_response
from icedb_ingest.frontend.metrics import ENDPOINTS, OUTCOMES, FrontendMetrics
from icedb_log.errors import (
    CommitOutcomeUnknown,
    IceDBError,
    InvalidRequest,
    NotFound,
    Overloaded,
    SchemaConflict,
    TableHalted,
    Unavailable,
)


@pytest.mark.parametrize(
    ("error", "status", "outcome"),
    [
        (errors.BatchTooLarge("x"), 413, "too_large"),
        (errors.UnsupportedMedia("x"), 415, "unsupported"),
        (KeyReused("x"), 422, "conflict"),
        (KeyExpired("x"), 409, "conflict"),
        (errors.BodyTimeout("x"), 408, "timeout"),
        (NotAuthorized("x"), 401, "unauthorized"),
        (errors.ProducerLeft("x"), 499, "abandoned"),
        (InvalidRequest("x"), 400, "invalid"),
        (NotFound("x"), 404, "not_found"),
        (errors.Busy("x", retry_after_ms=1001), 503, "busy"),
        (Overloaded("x"), 429, "overloaded"),
        (Unavailable("x"), 503, "unavailable"),
        (CommitOutcomeUnknown("x"), 503, "unavailable"),
        (SchemaConflict("x"), 409, "halted"),
        (TableHalted("x"), 409, "halted"),
        (ZeroDivisionError("x"), 500, "failed"),
    ],
)
def test_what_errors_become(error, status, outcome):
    answer = problem_response(error, members={"batch_id": "b"})
    problem = json.loads(answer.body)
    assert (answer.status_code, problem["status"], problem["batch_id"]) == (status, status, "b")
    assert errors.meaning_of(error).outcome == outcome
    assert outcome in OUTCOMES
    assert ("retry-after" in answer.headers) == isinstance(error, Unavailable | CommitOutcomeUnknown)
    assert isinstance(error, IceDBError) or "x" not in problem["detail"]


def test_a_retry_time_is_rounded_up():
    assert problem_response(errors.Busy("x", retry_after_ms=1001)).headers["retry-after"] == "2"
    assert problem_response(Overloaded("x", retry_after_ms=0)).headers["retry-after"] == "1"


def test_every_label_is_there_from_the_start():
    registry = FrontendMetrics().registry
    for endpoint in ENDPOINTS:
        for outcome in OUTCOMES:
            labels = {"door": endpoint, "outcome": outcome}
            assert registry.get_sample_value("icedb_frontend_batches_total", labels) == 0
