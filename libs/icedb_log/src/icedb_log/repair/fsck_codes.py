"""Every kind of finding of ``icedb fsck``: its stable code, how bad it is, which rule it checks, what to do.

Codes are for scripts: never renamed, never used for something else. ``docs/repair.md`` explains each.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Severity = Literal["error", "warning", "note"]
"""``error``: rows are wrong, missing or unreadable; ``warning``: will become an error, or wastes; ``note``: to know."""

SEVERITIES: Final[tuple[Severity, ...]] = ("error", "warning", "note")


@dataclass(frozen=True, slots=True)
class Code:
    """One kind of finding.

    Attributes:
        name: The code.
        severity: How bad it mostly is; a single finding may say otherwise.
        rule: The rule of ``docs/protocol.md`` that is broken or applied; ``Wire`` and ``Objects`` are its sections.
        title: What it is, in a few words.
        remedy: What to do.
    """

    name: str
    severity: Severity
    rule: str
    title: str
    remedy: str


_REBUILD: Final = "copy the table's `_log` away, then `icedb rebuild TABLE --dry-run`"
_ASK_WRITER: Final = "find out who wrote it; no release of IceDB does"
_VACUUM: Final = "nothing: the janitor removes it; if it stays, look whether a janitor runs"

_ALL: Final = (
    Code(
        "log-lost", "error", "S1", "there are data files and no log at all: the table looks empty",
        "stop the janitor before it takes them for orphans, and `icedb rebuild TABLE --dry-run`",
    ),
    Code(
        "commit-lost", "error", "F5", "a commit landed, and its log file is gone: its rows are missing",
        "stop the workers that write, and `icedb rebuild TABLE --dry-run`; the orphan sweep keeps its files meanwhile",
    ),
    Code("log-malformed", "error", "S3", "a log file cannot be read: the table is halted", _REBUILD),
    Code("wire", "error", "Wire", "a log file that existing v3 readers refuse or misread", _ASK_WRITER),
    Code(
        "log-misnamed", "error", "Wire", "an object below `_log/` that is no log file: the table is halted",
        "move it somewhere else",
    ),
    Code(
        "stray-below-log", "error", "Wire", "an object beside `_log/` that existing v3 readers take for a log file",
        "move it somewhere else",
    ),
    Code(
        "log-count", "warning", "Wire", "so many log files that existing v3 readers will not see them all",
        "look whether merge workers and the janitor run; `icedb merge TABLE --explain`",
    ),
    Code(
        "clock-skew", "warning", "R3", "a commit's time and the store's clock differ by minutes",
        "set the clocks of the workers' hosts (NTP)",
    ),
    Code(
        "store-clock", "warning", "J1", "the store's clock cannot be trusted: nothing is deleted until it can",
        "set the clocks of store and hosts; see the runbook",
    ),
    Code(
        "tombstone-time", "warning", "J1", "a tombstone from the future: it will not expire for long",
        "set the clocks of the workers' hosts; what it holds back goes when its time has come",
    ),
    Code(
        "horizon", "warning", "R3", "the recorded horizon lies in the future: time travel is refused",
        "set the clocks of the workers' hosts; it ends when its time has come",
    ),
    Code(
        "commit-not-unique", "warning", "W2", "two log files of one commit",
        "if somebody copied a log file, remove the copy while no worker runs",
    ),
    Code(
        "batch-twice", "error", "I3", "one batch was committed twice, or committed and refused: rows are there twice",
        "compare the data files of both commits and delete the rows of one: `icedb delete TABLE --where …`",
    ),
    Code(
        "marker-order", "error", "S1", "existing v3 readers count rows that are replaced: a tombstone sorts too early",
        "`icedb merge TABLE --full` writes the partition anew",
    ),
    Code(
        "marker-not-carried", "error", "M1", "a vacuum will change which rows are live: a dead log file alone knows",
        "stop the janitor before anything is deleted, and " + _REBUILD,
    ),
    Code(
        "double-listing", "warning", "S1", "a data file is listed more than once",
        "`icedb merge TABLE --full`; if the lists disagree, `icedb rebuild TABLE --force`, which asks the files",
    ),
    Code(
        "schema-conflict", "error", "S2", "a column has two types: the table is halted",
        "correct the log file that is wrong: only its schema line, with the table's workers stopped",
    ),
    Code(
        "schema-not-carried", "error", "S2", "a vacuum will lose a column or a widening: a dead log file alone knows",
        "stop the janitor; write one batch with that column",
    ),
    Code("widening", "error", "S2", "a partition or sort column became wider, which no rule allows", _ASK_WRITER),
    Code(
        "foreign-path", "error", "Objects", "a name in the log that is no file of this table",
        _ASK_WRITER + "; merges and vacuums halt on it",
    ),
    Code("seal", "note", "F4", "seals, which keep lost commits from landing", _VACUUM),
    Code(
        "dangling", "error", "W1", "the log lists a data file as live that is not there: its rows are lost",
        "bring it back from a backup or an older version of the object under the same key; else `icedb rebuild TABLE`",
    ),
    Code(
        "dangling-dead", "warning", "J1", "a dead data file went before its time: queries and time travel may fail",
        "find out who deletes in this bucket beside the janitor (lifecycle rules, people)",
    ),
    Code(
        "orphan", "warning", "J5", "data files that no log file names",
        "nothing: `icedb orphans TABLE` shows them, the janitor deletes them; young ones may be about to be committed",
    ),
    Code(
        "size-mismatch", "error", "Objects",
        "a data file has another size than the log says: something else lies there",
        "bring it back from a backup or an older version of the object",
    ),
    Code(
        "config-unreadable", "error", "Objects", "the table's configuration is not there or not understood",
        "bring back `_icedb/table.json` from a backup; a newer release may be needed",
    ),
    Code(
        "config-mismatch", "error", "Objects", "configuration and data do not fit each other",
        "bring back the right `_icedb/table.json`: partitions and sort order of a table never change",
    ),
    Code(
        "unknown-object", "note", "Objects", "objects of which this release knows nothing; they are never deleted",
        "if they are yours, keep them outside the table",
    ),
    Code(
        "footer-unreadable", "error", "Objects", "a live data file is damaged, or no Parquet file",
        "bring it back from a backup or an older version of the object",
    ),
    Code(
        "row-count-mismatch", "error", "M3", "a live data file has another number of rows than the log says",
        "its merges halt: bring the file back from a backup, or `icedb rebuild TABLE`",
    ),
    Code(
        "partition-mismatch", "error", "M1", "a live data file lies in another partition than it was written for",
        "its rows are missed by filters: bring the file back under its own key",
    ),
    Code(
        "type-mismatch", "error", "S2", "a column of a live data file does not fit the schema",
        "find out who wrote it; rewrite the file with the table's columns and `icedb import` it",
    ),
    Code(
        "path-column", "warning", "M1", "a live data file repeats its path in a column that the table has not",
        "nothing, if you read by the schema; a merge of the file leaves it out, and so does "
        "`icedb rewrite TABLE --all --query 'select * from _rows'`",
    ),
    Code(
        "page-damaged", "error", "Objects", "bytes of a live data file are not those that were written",
        "bring it back from a backup or an older version of the object; merges of its partition halt",
    ),
    Code(
        "pages-unsummed", "note", "Objects", "data files without checksums: not every change in them can be seen",
        "nothing: merges write checksums since release 0.2.0",
    ),
    Code(
        "input-still-live", "error", "M1", "a data file and the one that replaced it are live: rows are there twice",
        "remove the input from the log: `icedb rebuild TABLE`, which knows replaced files by their footers",
    ),
    Code(
        "statistics-mismatch", "error", "Wire", "statistics in the log are narrower than the file: filters lose rows",
        "`icedb rebuild TABLE` writes statistics anew from the footers",
    ),
    Code(
        "fence-unreadable", "error", "F1", "a fence that nobody can acquire: nothing is committed any more",
        "a person restores it, never deletes it; see the runbook",
    ),
    Code(
        "fence-intent", "note", "F1", "a commit that was announced and is not in the log",
        "nothing: it is under way, or the next owner settles it",
    ),
    Code(
        "fence-missing", "warning", "F1", "a table with commits and without their fence: it was deleted",
        "stop all workers for an hour, so that no old commit is under way; then go on",
    ),
    Code(
        "staging-unknown", "warning", "I1", "an object in staging that is no batch: nobody takes it",
        "move it somewhere else; send batches with `icedb ingest`",
    ),
    Code(
        "staging-old", "warning", "I4", "batches have been waiting for a commit for long",
        "look whether an ingest worker runs, and at its log",
    ),
    Code(
        "quarantine-without-reason", "warning", "I5", "something in quarantine without a readable reason",
        "look at it by hand: nobody lists or retries it",
    ),
    Code(
        "lease", "warning", "J4", "a lease that cannot be understood holds everything for a day",
        "delete the object if nobody reads",
    ),
    Code(
        "pin", "error", "J7", "a pin that cannot be read, or names data files that are not there",
        "`icedb unpin` it; bring the files back if the pin is still needed",
    ),
    Code(
        "view-registration", "error", "V4", "a view's registration that keeps its source or the view from working",
        "a person restores it; see docs/views.md",
    ),
    Code(
        "import-record", "error", "N2", "an import's record that cannot be read: further imports halt",
        "a person restores it from a backup",
    ),
    Code(
        "erasure-open-long", "warning", "E5", "an erasure that has not ended after two days, or cannot be read",
        "`icedb erasure show TABLE ID` says what it waits for",
    ),
    Code("dropped", "note", "T1", "the table is dropped", "`icedb table trash`"),
    Code(
        "not-checked", "note", "S3", "something could not be checked",
        "correct what is in the way, then run fsck again",
    ),
)  # fmt: skip

CODES: Final[Mapping[str, Code]] = {code.name: code for code in _ALL}
