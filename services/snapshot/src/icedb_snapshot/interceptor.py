"""The one place where errors of calls become statuses (:mod:`icedb_service.grpc_errors`), and where calls are counted.

Unknown errors are logged with their traceback and answered as INTERNAL without it.
"""

from collections.abc import Callable
from typing import Any

import grpc
from icedb_log.clock import Clock
from icedb_log.errors import IceDBError
from icedb_service.grpc_errors import call_status
from icedb_service.logs import get_logger

from icedb_snapshot.answers import AnswerTooLarge
from icedb_snapshot.metrics import SnapshotMetrics

_log = get_logger()


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
            # An answer that is too large is the caller's mistake, but has a code of its own.
            status = call_status(
                error, code=grpc.StatusCode.RESOURCE_EXHAUSTED if isinstance(error, AnswerTooLarge) else None
            )
            code = status.code
            _log.info("call_refused", method=method, code=code.name, error=type(error).__name__, reason=str(error))
            context.set_trailing_metadata(status.trailing_metadata)
            context.abort(code, status.details)
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
