"""What users install: the warehouse in the caller's own process, and the ``icedb`` command.

```python
from icedb import connect

lake = connect("./lake")
events = lake.create_table("events", partition=["d=day(ts)"], sort=["event", "ts"])
events.append([{"ts": "2026-01-02T03:04:05Z", "event": "view"}])
print(events.query("select event, count(*) from events group by 1"))
```
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from icedb.appender import Appender
    from icedb.lake import Lake, connect
    from icedb.lake_table import LakeTable
    from icedb.table_writer import Appended

__all__ = ["Appended", "Appender", "Lake", "LakeTable", "connect"]

_HOMES: Final = {
    "Appended": "table_writer",
    "Appender": "appender",
    "Lake": "lake",
    "LakeTable": "lake_table",
    "connect": "lake",
}
"""The module of each name: it is imported when somebody asks for the name."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
