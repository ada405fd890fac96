"""The process of one query: reads the tables that it may, runs one statement, answers in JSON, and ends.

Started by :mod:`icedb_console.queries`, which kills it when it takes too long or nobody waits any more. It reads one
request from its standard input, with what the store needs. That is forgotten before the statement runs: DuckDB reads
the files of a bucket by URLs that end soon, and has no key. The process bounds its own address space before DuckDB runs
anything, and ends by itself some seconds after its time if its parent does not end it. The statement reads the live
data files of the snapshots of tables whose names it was given, and nothing else: DuckDB is locked to them.

Must never write to the store, and never name a table to a caller who may not know of it. A result as a file is
written into memory, at the one path that DuckDB may open besides.
"""

import base64
import errno
import json
import os
import resource
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, BinaryIO, Final

from icedb_client.client import Client
from icedb_client.duck import find_snapshots, run
from icedb_client.file_list import PickedFiles
from icedb_client.files import format_of_key, preview_lines
from icedb_client.requests import make_request
from icedb_client.settings import load_client_settings
from icedb_client.snapshots import Snapshot
from icedb_log.address_space import bound_address_space, says_out_of_memory
from icedb_log.errors import IceDBError, InvalidRequest, NotFound, Unavailable
from icedb_log.table.table_config import table_not_found
from icedb_log.texts import quote_text
from icedb_log.units import MIB

MAX_CELL_CHARS: Final = 2000
MAX_COLUMNS: Final = 200
MAX_ANSWER_BYTES: Final = 8 * MIB
"""Rows beyond it are not shown."""
MAX_FILE_BYTES: Final = 24 * MIB
"""Of a result as a file: a larger one is refused, never cut."""
LOG_BYTES: Final = 1024 * MIB
"""Address space for the logs of the tables, beside the memory of the query."""
FORMATS: Final[Mapping[str, str]] = {"csv": "csv, HEADER", "parquet": "parquet, COMPRESSION zstd"}
"""Formats of files, with DuckDB's options."""
_RESULT: Final = "_icedb_result"
_FILE_TOO_LARGE: Final = os.strerror(errno.EFBIG)
_END_AFTER_S: Final = 5
_URLS_LAST_MS: Final = 60_000
"""URLs of data files end so long after the query has to."""


def main() -> None:
    """Answer one request."""
    answer_to: BinaryIO = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever writes to standard output must not break the answer
    request = json.loads(sys.stdin.buffer.read())
    signal.alarm(int(request["limit_ms"]) // 1000 + _END_AFTER_S)
    bound_address_space(int(request["memory_bytes"]) + LOG_BYTES)
    os.environ.update(request["store"])
    answer_to.write(json.dumps(_answer(request)).encode())
    answer_to.flush()
    os._exit(0)  # threads of DuckDB and of the store would be waited for


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        with Client(settings=load_client_settings().model_copy(update={"snapshot_address": None})) as client:
            work = {"query": _query, "describe": _describe, "preview": _preview}[request["do"]]
            return work(client, request)
    except MemoryError:
        return {"error": "memory", "message": _too_large(request)}
    except IceDBError as error:
        if says_out_of_memory(error):
            return {"error": "memory", "message": _too_large(request)}
        is_refused = isinstance(error, InvalidRequest | NotFound)
        return {"error": "refused" if is_refused else "failed", "message": str(error)}
    except Exception as error:  # noqa: BLE001 - DuckDB's own errors, too: whoever asked reads what went wrong
        line = (str(error).strip() or type(error).__name__).partition("\n")[0]
        if says_out_of_memory(line):
            return {"error": "memory", "message": _too_large(request)}
        return {"error": "failed", "message": line}


def _query(client: Client, request: Mapping[str, Any]) -> dict[str, Any]:
    allowed = frozenset(request["tables"])
    is_bucket = str(client.settings.store).startswith("s3://")
    presign_ms = int(request["limit_ms"]) + _URLS_LAST_MS if is_bucket else None

    def read(name: str) -> Snapshot:
        if name not in allowed:
            raise table_not_found(name, sorted(allowed))
        snapshot = client.answerer.snapshot(
            make_request(name, as_of=request["as_of"], tag=request["tag"], presign_ms=presign_ms)
        )
        return replace(snapshot, files=PickedFiles(snapshot.files))  # each URL is made now

    sql = str(request["sql"]).strip().rstrip(";")
    parameters = request["parameters"]
    snapshots = find_snapshots(sql, read, parameters=parameters)
    bounds = {
        "memory_limit": f"{int(request['memory_bytes'])}B",
        "threads": str(int(request["thread_count"])),
        "temp_directory": "",
    }
    most = int(request["max_rows"])
    for name in request["store"]:
        del os.environ[name]
    if "format" in request:
        return {"file": base64.b64encode(_write_file(sql, snapshots, bounds, str(request["format"]))).decode()}
    with run(sql, snapshots, parameters=parameters, bounds=bounds) as rows:
        names, types = [str(name) for name in rows.columns], [str(each) for each in rows.types]
        if len(names) > MAX_COLUMNS:
            raise InvalidRequest(f"the result has {len(names)} columns; {MAX_COLUMNS} are shown at most: name some")
        found = rows.guarded(rows.limit(most + 1).fetchall)()
    shown, is_cut = _to_cells(found[:most])
    return {
        "columns": [list(pair) for pair in zip(names, types, strict=True)],
        "rows": shown,
        "is_cut": is_cut or len(found) > most,
        "tables": {name: snapshot.snapshot_id for name, snapshot in snapshots.items()},
    }


def _write_file(sql: str, snapshots: Mapping[str, Snapshot], bounds: Mapping[str, str], file_format: str) -> bytes:
    """Return the whole result as a file, which DuckDB writes into memory."""
    file = os.memfd_create("result")
    path = f"/proc/self/fd/{file}"
    resource.setrlimit(resource.RLIMIT_FSIZE, (MAX_FILE_BYTES, MAX_FILE_BYTES))
    try:
        with run(sql, snapshots, bounds=bounds, outputs=[path]) as rows:
            rows.create_view(_RESULT)
            copy = f"COPY {_RESULT} TO {quote_text(path)} (FORMAT {FORMATS[file_format]}, USE_TMP_FILE false)"
            rows.guarded(rows.connection.execute)(copy)
    except Unavailable as error:
        if _FILE_TOO_LARGE not in str(error):
            raise
        raise InvalidRequest(
            f"the file would be larger than {MAX_FILE_BYTES // MIB} MiB: ask for less, or use "
            f"`icedb query -o {file_format}`"
        ) from error
    return os.pread(file, MAX_FILE_BYTES, 0)


def _describe(client: Client, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``icedb describe`` finds out: the log and the footers of some files, no row."""
    (table,) = request["tables"]
    found = client.answerer.snapshot(make_request(table, bounds=True)).describe(files=int(request["files"]))
    described = asdict(found)
    for column in described["columns"]:
        column["min"], column["max"] = (_to_cell(column[name]) for name in ("min", "max"))
    return {"description": json.loads(json.dumps(described, default=str))}


def _preview(client: Client, request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first rows of a batch in quarantine."""
    try:
        body = client.warehouse.store.get(str(request["key"])).body
    except NotFound:
        return {"lines": []}
    return {"lines": preview_lines(body, format_of_key(str(request["key"])), limit=int(request["lines"]))}


def _to_cells(rows: Sequence[Sequence[Any]]) -> tuple[list[list[Any]], bool]:
    shown: list[list[Any]] = []
    size_bytes = 0
    for row in rows:
        cells = [_to_cell(value) for value in row]
        size_bytes += sum(len(str(cell)) for cell in cells)
        if size_bytes > MAX_ANSWER_BYTES:
            return shown, True
        shown.append(cells)
    return shown, False


def _to_cell(value: Any) -> Any:
    """Return what JSON has for a value: numbers, truth and nothing as they are, all else as text."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)  # no JSON has the others
    text = value.hex() if isinstance(value, bytes) else str(value)
    text = text.encode(errors="replace").decode()
    return text if len(text) <= MAX_CELL_CHARS else f"{text[: MAX_CELL_CHARS - 1]}…"


def _too_large(request: Mapping[str, Any]) -> str:
    return (
        f"it needs more than {int(request['memory_bytes']) // MIB} MiB of memory "
        "(ICEDB_CONSOLE_QUERY_MEMORY_MB): name fewer columns or partitions, or aggregate"
    )


if __name__ == "__main__":
    main()
