"""Who is ahead, by how much, and how costs grow: what is said of stored results. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, Self

from bench.figures import EMBEDDED, OURS
from bench.harness import Row

Kind = Literal["ours", "peer", "bound"]
BOUNDS: Final = ("cp", "decode", "floor", "store ceiling", "loopback", "bound")
"""How names begin of those that do not do the work, but show what the machine or the store takes."""
LITTLE: Final = 1e-9


def kind_of(system: str) -> Kind:
    """Return whether a system is ours, somebody else's, or a bound of the machine."""
    if system == OURS or system.startswith((f"{OURS},", f"{OURS}-", f"{OURS} ")) or system in OUR_DOORS:
        return "ours"
    return "bound" if system.startswith(BOUNDS) else "peer"


OUR_DOORS: Final = frozenset({"client", "producer", "grpc-append", "grpc-stream", "http", "webhook", "celery"})
"""Front ends of ours, by their own names."""


def is_more_better(unit: str) -> bool:
    """Return whether a larger figure of this unit is the better one."""
    return unit.endswith("/s")


def speed_ratio(ours: float, other: float, *, unit: str) -> float:
    """Return how many times as fast (or as small) we are as the other; above 1 we are ahead."""
    ratio = max(ours, LITTLE) / max(other, LITTLE)
    return ratio if is_more_better(unit) else 1 / ratio


@dataclass(frozen=True, slots=True)
class Comparison:
    """One case: ours beside the best of the peers, by the figure that the case is about.

    Attributes:
        case: Its name.
        metric: The figure.
        unit: Of the figure.
        ours: Ours; ``None``: we are not in this case under our own name.
        peer: The best of the peers; ``None``: there is none.
        bounds: What the machine takes.
        embedded: Our library in the caller's process, where ours is a call to a service.
    """

    case: str
    metric: str
    unit: str
    ours: Row | None
    peer: Row | None
    bounds: tuple[Row, ...]
    embedded: Row | None = None

    def of_libraries(self) -> Self | None:
        """Return the comparison of libraries alone; ``None`` where ours is no call to a service."""
        return None if self.embedded is None else replace(self, ours=self.embedded, embedded=None)

    @property
    def ratio(self) -> float | None:
        """How many times as fast we are as the best peer; ``None`` where one is missing."""
        if self.ours is None or self.peer is None:
            return None
        return speed_ratio(self.ours.median, self.peer.median, unit=self.unit)


def compare(rows: Iterable[Row]) -> list[Comparison]:
    """Return a comparison for each case, in their order."""
    by_case: dict[str, list[Row]] = {}
    for row in rows:
        by_case.setdefault(row.case, []).append(row)
    return [_compare_case(case, found) for case, found in by_case.items()]


def lead_rows(rows: Sequence[Row]) -> list[Row]:
    """Return one row a system of the rows of one case: the figure that the case is about, the best system first."""
    metric = rows[0].metric
    lead = [row for row in rows if row.metric == metric]
    return sorted(lead, key=lambda row: row.median, reverse=is_more_better(rows[0].unit))


def _compare_case(case: str, rows: Sequence[Row]) -> Comparison:
    lead = lead_rows(rows)
    kinds: dict[Kind, list[Row]] = {"ours": [], "peer": [], "bound": []}
    for row in lead:
        kinds[kind_of(row.system)].append(row)
    ours = next((row for row in lead if row.system == OURS), None)
    peer = kinds["peer"][0] if kinds["peer"] else None
    embedded = next((row for row in lead if row.system == EMBEDDED), None)
    return Comparison(case, rows[0].metric, rows[0].unit, ours, peer, tuple(kinds["bound"]), embedded)


@dataclass(frozen=True, slots=True)
class Growth:
    """How one figure of one system grows along one axis.

    Attributes:
        axis: What grows.
        system: Whose figure.
        metric: The figure.
        unit: Of the figure.
        exponent: Of the power law ``figure = c · size ** exponent`` that fits best: 0: it does not grow, 1: as fast.
        points: Size and figure, ascending by size.
    """

    axis: str
    system: str
    metric: str
    unit: str
    exponent: float
    points: tuple[tuple[float, float], ...]


def fit_exponent(points: Sequence[tuple[float, float]]) -> float:
    """Return the exponent of the power law that fits best: the slope of a line through the logarithms, least squares.

    Args:
        points: Size and cost; sizes above 0. A cost of 0 counts as the smallest there is beside it, or as 1.

    Raises:
        ValueError: There are fewer than two different sizes.
    """
    if len({size for size, _ in points}) < 2:
        raise ValueError("an exponent needs costs at two sizes at least")
    least = min((cost for _, cost in points if cost > 0), default=1.0)
    xs = [math.log(size) for size, _ in points]
    ys = [math.log(cost if cost > 0 else least) for _, cost in points]
    mean_x, mean_y = math.fsum(xs) / len(xs), math.fsum(ys) / len(ys)
    across = math.fsum((x - mean_x) ** 2 for x in xs)
    return math.fsum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / across


def fit_growth(rows: Iterable[Row]) -> list[Growth]:
    """Return the exponents of all figures of cases that lie on an axis, where there are two sizes at least."""
    found: dict[tuple[str, str, str, str], list[tuple[float, float]]] = {}
    for row in rows:
        if row.axis:
            found.setdefault((row.axis, row.system, row.metric, row.unit), []).append((row.at, row.median))
    return [
        Growth(*key, fit_exponent(points), tuple(sorted(points)))
        for key, points in found.items()
        if len({size for size, _ in points}) > 1
    ]


def describe_growth(rows: Iterable[Row]) -> list[str]:
    """Return a line for each exponent."""
    return [
        f"{each.system}: {each.metric.replace('_', ' ')} grows with {each.axis} ^ {each.exponent:.2f}"
        for each in fit_growth(rows)
    ]


def by_axis(growth: Iterable[Growth]) -> Mapping[str, list[Growth]]:
    """Group by axis."""
    axes: dict[str, list[Growth]] = {}
    for each in growth:
        axes.setdefault(each.axis, []).append(each)
    return axes
