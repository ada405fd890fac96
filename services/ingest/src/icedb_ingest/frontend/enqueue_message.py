"""What a message of the task ``icedb.ingest.enqueue`` says. Its JSON Schema is ``docs/schemas/…enqueue.schema.json``.

Pure. The field descriptions are the documentation of the message.
"""

import base64
import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Self

import orjson
from icedb_log.clock import parse_uuid7_ms
from icedb_log.errors import InvalidRequest
from icedb_log.keys import TABLE_NAME, StagingFormat
from icedb_log.names import INGEST_ENQUEUE
from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, field_validator, model_validator

from icedb_ingest.frontend.desk import Offer

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
        if self.data is not None and self.format not in ("ndjson", "json", "csv"):
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
        except TypeError:  # an integer above 64 bits, or more levels than it takes: what becomes of it, the flush says
            line = b""
        try:
            if not line or b"null" in line:  # which is also what becomes of NaN
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
