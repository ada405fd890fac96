"""A query over HTTP, for programs: what the box of the query page does, in JSON, with the same grants and bounds.

Errors are problem details (RFC 9457), as those of the front end. A token comes in a header, or as a page's cookie; a
page of another site can send neither JSON nor that cookie.
"""

from typing import Any, Final

import orjson
from icedb_log.errors import (
    IceDBError,
    InvalidRequest,
    NotFound,
    Overloaded,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
)
from icedb_log.units import KIB, SECOND_MS
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from icedb_console.queries import MAX_QUERY_CHARS, QueryFailed, QueryRows, Statement

PATH: Final = "/v1/query"
MAX_BODY_BYTES: Final = 4 * MAX_QUERY_CHARS + KIB
_JSON: Final = "application/json"
_KINDS: Final[tuple[tuple[type[IceDBError], int, str, str], ...]] = (
    (InvalidRequest, 400, "invalid-request", "The request is wrong"),
    (Unauthenticated, 401, "unauthenticated", "No valid credentials"),
    (PermissionDenied, 403, "permission-denied", "Not allowed"),
    (NotFound, 404, "not-found", "No such table"),
    (QueryFailed, 422, "query-failed", "The query was run and gave no rows"),
    (Overloaded, 429, "busy", "Too many queries run, or too many calls"),
    (Unavailable, 503, "unavailable", "The store does not answer"),
    (IceDBError, 500, "failed", "Something went wrong here"),
)
"""From the special to the general: the first that an error is an instance of."""


async def read_statement(request: Request) -> Statement:
    """Return the statement of a request. Raises InvalidRequest."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _JSON:
        raise InvalidRequest(f"Content-Type: a query comes as {_JSON}")
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise InvalidRequest(f"the request has more than {MAX_BODY_BYTES} bytes")
    try:
        return Statement.model_validate(orjson.loads(body))
    except ValidationError as error:
        problem = error.errors()[0]
        where = "".join(f"{member}: " for member in problem["loc"][:1])
        raise InvalidRequest(
            'the body has to be {"sql": "select …"}, and may have "parameters" (a list, or an object), "as_of" '
            f'(a time) and "tag": {where}{problem["msg"]}'
        ) from error
    except ValueError as error:
        raise InvalidRequest(f"the request is no JSON: {error}") from error


def answer_rows(rows: QueryRows) -> Response:
    """Return the answer with the rows of a query."""
    document = {
        "columns": [{"name": name, "type": kind} for name, kind in rows.columns],
        "rows": rows.rows,
        "is_cut": rows.is_cut,
        "tables": rows.tables,
        "duration_ms": rows.duration_ms,
    }
    return Response(orjson.dumps(document), 200, {"Cache-Control": "no-store"}, _JSON)


def status_of(error: IceDBError) -> int:
    """Return the HTTP status of a request that failed, of pages, too."""
    return next(status for kind, status, *_ in _KINDS if isinstance(error, kind))


def answer_problem(error: IceDBError) -> Response:
    """Return the answer to a request that failed."""
    status, code, title = next(one[1:] for one in _KINDS if isinstance(error, one[0]))
    body: dict[str, Any] = {"type": f"urn:icedb:problem:{code}", "title": title, "status": status, "detail": str(error)}
    headers = {}
    if isinstance(error, Unavailable):
        wait_ms = SECOND_MS if error.retry_after_ms is None else error.retry_after_ms
        body["retry_after_ms"] = wait_ms
        headers["Retry-After"] = str(max(1, -(-wait_ms // SECOND_MS)))
    if isinstance(error, Unauthenticated):
        headers["WWW-Authenticate"] = 'Bearer realm="icedb"'
    return Response(orjson.dumps(body), status, headers, "application/problem+json")


def _problem(status: int) -> dict[str, Any]:
    (title,) = (title for _, of, _, title in _KINDS if of == status)
    schema = {"$ref": "#/components/schemas/Problem"}
    return {"description": f"{title}.", "content": {"application/problem+json": {"schema": schema}}}


SCHEMAS: Final[dict[str, Any]] = {
    "Query": {
        "type": "object",
        "required": ["sql"],
        "additionalProperties": False,
        "properties": {
            "sql": {"type": "string", "maxLength": MAX_QUERY_CHARS, "description": "One that only reads."},
            "parameters": {
                "oneOf": [{"type": "array", "items": {}}, {"type": "object", "additionalProperties": {}}],
                "description": "Values of each ? or $1 in order, or of each $name by name.",
            },
            "as_of": {
                "oneOf": [{"type": "string"}, {"type": "integer"}],
                "description": "Time travel for all tables: ISO 8601, or unix milliseconds.",
            },
            "tag": {"type": "string", "description": "Name of a tag that each of the tables has."},
        },
    },
    "Column": {
        "type": "object",
        "required": ["name", "type"],
        "additionalProperties": False,
        "properties": {"name": {"type": "string"}, "type": {"type": "string", "description": "DuckDB's."}},
    },
    "QueryRows": {
        "type": "object",
        "required": ["columns", "rows", "is_cut", "tables", "duration_ms"],
        "additionalProperties": False,
        "properties": {
            "columns": {"type": "array", "items": {"$ref": "#/components/schemas/Column"}},
            "rows": {
                "type": "array",
                "items": {"type": "array", "items": {}},
                "description": "Cells: text, numbers, true, false, null.",
            },
            "is_cut": {"type": "boolean", "description": "Whether there are more rows."},
            "tables": {
                "type": "object",
                "additionalProperties": {"type": "string"},
                "description": "The snapshot of each table that was read.",
            },
            "duration_ms": {"type": "integer"},
        },
    },
}
PATHS: Final[dict[str, Any]] = {
    PATH: {
        "post": {
            "operationId": "runQuery",
            "summary": "Run a query.",
            "description": "DuckDB's SQL over the newest snapshots of the tables that the caller may read, in a "
            "process of its own, bounded in time, memory and rows. Served by the console.",
            "tags": ["queries"],
            "security": [{}, {"bearer": []}],
            "requestBody": {
                "required": True,
                "content": {_JSON: {"schema": {"$ref": "#/components/schemas/Query"}}},
            },
            "responses": {
                "200": {
                    "description": "Its rows.",
                    "content": {_JSON: {"schema": {"$ref": "#/components/schemas/QueryRows"}}},
                },
                **{str(status): _problem(status) for _, status, _, _ in _KINDS},
            },
        }
    }
}
"""Of the OpenAPI document: what the console adds to the front end's."""
