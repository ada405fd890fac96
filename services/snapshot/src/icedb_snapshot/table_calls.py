"""ListTables and GetTable: which tables there are for a caller, and what they are. Reads only."""

import base64
import binascii
from itertools import islice
from typing import Any, Final

import grpc
from icedb_log.errors import InvalidRequest
from icedb_log.keys import TABLE_NAME, check_table_name
from icedb_log.serving.table_cache import TableState
from icedb_log.table.retention import find_time_field
from icedb_proto import snapshot_pb2 as pb
from icedb_service.access.access_file import Verb
from icedb_service.readers import TableNames

from icedb_snapshot.parts import ServiceParts
from icedb_snapshot.request_fields import read_glob, read_max_staleness_ms

MAX_PAGE_SIZE: Final = 1000


class TableCalls:
    """Answers ListTables and GetTable.

    Args:
        parts: What handlers share.
        names: Which tables there are.
    """

    def __init__(self, parts: ServiceParts, names: TableNames) -> None:
        self._parts = parts
        self._access = parts.access
        self._names = names

    def methods(self) -> dict[str, Any]:
        """Return the handlers by method."""
        return {
            "ListTables": grpc.unary_unary_rpc_method_handler(
                self.list_tables,
                request_deserializer=pb.ListTablesRequest.FromString,
                response_serializer=pb.ListTablesResponse.SerializeToString,
            ),
            "GetTable": grpc.unary_unary_rpc_method_handler(
                self.get_table,
                request_deserializer=pb.GetTableRequest.FromString,
                response_serializer=pb.Table.SerializeToString,
            ),
        }

    async def list_tables(self, request: pb.ListTablesRequest, context: Any) -> pb.ListTablesResponse:
        """Return one page of the names that the caller may read, ascending.

        A page goes on behind the last name of the one before: tables that come and go meanwhile shift nothing.

        Raises:
            IceDBError: Whatever is wrong; the interceptor turns it into a status code.
        """
        identity = self._access.identify(context)
        page_size = _read_page_size(request)
        after = _decode_token(request.page_token) if request.HasField("page_token") else ""
        fits = read_glob(request.glob).match if request.HasField("glob") else None
        guard = self._access.guard
        found = (
            name
            for name in await self._names.read()
            if name > after and (fits is None or fits(name)) and guard.allows(identity, Verb.READ, name)
        )
        page = list(islice(found, page_size + 1))
        has_more = len(page) > page_size
        del page[page_size:]
        return pb.ListTablesResponse(tables=page, next_page_token=_encode_token(page[-1]) if has_more else None)

    async def get_table(self, request: pb.GetTableRequest, context: Any) -> pb.Table:
        """Return what a table is.

        Raises:
            IceDBError: Whatever is wrong; the interceptor turns it into a status code.
        """
        self._access.require(context, Verb.READ, request.table)
        max_staleness_ms = read_max_staleness_ms(request, default_ms=self._parts.settings.snapshot_max_staleness_ms)
        table = check_table_name(request.table)
        return describe_table(await self._parts.reads.read(table, max_staleness_ms=max_staleness_ms))


def describe_table(state: TableState) -> pb.Table:
    """Return the configuration and the columns of a table as the wire has them. Pure."""
    config, snapshot = state.config, state.snapshot
    time_field = None if config.retention_ms is None else find_time_field(config)
    return pb.Table(
        name=config.name,
        schema=[
            pb.Column(name=name, type=sql_type, narrow_type=snapshot.narrow_types.get(name))
            for name, sql_type in snapshot.schema.items()
        ],
        partition_fields=[
            pb.PartitionField(name=field.name, transform=field.transform, column=field.column, width=field.width)
            for field in config.partition
        ],
        sort_columns=config.sort,
        data_grace_ms=config.data_grace_ms,
        log_grace_ms=config.log_grace_ms,
        retention_ms=config.retention_ms,
        retention_field=None if time_field is None else time_field.name,
        horizon_ms=snapshot.horizon_ms or None,
    )


def _read_page_size(request: pb.ListTablesRequest) -> int:
    if not request.HasField("page_size"):
        return MAX_PAGE_SIZE
    size = int(request.page_size)
    if not 1 <= size <= MAX_PAGE_SIZE:
        raise InvalidRequest(f"page_size {size} is not allowed: use 1 to {MAX_PAGE_SIZE}, or leave it out")
    return size


def _encode_token(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode()


def _decode_token(token: str) -> str:
    try:
        name = base64.urlsafe_b64decode(token).decode()
    except (binascii.Error, ValueError):
        name = ""
    if not TABLE_NAME.fullmatch(name):
        raise InvalidRequest(
            f"page_token {token[:80]!r} is not one that this service returned: use next_page_token as it is, or leave "
            "it out to begin"
        )
    return name
