"""Hands SQL of users to Spark, so that Spark can do no more with it than with a query over our own view.

The check of the text (:mod:`icedb_engine.query.user_sql`) goes by one parser, Spark by another one, and where the two
read a text differently the check has looked at something else. So what Spark gets is looked at once more, as Spark
parses it: first the parsed plan, by lists of what is allowed, before anything of it is run (Spark runs commands while
it is asked for their result); then what the names in it have become. Comments are blanks by then, and the query stands
in parentheses, where no command can stand.

A Spark Connect server parses for itself: there, the text, the parentheses and the session's settings have to do.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from py4j.java_gateway import JavaObject  # type: ignore[import-untyped]

from icedb_engine.query.spark_functions import ALLOWED, GENERATORS, MAX_ARGUMENTS
from icedb_engine.query.user_sql import blank_comments

MAX_PLAN_PARTS: Final = 20_000
"""Parts of a parsed query, each of which is looked at."""
_CATALYST: Final = "org.apache.spark.sql.catalyst."
_EXPRESSIONS: Final = (f"{_CATALYST}expressions.", f"{_CATALYST}analysis.", f"{_CATALYST}parser.")
_PLANS: Final = f"{_CATALYST}plans.logical."
_Kind = Literal["plan", "node", "collection", "product", "value"]
_KINDS: Final[tuple[tuple[str, _Kind], ...]] = (
    (f"{_PLANS}LogicalPlan", "plan"),
    (f"{_CATALYST}trees.TreeNode", "node"),
    ("scala.collection.Iterable", "collection"),
    ("scala.Product", "product"),
)
"""What an object of Spark's parser may be; the first that fits."""
_kinds_seen: Final[dict[str, _Kind]] = {}
"""By class: asking the JVM again and again takes longer than all the rest."""
MAX_REMEMBERED: Final = 1000
_remembered: Final[set[tuple[str, str | None]]] = set()
"""Texts that were found to be in order, with the view that they may read."""

_ALLOWED_PLANS: Final = frozenset(
    {
        *(
            "Project",
            "Filter",
            "Aggregate",
            "UnresolvedHaving",
            "UnresolvedQualify",
            "Distinct",
            "Deduplicate",
            "Sort",
            "Sample",
        ),
        *("GlobalLimit", "LocalLimit", "Limit", "LimitAll", "Offset", "Tail", "Window", "WithWindowDefinition"),
        *("Join", "LateralJoin", "Union", "UnionLoop", "Intersect", "Except", "SubqueryAlias", "Generate", "Expand"),
        *("Pivot", "Unpivot", "RepartitionByExpression", "RebalancePartitions", "PipeOperator", "OneRowRelation"),
        *("UnresolvedWith", "UnresolvedRelation", "UnresolvedSubqueryColumnAliases", "UnresolvedInlineTable"),
        *("LocalRelation", "WithCTE", "CTERelationDef", "CTERelationRef", "UnionLoopRef", "ResolvedInlineTable"),
        *("UnresolvedQualify", "UnresolvedTVFAliases", "UnresolvedTableValuedFunction"),
    }
)
"""What a query may consist of, as Spark's parser calls it. No command, hint, script, or stream."""
_ROWLESS: Final = frozenset({"LocalRelation", "OneRowRelation", "CTERelationRef", "UnionLoopRef"})
"""Where rows come from, besides the view: from the text itself."""
_FORBIDDEN_EXPRESSIONS: Final = frozenset(
    {"NamedParameter", "PosParameter", "ExpressionWithUnresolvedIdentifier", "PlanWithUnresolvedIdentifier"}
)


class ReachesBeyond(Exception):
    """A query is more than a query over its view. The message says where."""


def run_query(spark: Any, query: str, *, view: str) -> Any:
    """Return what a user's query gives over the view of that name, as a DataFrame; no row is read yet.

    Args:
        spark: The session, in which the view stands.
        query: Spark SQL that :func:`icedb_engine.query.user_sql.check_user_sql` has let pass.
        view: The one relation that it may read.

    Raises:
        ReachesBeyond: It is more than that.
        PySparkException: Spark cannot parse or analyse it.
    """
    text = f"SELECT * FROM ({blank_comments(query)}\n)"  # noqa: S608 - what it is, is looked at next
    parser = _find_parser(spark)
    if parser is not None and (text, view) not in _remembered:
        _Walk(spark, view=view).check(parser.parsePlan(text))
        _remember(text, view)
    result = spark.sql(text)
    if parser is not None:
        _check_sources(spark, result, view)
    files = result.inputFiles()
    if files:
        raise ReachesBeyond(f"it reads {files[0][:200]}; only {view} can be read")
    return result


def guard_condition(spark: Any, condition: str) -> str:
    """Return the text of a condition that Spark may evaluate: about one row, with functions that are allowed.

    Args:
        spark: The session.
        condition: Spark SQL that :func:`icedb_engine.query.user_sql.check_condition` has let pass.

    Raises:
        ReachesBeyond: It is more than that.
        PySparkException: Spark cannot parse it.
    """
    text = f"({blank_comments(condition)}\n)"
    parser = _find_parser(spark)
    if parser is not None and (text, None) not in _remembered:
        _Walk(spark, view=None).check(parser.parseExpression(text))
        _remember(text, None)
    return text


@dataclass(slots=True)
class _Walk:
    """Looks at every part of a parsed plan.

    Attributes:
        spark: The session.
        view: The relation that may be read; none for a condition.
        names: Names of WITH clauses found on the way.
        relations: Names of relations found on the way.
    """

    spark: Any
    view: str | None
    names: set[str] = field(default_factory=set)
    relations: set[str] = field(default_factory=set)

    def check(self, tree: Any) -> None:
        """Raise ReachesBeyond unless all of it is allowed."""
        stack = [tree]
        part_count = 0
        while stack:
            part_count += 1
            if part_count > MAX_PLAN_PARTS:
                raise ReachesBeyond(f"it has more than {MAX_PLAN_PARTS} parts")
            stack.extend(self._look(stack.pop()))
        unknown = self.relations - self.names - ({self.view.lower()} if self.view else set())
        if unknown:
            raise ReachesBeyond(f"relation {min(unknown)!r} cannot be read, only {self.view}")

    def _look(self, value: Any) -> Iterator[Any]:
        """Check one part, and yield those that it consists of."""
        class_name = str(value.getClass().getName())
        kind = _find_kind(self.spark, value, class_name)
        if kind == "plan":
            self._check_plan(value, class_name)
        elif kind == "node":
            _check_expression(value, class_name)
        if kind != "value":
            parts = value.iterator() if kind == "collection" else value.productIterator()
            yield from (part for part in _iterate(parts) if isinstance(part, JavaObject))

    def _check_plan(self, node: Any, class_name: str) -> None:
        name = _short(class_name)
        if self.view is None:
            raise ReachesBeyond("it has a query inside")
        if name not in _ALLOWED_PLANS or not class_name.startswith(_CATALYST):
            raise ReachesBeyond(f"it has a part that is no plain query ({name})")
        if name == "UnresolvedWith":
            self.names |= {str(pair.productElement(0)).lower() for pair in _iterate(node.cteRelations().iterator())}
        if name == "UnresolvedTableValuedFunction":
            _check_generator(".".join(str(part) for part in _iterate(node.name().iterator())))
        if name == "UnresolvedRelation":
            parts = [str(part) for part in _iterate(node.multipartIdentifier().iterator())]
            if len(parts) != 1 or node.isStreaming() or not node.options().isEmpty():
                raise ReachesBeyond(f"relation {'.'.join(parts)[:120]!r} cannot be read, only {self.view}")
            self.relations.add(parts[0].lower())


def _check_expression(node: Any, class_name: str) -> None:
    name = _short(class_name)
    if not class_name.startswith(_EXPRESSIONS) or name in _FORBIDDEN_EXPRESSIONS:
        raise ReachesBeyond(f"it has a part that is no plain expression ({name})")
    if name == "UnresolvedFunction":
        _check_function([str(part) for part in _iterate(node.nameParts().iterator())], node.arguments().size())
    elif name == "UnresolvedGenerator":
        _check_generator(str(node.name().unquotedString()))


def _check_function(parts: list[str], argument_count: int) -> None:
    name = parts[-1].lower()
    if len(parts) != 1 or name not in ALLOWED:
        raise ReachesBeyond(
            f"function {'.'.join(parts)[:120]!r} cannot be called: only Spark's own, by their bare names"
        )
    if argument_count > MAX_ARGUMENTS.get(name, argument_count):
        raise ReachesBeyond(f"{name} takes {MAX_ARGUMENTS[name]} arguments here: its options can name files")


def _check_generator(name: str) -> None:
    if name.lower() not in GENERATORS:
        raise ReachesBeyond(f"function {name[:120]!r} cannot make rows, only {', '.join(sorted(GENERATORS))}")


def _check_sources(spark: Any, result: Any, view: str) -> None:
    """Raise ReachesBeyond unless every row of an analysed plan comes from our view, or from the query's own text."""
    stack = [result._jdf.queryExecution().analyzed()]  # noqa: SLF001 - PySpark has no public word for the plan
    while stack:
        node = stack.pop()
        name = _short(str(node.getClass().getName()))
        if name == "View" and node.isTempView() and str(node.desc().identifier().table()).lower() == view.lower():
            continue
        inside = [*_iterate(node.children().iterator()), *_iterate(node.innerChildren().iterator())]
        plans = [each for each in inside if _find_kind(spark, each, str(each.getClass().getName())) == "plan"]
        if not plans and name not in _ROWLESS:
            raise ReachesBeyond(f"it reads something else than {view} ({name})")
        stack.extend(plans)


def _find_parser(spark: Any) -> Any:
    """Return Spark's parser; ``None`` for a session of a Spark Connect server, which parses for itself."""
    session = getattr(spark, "_jsparkSession", None)
    return None if session is None else session.sessionState().sqlParser()


def _find_kind(spark: Any, value: Any, class_name: str) -> _Kind:
    kind = _kinds_seen.get(class_name)
    if kind is None:
        classes = spark._sc._gateway.jvm.java.lang.Class  # noqa: SLF001 - as above
        fitting = (kind for name, kind in _KINDS if classes.forName(name).isInstance(value))
        kind = _kinds_seen[class_name] = next(fitting, "value")
    return kind


def _remember(text: str, view: str | None) -> None:
    if len(_remembered) >= MAX_REMEMBERED:
        _remembered.clear()
    _remembered.add((text, view))


def _short(class_name: str) -> str:
    return class_name.rstrip("$").rpartition(".")[2]


def _iterate(iterator: Any) -> Iterator[Any]:
    while iterator.hasNext():
        yield iterator.next()
