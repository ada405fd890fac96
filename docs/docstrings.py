"""Makes Markdown of docstrings' roles: ``:class:`x.Y` `` is read as code. Loaded by mkdocstrings."""  # noqa: INP001

import re
from typing import Any, Final

import griffe

ROLE: Final = re.compile(r":\w+:`~?([^`]+)`")


class Roles(griffe.Extension):
    """Takes the roles away."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change an object's docstring."""
        if obj.docstring:
            obj.docstring.value = ROLE.sub(r"`\1`", obj.docstring.value)
