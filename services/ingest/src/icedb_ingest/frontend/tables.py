"""Tables over HTTP: what a request creates or changes, and how a table is described.

Blocking; the endpoint calls it from a thread, after it has asked who may. Which changes are safe is
:mod:`icedb_log.changes.table_changes`' business. Queries are not taken here: a worker has to check them, which the
command asks for.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeVar

import orjson
from icedb_log.changes.table_changes import FREE_FIELDS, RISING_FIELDS, alter_table_config
from icedb_log.clock import Clock
from icedb_log.errors import InvalidRequest, NotFound
from icedb_log.log.fold import union_schema
from icedb_log.parquet.file_reads import ParquetFooterReader
from icedb_log.repair.adoption import require_fit
from icedb_log.table.stored_config import create_table, read_table_config
from icedb_log.table.table_config import (
    ASKED_FLOORS,
    PartitionField,
    TableConfig,
    unite_columns,
    with_plausible_times,
)
from icedb_log.texts import did_you_mean, first_message
from icedb_log.warehouse import Warehouse
from icedb_service.readers import LogReaders
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.config import JsonDict

from icedb_ingest.frontend.errors import TableExists

MAX_DOCUMENT_BYTES: Final = 256 * 1024
CHANGEABLE: Final = (FREE_FIELDS | RISING_FIELDS | {"times"}) - {"merge_query"}
"""Settings that PATCH takes."""
SETTABLE: Final = CHANGEABLE | {"log_grace_ms"}
"""Settings that PUT takes."""
REMOVING: Final = frozenset({"retention_ms", "quarantine_retention_ms"})
"""Settings by which rows are removed later."""
_OWN_PLACES: Final = frozenset({"format_version", "name", "partition", "sort", "declared", "undropped", "dropped"})


def _names(settable: frozenset[str]) -> JsonDict:
    return {"propertyNames": {"enum": [*sorted(settable)]}}


class TableCreation(BaseModel):
    """What PUT takes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    partition: tuple[str, ...] = Field((), description="A level each: `d=day(ts)`, `u=bucket[16](user_id)`, `country`.")
    sort: tuple[str, ...] = Field((), description="Sort columns of data files.")
    declared: dict[str, str] = Field({}, description="Column to type; others are found in the rows.")
    settings: dict[str, Any] = Field({}, description="As `getTable` names them.", json_schema_extra=_names(SETTABLE))


class TableChange(BaseModel):
    """What PATCH takes: only what changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    declared: dict[str, str | None] = Field({}, description="Column to type; null takes a declaration back.")
    settings: dict[str, Any] = Field(
        {}, description="Those that change. Grace periods only grow.", json_schema_extra=_names(CHANGEABLE)
    )


_Request = TypeVar("_Request", TableCreation, TableChange)


def removes_rows(request: TableCreation | TableChange) -> bool:
    """Whether rows will be removed because of what a request sets."""
    return not REMOVING.isdisjoint(request.settings)


def parse_creation(body: bytes) -> TableCreation:
    """Read the body of a PUT; an empty one creates a plain table. Raises InvalidRequest."""
    return _parse(TableCreation, body, SETTABLE)


def parse_change(body: bytes) -> TableChange:
    """Read the body of a PATCH. Raises InvalidRequest."""
    return _parse(TableChange, body, CHANGEABLE)


def _parse(kind: type[_Request], body: bytes, settable: frozenset[str]) -> _Request:
    if len(body) > MAX_DOCUMENT_BYTES:
        raise InvalidRequest(f"the document has {len(body)} bytes; {MAX_DOCUMENT_BYTES} are enough for any table")
    try:
        request = kind.model_validate(orjson.loads(body or b"{}"))
    except ValidationError as error:
        raise InvalidRequest(f"the document: {first_message(error)}") from error
    except ValueError as error:
        raise InvalidRequest(f"the document is not JSON: {error}") from error
    for name, value in request.settings.items():
        if name not in settable:
            close = did_you_mean(name, settable) or f"; there are {', '.join(sorted(settable))}"
            raise InvalidRequest(f"settings: {name!r} cannot be set here{close}")
        floor_ms = ASKED_FLOORS.get(name, 0)
        if isinstance(value, int) and value < floor_ms:
            raise InvalidRequest(f"settings: {name} of {value} ms is too small: give at least {floor_ms} ms")
    return request


class Tables:
    """Lists, describes, creates and changes tables. Thread-safe.

    Args:
        warehouse: Where they lie.
        clock: This host's.
    """

    def __init__(self, warehouse: Warehouse, *, clock: Clock) -> None:
        self._warehouse = warehouse
        self._clock = clock
        self._readers = LogReaders(clock)

    def list_names(self) -> tuple[str, ...]:
        """Return the names of all tables, ascending. Raises Unavailable."""
        return self._warehouse.list_tables()

    def describe(self, name: str) -> dict[str, Any]:
        """Return what a table is: its configuration, and its columns as readers see them.

        Raises:
            InvalidRequest: A bad name.
            NotFound: No such table.
            HaltError: The configuration or the log cannot be read.
            Unavailable: The store did not answer.
        """
        place = self._warehouse.table(name)
        config = read_table_config(place)
        logged = union_schema(name, self._readers.of_table(place).heads.read().files).effective
        return {**_describe(config), "columns": unite_columns(logged, config)}

    def create(self, name: str, request: TableCreation) -> tuple[dict[str, Any], bool]:
        """Create a table, and return its configuration and whether it is new. Idempotent for the same request.

        Raises:
            InvalidRequest: No valid configuration, or none that fits the log which is there.
            TableExists: A table of this name is there, with another configuration, or in the trash.
            HaltError: The log that is there cannot be read.
            Unavailable: The store did not answer; create it again.
            CommitOutcomeUnknown: The same.
        """
        given = TableConfig.create(
            name=name,
            partition=tuple(PartitionField.parse(text) for text in request.partition),
            sort=request.sort,
            declared=request.declared,
            **request.settings,
        )
        times: Mapping[str, Mapping[str, object]] | None = request.settings.get("times")
        config = with_plausible_times(given, said=times)
        place = self._warehouse.table(name)
        if not place.store.list_page(place.paths.config_key, limit=1).objects:
            require_fit(place, config, clock=self._clock, footers=ParquetFooterReader(place.store))
        try:
            create_table(place, config)
        except InvalidRequest as error:
            try:
                there = read_table_config(place)
            except NotFound:
                raise TableExists(str(error)) from error  # in the trash: it says when the name is free
            if there != config.model_copy(update={"undropped": there.undropped}):
                raise TableExists(f"table {name!r} is there with another configuration: PATCH changes it") from error
            return _describe(there), False
        return _describe(config), True

    def change(self, name: str, request: TableChange) -> dict[str, Any]:
        """Change a table and return its configuration. Idempotent. Raises as :func:`alter_table_config`."""
        change: dict[str, Any] = dict(request.settings)
        if request.declared:
            change["declared"] = request.declared
        return _describe(alter_table_config(self._warehouse.table(name), change, clock=self._clock))


def _describe(config: TableConfig) -> dict[str, Any]:
    fields = config.model_dump(mode="json")
    return {
        "table": config.name,
        "partition": [str(field) for field in config.partition],
        "sort": list(config.sort),
        "declared": fields["declared"],
        "settings": {name: value for name, value in fields.items() if name not in _OWN_PLACES},
    }
