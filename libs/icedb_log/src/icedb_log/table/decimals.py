"""The type ``DECIMAL(p,s)``: its one spelling, and its values as text and as whole numbers. Pure.

A value has at most ``p`` digits, ``s`` of them behind the point. In markers and partition values it is exact text with
all of these: ``19.90`` of a ``DECIMAL(18,2)``, ``-0.05``, ``7`` of a ``DECIMAL(9,0)``. Parquet has it as a whole
number, ``1990``. Nothing here goes through a DOUBLE, or through a context of Python that rounds.
"""

import re
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Final

MAX_DIGITS: Final = 38
EXAMPLE: Final = "DECIMAL(18,2)"
_TYPE: Final = re.compile(r"DECIMAL\(([1-9][0-9]?),(0|[1-9][0-9]?)\)")
_LOOSE: Final = re.compile(r"(?:DECIMAL|NUMERIC|DEC)\s*\(\s*([0-9]{1,2})\s*(?:,\s*([0-9]{1,2})\s*)?\)", re.IGNORECASE)
_TEXT: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?")
_EXACT: Final = Context(prec=2 * MAX_DIGITS, traps=[Inexact, InvalidOperation])
_SHORT_BYTES: Final = ((9, "INT32"), (18, "INT64"))


@dataclass(frozen=True, slots=True)
class DecimalType:
    """A type ``DECIMAL(p,s)``.

    Attributes:
        precision: Digits in all, 1 to 38.
        scale: Digits behind the point, at most all.
    """

    precision: int
    scale: int

    def __str__(self) -> str:
        return f"DECIMAL({self.precision},{self.scale})"

    @property
    def is_valid(self) -> bool:
        """Whether there is such a type."""
        return 0 <= self.scale <= self.precision <= MAX_DIGITS and self.precision > 0

    @property
    def physical(self) -> str:
        """How our data files have it: the shortest of Parquet's types that takes all digits."""
        return next((name for digits, name in _SHORT_BYTES if self.precision <= digits), "FIXED_LEN_BYTE_ARRAY")

    def scale_up(self, value: Decimal) -> int:
        """Return a value as the whole number that Parquet has. Raises decimal.Inexact: it has more digits."""
        return int(_EXACT.quantize(_EXACT.scaleb(value, self.scale), Decimal(1)))

    def scale_down(self, number: int) -> Decimal:
        """Return the value of a whole number, with all digits behind the point."""
        return _EXACT.scaleb(Decimal(number), -self.scale)

    def read(self, text: str) -> Decimal | None:
        """Return the value of a text; ``None``: it is none of this type, or does not have all digits."""
        if not _TEXT.fullmatch(text):
            return None
        value = Decimal(text)
        _, digits, exponent = value.as_tuple()
        return value if exponent == -self.scale and len(digits) <= self.precision else None


def find_decimal(sql_type: str | None) -> DecimalType | None:
    """Return the type of its one spelling; ``None``: it is another type."""
    match = _TYPE.fullmatch(sql_type or "")
    if match is None:
        return None
    found = DecimalType(int(match[1]), int(match[2]))
    return found if found.is_valid else None


def spell_decimal(text: str) -> str | None:
    """Return the one spelling of a type such as ``numeric( 18, 2 )``; ``None``: there is no such type."""
    match = _LOOSE.fullmatch(text.strip())
    if match is None:
        return None
    found = DecimalType(int(match[1]), int(match[2] or 0))
    return str(found) if found.is_valid else None


def show_decimal(value: Decimal) -> str:
    """Return the text of a value that has all digits behind its point."""
    return format(value, "f")


def is_decimal_text(text: str) -> bool:
    """Return whether a text may be that of a decimal."""
    return _TEXT.fullmatch(text) is not None
