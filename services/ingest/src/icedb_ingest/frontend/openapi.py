"""What the HTTP endpoint takes and answers, as an OpenAPI document: served at ``/openapi.json``.

Paths and methods come from the routes, kinds of errors from :mod:`icedb_ingest.frontend.errors`, formats from
:mod:`icedb_log.formats`; only what nothing else knows stands here. A route that is not described ends the start.
"""

from collections.abc import Iterable
from typing import Any, Final

from icedb_log.formats import FORMATS
from starlette.routing import Route

from icedb_ingest.frontend.errors import MEANINGS
from icedb_ingest.frontend.formats import ENCODINGS
from icedb_ingest.frontend.tables import TableChange, TableCreation
from icedb_ingest.frontend.webhooks import BATCH, CALLS, MAX_BATCH_EVENTS

TITLE: Final = "IceDB: sending events, and tables for them"
VERSION: Final = "1"
"""Of the paths: they begin with it."""
OWN_STATUSES: Final = frozenset(
    {400, 401, 403, 404, 408, 409, 413, 415, 422, 429, 500, 503}
)  # 499 has nobody to read it
_RETRY: Final = ("Retry-After", "Seconds to wait.")

_STAGED: Final = {"batch_id": "01a1fe76-3c1e-7a4a-b39f-cbe7cb116932", "table": "events", "status": "staged"}
_BATCH_STATUS: Final = {
    "type": "object",
    "required": ["batch_id", "table", "status"],
    "additionalProperties": False,
    "properties": {
        "batch_id": {"type": "string", "format": "uuid"},
        "table": {"type": "string"},
        "status": {"enum": ["staged", "committed", "quarantined"]},
        "reason": {"type": "string", "description": "Why it, or some of its rows, were refused."},
        "quarantined_rows": {"type": "integer", "description": "Rows in quarantine while the others are live."},
        "retried_as": {"type": "string", "description": "The batch that a retry from quarantine made of it."},
        "conflicts": {"type": "integer", "description": "Other contents under its id, which wait in quarantine."},
    },
}
_WARNING: Final = {
    "type": "string",
    "description": "Why batches may wait for long: the table takes them, but its flushes fail.",
}
_SCHEMAS: Final[dict[str, Any]] = {
    "Accepted": {
        "type": "object",
        "required": ["batch_id", "table", "status", "status_url"],
        "additionalProperties": False,
        "properties": {
            "batch_id": {"type": "string", "format": "uuid"},
            "table": {"type": "string"},
            "status": {"const": "staged"},
            "status_url": {"type": "string", "format": "uri-reference"},
            "repeated": {"const": True, "description": "It was accepted under this key before, and counts once."},
            "warning": _WARNING,
        },
        "examples": [_STAGED | {"status_url": f"/v1/tables/events/batches/{_STAGED['batch_id']}"}],
    },
    "BatchStatus": _BATCH_STATUS,
    "TableNames": {
        "type": "object",
        "required": ["tables"],
        "additionalProperties": False,
        "properties": {"tables": {"type": "array", "items": {"type": "string"}}},
    },
    "Table": {
        "type": "object",
        "required": ["table", "partition", "sort", "declared", "settings"],
        "additionalProperties": False,
        "properties": {
            "table": {"type": "string"},
            "partition": {"type": "array", "items": {"type": "string"}},
            "sort": {"type": "array", "items": {"type": "string"}},
            "declared": {"type": "object", "additionalProperties": {"type": "string"}},
            "columns": {
                "type": "object",
                "description": "Column to type, as readers see them; of `getTable` only.",
                "additionalProperties": {"type": "string"},
            },
            "settings": {"type": "object", "description": "As `icedb table create --help` explains them."},
        },
    },
    "TableCreation": TableCreation.model_json_schema(),
    "TableChange": TableChange.model_json_schema(),
    "Terms": {
        "type": "object",
        "required": ["table", "retry_window_ms", "now_ms"],
        "additionalProperties": False,
        "properties": {
            "table": {"type": "string"},
            "retry_window_ms": {"type": "integer", "description": "How old a UUIDv7 may be when its batch is sent."},
            "now_ms": {"type": "integer", "description": "The store's time, unix milliseconds, for such ids."},
            "warning": _WARNING,
        },
    },
    "EventsAccepted": {
        "type": "object",
        "required": ["success", "batch_id"],
        "additionalProperties": False,
        "properties": {
            "success": {"const": True},
            "batch_id": {"type": "string", "format": "uuid"},
            "set_aside": {"type": "integer", "minimum": 1, "description": "Events that will be in quarantine"},
            "reasons": {"type": "array", "items": {"type": "string"}, "description": "Of the first of them"},
        },
    },
    "Event": {
        "type": "object",
        "description": "Has `userId`, `anonymousId` or `previousId`, and `type` unless the path says it.",
        "properties": {
            "type": {"enum": sorted(set(CALLS.values()))},
            "event": {"type": "string"},
            **{name: {"type": ["string", "null"]} for name in ("userId", "anonymousId", "previousId", "messageId")},
            "timestamp": {"type": ["string", "null"], "description": "When it happened; without it, when it came."},
            **{name: {"type": "object"} for name in ("properties", "traits", "context")},
        },
    },
    "Events": {
        "oneOf": [
            {"$ref": "#/components/schemas/Event"},
            {
                "type": "array",
                "minItems": 1,
                "maxItems": MAX_BATCH_EVENTS,
                "items": {"$ref": "#/components/schemas/Event"},
            },
        ]
    },
    "EventBatch": {
        "type": "object",
        "required": [BATCH],
        "properties": {
            BATCH: {
                "type": "array",
                "minItems": 1,
                "maxItems": MAX_BATCH_EVENTS,
                "items": {"$ref": "#/components/schemas/Event"},
            },
            "sentAt": {"type": "string"},
            "context": {"type": "object"},
            "writeKey": {"type": "string"},
        },
    },
    "Health": {
        "type": "object",
        "required": ["status", "checks"],
        "properties": {
            "status": {"enum": ["ok", "failing"]},
            "checks": {"type": "object", "additionalProperties": {"enum": ["ok", "failing"]}},
        },
    },
    "Problem": {
        "type": "object",
        "description": "RFC 9457.",
        "required": ["type", "title", "status", "detail"],
        "properties": {
            "type": {"type": "string", "description": "`urn:icedb:problem:` and the kind of error."},
            "title": {"type": "string"},
            "status": {"type": "integer"},
            "detail": {"type": "string"},
            "batch_id": {"type": "string", "description": "Send the batch again under this id."},
            "retry_after_ms": {"type": "integer", "description": "When to try again."},
        },
    },
}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _json(name: str, description: str) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": _ref(name)}}}


def _parameter(name: str, description: str, *, where: str = "path", **schema: Any) -> dict[str, Any]:
    schema.setdefault("type", "string")
    return {"name": name, "in": where, "required": where == "path", "description": description, "schema": schema}


_TABLE: Final = _parameter("table", "Name of the table, without the warehouse's prefix.")
_ENCODING: Final = _parameter(
    "Content-Encoding",
    "How the body is compressed as a whole.",
    where="header",
    enum=[name for name in ENCODINGS if name],
)
_BEARER: Final[list[dict[str, list[str]]]] = [{}, {"bearer": []}]
_WEBHOOK: Final = [*_BEARER, {"writeKey": []}, {"signature": []}]
_APPEND_PROBLEMS: Final = OWN_STATUSES - {422}
_EVENTS_ANSWER: Final = {"200": _json("EventsAccepted", "The events are durable.")}
_EVENTS_WORDS: Final = (
    "Segment's tracking API and webhooks: the events join those of other requests in one batch. At least once: "
    "count each `messageId` once."
)


def _events(name: str, summary: str, schema: dict[str, Any], *more: dict[str, Any]) -> dict[str, Any]:
    return {
        "operationId": name,
        "summary": summary,
        "description": _EVENTS_WORDS,
        "tags": ["webhooks"],
        "parameters": [_TABLE, *more, _ENCODING],
        "security": _WEBHOOK,
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": _EVENTS_ANSWER,
        "problems": _APPEND_PROBLEMS,
    }


def _health(name: str, summary: str) -> dict[str, Any]:
    answers = {"200": _json("Health", "It is."), "503": _json("Health", "It is not; `checks` says which fail.")}
    return {"operationId": name, "summary": summary, "tags": ["health"], "security": [], "responses": answers}


_EITHER_EVENTS: Final = {"oneOf": [_ref("Event"), _ref("EventBatch"), _ref("Events")]}
_DOCUMENT_PROBLEMS: Final = OWN_STATUSES - {422}


def _document(name: str) -> dict[str, Any]:
    return {"required": True, "content": {"application/json": {"schema": _ref(name)}}}


OPERATIONS: Final[dict[tuple[str, str], dict[str, Any]]] = {
    ("GET", "/v1/tables"): {
        "operationId": "listTables",
        "summary": "List the tables that the caller may know of.",
        "tags": ["tables"],
        "security": _BEARER,
        "responses": {"200": _json("TableNames", "Their names, ascending.")},
        "problems": {401, 429, 500, 503},
    },
    ("GET", "/v1/tables/{table}"): {
        "operationId": "getTable",
        "summary": "Describe a table.",
        "tags": ["tables"],
        "parameters": [_TABLE],
        "security": _BEARER,
        "responses": {"200": _json("Table", "What it is.")},
        "problems": {400, 401, 403, 404, 409, 429, 500, 503},
    },
    ("PUT", "/v1/tables/{table}"): {
        "operationId": "createTable",
        "summary": "Create a table.",
        "description": "Needs the verb `maintain`, and `erase` where rows will be removed. Safe to repeat. Partitions, "
        "sort order and the grace period of the log are fixed from then on; queries and views are made by the command.",
        "tags": ["tables"],
        "parameters": [_TABLE],
        "security": _BEARER,
        "requestBody": _document("TableCreation"),
        "responses": {
            "201": _json("Table", "It is created."),
            "200": _json("Table", "It was there already, with this configuration."),
        },
        "problems": _DOCUMENT_PROBLEMS,
    },
    ("PATCH", "/v1/tables/{table}"): {
        "operationId": "alterTable",
        "summary": "Change a table.",
        "description": "Needs the verb `maintain`, and `erase` where rows will be removed. Safe to repeat.",
        "tags": ["tables"],
        "parameters": [_TABLE],
        "security": _BEARER,
        "requestBody": _document("TableChange"),
        "responses": {"200": _json("Table", "What it is now.")},
        "problems": _DOCUMENT_PROBLEMS,
    },
    ("GET", "/v1/tables/{table}/batches"): {
        "operationId": "getTerms",
        "summary": "Ask whether the table takes batches.",
        "description": "Answered as a batch would be now, without one.",
        "tags": ["batches"],
        "parameters": [_TABLE],
        "security": _BEARER,
        "responses": {"200": _json("Terms", "It does, under these terms.")},
        "problems": {400, 401, 403, 404, 409, 429, 500, 503},
    },
    ("POST", "/v1/tables/{table}/batches"): {
        "operationId": "sendBatch",
        "summary": "Send the body as one batch.",
        "description": "The answer means: the batch is durable, and its rows will be in the table exactly once. "
        "Safe to repeat with the same `Idempotency-Key`.",
        "tags": ["batches"],
        "parameters": [
            _TABLE,
            _parameter(
                "Idempotency-Key",
                "The batch's id, if a UUIDv7; else any key of yours. Without it the server chooses an id.",
                where="header", minLength=1, maxLength=257,
            ),
            _parameter(
                "key",
                "`content`: the decoded body is the key, for senders that repeat the same bytes and can name none.",
                where="query", enum=["content"],
            ),
            _ENCODING,
        ],
        "security": _BEARER,
        "requestBody": {
            "required": True,
            "content": {name: {"schema": {}} for record in FORMATS.values() for name in record.media_types},
        },
        "responses": {
            "202": _json("Accepted", "The batch is durable.")
            | {"headers": {"Location": {"description": "Where its status is.", "schema": {"type": "string"}}}},
        },
        "problems": OWN_STATUSES,
    },
    ("GET", "/v1/tables/{table}/batches/{batch_id}"): {
        "operationId": "getBatch",
        "summary": "Get the status of a batch.",
        "description": "Reads the table's log: ask when in doubt, not after each batch.",
        "tags": ["batches"],
        "parameters": [_TABLE, _parameter("batch_id", "As the answer to the batch said it.", format="uuid")],
        "security": _BEARER,
        "responses": {"200": _json("BatchStatus", "What became of it.")},
        "problems": {400, 401, 403, 404, 409, 429, 500, 503},
    },
    ("POST", "/v1/tables/{table}/segment"): _events(
        "sendEvents", "Send events as a webhook destination does.", _EITHER_EVENTS
    ),
    ("POST", "/v1/tables/{table}/segment/v1/{call}"): _events(
        "trackEvents", "Send events as an SDK does.", _EITHER_EVENTS,
        _parameter("call", "Of the tracking API.", enum=[BATCH, *CALLS]),
    ),
    ("GET", "/healthz"): _health("isAlive", "Say whether this process is worth keeping."),
    ("GET", "/readyz"): _health("isReady", "Say whether this process can work."),
    ("GET", "/openapi.json"): {
        "operationId": "getContract",
        "summary": "Return this document.",
        "tags": ["health"],
        "security": [],
        "responses": {"200": {"description": "It.", "content": {"application/json": {"schema": {"type": "object"}}}}},
    },
}  # fmt: skip


def describe(routes: Iterable[Route]) -> dict[str, Any]:
    """Return the document of an application's routes.

    Raises:
        KeyError: A method of a route is not described.
    """
    paths: dict[str, Any] = {}
    for route in routes:
        for method in sorted((route.methods or set()) - {"HEAD"}):
            operation = dict(OPERATIONS[method, route.path])
            problems = {str(status): _problem(status) for status in sorted(operation.pop("problems", ()))}
            operation["responses"] = operation["responses"] | problems
            paths.setdefault(route.path, {})[method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": TITLE, "version": VERSION, "description": "Errors are problem details (RFC 9457)."},
        "paths": paths,
        "components": {
            "schemas": _SCHEMAS,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "Wanted where there is an access file."},
                "writeKey": {
                    "type": "http",
                    "scheme": "basic",
                    "description": "The write key as user; or `writeKey` in the body.",
                },
                "signature": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "X-Signature",
                    "description": "HMAC-SHA1 of the body in hex.",
                },
            },
        },
    }


def _problem(status: int) -> dict[str, Any]:
    kinds = {meaning.code: meaning.title for meaning in MEANINGS if meaning.status == status}
    answer: dict[str, Any] = {
        "description": "; ".join(f"`{code}`: {title}" for code, title in kinds.items()) + ".",
        "content": {"application/problem+json": {"schema": _ref("Problem")}},
    }
    header = {401: ("WWW-Authenticate", "What is wanted."), 429: _RETRY, 503: _RETRY}.get(status)
    if header:
        answer["headers"] = {header[0]: {"description": header[1], "schema": {"type": "string"}}}
    return answer
