"""Keeps redis-py from loading OpenTelemetry where it finds it, for metrics of its own that nobody asked for.

That takes 70 modules and a tenth of a second of each process, though traces are off; and it happens when ``redis`` is
imported for the first time, by whatever library. So that import does not find OpenTelemetry, as long as the environment
wants no traces; later ones do. Imported before anything else of this package.
"""

import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from os import environ
from types import ModuleType
from typing import Final

_HIDDEN: Final = "opentelemetry"
ENABLING: Final = ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""Any of these variables asks for traces."""


def is_wanted(variables: Mapping[str, str] = environ) -> bool:
    """Return whether the standard variables ask for traces."""
    if variables.get("OTEL_SDK_DISABLED", "").lower() == "true" or variables.get("OTEL_TRACES_EXPORTER") == "none":
        return False
    return any(variables.get(name) for name in ENABLING)


class _Plain(Loader):
    """Loads a module while OpenTelemetry seems not to be there."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        is_there = _HIDDEN in sys.modules  # somebody of this process has it already: then nothing is gained
        if not is_there:
            sys.modules[_HIDDEN] = None  # type: ignore[assignment]  # which is how a module is said not to be there
        try:
            self._loader.exec_module(module)
        finally:
            if not is_there:
                sys.modules.pop(_HIDDEN, None)


class _Finder(MetaPathFinder):
    """Stands in the way of the first import of redis."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname != "redis":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Plain(spec.loader)
        return spec


if "redis" not in sys.modules and not is_wanted():
    sys.meta_path.insert(0, _Finder())
