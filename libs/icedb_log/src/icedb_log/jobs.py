"""What the log asks of the data path: jobs, their results, and the protocols that run them.

Owns no logic. :mod:`icedb_log.ingest.flush`, :mod:`icedb_log.imports.imports`, :mod:`icedb_log.feed.feeds` and
:mod:`icedb_log.merge.merge` decide *what* is written and *whether* it is committed; :mod:`icedb_engine` and the
simulation implement :class:`BatchWriter`, :class:`FileImporter`, :class:`ViewFeeder` and :class:`GroupMerger`. They
only ever add data files under fresh names: they never delete, and never touch the log.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from icedb_log.errors import InvariantViolated
from icedb_log.formats import find_format
from icedb_log.keys import TablePaths
from icedb_log.log.live_files import ChosenFiles
from icedb_log.model import EMPTY, ColumnStats, FileMarker
from icedb_log.store.table_store import TableStore
from icedb_log.table.table_config import TableConfig

CheckAlive = Callable[[], None]
"""Raises if the run should stop, e.g. because its lock is lost; then that is what stops its job. Saves work only: the
fence saves data. Called from another thread while the job works, at most every second or so."""


MAX_GZIP_RATIO: Final = 1032
"""DEFLATE makes a byte of at most so many."""
MIN_ROW_BYTES: Final = 2
"""The shortest row of text, with what ends it."""


def never_stop() -> None:
    """Nothing watches this run."""


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """An accepted batch that waits in staging, in an object of its own or in a group (:mod:`icedb_log.ingest.groups`).

    Attributes:
        key: Full key of the staged object.
        batch_id: Canonical UUIDv7.
        format: One of :data:`icedb_log.formats.STAGING_FORMATS`.
        size_bytes: Size as staged (compressed).
        staged_ms: LastModified of the object by the store's clock.
        offset_bytes: Where its body begins in a group; ``None``: the object is this batch alone.
        sha256: Of its decoded body, as the index of its group says; empty where it is alone.
    """

    key: str
    batch_id: str
    format: str
    size_bytes: int
    staged_ms: int
    offset_bytes: int | None = None
    sha256: str = ""

    @property
    def is_grouped(self) -> bool:
        """Whether other batches may be in the same object."""
        return self.offset_bytes is not None

    @property
    def name(self) -> str:
        """What tells this copy of the batch from others: the key, of a grouped one with id and format behind it."""
        return f"{self.key}/{self.batch_id}.{self.format}" if self.is_grouped else self.key


@dataclass(frozen=True, slots=True)
class SizeClass:
    """Which batches a flush takes, by what they are when they are decoded; the others stay staged (I6).

    Attributes:
        takes: ``small``: batches within both bounds; ``large``: one that is above a bound.
        decoded_bytes: Bytes after decompression.
        row_count: Rows.
    """

    takes: Literal["small", "large"]
    decoded_bytes: int
    row_count: int

    def may_be_large(self, batch: StagedBatch) -> bool:
        """Whether a batch can be above a bound, by its size as staged; False is certain, and costs nothing."""
        codec = batch.format.partition(".")[2]
        if codec not in ("", "gz") or not find_format(batch.format).is_text:
            return True
        most_bytes = batch.size_bytes * (MAX_GZIP_RATIO if codec else 1)
        return most_bytes > self.decoded_bytes or most_bytes // MIN_ROW_BYTES > self.row_count


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The table that gets data files, and what they say of their commit: the same for a job and its units of work.

    Attributes:
        paths: Keys of the table.
        config: Its configuration.
        schema: Column to SQL type, as far as types are fixed.
        commit_id: Goes into each file's footer.
        time_ms: ``created_ms`` of each new marker.
    """

    paths: TablePaths
    config: TableConfig
    schema: Mapping[str, str]
    commit_id: str
    time_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FlushJob(Target):
    """Turn batches into data files.

    The schema is the snapshot's (widened types are the wider ones); declared columns are not necessarily in it yet.

    Attributes:
        batches: Oldest first; none: nothing is written, and the machine has shown that it works (I5).
        read_live: Reads the markers of all live data files; needed only to prove that a widening loses nothing.
        check_alive: Asked while the job works; what it raises stops the job.
        sizes: Which of the batches are taken; ``None``: all.
        inexact: Columns of which the log does not prove that a widening changes no value; true where it says that one
            changes (S2). ``read_live`` is asked of the others among them alone. ``None``: it proves nothing.
    """

    batches: tuple[StagedBatch, ...]
    read_live: Callable[[], tuple[FileMarker, ...]] = tuple
    check_alive: CheckAlive = never_stop
    sizes: SizeClass | None = None
    inexact: Mapping[str, bool] | None = None


@dataclass(frozen=True, slots=True)
class RowFault:
    """What is wrong with some bad rows of a batch.

    Attributes:
        what: In words for the producer, without a row's number and value.
        rows: Numbers of the rows in the batch, ascending.
    """

    what: str
    rows: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class BadRows:
    """Rows of an accepted batch that cannot be committed (``on_bad_rows = quarantine_rows``).

    Attributes:
        batch: Where they come from; its other rows are in the job's files.
        payload_key: Where the rows lie already, in the format of the batch, below the table's quarantine.
        row_count: How many; at least one.
        reason: Why they cannot be committed, the first ones each with its line, in words for the producer.
        faults: What is wrong with each of the first thousands, in the order in which they lie there.
    """

    batch: StagedBatch
    payload_key: str
    row_count: int
    reason: str
    faults: tuple[RowFault, ...] = ()


@dataclass(frozen=True, slots=True)
class RejectedBatch:
    """A batch that cannot be committed, and why, in words for its producer (I5).

    Attributes:
        batch: Where it is staged.
        reason: Why.
        is_doubtful: Nobody can tell whether its rows are live already: its id is too old, or was refused before.
    """

    batch: StagedBatch
    reason: str
    is_doubtful: bool = False


@dataclass(frozen=True, slots=True)
class FlushOutput:
    """What a flush job made. Each batch is in exactly one of accepted, rejected, missing, deferred and left_out.

    Attributes:
        files: New data files, with row counts and statistics. Empty if no batch was accepted or all are empty.
        schema: Union of the job's schema, its declared columns and the columns of accepted batches.
        accepted: Batches whose rows are all in ``files`` (a batch without rows is accepted, too), but for bad rows.
        rejected: Batches of which nothing is in ``files``.
        missing: Batches whose staged object was gone: another flush has committed or refused them.
        row_count: Rows in ``files``.
        misfit_count: Values of these rows that do not fit a promoted column, and are NULL there.
        deferred: Batches that stay staged for the next commit (``max_partitions_per_flush``); never all of them.
        bad_rows: Rows of accepted batches that are not in ``files``.
        left_out: Batches that stay staged because they are not of the job's size class.
        contents: SHA-256 of the decoded body of each accepted batch, by its id
            (:func:`icedb_log.content.hash_content`): of the very bytes whose rows are in ``files`` (I8).
        inexact: Columns that cannot become wider by what the job found in data files, where the log said nothing.
    """

    files: tuple[FileMarker, ...]
    schema: Mapping[str, str]
    accepted: tuple[StagedBatch, ...]
    rejected: tuple[RejectedBatch, ...]
    missing: tuple[StagedBatch, ...]
    row_count: int
    misfit_count: int = 0
    deferred: tuple[StagedBatch, ...] = ()
    bad_rows: tuple[BadRows, ...] = ()
    left_out: tuple[StagedBatch, ...] = ()
    contents: Mapping[str, str] = field(default_factory=dict)
    inexact: tuple[str, ...] = ()


class BatchWriter(Protocol):
    """Runs flush jobs."""

    def write_batches(self, job: FlushJob) -> FlushOutput:
        """Parse, check, partition, sort and upload the rows of a job's batches.

        Not idempotent: each call makes new files. A batch that cannot be taken is rejected with a reason;
        an error means that no batch was decided (what was uploaded is left to the orphan sweep, J5).

        A job without batches writes nothing, and goes the way of any other: it shows whether the machine works.

        Raises:
            SchemaConflict: A declared column has another type in the log.
            Unavailable: The store or the engine did not answer.
            JobCrashed: What works on the batches failed in a way that nobody foresaw, or its process ended.
        """
        ...


@dataclass(frozen=True, slots=True)
class MergeGroup:
    """Data files of one partition that become one sorted run of data files, or one and a small one of late rows.

    Attributes:
        partition: Encoded partition path, e.g. ``d=2023-06-07``; empty for a table without partitions.
        inputs: Live data files, ascending by path; at least two, or at least one if its rows change.
    """

    partition: str
    inputs: Sequence[FileMarker]

    def __post_init__(self) -> None:
        if isinstance(self.inputs, list):  # as it comes from the wire
            object.__setattr__(self, "inputs", tuple(self.inputs))

    @property
    def size_bytes(self) -> int:
        """Bytes of all inputs."""
        inputs = self.inputs
        return inputs.size_bytes if isinstance(inputs, ChosenFiles) else sum(marker.size_bytes for marker in inputs)


ChangeKind = Literal["delete", "rewrite", "merge_query"]
"""``delete``: rows for which a condition is true go; ``rewrite``: a query over ``_rows``, all rows of a partition,
makes the new ones; ``merge_query``: a query over ``source_files``, the rows of a group, does so in every merge."""


@dataclass(frozen=True, slots=True)
class RowChange:
    """What becomes of the rows of a group besides being merged (M3).

    Attributes:
        kind: See :data:`ChangeKind`.
        sql: DuckDB's SQL: a condition for ``delete``, one query for the others.
    """

    kind: ChangeKind
    sql: str


@dataclass(frozen=True, slots=True)
class CountJob:
    """Count the rows that a deletion would remove.

    Attributes:
        paths: Keys of the table.
        config: Its configuration.
        schema: Column to SQL type of the whole table.
        change: Of kind ``delete``.
        files: Data files, live or not; at least one.
        check_alive: Asked while the job works; what it raises stops the job.
    """

    paths: TablePaths
    config: TableConfig
    schema: Mapping[str, str]
    change: RowChange
    files: tuple[FileMarker, ...]
    check_alive: CheckAlive = never_stop


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeJob(Target):
    """Merge groups, each on its own; the schema is that of the whole table.

    Attributes:
        groups: At least one.
        change: What else becomes of the rows; ``None``: nothing.
        check_alive: Asked while the job works; what it raises stops the job.
    """

    groups: tuple[MergeGroup, ...]
    change: RowChange | None = None
    check_alive: CheckAlive = never_stop


@dataclass(frozen=True, slots=True)
class ContentCheck:
    """What the footers of a merge's inputs and outputs prove together (M6), two questions for each column.

    Attributes:
        equal_count: Questions with the same answer before and after.
        unproven_count: Questions that the footers do not answer.
        differences: In words, the others: values have changed.
    """

    equal_count: int = 0
    unproven_count: int = 0
    differences: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class MergedGroup:
    """What became of one group.

    Attributes:
        group: The group.
        outputs: New data files of the same partition, with row counts and statistics; none if no row is left.
        rows_read: Rows of the inputs, counted while merging, to be compared with the outputs' (parity).
        rows_removed: Rows that a deletion took away, counted apart from the outputs; ``None``: a query made the rows
            of the outputs, or the whole group is removed.
        contents: Whether the outputs hold what the inputs hold; nothing is proved where rows were to change.
        copied_bytes: Bytes of row groups that were taken over as they are.
        rows_decoded: Rows of all others.
        misfit_count: Values of rows for which promoted columns were made that do not fit one, and are NULL there.
    """

    group: MergeGroup
    outputs: tuple[FileMarker, ...]
    rows_read: int
    rows_removed: int | None = 0
    contents: ContentCheck = ContentCheck()
    copied_bytes: int = 0
    rows_decoded: int = 0
    misfit_count: int = 0


class GroupMerger(Protocol):
    """Runs merge jobs."""

    def merge_groups(self, job: MergeJob) -> tuple[MergedGroup, ...]:
        """Merge every group of a job into sorted data files with the union of the inputs' columns.

        Returns one result for each group, in any order; groups of one partition may be merged as one.

        Raises:
            InvalidRequest: The job's change cannot be made of these rows, and why.
            SchemaConflict: An input has a column of another type than the table, or the table's ``merge_query`` cannot
                be run on its rows: a person has to correct it.
            NotFound: An input is gone although it is live: the table is damaged, or this job is stale.
            HaltError: An input is damaged.
            Unavailable: The store or the engine did not answer.
        """
        ...


class TextSampler(Protocol):
    """Reads some of the rows of a text column."""

    def sample_texts(self, table: TableStore, files: Sequence[FileMarker], column: str) -> Sequence[str | None]:
        """Return the texts of some rows, evenly from some data files: a bounded number, of a bounded size.

        Args:
            table: The table.
            files: Its data files, those first that matter most; one that is gone is passed over.
            column: The column; a file without it has nulls.

        Raises:
            Unavailable: The store did not answer.
        """
        ...


class RowChanger(GroupMerger, Protocol):
    """Runs merge jobs with a change, and tells beforehand what a change would do."""

    def check_change(self, config: TableConfig, schema: Mapping[str, str], change: RowChange) -> None:
        """Check a change against a table; nothing is read or written.

        Raises:
            InvalidRequest: The SQL is wrong, reaches beyond its view, drops a partition or sort column, adds a column
                that the table does not have, or changes a type.
            Unavailable: The engine did not answer.
        """
        ...

    def select_files(
        self, paths: TablePaths, config: TableConfig, change: RowChange, files: Sequence[FileMarker]
    ) -> tuple[FileMarker, ...]:
        """Return the files that can hold rows that a deletion removes, by partition values and statistics.

        Never leaves out a file that holds such a row. Reads nothing.
        """
        ...

    def count_rows(self, job: CountJob) -> tuple[int, ...]:
        """Count the rows that a deletion would remove, for each file of a job in its order.

        Raises:
            NotFound: A file is gone.
            InvalidRequest: The condition cannot be evaluated on these rows, and why.
            HaltError: A file is damaged, or of another schema than the table.
            Unavailable: The store or the engine did not answer.
        """
        ...


ImportMode = Literal["copy", "in_place"]


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One object that may be imported, as a listing names it.

    Attributes:
        store_url: What to open: ``s3://bucket`` or ``file:///folder``; keys of it are full.
        key: Its key there.
        url: Its name for people, and its identity: ``s3://bucket/key`` or ``file:///path``.
        etag: Version of its content.
        size_bytes: Size.
        modified_ms: When it was written, by its store's clock.
        is_named: Whether it was named as a whole, not found by a wildcard.
    """

    store_url: str
    key: str
    url: str
    etag: str
    size_bytes: int
    modified_ms: int
    is_named: bool = False


@dataclass(frozen=True, slots=True)
class InspectJob:
    """Read the footers of some files, and tell which of them can be data files of a table.

    Attributes:
        paths: Keys of the table.
        config: Its configuration.
        sources: The files.
        partition: Values of partition fields, decoded, that the caller vouches for: they fill in for statistics that a
            file lacks, and never overrule those that it has.
        mode: How the files are to become data files.
    """

    paths: TablePaths
    config: TableConfig
    sources: tuple[SourceFile, ...]
    partition: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    mode: ImportMode = "copy"


@dataclass(frozen=True, slots=True)
class InspectedFile:
    """What a footer says.

    Attributes:
        source: The file.
        columns: Column to the SQL type that it is read as, in the file's order.
        partition: Encoded partition path that all its rows belong to.
        row_count: Rows.
        stats: Of partition sources and sort columns, as far as the footer has them.
        is_sorted: Whether the file says that it is sorted as the table is.
        inexact: Columns of which some value would change if the column became wider, or may: see :class:`FileMarker`.
        has_field_ids: Whether its columns have numbers of another writer (N6).
    """

    source: SourceFile
    columns: Mapping[str, str]
    partition: str
    row_count: int
    stats: Mapping[str, ColumnStats]
    is_sorted: bool
    inexact: tuple[str, ...] | None = None
    has_field_ids: bool = False


@dataclass(frozen=True, slots=True)
class RefusedFile:
    """A file that cannot be imported, and why, in words for the caller."""

    url: str
    reason: str


@dataclass(frozen=True, slots=True)
class InspectOutput:
    """Every source of the job is in exactly one of the two."""

    files: tuple[InspectedFile, ...]
    refused: tuple[RefusedFile, ...]


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """A file with its rows in a data file of the table: a copy, or the file itself.

    Attributes:
        file: What was inspected.
        path: Key of the data file.
        size_bytes: Its size.
    """

    file: InspectedFile
    path: str
    size_bytes: int

    def make_marker(self, created_ms: int) -> FileMarker:
        """Return what the log says of it."""
        file = self.file
        return FileMarker(
            self.path, self.size_bytes, created_ms, row_count=file.row_count, stats=file.stats, inexact=file.inexact
        )


@dataclass(frozen=True, slots=True)
class CopyOutput:
    """Every file of the job is in exactly one of the two."""

    files: tuple[PlacedFile, ...]
    refused: tuple[RefusedFile, ...]


class FileImporter(Protocol):
    """Runs import jobs."""

    def inspect_files(self, job: InspectJob) -> InspectOutput:
        """Read footers. Changes nothing. Raises Unavailable when a store or the engine did not answer."""
        ...

    def copy_files(self, paths: TablePaths, files: tuple[InspectedFile, ...]) -> CopyOutput:
        """Copy files, each to a fresh key of its partition; refuse one that is not what was inspected any more.

        A copy has the bytes of the file, but for field ids, which it has not (N6).

        Not idempotent: each call makes new objects; after an error they are orphans (J5).

        Raises:
            Unavailable: A store or the engine did not answer.
        """
        ...


@dataclass(frozen=True, slots=True)
class SourceCommit:
    """An append to the source of a view.

    Attributes:
        name: Of its log file, see :func:`icedb_log.keys.log_name`.
        time_ms: Commit time.
        files: Data files that it made live, whatever was merged or removed since.
    """

    name: str
    time_ms: int
    files: tuple[FileMarker, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of its data files."""
        return sum(marker.size_bytes for marker in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedJob(Target):
    """Run a view's query over the rows of some commits.

    The table is the view; the schema is as its log has it, declared columns are not necessarily in it yet.

    Attributes:
        source: Keys of the source.
        source_schema: Column to SQL type of the source, logged and declared: the columns of the query's rows.
        commits: Oldest first; at least one, and at least one has data files.
        check_alive: Asked while the job works; what it raises stops the job.
    """

    source: TablePaths
    source_schema: Mapping[str, str]
    commits: tuple[SourceCommit, ...]
    check_alive: CheckAlive = never_stop


@dataclass(frozen=True, slots=True)
class RefusedCommit:
    """A commit of the source over whose rows the query cannot be run, and why, in words for a person (V5)."""

    commit: SourceCommit
    reason: str


@dataclass(frozen=True, slots=True)
class FeedOutput:
    """What a feed job made. Every commit of the job is in exactly one of taken, refused and deferred.

    Attributes:
        files: New data files of the view, with row counts and statistics; none if the query gave no row.
        schema: Union of the job's schema and the columns of the query's result.
        taken: Commits whose rows the query has seen.
        refused: Commits of which nothing is in ``files``.
        deferred: Commits that wait for the next feed; never all of them.
        row_count: Rows in ``files``.
        rows_read: Rows of the taken commits.
        misfit_count: Values of the rows in ``files`` that do not fit a promoted column, and are NULL there.
    """

    files: tuple[FileMarker, ...]
    schema: Mapping[str, str]
    taken: tuple[SourceCommit, ...]
    refused: tuple[RefusedCommit, ...]
    deferred: tuple[SourceCommit, ...]
    row_count: int
    rows_read: int
    misfit_count: int = 0


class ViewFeeder(Protocol):
    """Runs feed jobs."""

    def feed_rows(self, job: FeedJob) -> FeedOutput:
        """Run a view's query over the rows of a job's commits, and upload what it gives.

        Not idempotent: each call makes new files. If the query fails on the rows, it runs over fewer commits, until
        the one that it cannot take stands alone and is refused with the reason.

        Raises:
            NotFound: A data file of a commit is gone although its log file is there: the source is damaged.
            CorruptLog: A data file cannot be read, or holds other rows than its log file says.
            SchemaConflict: The configuration has a query that cannot be run at all.
            Unavailable: The store or the engine did not answer.
        """
        ...


def require_commits_accounted(job: FeedJob, output: FeedOutput) -> None:
    """Each commit of a job is taken or refused once, or deferred; and a job defers never all of them (V1, V5)."""
    table = job.paths.name
    refused = tuple(each.commit for each in output.refused)
    answered = sorted(commit.name for commit in (*output.taken, *refused, *output.deferred))
    if answered != sorted(commit.name for commit in job.commits):
        raise InvariantViolated(f"table {table}: the feed job did not decide each of its commits once (V1)")
    if len(output.deferred) == len(job.commits):
        raise InvariantViolated(f"table {table}: the feed job deferred all of its commits: it would never end (V5)")
    if output.files and not output.taken:
        raise InvariantViolated(f"table {table}: the feed job took no commit, yet wrote data files (V1)")
    if output.row_count != sum(marker.row_count or 0 for marker in output.files):
        raise InvariantViolated(f"table {table}: the feed job says {output.row_count} rows, its files differ (V1)")
    announced = [marker.row_count for commit in output.taken for marker in commit.files]
    if None not in announced and output.rows_read != sum(count or 0 for count in announced):
        raise InvariantViolated(
            f"table {table}: the commits hold {sum(count or 0 for count in announced)} rows by the log of "
            f"{job.source.name}, {output.rows_read} were read; nothing was committed (V1)"
        )
