"""The one place where errors of calls become statuses (:mod:`icedb_service.grpc_server`), and where calls are counted.

Unknown errors are logged with their traceback and answered as INTERNAL without it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc
from icedb_log.clock import Clock
from icedb_log.errors import IceDBError, Overloaded
from icedb_log.units import SECOND_MS
from icedb_service.grpc_server import call_status, require_readable, tolerant
from icedb_service.logs import get_logger

from icedb_snapshot.answers import AnswerTooLarge
from icedb_snapshot.metrics import METHODS, SnapshotMetrics

_log = get_logger()


class ErrorInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc ships no types
    """Maps errors of calls to status codes, and counts and times each one, unary ones and server streams.

    Args:
        metrics: Where calls are counted.
        clock: For durations.
        write_timeout_ms: How long a stream waits for its reader.
    """

    def __init__(self, metrics: SnapshotMetrics, *, clock: Clock, write_timeout_ms: int) -> None:
        self._metrics = metrics
        self._clock = clock
        self._write_timeout_ms = write_timeout_ms
        self._wrapped: dict[str, Any] = {}

    async def intercept_service(self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any) -> Any:
        """Wrap the handler of a method of ours, and of a health check; reflection and health watches pass."""
        method = str(handler_call_details.method)
        wrapped = self._wrapped.get(method)
        if wrapped is None:
            handler = await continuation(handler_call_details)
            if handler is None or method not in METHODS:
                return handler
            wrapped = self._wrapped[method] = self._wrap(handler, method)
        return wrapped

    def _wrap(self, handler: Any, method: str) -> Any:
        codec = {
            "request_deserializer": tolerant(handler.request_deserializer),
            "response_serializer": handler.response_serializer,
        }

        async def call(request: Any, context: Any) -> Any:
            async with self._watch(context, method):
                require_readable(request)
                return await handler.unary_unary(request, context)

        async def stream(request: Any, context: Any) -> None:
            async with self._watch(context, method):
                require_readable(request)
                stuck = await self._send(handler.unary_stream(request, context), context, method)
                if stuck is not None:
                    await stuck  # a status can follow only after what is being sent; the rest is let go already
                    raise Overloaded(
                        f"{method.rpartition('/')[2]}: the caller took no message for {self._write_timeout_ms} ms "
                        "(ICEDB_SNAPSHOT_WRITE_TIMEOUT_MS); call again, and read while the stream runs",
                        retry_after_ms=SECOND_MS,
                    )

        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(call, **codec)
        return grpc.unary_stream_rpc_method_handler(stream, **codec)

    async def _send(self, messages: Any, context: Any, method: str) -> asyncio.Future[Any] | None:
        """Send the messages of a stream; return what is being sent when its reader takes nothing for too long.

        Whoever does not read holds one message then, and not the answer that it was cut from.
        """
        async with aclosing(messages):
            async for message in messages:
                sending: asyncio.Future[Any] = asyncio.ensure_future(context.write(message))
                done, _ = await asyncio.wait((sending,), timeout=self._write_timeout_ms / SECOND_MS)
                if not done:
                    _log.warning("reader_too_slow", method=method, mitigation="its stream ends when it reads again")
                    return sending
                sending.result()
        return None

    @asynccontextmanager
    async def _watch(self, context: Any, method: str) -> AsyncIterator[None]:
        started_ms = self._clock.monotonic_ms()
        code = grpc.StatusCode.OK
        try:
            yield
        except IceDBError as error:
            # An answer that is too large is the caller's mistake, but has a code of its own.
            status = call_status(
                error, code=grpc.StatusCode.RESOURCE_EXHAUSTED if isinstance(error, AnswerTooLarge) else None
            )
            code = status.code
            _log.info("call_refused", method=method, code=code.name, error=type(error).__name__, reason=str(error))
            await context.abort(code, status.details, status.trailing_metadata)
        except grpc.aio.AbortError:
            code = _code_of(context) or grpc.StatusCode.UNKNOWN
            raise
        except (asyncio.CancelledError, GeneratorExit):
            # The caller's deadline passed, or it went away.
            left_s = context.time_remaining()
            has_ended = left_s is not None and left_s <= 0
            code = grpc.StatusCode.DEADLINE_EXCEEDED if has_ended else grpc.StatusCode.CANCELLED
            raise
        except Exception:  # noqa: BLE001 - the last stop before the wire
            code = grpc.StatusCode.INTERNAL
            _log.exception("call_failed", method=method)
            await context.abort(code, "the snapshot service failed; its log has the reason")
        finally:
            self._metrics.observe_call(method, code.name, self._clock.monotonic_ms() - started_ms)


def _code_of(context: Any) -> grpc.StatusCode | None:
    """Return the code that a handler aborted with; grpc gives it as a number or as the code itself."""
    code = context.code()
    if isinstance(code, grpc.StatusCode):
        return code
    return next((known for known in grpc.StatusCode if known.value[0] == code), None)
