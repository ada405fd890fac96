"""The one place where errors become gRPC status codes, and where calls are counted.

A typed error survives the wire: its class name travels as trailing metadata (:data:`ERROR_METADATA_KEY`), its
message as the status details. Unknown errors are logged with their traceback and answered as INTERNAL without it.
"""

from collections.abc import Callable
from typing import Any, Final

import grpc
from icedb_log.clock import Clock
from icedb_log.errors import (
    BelowHorizon,
    CommitConflict,
    CommitOutcomeUnknown,
    Fenced,
    HaltError,
    IceDBError,
    InvalidRequest,
    NotFound,
    Unavailable,
)
from icedb_service.logs import get_logger

from icedb_snapshot.answers import AnswerTooLarge
from icedb_snapshot.metrics import SnapshotMetrics

ERROR_METADATA_KEY: Final = "icedb-error"
MAX_DETAILS_CHARS: Final = 2000
"""Details travel in a header, and headers are limited to 8 KiB."""

_log = get_logger()


_CODES: Final[tuple[tuple[type[IceDBError], grpc.StatusCode], ...]] = (
    (AnswerTooLarge, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (BelowHorizon, grpc.StatusCode.OUT_OF_RANGE),
    (InvalidRequest, grpc.StatusCode.INVALID_ARGUMENT),
    (NotFound, grpc.StatusCode.NOT_FOUND),
    (Unavailable, grpc.StatusCode.UNAVAILABLE),
    (HaltError, grpc.StatusCode.FAILED_PRECONDITION),
    (CommitConflict, grpc.StatusCode.ABORTED),
    (Fenced, grpc.StatusCode.ABORTED),
    (CommitOutcomeUnknown, grpc.StatusCode.UNKNOWN),
)


def status_code(error: Exception) -> grpc.StatusCode:
    """Return the status code of an error; INTERNAL for one that is not ours."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return grpc.StatusCode.INTERNAL


class ErrorInterceptor(grpc.ServerInterceptor):  # type: ignore[misc]  # grpc ships no types
    """Maps errors of unary calls to status codes, and counts and times every one.

    Args:
        metrics: Where calls are counted.
        clock: For durations.
    """

    def __init__(self, metrics: SnapshotMetrics, *, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock

    def intercept_service(self, continuation: Callable[[Any], Any], handler_call_details: Any) -> Any:
        """Wrap the handler of a unary call; streams (reflection, health watches) pass as they are."""
        handler = continuation(handler_call_details)
        if handler is None or handler.unary_unary is None:
            return handler
        method = str(handler_call_details.method)

        def call(request: Any, context: grpc.ServicerContext) -> Any:
            return self._call(handler.unary_unary, request, context, method=method)

        return grpc.unary_unary_rpc_method_handler(
            call,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _call(self, behaviour: Callable[..., Any], request: Any, context: Any, *, method: str) -> Any:
        started_ms = self._clock.monotonic_ms()
        code = grpc.StatusCode.OK
        try:
            answer = behaviour(request, context)
            code = context.code() or grpc.StatusCode.OK
        except IceDBError as error:
            code = status_code(error)
            _log.info("call_refused", method=method, code=code.name, error=type(error).__name__, reason=str(error))
            context.set_trailing_metadata(((ERROR_METADATA_KEY, _error_name(error)),))
            context.abort(code, str(error)[:MAX_DETAILS_CHARS])
        except Exception:
            if context.code() is not None:  # the handler aborted with a code of its own
                code = context.code()
                raise
            code = grpc.StatusCode.INTERNAL
            _log.exception("call_failed", method=method)
            context.abort(code, "the snapshot service failed; its log has the reason")
        else:
            return answer
        finally:
            self._metrics.observe_call(method, code.name, self._clock.monotonic_ms() - started_ms)


def _error_name(error: IceDBError) -> str:
    """Return the name of the nearest class of :mod:`icedb_log.errors`: what clients know."""
    for kind in type(error).__mro__:
        if kind.__module__ == IceDBError.__module__:
            return kind.__name__
    return IceDBError.__name__
