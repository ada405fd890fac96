"""Findings of ``icedb fsck``: every kind, with code, severity, rule, words and remedy; and the report that counts them.

Codes are for scripts: never renamed, never used for something else. ``docs/repair.md`` explains each.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from icedb_log.model import EMPTY

Severity = Literal["error", "warning", "note"]
"""``error``: rows are wrong, missing or unreadable; ``warning``: will become an error, or wastes; ``note``: to know."""

SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "note")

REPORT_VERSION: Final = 1
MAX_LISTED: Final = 100
"""Findings of one code and severity that a report lists; all are counted."""


@dataclass(frozen=True, slots=True)
class Code:
    """One kind of finding.

    Attributes:
        name: The code.
        severity: How bad it is, in its first case.
        rule: The rule of ``docs/protocol.md`` that is broken or applied; ``Wire`` and ``Objects`` are its sections.
        title: What it is, in a few words.
        remedy: What to do.
        says: What is wrong with one object, with the values in braces.
        cases: Other cases of it by name, which :meth:`Findings.add` takes as ``code:case``: severity and words of each.
    """

    name: str
    severity: Severity
    rule: str
    title: str
    remedy: str
    says: str
    cases: Mapping[str, tuple[Severity, str]] = field(default_factory=lambda: EMPTY)


_REBUILD: Final = "copy the table's `_log` away, then `icedb rebuild TABLE --dry-run`"
_ASK_WRITER: Final = "find out who wrote it; no release of IceDB does"
_VACUUM: Final = "nothing: the janitor removes it; if it stays, look whether a janitor runs"

_ALL: Final = (
    Code("log-lost", "error", "S1", "there are data files and no log at all: the table looks empty",
        "stop the janitor before it takes them for orphans, and `icedb rebuild TABLE --dry-run`",
        "{count:,} data files, and no log file",
        {"doubtful": ("warning",
            "{count:,} data files, and no log file; or the first commit is just under way, or was cut off")}),
    Code("commit-lost", "error", "F5", "a commit landed, and its log file is gone: its rows are missing",
        "bring it back from an older version of the object; else stop workers and janitor of the table, which deletes "
        "its files after the orphan age, and `icedb rebuild TABLE --dry-run`",
        "its fence says that it landed, at {time}"),
    Code("log-malformed", "error", "S3", "a log file cannot be read: the table is halted", _REBUILD, "{problem}"),
    Code("wire", "error", "Wire", "a log file that existing v3 readers refuse or misread", _ASK_WRITER, "{problem}"),
    Code("log-misnamed", "error", "Wire", "an object below `_log/` that is no log file: the table is halted",
        "move it somewhere else", "only log files may stand below _log; every reader takes it for one"),
    Code("stray-below-log", "error", "Wire", "an object beside `_log/` that existing v3 readers take for a log file",
        "move it somewhere else", "readers list everything that begins with _log"),
    Code("log-count", "warning", "Wire", "so many log files that existing v3 readers will not see them all",
        "look whether merge workers and the janitor run; `icedb merge TABLE --dry-run`",
        "{count} log files; below 1,000 they have to stay",
        {"full": ("error", "{count} log files: a reader that asks for one page of 1,000 misses rows")}),
    Code("clock-skew", "warning", "R3", "a commit's time and the store's clock differ by minutes",
        "set the clocks of the workers' hosts (NTP)",
        "its time is {minutes:,.0f} min later than the store's at its commit",
        {"late": ("note",
            "its time is {minutes:,.0f} min earlier than the store's at its commit, or the table was copied")}),
    Code("store-clock", "warning", "J1", "the store's clock cannot be trusted: nothing is deleted until it can",
        "set the clocks of store and hosts; see the runbook",
        "the store's clock and this host's differ by {minutes:,.0f} min, and one of them is wrong",
        {"objects": ("warning",
            "{count} objects are younger than the store's own clock, this one by {minutes:,.0f} min")}),
    Code("tombstone-time", "warning", "J1", "a tombstone from the future: it will not expire for long",
        "set the clocks of the workers' hosts; what it holds back goes when its time has come",
        "{count} tombstones lie in the store's future, the first is {path}: {time_ms}"),
    Code("horizon", "warning", "R3", "the recorded horizon lies in the future: time travel is refused",
        "set the clocks of the workers' hosts; it ends when its time has come",
        "no time before {horizon_ms} can be read"),
    Code("commit-not-unique", "warning", "W2", "two log files of one commit",
        "if a log file was copied, remove the copy while no worker runs", "commit {commit_id} is also in {twin}"),
    Code("batch-twice", "error", "I3", "one batch was committed twice, or committed and refused: rows are there twice",
        "compare the data files of both commits and delete the rows of one: `icedb delete TABLE --where …`",
        "batch {batch_id} was committed by {other}, too",
        {"refused": ("error", "batch {batch_id} was refused here and committed by {other}: a retry doubles its rows")}),
    Code("marker-order", "error", "S1", "existing v3 readers count rows that are replaced: a tombstone sorts too early",
        "`icedb merge TABLE --full` writes the partition anew",
        "{path} is live here, behind the log file that holds its tombstone"),
    Code("marker-not-carried", "error", "M1", "a vacuum will change which rows are live: a dead log file alone knows",
        "stop the janitor before anything is deleted, and " + _REBUILD,
        "is live, but only dead log files list it: its rows will be lost",
        {"dead": ("error", "is dead, but only dead log files say so: its rows will come back")}),
    Code("double-listing", "warning", "S1", "a data file is listed more than once",
        "`icedb merge TABLE --full`; if the lists disagree, `icedb rebuild TABLE --force`, which asks the files",
        "{path} is listed {place}",
        {"unequal": ("error",
            "{path} is listed {place}, with another size or number of rows: {sizes} bytes, {rows} rows")}),
    Code("schema-conflict", "error", "S2", "a column has two types: the table is halted",
        "correct the log file that is wrong: only its schema line, with the table's workers stopped",
        "column {column!r} is {types}"),
    Code("schema-not-carried", "error", "S2", "a vacuum will lose a column or a widening: a dead log file alone knows",
        "stop the janitor; write one batch with that column", "column {column!r} stands in dead log files only",
        {"wider": ("error", "dead log files alone say that column {column!r} is wider")}),
    Code("widening", "error", "S2", "a partition or sort column became wider, which no rule allows", _ASK_WRITER,
        "column {column!r} lays out data files and became wider"),
    Code("foreign-path", "error", "Objects", "a name in the log that is no file of this table",
        _ASK_WRITER + "; merges and vacuums halt on it", "{problem}"),
    Code("seal", "note", "F4", "seals, which keep lost commits from landing", _VACUUM,
        "{count} seals, the oldest for {minutes:,.0f} min{end}",
        {"taken": ("warning", "a merge took this seal, so that it may be deleted too early")}),
    Code("dangling", "error", "W1", "the log lists a data file as live that is not there: its rows are lost",
        "bring it back from a backup or an older version of the object under the same key; else `icedb rebuild TABLE`",
        "is live and not there: {rows} rows are lost",
        {"just-now": ("error", "is live, and went while it was looked at: its rows are lost")}),
    Code("dangling-dead", "warning", "J1", "a dead data file went before its time: queries and time travel may fail",
        "find out who deletes in this bucket beside the janitor (lifecycle rules, people)",
        "died, and went {minutes:,.1f} min or more before its grace period is over"),
    Code("orphan", "warning", "J5", "data files that no log file names",
        "nothing: `icedb orphans TABLE` shows them, the janitor deletes them; young ones may be about to be committed",
        "{size_bytes:,} bytes that no log file names",
        {"young": ("note",
            "{count} young data files that no log file names: about to be committed, or left by a run cut off"),
         "more": ("warning", "and {count:,} more that the log did not name")}),
    Code("size-mismatch", "error", "Objects",
        "a data file has another size than the log says: something else lies there",
        "bring it back from a backup or an older version of the object", "{found:,} bytes; the log says {logged:,}"),
    Code("config-unreadable", "error", "Objects", "the table's configuration is not there or not understood",
        "bring back `_icedb/table.json` from a backup; a newer release may be needed", "{problem}",
        {"missing": ("error", "it is not there: nobody finds the table any more")}),
    Code("config-mismatch", "error", "Objects", "configuration and data do not fit each other",
        "bring back the right `_icedb/table.json`: partitions and sort order of a table never change", "{problem}",
        {"name": ("error", "it is the configuration of table {name!r}"),
         "type": ("error", "column {column!r} is declared {declared}; the log says {known}"),
         "column": ("error", "column {column!r} makes partitions, and the log has none")}),
    Code("unknown-object", "note", "Objects", "objects of which this release knows nothing; they are never deleted",
        "if they are yours, keep them outside the table", "{size_bytes:,} bytes"),
    Code("footer-unreadable", "error", "Objects", "a live data file is damaged, or no Parquet file",
        "bring it back from a backup or an older version of the object", "{problem}"),
    Code("row-count-mismatch", "error", "M3", "a live data file has another number of rows than the log says",
        "its merges halt: bring the file back from a backup, or `icedb rebuild TABLE`",
        "{found:,} rows; the log says {logged:,}"),
    Code("partition-mismatch", "error", "M1", "a live data file lies in another partition than it was written for",
        "its rows are missed by filters: bring the file back under its own key",
        "it was written for partition {written} and lies in {found}"),
    Code("type-mismatch", "error", "S2", "a column of a live data file does not fit the schema",
        "find out who wrote it; rewrite the file with the table's columns and `icedb import` it",
        "column {column!r} is {found}; the schema says {known}",
        {"unknown": ("error", "column {column!r} ({found}) is not in the schema"),
         "odd": ("error", "column {column!r} is {found}, which no column of a table is; the schema says {known}")}),
    Code("path-column", "warning", "M1", "a live data file repeats its path in a column that the table has not",
        "nothing, if you read by the schema; a merge of the file leaves it out, and so does `icedb rewrite TABLE "
        "--all --query 'select * from _rows'`",
        "column {column!r} ({found}) repeats what its path says"),
    Code("page-damaged", "error", "Objects", "bytes of a live data file are not those that were written",
        "bring it back from a backup or an older version of the object; merges of its partition halt", "{problem}"),
    Code("pages-unsummed", "note", "Objects", "data files without checksums: not every change in them can be seen",
        "nothing: merges write checksums since release 0.2.0",
        "{count:,} files have pages without a checksum: a change in these may go unseen"),
    Code("input-still-live", "error", "M1", "a data file and the one that replaced it are live: rows are there twice",
        "remove the input from the log: `icedb rebuild TABLE`, which knows replaced files by their footers",
        "a {kind} made it from {replaced}, which is live, too"),
    Code("statistics-mismatch", "error", "Wire", "statistics in the log are narrower than the file: filters lose rows",
        "`icedb rebuild TABLE` writes statistics anew from the footers", "column {column!r}: {problem}"),
    Code("fence-unreadable", "error", "F1", "a fence that nobody can acquire: nothing is committed any more",
        "a person restores it, never deletes it; see the runbook", "{problem}",
        {"intent": ("error", "it announces {commit!r}, no log file of this table")}),
    Code("fence-intent", "note", "F1", "a commit that was announced and is not in the log",
        "nothing: it is under way, or the next owner settles it",
        "{owner} announced {commit} {minutes:,.0f} min ago, which is not in the log"),
    Code("fence-missing", "warning", "F1", "a table with commits and without their fence: it was deleted",
        "stop all workers for an hour, so that no old commit is under way; then go on",
        "the log has commits of the role {role}, and its fence is gone"),
    Code("staging-unknown", "warning", "I1", "an object in staging that is no batch or whole group: nobody takes it",
        "move it somewhere else; send batches with `icedb ingest`, those of a damaged `….group` again",
        "{size_bytes:,} bytes that are no batch"),
    Code("staging-old", "warning", "I4", "batches have been waiting for a commit for long",
        "look whether an ingest worker runs, and at its log",
        "{count} batches wait for more than an hour, the oldest {hours:,.1f} h"),
    Code("flushes-fail", "warning", "I5", "flushes of the table fail: what it takes waits, and is not committed",
        "find out what the reason says; the batches stay and are committed as soon as a flush ends well", "{reason}"),
    Code("quarantine-without-reason", "warning", "I5", "something in quarantine without a readable reason",
        "look at it by hand: nobody lists or retries it", "a payload, and no reason beside it",
        {"unreadable": ("warning", "its reason cannot be read: {problem}")}),
    Code("lease", "warning", "J4", "a lease that cannot be understood holds everything for a day",
        "delete the object if nobody reads",
        "it cannot be understood, and holds every dead object until it is a day old"),
    Code("tag", "error", "J4", "a tag that cannot be read, or names data files that are not there",
        "`icedb tag delete` it; bring the files back if the tag is still needed",
        "{count} of its {files} data files are not there, the first is {path}", {"doubtful": ("warning", "{problem}")}),
    Code("publication", "error", "P1", "what engines are shown of the table cannot be read",
        "delete `_icedb/iceberg/` of the table whole: nothing of it is lost, engines begin with a new chain",
        "{count:,} of the {objects:,} objects of the current publication are not there, the first is {path}",
        {"unreadable": ("error", "{problem}; the janitor keeps every dead data file meanwhile"),
         "record": ("warning",
             "it cannot be parsed, and holds every dead data file until a person moves it away")}),
    Code("view-registration", "error", "V4", "a view's registration that keeps its source or the view from working",
        "a person restores it; see docs/views.md", "{problem}",
        {"left": ("note", "table {view} is no view of this one (any more)"),
         "pending": ("warning",
             "pending for more than an hour: no log file of an append is deleted until a feed has finished it"),
         "no-source": ("error", "its source, table {source}, is not there: nothing feeds it"),
         "unknown": ("warning",
             "table {source} does not know of its view {view}: the janitor keeps no commit for it")}),
    Code("import-record", "error", "N2", "an import's record that cannot be read: further imports halt",
        "a person restores it from a backup", "{problem}"),
    Code("erasure-open-long", "warning", "E5", "an erasure that has not ended after two days, or cannot be read",
        "`icedb erasure list TABLE ID` says what it waits for",
        "asked for {hours:,.0f} h ago, {state}, {count} objects have to be gone",
        {"unreadable": ("warning", "{problem}")}),
    Code("dropped", "note", "T1", "the table is dropped", "`icedb table list --trash`", "it is in the trash",
        {"purging": ("note", "it is being purged"), "purged": ("note", "it was purged")}),
    Code("not-checked", "note", "S3", "something could not be checked",
        "correct what is in the way, then run fsck again",
        "{count} log files cannot be read: what they say is unknown, so neither dangling names nor orphans were "
        "looked for, nor what merges carry",
        {"unanswered": ("warning", "{count} files: the store did not answer ({problem})"),
         "unread": ("error", "nothing is known of the table: {problem}")}),
)  # fmt: skip

CODES: Final[Mapping[str, Code]] = {code.name: code for code in _ALL}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be.

    Attributes:
        code: See :data:`CODES`.
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
    """How often a code was found, with which severity; a report lists at most :data:`MAX_LISTED` of them."""

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
        known = {each.code: CODES[each.code] for each in self.counts}
        return {
            "version": REPORT_VERSION,
            "table": self.table,
            "sound": self.is_sound,
            "deep": self.is_deep,
            **{f"{severity}s": self.count(severity) for severity in SEVERITIES},
            "figures": dict(self.figures),
            "counts": [
                asdict(each) | {name: getattr(known[each.code], name) for name in ("rule", "title", "remedy")}
                for each in self.counts
            ],
            "findings": [asdict(each) | {"key": each.key or None} for each in self.findings],
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

    def add(self, kind: str, key: str, /, *, line: int | None = None, **values: object) -> None:
        """Take a finding in.

        Args:
            kind: A code, or ``code:case`` (see :class:`Code`).
            key: Of the object; empty: the whole table.
            line: Of a log file.
            values: What its words name.
        """
        code, _, case = kind.partition(":")
        known = CODES[code]
        severity, says = known.cases[case] if case else (known.severity, known.says)
        self._counts[severity, code] += 1
        if self._counts[severity, code] <= self._max_listed:
            self._kept.append(Finding(code, severity, key, says.format(**values), line))

    def report(self, table: str, *, is_deep: bool, figures: Mapping[str, int]) -> FsckReport:
        """Return everything that was found."""

        def rank(found: Finding | Counted) -> tuple[int, str]:
            return SEVERITIES.index(found.severity), found.code

        counts = (Counted(code, severity, count) for (severity, code), count in self._counts.items())
        return FsckReport(
            table=table,
            is_deep=is_deep,
            findings=tuple(sorted(self._kept, key=lambda each: (*rank(each), each.key, each.line or 0))),
            counts=tuple(sorted(counts, key=rank)),
            figures=figures,
        )
