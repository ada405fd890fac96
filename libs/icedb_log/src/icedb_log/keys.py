"""The only place that builds or parses an object key, and that tells of which kind an object is.

Layout of a table below its prefix: see ``docs/protocol.md``, section "Objects". Two rules of the wire are
kept here: a log file's name begins with 13 digits of unix milliseconds, and every log file of a merge sorts
after an append of the same millisecond (hex digits sort before ``m``).

Whoever looks through a table (the orphan sweep, ``icedb fsck``) asks :func:`find_kind`. What is of no kind is reported
and never deleted: it may be somebody's, or a newer release's.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, get_args

from icedb_log.batch_ids import parse_batch_id_ms
from icedb_log.clock import uuid7_hex_ms
from icedb_log.errors import CorruptLog, InvalidRequest
from icedb_log.formats import STAGING_FORMATS, StagingFormat

Role = Literal["ingest", "merge"]
ROLES: Final[tuple[Role, ...]] = ("ingest", "merge")

TABLE_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,62}")
TABLE_FOLDER: Final = re.compile(rf"(?P<name>{TABLE_NAME.pattern})(\.(?P<number>[2-9]|[1-9][0-9]{{1,8}}))?")
"""The last component of a table's prefix: its name, of the next ones of a purged name with a number (T4)."""
_IN_TABLE: Final = re.compile(rf"(?:^|/)({TABLE_NAME.pattern})(?:\.[0-9]+)?/(?:_log|_data|_icedb)(?:/|$)")
TAG_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
HoldOwner = Literal["lease", "tag", "publication"]
"""Whose an object is that holds what dies (J4)."""
_HOLD_NAME: Final = re.compile(
    r"(?P<lease>lease)\.(?P<lease_id>[0-9a-z]+)\.jsonl"
    r"|(?P<owner>tag|publication)\.(?P<name>[a-z0-9][a-z0-9_.-]*)\.(?P<id>[0-9a-f]{32})\.jsonl"
)
# Ours end with a commit id; other writers of the wire put the name of their host there.
_LOG_NAME: Final = re.compile(
    r"(?P<ms>[0-9]{13})_(?P<merged>m_)?(?P<id>[A-Za-z0-9](?:[A-Za-z0-9._-]{0,198}[A-Za-z0-9])?)\.jsonl"
)
_AUDIT_NAME: Final = re.compile(r"(?P<ms>[0-9]{13})_(?P<run>[0-9a-f]{32})(_(?P<part>[0-9]{5}))?\.jsonl")
_PUBLICATION_NAME: Final = re.compile(r"(?P<chain>[0-9a-f]{32})\.(?P<sequence>[0-9]{10})\.(?P<since>[0-9]{13})")
_PUBLISHED_NAME: Final = re.compile(r"(?P<sequence>[0-9]{10})-(?P<id>[0-9a-f]{32})-[^/]+")
_GROUP_NAME: Final = re.compile(r"(?P<first>[0-9a-f-]{36})\.(?P<digest>[0-9a-f]{32})\.group")
_PARTITION: Final = re.compile(r"[A-Za-z0-9_]+=[A-Za-z0-9._-]*(/[A-Za-z0-9_]+=[A-Za-z0-9._-]*)*")
MAX_MS: Final = 9_999_999_999_999
PROBE_FOLDER: Final = "_icedb_probe"
"""Where scratch objects of a warehouse lie, which anybody may remove. No table's name begins with ``_``."""


@dataclass(frozen=True, slots=True)
class LogName:
    """The parsed last component of a log file's key.

    Attributes:
        time_ms: The commit's time, unix ms.
        is_merged: Whether a merge, a rewrite or a removal wrote it.
        commit_id: Of the commit; in log files of other writers whatever stands there, mostly the name of a host.
    """

    time_ms: int
    is_merged: bool
    commit_id: str


@dataclass(frozen=True, slots=True)
class StagedName:
    """The parsed last component of a staged batch's key."""

    batch_id: str
    time_ms: int
    format: str


@dataclass(frozen=True, slots=True)
class GroupName:
    """The parsed last component of the key of a group of staged batches.

    Attributes:
        first_id: The lowest of its batch ids.
        digest: What its index hashes to.
    """

    first_id: str
    digest: str


@dataclass(frozen=True, slots=True)
class AuditName:
    """The parsed last component of an audit object's key."""

    time_ms: int
    run_id: str
    part: int


@dataclass(frozen=True, slots=True)
class HoldName:
    """The parsed last component of the key of a hold (J4).

    Attributes:
        owner: Whose it is; ``None``: nobody knows.
        name: What its owner calls it, e.g. the name of a tag; empty: nothing.
        hold_id: An id that is never used again.
    """

    owner: HoldOwner | None
    name: str
    hold_id: str


@dataclass(frozen=True, slots=True)
class PublicationName:
    """What the key of a publication's hold says (P2).

    Attributes:
        chain: Id of the chain that it was to become part of.
        sequence: Of the state of the chain's head that it was to make.
        since_ms: What died later is held for it.
        publication_id: Its id.
    """

    chain: str
    sequence: int
    since_ms: int
    publication_id: str


def check_table_name(name: str) -> str:
    """Return ``name`` if it is a table name, else raise InvalidRequest saying what one looks like."""
    if not TABLE_NAME.fullmatch(name):
        raise InvalidRequest(
            f"table name {name[:80]!r} is not allowed: use 1 to 63 of a-z, 0-9 and _, beginning with a letter"
            f"{_fitting_name(name)}"
        )
    return name


def _fitting_name(name: str) -> str:
    fitting = re.sub(r"\W+", "_", name.lower(), flags=re.ASCII).strip("_")
    return f", such as {fitting}" if TABLE_NAME.fullmatch(fitting) else ""


def find_table(key: str) -> str:
    """Return the name of the table that a key, or the beginning of keys, lies in; empty: in none. Pure.

    A table of a name that was used before has that name (T4).
    """
    match = _IN_TABLE.search(key)
    return "" if match is None else match[1]


def check_tag_name(name: str) -> str:
    """Return ``name`` if it is the name of a tag, else raise InvalidRequest saying what one looks like."""
    if not TAG_NAME.fullmatch(name):
        raise InvalidRequest(
            f"tag name {name[:80]!r} is not allowed: use 1 to 63 of a-z, 0-9, _ and -, beginning with a letter or digit"
        )
    return name


def _part(name: str) -> str:
    """Return ``name`` if it is one component of a key and no way out of its folder, else raise InvalidRequest."""
    if not name or "/" in name or "\0" in name or name in (".", ".."):
        raise InvalidRequest(f"{name[:80]!r} cannot be a part of a key: it has to be a name without a slash")
    return name


class _Below:
    """What the keys of a table begin with, or one key of it: what stands below the table's prefix."""

    def __init__(self, rest: str) -> None:
        self._rest = rest

    def __get__(self, paths: "TablePaths", owner: type) -> str:
        return paths.prefix + self._rest


def clock_key(folder: str) -> str:
    """Return the key of a warehouse's scratch object, given its folder: empty, or with a slash at its end (J1)."""
    return f"{folder}{PROBE_FOLDER}/clock"


@dataclass(frozen=True, slots=True)
class TablePaths:
    """The keys of one table.

    Attributes:
        name: The table's name.
        prefix: Where its objects begin, no leading or trailing slash, e.g. ``warehouse/events``.
    """

    name: str
    prefix: str

    # What the keys of many objects begin with.
    log_prefix = _Below("/_log/")  # nothing but log files may begin so (wire rule)
    data_prefix = _Below("/_data/")
    services_prefix = _Below("/_icedb/")  # all but the log and the data
    staging_prefix = _Below("/_icedb/staging/")
    quarantine_prefix = _Below("/_icedb/quarantine/")
    fences_prefix = _Below("/_icedb/fence/")
    holds_prefix = _Below("/_icedb/holds/")  # what keeps what dies (J4)
    imports_prefix = _Below("/_icedb/imports/")
    erasures_prefix = _Below("/_icedb/erasures/")
    views_prefix = _Below("/_icedb/views/")  # registrations of views of this table (V3)
    refused_prefix = _Below("/_icedb/refused/")  # commits that this view has refused (V5)
    audit_prefix = _Below("/_icedb/audit/")  # what the janitor deleted (J10)
    idempotency_prefix = _Below("/_icedb/idempotency/")  # records of producers' own keys
    iceberg_prefix = _Below("/_icedb/iceberg/")  # what other engines see of this table (P1)
    published_prefix = _Below("/_icedb/iceberg/metadata/")  # what publications say, in the words of engines (P5)
    damaged_prefix = _Below("/_icedb/damaged/")  # copies of damaged log files, then the rebuild's id (B4)

    # Single objects.
    config_key = _Below("/_icedb/table.json")
    pressure_key = _Below("/_icedb/pressure.json")  # what ingest last said about back-pressure; absent means none
    publication_head_key = _Below("/_icedb/iceberg/head.json")  # which publication is the current one (P1)
    version_hint_key = _Below("/_icedb/iceberg/metadata/version-hint.text")  # the same, for engines without a catalog
    fields_key = _Below("/_icedb/fields.json")  # which field id each column has in publications; never changes

    def damaged_key(self, rebuild_id: str, log_key: str) -> str:
        """Return the key of the copy of a damaged log file."""
        return f"{self.damaged_prefix}{_part(rebuild_id)}/{log_key.removeprefix(self.log_prefix)}"

    def fence_key(self, role: Role) -> str:
        """Return the key of a role's fence."""
        return f"{self.fences_prefix}{role}.json"

    def holds_of(self, owner: HoldOwner, name: str = "") -> str:
        """Return what the keys of the holds of one owner begin with, or of what the owner calls so."""
        return f"{self.holds_prefix}{owner}.{f'{_part(name)}.' if name else ''}"

    def hold_key(self, owner: HoldOwner, hold_id: str, *, name: str = "") -> str:
        """Return the key of a hold."""
        return f"{self.holds_of(owner, name)}{_part(hold_id)}.jsonl"

    def audit_key(self, *, time_ms: int, run_id: str, part: int = 0) -> str:
        """Return the key of a part of the audit of one run of the janitor; they sort by the time of the run."""
        suffix = f"_{part:05d}" if part else ""
        return f"{self.audit_prefix}{time_ms:013d}_{run_id}{suffix}.jsonl"

    def publication_key(self, name: PublicationName) -> str:
        """Return the key of a publication's hold; those of one chain sort by sequence."""
        if not 0 <= name.since_ms <= MAX_MS:
            raise InvalidRequest(f"table {self.name}: {name.since_ms} does not fit 13 digits of unix milliseconds")
        called = f"{name.chain}.{name.sequence:010d}.{name.since_ms:013d}"
        return self.hold_key("publication", name.publication_id, name=called)

    def published_key(self, name: str, *, sequence: int, publication_id: str) -> str:
        """Return the key of an object of a publication: whose it is stands in its name (P5)."""
        return f"{self.published_prefix}{sequence:010d}-{_part(publication_id)}-{_part(name)}"

    def import_key(self, import_id: str) -> str:
        """Return the key of an import's record."""
        return f"{self.imports_prefix}{_part(import_id)}.json"

    def erasure_key(self, erasure_id: str) -> str:
        """Return the key of an erasure's record."""
        return f"{self.erasures_prefix}{_part(erasure_id)}.json"

    def idempotency_key(self, key_sha256: str) -> str:
        """Return the key of the record of a producer's own key, given its SHA-256 in hex."""
        return f"{self.idempotency_prefix}{_part(key_sha256)}.json"

    def log_key(self, *, time_ms: int, commit_id: str, is_merged: bool) -> str:
        """Return the key of a log file."""
        if not 0 <= time_ms <= MAX_MS:
            raise InvalidRequest(f"table {self.name}: {time_ms} does not fit 13 digits of unix milliseconds")
        return f"{self.log_prefix}{time_ms:013d}_{'m_' if is_merged else ''}{_part(commit_id)}.jsonl"

    def named_log_key(self, name: str) -> str:
        """Return the key of the log file of a name (:func:`log_name`)."""
        return f"{self.log_prefix}{name}.jsonl"

    def data_key(self, *, partition: str, file_id: str) -> str:
        """Return the key of a data file in a Hive partition (``d=2023-06-07/u=a``; empty: no partitioning)."""
        if not is_partition_path(partition):
            raise InvalidRequest(f"table {self.name}: {partition[:120]!r} is not an encoded partition path")
        folder = f"{partition}/" if partition else ""
        return f"{self.data_prefix}{folder}{_part(file_id)}.parquet"

    def staging_key(self, *, batch_id: str, staging_format: StagingFormat) -> str:
        """Return the key of a staged batch."""
        parse_batch_id_ms(batch_id)
        if staging_format not in STAGING_FORMATS:
            raise InvalidRequest(f"format {staging_format!r} is unknown: use one of {', '.join(STAGING_FORMATS)}")
        return f"{self.staging_prefix}{batch_id}.{staging_format}"

    def group_key(self, *, first_id: str, digest: str) -> str:
        """Return the key of a group of staged batches: by its lowest batch id, so that a listing is in their order."""
        parse_batch_id_ms(first_id)
        return f"{self.staging_prefix}{first_id}.{_part(digest)}.group"

    def view_key(self, view: str) -> str:
        """Return the key of the registration of a view of this table."""
        return f"{self.views_prefix}{check_table_name(view)}.json"

    def refused_key(self, name: str) -> str:
        """Return the key of the record of a refused commit, given the name of its log file."""
        return f"{self.refused_prefix}{_part(name)}.json"

    @property
    def clock_key(self) -> str:
        """The key of the warehouse's scratch object, by which it is seen whether the store's clock tells ages (J1)."""
        return clock_key(self._root)

    @property
    def number(self) -> int:
        """Return which table of its name this is: 1 unless tables of the name were purged before (T4)."""
        return int(self.prefix.rpartition("/")[2].partition(".")[2] or 1)

    def numbered(self, number: int) -> "TablePaths":
        """Return the keys of another table of this name: the first lies below its name, the next below ``name.2``."""
        return TablePaths(self.name, f"{self._root}{self.name}{f'.{number}' if number > 1 else ''}")

    def sibling(self, name: str) -> "TablePaths":
        """Return the keys of the first table of another name in the same warehouse. Raises InvalidRequest."""
        return TablePaths(check_table_name(name), f"{self._root}{name}")

    @property
    def _root(self) -> str:
        root, slash, _ = self.prefix.rpartition("/")
        return root + slash

    def quarantine_key(self, name: str) -> str:
        """Return the key of a quarantined object called ``name`` (no slash)."""
        return f"{self.quarantine_prefix}{_part(name)}"

    def partition_of(self, data_key: str) -> str:
        """Return the partition path of a data file's key; empty without partitioning."""
        if not data_key.startswith(self.data_prefix):
            raise CorruptLog(f"table {self.name}: data file {data_key!r} lies outside {self.data_prefix}")
        return data_key[len(self.data_prefix) :].rpartition("/")[0]


def is_partition_path(path: str) -> bool:
    """Return whether data files may be written below a partition path: Hive form, encoded values; empty is none."""
    return not path or _PARTITION.fullmatch(path) is not None


def file_time_ms(key: str) -> int | None:
    """Return when a data file got its name, by its writer's clock, unix ms; ``None`` for names that do not say.

    Data files of IceDB are named by :meth:`icedb_log.clock.Clock.new_id`; files that others put there may be not.
    """
    return uuid7_hex_ms(key.rpartition("/")[2].removesuffix(".parquet"))


@lru_cache(maxsize=4096)
def parse_log_key(key: str) -> LogName:
    """Parse a log file's key. Those that were parsed lately cost nothing: each read of a log parses all of them.

    Raises:
        CorruptLog: The last component is not a log file's name (S3: never skipped).
    """
    match = _LOG_NAME.fullmatch(key.rpartition("/")[2])
    if match is None:
        raise CorruptLog(f"{key}: not the name of a log file; only log files may stand below _log")
    time_ms, merged, commit_id = match.groups()
    return LogName(int(time_ms), merged is not None, commit_id)


def is_log_folder(key: str) -> bool:
    """Return whether a key lies right below a ``_log`` folder."""
    return f"/{key}".rpartition("/")[0].endswith("/_log")


def parse_audit_key(key: str) -> AuditName | None:
    """Parse an audit object's key; ``None`` if it is none."""
    match = _AUDIT_NAME.fullmatch(key.rpartition("/")[2])
    return None if match is None else AuditName(int(match["ms"]), match["run"], int(match["part"] or 0))


def parse_log_name(name: str) -> LogName:
    """Parse a log file's name as of :func:`log_name`. Raises as :func:`parse_log_key`."""
    return parse_log_key(f"{name}.jsonl")


def find_log_name(key: str) -> LogName | None:
    """Parse a log file's key, or its name as of :func:`log_name`; ``None`` for what is none: it proves nothing."""
    try:
        return parse_log_name(log_name(key))
    except CorruptLog:
        return None


def log_name(key: str) -> str:
    """Return the name of a log file by which feeds know it: the last component of its key, without the suffix."""
    return key.rpartition("/")[2].removesuffix(".jsonl")


def parse_hold_key(key: str) -> HoldName | None:
    """Parse the key of a hold; ``None`` if it is none."""
    match = _HOLD_NAME.fullmatch(key.rpartition("/")[2])
    if match is None:
        return None
    if match["lease"]:
        return HoldName("lease", "", match["lease_id"])
    return HoldName("tag" if match["owner"] == "tag" else "publication", match["name"], match["id"])


def parse_publication_key(key: str) -> PublicationName | None:
    """Parse the key of a publication's hold; ``None`` if it is none."""
    hold = parse_hold_key(key)
    match = _PUBLICATION_NAME.fullmatch(hold.name) if hold is not None and hold.owner == "publication" else None
    if hold is None or match is None:
        return None
    return PublicationName(match["chain"], int(match["sequence"]), int(match["since"]), hold.hold_id)


def publication_id_of(key: str) -> str | None:
    """Return the id of the publication that wrote an object; ``None`` if no publication's object has such a key."""
    match = _PUBLISHED_NAME.fullmatch(key.rpartition("/")[2])
    return None if match is None else match["id"]


@lru_cache(maxsize=4096)
def parse_staged_key(key: str) -> StagedName:
    """Parse a staged batch's key. Those that were parsed lately cost nothing: each flush lists what waits again.

    Raises:
        InvalidRequest: The last component is not ``<uuid7>.<format>``; the message says what to do.
    """
    batch_id, _, staging_format = key.rpartition("/")[2].partition(".")
    if staging_format not in STAGING_FORMATS:
        raise InvalidRequest(
            f"{key}: unknown format {staging_format[:40]!r} in staging; known: {', '.join(STAGING_FORMATS)}"
        )
    return StagedName(batch_id, parse_batch_id_ms(batch_id), staging_format)


def first_id_of(key: str) -> str:
    """Return the id by which a staged object is named: of its batch, or of the first one of a group."""
    return key.rpartition("/")[2].partition(".")[0]


@lru_cache(maxsize=4096)
def parse_group_key(key: str) -> GroupName | None:
    """Parse the key of a group of staged batches; ``None`` if no group has such a key."""
    match = _GROUP_NAME.fullmatch(key.rpartition("/")[2])
    if match is None:
        return None
    try:
        parse_batch_id_ms(match["first"])
    except InvalidRequest:
        return None
    return GroupName(match["first"], match["digest"])


ObjectKind = Literal[
    "log_file",
    "data_file",
    "config",
    "staged_batch",
    "quarantine",
    "fence",
    "hold",
    "import_record",
    "erasure",
    "view",
    "refusal",
    "pressure",
    "idempotency_key",
    "audit",
    "damaged_log",
    "publication_head",
    "published",
    "fields",
]

OBJECT_KINDS: Final[tuple[ObjectKind, ...]] = get_args(ObjectKind)

_ID: Final = r"[0-9a-f-]{36}"
_NAME: Final = r"[^/]+"


_ENTRY: Final = rf"{_ID}(\.conflict-[0-9a-f]{{64}})?"
_FORMATS: Final = "|".join(re.escape(name) for name in STAGING_FORMATS)

_HERE: Final = TablePaths("", "")
"""A table at the root of a store."""

_SHAPES: Final[tuple[tuple[ObjectKind, str, str], ...]] = (
    ("log_file", _HERE.log_prefix, rf"{_NAME}\.jsonl"),
    ("data_file", _HERE.data_prefix, r"(.+/)?[^/]+\.parquet"),
    ("config", _HERE.config_key, ""),
    ("staged_batch", _HERE.staging_prefix, rf"{_ID}\.({_FORMATS}|[0-9a-f]{{32}}\.group)"),
    ("quarantine", _HERE.quarantine_prefix, rf"{_ENTRY}\.(json|(batch|rows)-[0-9a-f]{{32}}\.({_FORMATS}))"),
    ("fence", _HERE.fences_prefix, rf"({'|'.join(ROLES)})\.json"),
    ("hold", _HERE.holds_prefix, rf"({'|'.join(get_args(HoldOwner))})\.{_NAME}\.jsonl"),
    ("import_record", _HERE.imports_prefix, rf"{_NAME}\.json"),
    ("erasure", _HERE.erasures_prefix, rf"{_NAME}\.json"),
    ("view", _HERE.views_prefix, rf"{_NAME}\.json"),
    ("refusal", _HERE.refused_prefix, rf"{_NAME}\.json"),
    ("pressure", _HERE.pressure_key, ""),
    ("idempotency_key", _HERE.idempotency_prefix, rf"{_NAME}\.json"),
    ("audit", _HERE.audit_prefix, rf"{_NAME}\.jsonl"),
    ("damaged_log", _HERE.damaged_prefix, r".+"),
    ("publication_head", _HERE.publication_head_key, ""),
    ("published", _HERE.published_prefix, _NAME),
    ("fields", _HERE.fields_key, ""),
)
"""Each kind with where its keys lie, and how they go on there."""

_PATTERNS: Final = tuple((kind, re.compile(re.escape(where) + rest, re.DOTALL)) for kind, where, rest in _SHAPES)


def find_kind(paths: TablePaths, key: str) -> ObjectKind | None:
    """Return of which kind an object below a table's prefix is; ``None``: of none that this release knows."""
    if not key.startswith(f"{paths.prefix}/"):
        return None
    rest = key[len(paths.prefix) :]
    if rest.startswith(_HERE.data_prefix):  # most objects of most tables: no need to try every pattern
        return "data_file" if rest.endswith(".parquet") and not rest.endswith("/.parquet") else None
    return _find_other(rest)


@lru_cache(maxsize=4096)
def _find_other(rest: str) -> ObjectKind | None:
    """Return of which kind an object is that is no data file: sweeps see the same ones again and again."""
    return next((kind for kind, pattern in _PATTERNS if pattern.fullmatch(rest)), None)
