"""Conditions that changes of the simulation have in the place of SQL."""

from dataclasses import dataclass
from typing import Self

import orjson


@dataclass(frozen=True, slots=True)
class RowTest:
    """Which row numbers a change is about: those with a remainder. Its text form stands in for SQL."""

    modulus: int
    rest: int

    def holds(self, row: int) -> bool:
        """Whether the change is about a row."""
        return row % self.modulus == self.rest

    def to_sql(self) -> str:
        """Return the text form."""
        return orjson.dumps([self.modulus, self.rest]).decode()

    @classmethod
    def parse(cls, sql: str) -> Self:
        """Parse the text form."""
        return cls(*orjson.loads(sql))
