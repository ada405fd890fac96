"""How errors travel: what a server writes is what a client reads, with the name of the kind and without it."""

import grpc
import pytest
from icedb_log import errors
from icedb_proto.errors import ERRORS_BY_CODE, STATUS_CODES, status_code


@pytest.mark.parametrize(("kind", "code"), STATUS_CODES, ids=[kind.__name__ for kind, _ in STATUS_CODES])
def test_each_kind_has_its_code(kind, code):
    error = kind("words", retry_after_ms=1) if kind is errors.Overloaded else kind("words")
    assert status_code(error) is code, "the special kinds stand before the general ones"


def test_a_code_alone_says_the_first_kind_that_has_it_or_nothing():
    assert ERRORS_BY_CODE[grpc.StatusCode.ABORTED] is errors.CommitConflict
    assert ERRORS_BY_CODE[grpc.StatusCode.OUT_OF_RANGE] is errors.BelowHorizon
    assert status_code(errors.BelowHorizon("words")) is grpc.StatusCode.OUT_OF_RANGE, "it is an InvalidRequest, too"
    assert not ERRORS_BY_CODE.keys() & {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED}
    assert status_code(ValueError("a bug")) is grpc.StatusCode.INTERNAL
