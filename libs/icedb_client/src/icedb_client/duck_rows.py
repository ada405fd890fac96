"""Rows of a query: DuckDB's lazy result, whose errors are ours and which holds the files that it reads."""

import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import duckdb
from icedb_log.errors import InvalidRequest

from icedb_client.duck import UNREADABLE, unreadable
from icedb_client.duck_text import why_it_failed
from icedb_client.read_lease import ReadLease

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation


class Rows:
    """The rows of a query, computed when they are taken.

    Has every method and attribute of :class:`duckdb.DuckDBPyRelation`: ``.fetchall()``, ``.fetchmany(n)``, ``.df()``,
    ``.pl()``, ``.to_arrow_table()``, ``.columns``, … What they return is DuckDB's; what they raise is ours. A context
    manager; leases that it took are released by :meth:`close`, or when nothing refers to it any more.

    Args:
        relation: DuckDB's result.
        leases: What keeps the files; checked before and after each method.
        connection: Owns the result.
        releasing: Releases the leases.
    """

    def __init__(
        self,
        relation: "DuckDBPyRelation",
        *,
        connection: "DuckDBPyConnection",
        leases: Sequence[ReadLease],
        releasing: ExitStack,
    ) -> None:
        self.connection = connection
        self._relation = relation
        self._leases = leases
        self._release = weakref.finalize(self, releasing.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection and release what keeps the files. May be called again."""
        self.connection.close()
        self._release()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._relation, name)
        return self._guarded(found) if callable(found) else found

    def __len__(self) -> int:
        return int(self._guarded(self._relation.__len__)())

    def __str__(self) -> str:
        return str(self._guarded(self._relation.__str__)())

    def __repr__(self) -> str:
        return str(self)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._guarded(self._relation.__arrow_c_stream__)(requested_schema)

    def _guarded(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            self._check()
            try:
                answer = method(*args, **kwargs)
            except UNREADABLE as error:
                raise unreadable(error) from error
            except duckdb.Error as error:
                raise InvalidRequest(f"the query failed: {why_it_failed(error)}") from error
            self._check()
            return answer

        return call

    def _check(self) -> None:
        for lease in self._leases:
            lease.check()
