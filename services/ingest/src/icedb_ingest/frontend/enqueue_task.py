"""The Celery task ``icedb.ingest.enqueue``: stages the batch that its message carries.

The field descriptions of :class:`EnqueueMessage` are the documentation of the message; its JSON Schema is
``docs/schemas/…enqueue.schema.json``.

Delivery, unlike that of all other tasks: at least once. The message is the only copy of the batch until it is staged,
so it is acknowledged late, and goes back to the queue when its worker dies. That is harmless, because the batch id is
bound to the batch (:mod:`icedb_log.ingest.idempotency`): delivered twice, it counts once, also hours later. When the
store does not answer or the table is under back-pressure, the message waits and is tried again, for ever; it ends as
failed only if it is wrong.
"""

import base64
import json
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Final, NoReturn, Self

import orjson
from celery import Celery, Task
from celery.exceptions import Reject
from icedb_log.clock import Clock, parse_uuid7_ms
from icedb_log.errors import CommitOutcomeUnknown, IceDBError, InvalidRequest, Overloaded, TableHalted, Unavailable
from icedb_log.formats import FORMATS, StagingFormat
from icedb_log.keys import TABLE_NAME
from icedb_log.names import INGEST_ENQUEUE
from icedb_log.units import SECOND_MS
from icedb_service.access.access_file import Verb
from icedb_service.access.credentials import TaskAccess
from icedb_service.logs import get_logger
from icedb_service.tracing import HEADER, header_of
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, field_validator, model_validator

from icedb_ingest.frontend.metrics import FrontendMetrics
from icedb_ingest.frontend.staging_gate import Accepted, Offer, StagingGate

UUID7_PATTERN: Final = "^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"

CONTENT_FIELDS: Final = ("rows", "data", "data_base64")


class EnqueueMessage(BaseModel):
    """One batch. Exactly one of `rows`, `data` and `data_base64`."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    table: Annotated[str, Field(pattern=f"^{TABLE_NAME.pattern}$")]
    """Name of the table; it must exist."""

    batch_id: Annotated[str, Field(pattern=UUID7_PATTERN)]
    """A UUIDv7 that the sender chooses, one for each batch: a message that is delivered, or sent, again counts once."""

    format: StagingFormat = "ndjson"
    """What `data` or `data_base64` is. With `rows` it is `ndjson`."""

    rows: Annotated[list[dict[str, JsonValue]], Field(min_length=1)] | None = None
    """The rows themselves: objects of column to value."""

    data: Annotated[str, Field(min_length=1)] | None = None
    """The rows as text: `ndjson`, `json` or `csv`."""

    data_base64: Annotated[str, Field(min_length=1)] | None = None
    """The rows as bytes in Base64, for compressed and binary formats."""

    @field_validator("batch_id")
    @classmethod
    def _check_batch_id(cls, batch_id: str) -> str:
        try:
            parse_uuid7_ms(batch_id)
        except InvalidRequest as error:
            raise ValueError(str(error)) from error
        return batch_id

    @model_validator(mode="after")
    def _check_one_content(self) -> Self:
        given = [name for name in CONTENT_FIELDS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of rows, data and data_base64, not {' and '.join(given) or 'none'}")
        if self.rows is not None and self.format != "ndjson":
            raise ValueError(f"rows are objects: leave out format ({self.format})")
        if self.data is not None and not (self.format in FORMATS and FORMATS[self.format].is_text):
            raise ValueError(f"{self.format} is not text: send it in data_base64")
        return self

    def to_offer(self, *, max_bytes: int) -> Offer:
        """Return the batch; the message may be its only copy.

        Raises:
            InvalidRequest: The content is no Base64, or too large.
        """
        body = self._body()
        if len(body) > max_bytes:
            raise InvalidRequest(f"batch {self.batch_id} has {len(body)} bytes, at most {max_bytes}: cut it")
        return Offer(self.table, body, self.format, self.batch_id, key=f"celery:{self.batch_id}", is_only_copy=True)

    def _body(self) -> bytes:
        if self.rows is not None:
            return b"".join(self._encode_row(number, row) for number, row in enumerate(self.rows))
        if self.data is not None:
            return self.data.encode()
        try:
            return base64.b64decode(self.data_base64 or "", validate=True)
        except ValueError as error:  # of binascii, or a character that is not ASCII
            raise InvalidRequest(f"batch {self.batch_id}: data_base64 is not Base64: {error}") from error

    def _encode_row(self, number: int, row: Mapping[str, Any]) -> bytes:
        try:
            line = orjson.dumps(row)
        except TypeError:  # an integer above 64 bits, or more levels than it takes: the flush decides
            line = b""
        try:
            if not line or b"null" in line:  # NaN becomes null, too
                text = json.dumps(row, ensure_ascii=False, allow_nan=False)
                line = line or text.encode()
        except (ValueError, RecursionError) as error:
            reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
            raise InvalidRequest(f"batch {self.batch_id}: row {number} is no JSON: {reason}") from None
        return line + b"\n"


def read_message(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> EnqueueMessage:
    """Return a task's arguments as a message: keyword arguments, or one object as the only positional argument.

    Raises:
        InvalidRequest: They are no message; names the first field that is wrong.
    """
    fields: object = kwargs
    if args:
        fields = args[0] if len(args) == 1 and not kwargs else None
    if not isinstance(fields, Mapping):
        raise InvalidRequest(f"{INGEST_ENQUEUE} takes keyword arguments: table, batch_id and rows, data or data_base64")
    try:
        return EnqueueMessage.model_validate(dict(fields))
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in problem["loc"]) or "message"
        message = str(problem["msg"]).removeprefix("Value error, ")
        raise InvalidRequest(f"{INGEST_ENQUEUE}: {where}: {message}") from error


def message_schema() -> dict[str, Any]:
    """Return the JSON Schema of the keyword arguments."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:icedb:schema:{INGEST_ENQUEUE}",
        **EnqueueMessage.model_json_schema(),
        "oneOf": [{"required": [name]} for name in CONTENT_FIELDS],
        "title": f"Keyword arguments of the Celery task {INGEST_ENQUEUE}",
    }


FIRST_PAUSE_MS: Final = 500
MAX_PAUSE_MS: Final = 5_000
PATIENCE_MS: Final = 20_000
"""How long a message may hold its worker's thread; then it goes to the end of the queue, and others get a turn. It
does not wait in the worker's memory meanwhile: a store that is down for hours must not fill that."""
_PASSING: Final = (Unavailable, CommitOutcomeUnknown, TableHalted)
"""What a message waits for: of a halted table, too, since it may be the only copy."""


class EnqueueWork:
    """What the task does, without Celery."""

    def __init__(
        self,
        gate: StagingGate,
        *,
        metrics: FrontendMetrics,
        clock: Clock,
        max_batch_bytes: int,
        is_stopping: threading.Event,
        access: TaskAccess,
    ) -> None:
        self._gate = gate
        self._metrics = metrics
        self._clock = clock
        self._max_batch_bytes = max_batch_bytes
        self._is_stopping = is_stopping
        self._access = access

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any], request: Any = None) -> dict[str, Any]:
        """Stage the batch of a message, with a few tries.

        Raises:
            Unavailable: Not now; the message has to come again.
            CommitOutcomeUnknown: The same.
            IceDBError: The message is wrong; it will never be taken.
        """
        message = read_message(args, kwargs)
        deadline_ms = self._clock.monotonic_ms() + PATIENCE_MS
        pause_ms = FIRST_PAUSE_MS
        while True:
            try:
                accepted = self._try_once(message, request)
            except _PASSING as error:
                wait_ms = max(pause_ms, error.retry_after_ms) if isinstance(error, Overloaded) else pause_ms
                if self._clock.monotonic_ms() + wait_ms > deadline_ms or self._is_stopping.wait(wait_ms / SECOND_MS):
                    raise
                pause_ms = min(2 * pause_ms, MAX_PAUSE_MS)
            else:
                answer = {
                    "outcome": "accepted",
                    "table": accepted.table,
                    "batch_id": message.batch_id,
                    "staged_as": accepted.batch_id,
                    "staged_bytes": accepted.size_bytes,
                }
                return answer | ({"warning": accepted.warning} if accepted.warning else {})

    def _try_once(self, message: EnqueueMessage, request: Any) -> Accepted:
        with self._metrics.offered("celery"):
            self._access.require(request, Verb.APPEND, message.table)
            started_ms = self._clock.monotonic_ms()
            told = header_of(request, HEADER)
            offer = replace(
                message.to_offer(max_bytes=self._max_batch_bytes),
                endpoint="celery",
                traceparent=told if isinstance(told, str) else None,
            )
            accepted = self._gate.accept(offer)
            if accepted.binding is not None:
                self._gate.remember(accepted.binding)
        self._metrics.observe_ack("celery", started_ms=started_ms, size_bytes=accepted.size_bytes, clock=self._clock)
        return accepted


def register_enqueue(app: Celery, work: EnqueueWork) -> Task:
    """Define the task on the worker's application."""

    def enqueue(self: Task, /, *args: Any, **kwargs: Any) -> dict[str, Any]:
        batch_id = kwargs.get("batch_id")
        try:
            return work.run(args, kwargs, self.request)
        except _PASSING as error:
            get_logger().warning(
                "enqueue_put_off", batch=batch_id, error=str(error), mitigation="to the end of the queue"
            )
            _put_off(self, error)
        except IceDBError as error:
            get_logger().warning("enqueue_failed", batch=batch_id, error=str(error), mitigation="the result says so")
            raise

    enqueue.__doc__ = __doc__
    task: Task = app.task(
        enqueue,
        bind=True,
        shared=False,
        name=INGEST_ENQUEUE,
        acks_late=True,
        reject_on_worker_lost=True,
        max_retries=None,
        throws=(IceDBError,),
    )
    return task


def _put_off(task: Task, error: IceDBError) -> NoReturn:
    """Send the message again, to the end of its queue; if that fails, give this one back. Always raises."""
    try:
        raise task.retry(exc=error, countdown=0)
    except Reject as rejection:
        # Celery would drop a message that it cannot send again; this one is the only copy.
        raise Reject(rejection.reason, requeue=True) from error
