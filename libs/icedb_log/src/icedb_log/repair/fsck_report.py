"""What ``icedb fsck`` found: findings, counted and listed up to a bound, and the figures of what was looked at."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from icedb_log.repair.fsck_codes import CODES, SEVERITIES, Severity

REPORT_VERSION: Final = 1
MAX_LISTED: Final = 100
"""Findings of one code and severity that a report lists; all are counted."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be.

    Attributes:
        code: See :data:`icedb_log.repair.fsck_codes.CODES`.
        severity: How bad it is.
        key: Key of the object that it is about; empty: the whole table.
        message: What is wrong, with the values.
        line: Line of a log file, counted from 0.
    """

    code: str
    severity: Severity
    key: str
    message: str
    line: int | None = None


@dataclass(frozen=True, slots=True)
class Counted:
    """How often a code was found.

    Attributes:
        code: The code.
        severity: With which severity.
        count: How often; ``FsckReport.findings`` lists at most :data:`MAX_LISTED` of them.
    """

    code: str
    severity: Severity
    count: int


@dataclass(frozen=True, slots=True)
class FsckReport:
    """What was found in one table.

    Attributes:
        table: Its name.
        is_deep: Whether footers were read.
        findings: The worst first, then by code and key.
        counts: The same, counted.
        figures: What was looked at: numbers by name.
    """

    table: str
    is_deep: bool
    findings: tuple[Finding, ...]
    counts: tuple[Counted, ...]
    figures: Mapping[str, int] = field(default_factory=dict)

    def count(self, severity: Severity) -> int:
        """Return the number of findings of a severity."""
        return sum(counted.count for counted in self.counts if counted.severity == severity)

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong with the rows: no errors."""
        return not self.count("error")

    def to_json(self) -> dict[str, Any]:
        """Return it as ``docs/schemas/icedb.fsck.schema.json`` says."""
        return {
            "version": REPORT_VERSION,
            "table": self.table,
            "sound": self.is_sound,
            "deep": self.is_deep,
            "errors": self.count("error"),
            "warnings": self.count("warning"),
            "notes": self.count("note"),
            "figures": dict(self.figures),
            "counts": [
                {
                    "code": counted.code,
                    "severity": counted.severity,
                    "count": counted.count,
                    "rule": CODES[counted.code].rule,
                    "title": CODES[counted.code].title,
                    "remedy": CODES[counted.code].remedy,
                }
                for counted in self.counts
            ],
            "findings": [
                {
                    "code": finding.code,
                    "severity": finding.severity,
                    "key": finding.key or None,
                    "line": finding.line,
                    "message": finding.message,
                }
                for finding in self.findings
            ],
        }


class Findings:
    """Gathers findings: counts all, keeps the first ones of each code. Not thread-safe.

    Args:
        max_listed: How many of each code and severity are kept.
    """

    def __init__(self, max_listed: int = MAX_LISTED) -> None:
        self._max_listed = max_listed
        self._counts: Counter[tuple[Severity, str]] = Counter()
        self._kept: list[Finding] = []

    def add(
        self, code: str, key: str, message: str, *, line: int | None = None, severity: Severity | None = None
    ) -> None:
        """Take a finding in; its severity is that of its code unless said otherwise."""
        severity = severity or CODES[code].severity
        self._counts[severity, code] += 1
        if self._counts[severity, code] <= self._max_listed:
            self._kept.append(Finding(code, severity, key, message, line))

    def report(self, table: str, *, is_deep: bool, figures: Mapping[str, int]) -> FsckReport:
        """Return everything that was found."""
        order = {severity: number for number, severity in enumerate(SEVERITIES)}
        return FsckReport(
            table=table,
            is_deep=is_deep,
            findings=tuple(
                sorted(self._kept, key=lambda each: (order[each.severity], each.code, each.key, each.line or 0))
            ),
            counts=tuple(
                Counted(code, severity, count)
                for (severity, code), count in sorted(
                    self._counts.items(), key=lambda item: (order[item[0][0]], item[0][1])
                )
            ),
            figures=figures,
        )
