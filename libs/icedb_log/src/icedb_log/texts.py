"""What counts as text where people send some."""

from typing import Annotated, TypeAlias

from pydantic import AfterValidator


def is_text(value: str) -> bool:
    """Whether a string has a UTF-8 form: arguments of a command, and escapes of JSON, may hold lone surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _require_text(value: str) -> str:
    if not is_text(value):
        raise ValueError("it has half a character (a lone surrogate), so that it cannot be written down")
    return value


Text: TypeAlias = Annotated[str, AfterValidator(_require_text)]
"""A field of a model that is written down as JSON."""
