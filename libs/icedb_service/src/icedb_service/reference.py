"""Renders the reference pages of the documentation from the code itself: metrics and settings.

Pure. The pages are written by ``docs/reference.py``; a test keeps them equal to what is rendered here.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry
from pydantic_core import PydanticUndefined

from icedb_service.settings import ServiceSettings, env_name

OPEN_LABELS: Final = frozenset({"table", "version", "python"})
"""Labels whose values are not listed: they are not known beforehand."""


def render_metrics(registry: CollectorRegistry) -> str:
    """Return a table of the registry's own metrics (``icedb_…``), by name."""
    rows = []
    for collector in registry._collector_to_names:  # noqa: SLF001 - a registry has no public list of collectors
        name = getattr(collector, "_name", "")
        if name.startswith("icedb_"):
            rows.append(_metric_row(collector))
    head = ["| metric | type | labels | meaning |", "| --- | --- | --- | --- |"]
    return "\n".join([*head, *sorted(rows)])


def render_settings(kind: type[ServiceSettings], *, besides: Iterable[str] = ()) -> str:
    """Return a table of the fields of a settings class.

    Args:
        kind: The class.
        besides: Fields to leave out, because another table has them.
    """
    left_out = set(besides)
    rows = []
    for name, field in kind.model_fields.items():
        if name not in left_out:
            meaning = " ".join((field.description or "").split()).replace("|", "\\|")
            rows.append(f"| `{env_name(name)}` | {_default_text(field.default)} | {meaning} |")
    return "\n".join(["| variable | default | meaning |", "| --- | --- | --- |", *rows])


def _metric_row(collector: Any) -> str:
    kind = collector._type  # noqa: SLF001
    name = collector._name + ("_total" if kind == "counter" else "")  # noqa: SLF001
    labels = _label_texts(collector._labelnames, tuple(getattr(collector, "_metrics", ())))  # noqa: SLF001
    return f"| `{name}` | {kind} | {'; '.join(labels) or 'none'} | {collector._documentation} |"  # noqa: SLF001


def _label_texts(names: Sequence[str], values: Sequence[tuple[str, ...]]) -> list[str]:
    texts = []
    for position, name in enumerate(names):
        known = sorted({value[position] for value in values})
        texts.append(f"`{name}`" if name in OPEN_LABELS or not known else f"`{name}`: {', '.join(known)}")
    return texts


def _default_text(default: object) -> str:
    if default is PydanticUndefined:
        return "required"
    return "not set" if default in (None, (), {}, "") else f"`{default}`"
