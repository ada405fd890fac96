"""What SQL of users may say, looked up in DuckDB's own parse of it. Pure; runs in the closed process.

DuckDB serializes one kind of statement only, a query, so nothing else gets as far as this. Its tree is walked without
recursion. What may depend on chance, clock or the order of rows is taken from DuckDB's catalogue (a function's
stability) and from the lists below, which hold what the catalogue does not say.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from icedb_log.texts import first_line

Kind = Literal["query", "repeatable", "condition"]
"""``query``: reads its relation and nothing else; ``repeatable``: gives the same rows each time, too; ``condition``: is
besides about one row, and stands behind ``SELECT``."""

MAX_NESTING: Final = 200
"""Of parentheses: DuckDB's parser needs stack for each."""
TABLE_FUNCTIONS: Final = frozenset(
    {"generate_series", "json_each", "json_tree", "range", "regexp_split_to_table", "repeat", "repeat_row", "unnest"}
)
"""Make rows of their arguments alone."""
_ROW_SOURCES: Final = frozenset(
    {"JOIN", "SUBQUERY", "EXPRESSION_LIST", "EMPTY", "PIVOT", "TABLE_FUNCTION", "BASE_TABLE"}
)
_NODES: Final = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})

ENGINE_FUNCTIONS: Final = frozenset(
    {
        *("current_setting", "getenv", "getvariable", "set_config", "version", "stats", "write_log", "sleep_ms"),
        *("nextval", "currval", "in_search_path", "txid_current", "pg_typeof", "json_execute_serialized_sql"),
        *("current_connection_id", "current_query", "current_query_id", "current_transaction_id", "setseed"),
        *("current_database", "current_schema", "current_schemas", "current_catalog", "current_role", "current_user"),
        *("session_user", "user", "add_parquet_key", "inet_client_addr", "inet_client_port", "inet_server_addr"),
        *("inet_server_port", "get_block_size", "obj_description", "col_description", "shobj_description"),
    }
)
"""Ask the engine or the machine; refused everywhere, as is whatever begins with ``pg_`` or ``has_…_privilege``."""
CHANCE_FUNCTIONS: Final = frozenset(
    {"ago", "approx_quantile", "approx_top_k", "localtime", "localtimestamp", "current_time", "current_timestamp"}
    | {"reservoir_quantile", "pg_conf_load_time", "pg_postmaster_start_time"}
)
"""Of chance or clock, beside those that the catalogue calls so."""
_UNSTABLE_BUT_PURE: Final = frozenset({"error"})
_CLOCK_AT_ONE_ARGUMENT: Final = "age"
ORDERED_AGGREGATES: Final = frozenset(
    {
        *("any_value", "arbitrary", "array_agg", "first", "group_concat", "json_group_array", "json_group_object"),
        *("last", "list", "listagg", "string_agg"),
    }
)
"""Aggregates whose value depends on the order of rows unless they name one."""
ORDERED_WINDOWS: Final = frozenset(
    {"row_number", "first_value", "last_value", "first", "last", "nth_value", "lag", "lead", "ntile", "fill"}
)
VALUES_WITHOUT_PARENTHESES: Final = frozenset(
    {
        *("current_catalog", "current_date", "current_role", "current_schema", "current_time", "current_timestamp"),
        *("current_user", "localtime", "localtimestamp", "session_user", "user"),
    }
)
"""Functions that DuckDB takes a name for if no column is called so."""
_GENERATORS: Final = frozenset({"unnest", "unlist", "regexp_split_to_table", "generate_subscripts"})
_NOT_OF_ONE_ROW: Final = {"SUBQUERY": "no query inside", "WINDOW": "no window", "STAR": "name the columns"}
_SHOWN_CHARS: Final = 80


class Refused(Exception):
    """SQL says more than it may. The message says what, and what to write instead."""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What DuckDB says of its functions and views, in lower case.

    Attributes:
        unstable: Functions that need not give the same for the same arguments.
        aggregates: Functions of several rows.
        system_views: Views that exist without anybody having made them.
    """

    unstable: frozenset[str]
    aggregates: frozenset[str]
    system_views: frozenset[str]


@dataclass(slots=True)
class Rules:
    """Looks at every part of a parsed query.

    Attributes:
        kind: How strict.
        relation: The one relation that may, and must, be read.
        columns: Names of its columns, in lower case.
        catalogue: Of the engine.
        named: Every name in it that may be a column, in lower case.
    """

    kind: Kind
    relation: str
    columns: Collection[str]
    catalogue: Catalogue
    named: set[str] = field(default_factory=set)
    _read: set[str] = field(default_factory=set)
    _defined: set[str] = field(default_factory=set)

    def check(self, serialized: str) -> None:
        """Raise Refused unless all of it is allowed.

        Args:
            serialized: What ``json_serialize_sql`` gave.
        """
        try:
            parsed = json.loads(serialized)
        except RecursionError:
            raise Refused("it is nested too deeply") from None
        if parsed["error"]:
            if parsed.get("error_type") == "not implemented":
                raise Refused("it must be one SELECT, and only read")
            raise Refused(first_line(str(parsed["error_message"])))
        statements = parsed["statements"]
        if len(statements) != 1:
            raise Refused(f"{len(statements)} statements instead of one query")
        stack: list[Any] = [statements[0]["node"]]
        while stack:
            value = stack.pop()
            if isinstance(value, Mapping):
                self._look(value)
                stack.extend(value.values())
            elif isinstance(value, list):
                stack.extend(value)
        self._check_relations()

    def _look(self, node: Mapping[str, Any]) -> None:
        kind, expression = node.get("type"), node.get("class")
        if expression is not None:
            self._check_expression(node, str(expression))
        elif "sample" in node:
            self._check_source(node, str(kind))
        for pair in (node.get("cte_map") or {}).get("map", ()):
            self._defined.add(str(pair["key"]).lower())
        if "modifiers" in node and self.kind != "query":
            _check_modifiers(node["modifiers"])

    def _check_source(self, node: Mapping[str, Any], kind: str) -> None:
        if kind not in _ROW_SOURCES | _NODES:
            raise Refused(f"it must be one SELECT over {self.relation}, without {kind.replace('_', ' ')}")
        if node["sample"] is not None and self.kind != "query":
            raise Refused("a sample is another one each time: choose rows by their values")
        if kind == "TABLE_FUNCTION":
            name = str(node["function"].get("function_name", "")).lower()
            if name not in TABLE_FUNCTIONS:
                raise Refused(
                    f"{name[:_SHOWN_CHARS]}(…): table functions are not allowed, only {self.relation} is read"
                )
        if kind == "BASE_TABLE":
            parts = [node[key] for key in ("catalog_name", "schema_name", "table_name") if node[key]]
            if len(parts) > 1 or node.get("at_clause"):
                raise Refused(
                    f"relation {'.'.join(parts)[:_SHOWN_CHARS]!r}: only {self.relation} can be read, no table, no file"
                )
            self._read.add(str(node["table_name"]).lower())

    def _check_relations(self) -> None:
        view = self.relation.lower()
        if view in self._defined:
            raise Refused(f"a WITH clause hides {self.relation}")
        hidden = self._defined & self.catalogue.system_views
        unknown = self._read - self._defined - {view} | hidden
        if unknown:
            name = min(unknown)[:_SHOWN_CHARS]
            raise Refused(f"relation {name!r} does not exist: only {self.relation} and names of a WITH clause do")
        if view not in self._read and self.kind != "condition":
            raise Refused(f"it does not read {self.relation}")

    def _check_expression(self, node: Mapping[str, Any], kind: str) -> None:
        if kind == "PARAMETER":
            raise Refused("parameters have no value here")
        if self.kind == "condition" and kind in _NOT_OF_ONE_ROW:
            raise Refused(f"it must be about one row: {_NOT_OF_ONE_ROW[kind]}")
        if kind == "COLUMN_REF":
            self._check_column([str(part) for part in node["column_names"]])
        elif kind in ("FUNCTION", "WINDOW"):
            self._check_function(node, str(node.get("function_name", "")).lower(), is_window=kind == "WINDOW")

    def _check_column(self, parts: list[str]) -> None:
        self.named.update(part.lower() for part in parts)
        name = parts[0].lower()
        if len(parts) == 1 and name in VALUES_WITHOUT_PARENTHESES and name not in self.columns:
            self._check_stability(name)

    def _check_function(self, node: Mapping[str, Any], name: str, *, is_window: bool) -> None:
        self._check_stability(name)
        if self.kind == "query":
            return
        if self.kind == "condition" and (name in self.catalogue.aggregates or name in _GENERATORS):
            raise Refused(f"{name}(…): it must be about one row: no aggregate, no generator")
        if name == _CLOCK_AT_ONE_ARGUMENT and len(node.get("children", ())) == 1:
            raise Refused(f"{name}(…) of one time depends on the clock: write the other time, too")
        orders = node.get("orders") if is_window else (node.get("order_bys") or {}).get("orders")
        orders = orders or node.get("arg_orders")
        if name in (ORDERED_WINDOWS if is_window else ORDERED_AGGREGATES) and not orders:
            where = "OVER (… ORDER BY …)" if is_window else f"{name}(… ORDER BY …), or min(…)"
            raise Refused(f"{name}(…) depends on the order of rows, which they do not have: write {where}")

    def _check_stability(self, name: str) -> None:
        is_privilege = name.startswith("has_") and name.endswith("_privilege")
        if name in ENGINE_FUNCTIONS or name.startswith("pg_") or is_privilege:
            raise Refused(f"{name[:_SHOWN_CHARS]}: this function asks the engine, not the rows: write the value itself")
        if self.kind == "query" or name in _UNSTABLE_BUT_PURE:
            return
        if name in self.catalogue.unstable or name in CHANCE_FUNCTIONS or name in VALUES_WITHOUT_PARENTHESES:
            raise Refused(
                f"{name}: its value is another one each time, and rows must not depend on that: write the value itself"
            )


def _check_modifiers(modifiers: list[Mapping[str, Any]]) -> None:
    kinds = {str(modifier["type"]) for modifier in modifiers}
    is_distinct_on = any(modifier.get("distinct_on_targets") for modifier in modifiers)
    is_limited = not kinds.isdisjoint({"LIMIT_MODIFIER", "LIMIT_PERCENT_MODIFIER"})
    if (is_distinct_on or is_limited) and "ORDER_MODIFIER" not in kinds:
        what = "DISTINCT ON" if is_distinct_on else "LIMIT"
        raise Refused(f"{what} without ORDER BY takes whichever rows come first: say in which order")


def is_nested_too_deeply(text: str) -> bool:
    """Whether parentheses and brackets of a text are nested too deeply for DuckDB, quoted ones counted as well."""
    return any(depth > MAX_NESTING for depth in _depths(text))


def _depths(text: str) -> Iterator[int]:
    depth = 0
    for character in text:
        if character in "([{":
            depth += 1
            yield depth
        elif character in ")]}":
            depth -= 1
