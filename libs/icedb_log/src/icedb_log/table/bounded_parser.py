"""Reads conditions in SQL with a bound on the work. Pure.

The parser guesses and goes back where a text can mean several things, which doubles the work at each level of
``array[array[…]]``, and it calls itself for each level of nesting. What users send must end in time, either way.
"""

from typing import Any, Final

import sqlglot
from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

MAX_CONDITION_CHARS: Final = 64 * 1024
_MAX_STEPS_PER_TOKEN: Final = 50
"""Steps of the parser. It takes 1 to 5 for what people write, and 2^levels where it guesses and goes back."""
_MIN_STEPS: Final = 1000
_MAX_STEPS: Final = 200_000


class TooMuchWork(Exception):
    """The parser goes back and forth, or too deep: it would not end in time."""


_BASE: Final[Any] = sqlglot.Dialect.get_or_raise("duckdb").parser_class


class BoundedParser(_BASE):  # type: ignore[misc]  # a class that is looked up
    """A parser of DuckDB's SQL that gives up; wants :meth:`bound` to be called before a text."""

    _steps_left = 0

    def bound(self, token_count: int) -> None:
        """Say how long a text is that comes next."""
        self._steps_left = min(_MAX_STEPS, _MIN_STEPS + _MAX_STEPS_PER_TOKEN * token_count)

    def _advance(self, times: int = 1) -> None:
        self._steps_left -= 1
        if self._steps_left < 0:
            raise TooMuchWork
        super()._advance(times)


def parse_condition(condition: str) -> list[Any]:
    """Return the conditions of a text: one, if it is one; none where it has a semicolon.

    Args:
        condition: At most :data:`MAX_CONDITION_CHARS` characters.

    Raises:
        SqlglotError: It is no condition.
        TooMuchWork: It is too long or nested too deeply to be read in time.
    """
    if len(condition) > MAX_CONDITION_CHARS:
        raise TooMuchWork
    parser = BoundedParser(dialect="duckdb")
    tokens = parser.dialect.tokenize(condition)
    if any(token.token_type is TokenType.SEMICOLON for token in tokens):
        return []
    parser.bound(len(tokens))
    try:
        return list(parser.parse_into(exp.Condition, tokens, condition))
    except RecursionError:
        raise TooMuchWork from None
