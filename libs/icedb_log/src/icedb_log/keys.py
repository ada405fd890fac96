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

from icedb_log.clock import parse_uuid7_ms, uuid7_hex_ms
from icedb_log.errors import CorruptLog, InvalidRequest
from icedb_log.formats import STAGING_FORMATS, StagingFormat

Role = Literal["ingest", "merge"]
ROLES: Final[tuple[Role, ...]] = ("ingest", "merge")

TABLE_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,62}")
PIN_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_PIN_OBJECT: Final = re.compile(r"(?P<name>[a-z0-9][a-z0-9_-]{0,62})\.(?P<id>[0-9a-f]{32})\.jsonl")
# Ours end with a commit id; other writers of the wire put the name of their host there.
_LOG_NAME: Final = re.compile(
    r"(?P<ms>[0-9]{13})_(?P<merged>m_)?(?P<id>[A-Za-z0-9](?:[A-Za-z0-9._-]{0,198}[A-Za-z0-9])?)\.jsonl"
)
_AUDIT_NAME: Final = re.compile(r"(?P<ms>[0-9]{13})_(?P<run>[0-9a-f]{32})(_(?P<part>[0-9]{5}))?\.jsonl")
_PUBLICATION_NAME: Final = re.compile(
    r"(?P<chain>[0-9a-f]{32})\.(?P<sequence>[0-9]{10})\.(?P<since>[0-9]{13})\.(?P<id>[0-9a-f]{32})\.json"
)
_PUBLISHED_NAME: Final = re.compile(r"(?P<sequence>[0-9]{10})-(?P<id>[0-9a-f]{32})-[^/]+")
_PARTITION: Final = re.compile(r"[A-Za-z0-9_]+=[A-Za-z0-9._-]*(/[A-Za-z0-9_]+=[A-Za-z0-9._-]*)*")
MAX_MS: Final = 9_999_999_999_999


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
class AuditName:
    """The parsed last component of an audit object's key."""

    time_ms: int
    run_id: str
    part: int


@dataclass(frozen=True, slots=True)
class PublicationName:
    """The parsed last component of the key of a publication's record (P2).

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


def check_pin_name(name: str) -> str:
    """Return ``name`` if it is the name of a pin, else raise InvalidRequest saying what one looks like."""
    if not PIN_NAME.fullmatch(name):
        raise InvalidRequest(
            f"pin name {name[:80]!r} is not allowed: use 1 to 63 of a-z, 0-9, _ and -, beginning with a letter or digit"
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
    staging_prefix = _Below("/_icedb/staging/")
    quarantine_prefix = _Below("/_icedb/quarantine/")
    fences_prefix = _Below("/_icedb/fence/")
    leases_prefix = _Below("/_icedb/leases/")
    pins_prefix = _Below("/_icedb/pins/")  # J7
    imports_prefix = _Below("/_icedb/imports/")
    erasures_prefix = _Below("/_icedb/erasures/")
    open_erasures_prefix = _Below("/_icedb/erasures/open/")  # those that have not ended
    closed_erasures_prefix = _Below("/_icedb/erasures/closed/")  # certificates, and refusals
    views_prefix = _Below("/_icedb/views/")  # registrations of views of this table (V3)
    refused_prefix = _Below("/_icedb/refused/")  # commits that this view has refused (V5)
    audit_prefix = _Below("/_icedb/audit/")  # what the janitor deleted (J10)
    idempotency_prefix = _Below("/_icedb/idempotency/")  # records of producers' own keys
    rebuilds_prefix = _Below("/_icedb/rebuilds/")  # records of rebuilds of the log (B4)
    iceberg_prefix = _Below("/_icedb/iceberg/")  # what other engines see of this table (P1)
    publications_prefix = _Below("/_icedb/iceberg/publications/")  # a record of each publication (P2)
    published_prefix = _Below("/_icedb/iceberg/metadata/")  # what publications say, in the words of engines (P5)
    damaged_prefix = _Below("/_icedb/damaged/")  # copies of damaged log files, then the rebuild's id (B4)

    # Single objects.
    config_key = _Below("/_icedb/table.json")
    pressure_key = _Below("/_icedb/pressure.json")  # what ingest last said about back-pressure; absent means none
    clock_key = _Below("/_icedb/clock")  # a scratch object that tells whether the store's clock tells ages (J1)
    orphan_record_key = _Below("/_icedb/orphans.json")  # data files that sweeps found unnamed, and since when (J5)
    publication_head_key = _Below("/_icedb/iceberg/head.json")  # which publication is the current one (P1)
    held_back_key = _Below("/_icedb/iceberg/held-back.json")  # why the newest state is not shown
    version_hint_key = _Below("/_icedb/iceberg/metadata/version-hint.text")  # the same, for engines without a catalog
    fields_key = _Below("/_icedb/fields.json")  # which field id each column has in publications; never changes
    purge_key = _Below("/_icedb/purge.json")  # how far a purge is, for people; nothing is decided by it

    def rebuild_key(self, rebuild_id: str) -> str:
        """Return the key of the record of a rebuild."""
        return f"{self.rebuilds_prefix}{_part(rebuild_id)}.json"

    def damaged_key(self, rebuild_id: str, log_key: str) -> str:
        """Return the key of the copy of a damaged log file."""
        return f"{self.damaged_prefix}{_part(rebuild_id)}/{log_key.removeprefix(self.log_prefix)}"

    def fence_key(self, role: Role) -> str:
        """Return the key of a role's fence."""
        return f"{self.fences_prefix}{role}.json"

    def lease_key(self, lease_id: str) -> str:
        """Return the key of a lease."""
        return f"{self.leases_prefix}{_part(lease_id)}.json"

    def audit_key(self, *, time_ms: int, run_id: str, part: int = 0) -> str:
        """Return the key of a part of the audit of one run of the janitor; they sort by the time of the run."""
        suffix = f"_{part:05d}" if part else ""
        return f"{self.audit_prefix}{time_ms:013d}_{run_id}{suffix}.jsonl"

    def pins_of_name_prefix(self, name: str) -> str:
        """Return what the key of every pin of a name begins with, of whatever time."""
        return f"{self.pins_prefix}{check_pin_name(name)}."

    def pin_key(self, name: str, pin_id: str) -> str:
        """Return the key of a pin: its name, and an id that is never used again."""
        return f"{self.pins_of_name_prefix(name)}{pin_id}.jsonl"

    def publication_key(self, name: PublicationName) -> str:
        """Return the key of a publication's record; those of one chain sort by sequence."""
        if not 0 <= name.since_ms <= MAX_MS:
            raise InvalidRequest(f"table {self.name}: {name.since_ms} does not fit 13 digits of unix milliseconds")
        rest = f"{name.since_ms:013d}.{_part(name.publication_id)}.json"
        return f"{self.publications_of(name.chain, sequence=name.sequence)}{rest}"

    def publications_of(self, chain: str, *, sequence: int) -> str:
        """Return what the keys of the records of one sequence begin with: of all that were tried at once."""
        return f"{self.publications_prefix}{_part(chain)}.{sequence:010d}."

    def published_key(self, name: str, *, sequence: int, publication_id: str) -> str:
        """Return the key of an object of a publication: whose it is stands in its name (P5)."""
        return f"{self.published_prefix}{sequence:010d}-{_part(publication_id)}-{_part(name)}"

    def import_key(self, import_id: str) -> str:
        """Return the key of an import's record."""
        return f"{self.imports_prefix}{_part(import_id)}.json"

    def open_erasure_key(self, erasure_id: str) -> str:
        """Return the key of an erasure's record while it has not ended."""
        return f"{self.open_erasures_prefix}{_part(erasure_id)}.json"

    def closed_erasure_key(self, erasure_id: str) -> str:
        """Return the key of an erasure's record once it has ended."""
        return f"{self.closed_erasures_prefix}{_part(erasure_id)}.json"

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
        parse_uuid7_ms(batch_id)
        if staging_format not in STAGING_FORMATS:
            raise InvalidRequest(f"format {staging_format!r} is unknown: use one of {', '.join(STAGING_FORMATS)}")
        return f"{self.staging_prefix}{batch_id}.{staging_format}"

    def view_key(self, view: str) -> str:
        """Return the key of the registration of a view of this table."""
        return f"{self.views_prefix}{check_table_name(view)}.json"

    def refused_key(self, name: str) -> str:
        """Return the key of the record of a refused commit, given the name of its log file."""
        return f"{self.refused_prefix}{_part(name)}.json"

    def sibling(self, name: str) -> "TablePaths":
        """Return the keys of another table of the same warehouse. Raises InvalidRequest for a bad name."""
        root = self.prefix.removesuffix(self.name)
        return TablePaths(check_table_name(name), f"{root}{name}")

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


def log_name(key: str) -> str:
    """Return the name of a log file by which feeds know it: the last component of its key, without the suffix."""
    return key.rpartition("/")[2].removesuffix(".jsonl")


def parse_publication_key(key: str) -> PublicationName | None:
    """Parse the key of a publication's record; ``None`` if it is none."""
    match = _PUBLICATION_NAME.fullmatch(key.rpartition("/")[2])
    if match is None:
        return None
    return PublicationName(match["chain"], int(match["sequence"]), int(match["since"]), match["id"])


def publication_id_of(key: str) -> str | None:
    """Return the id of the publication that wrote an object; ``None`` if no publication's object has such a key."""
    match = _PUBLISHED_NAME.fullmatch(key.rpartition("/")[2])
    return None if match is None else match["id"]


def pin_name_of(key: str) -> str | None:
    """Return the name of the pin whose key this is; ``None`` if no pin has such a key."""
    match = _PIN_OBJECT.fullmatch(key.rpartition("/")[2])
    return None if match is None else match["name"]


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
    return StagedName(batch_id, parse_uuid7_ms(batch_id), staging_format)


ObjectKind = Literal[
    "log_file",
    "data_file",
    "config",
    "staged_batch",
    "quarantine",
    "fence",
    "lease",
    "pin",
    "import_record",
    "erasure",
    "view",
    "refusal",
    "pressure",
    "idempotency_key",
    "audit",
    "orphan_record",
    "clock",
    "purge",
    "rebuild",
    "damaged_log",
    "publication_head",
    "held_back",
    "publication",
    "published",
    "fields",
]

OBJECT_KINDS: Final[tuple[ObjectKind, ...]] = get_args(ObjectKind)

_ID: Final = r"[0-9a-f-]{36}"
_NAME: Final = r"[^/]+"


_CONFLICT: Final = rf"{_ID}\.conflict-[0-9a-f]{{64}}"
_FORMATS: Final = "|".join(re.escape(name) for name in STAGING_FORMATS)

_HERE: Final = TablePaths("", "")
"""A table at the root of a store."""

_SHAPES: Final[tuple[tuple[ObjectKind, str, str], ...]] = (
    ("log_file", _HERE.log_prefix, rf"{_NAME}\.jsonl"),
    ("data_file", _HERE.data_prefix, r"(.+/)?[^/]+\.parquet"),
    ("config", _HERE.config_key, ""),
    ("staged_batch", _HERE.staging_prefix, rf"{_ID}\.({_FORMATS})"),
    ("quarantine", _HERE.quarantine_prefix, rf"{_ID}\.(json|batch\.({_FORMATS})|rows-[0-9a-f]+\.ndjson\.zst)"),
    ("quarantine", _HERE.quarantine_prefix, rf"{_CONFLICT}\.(json|batch\.({_FORMATS}))"),
    ("quarantine", _HERE.quarantine_prefix, rf"{_ID}\.ndjson(\.(gz|zst))?"),  # of revision 1 (upgrades.md)
    ("fence", _HERE.fences_prefix, rf"({'|'.join(ROLES)})\.json"),
    ("lease", _HERE.leases_prefix, rf"{_NAME}\.json"),
    ("pin", _HERE.pins_prefix, rf"{_NAME}\.jsonl"),
    ("import_record", _HERE.imports_prefix, rf"{_NAME}\.json"),
    ("erasure", _HERE.open_erasures_prefix, rf"{_NAME}\.json"),
    ("erasure", _HERE.closed_erasures_prefix, rf"{_NAME}\.json"),
    ("view", _HERE.views_prefix, rf"{_NAME}\.json"),
    ("refusal", _HERE.refused_prefix, rf"{_NAME}\.json"),
    ("pressure", _HERE.pressure_key, ""),
    ("idempotency_key", _HERE.idempotency_prefix, rf"{_NAME}\.json"),
    ("audit", _HERE.audit_prefix, rf"{_NAME}\.jsonl"),
    ("orphan_record", _HERE.orphan_record_key, ""),
    ("clock", _HERE.clock_key, ""),
    ("purge", _HERE.purge_key, ""),
    ("rebuild", _HERE.rebuilds_prefix, rf"{_NAME}\.json"),
    ("damaged_log", _HERE.damaged_prefix, r".+"),
    ("publication_head", _HERE.publication_head_key, ""),
    ("held_back", _HERE.held_back_key, ""),
    ("publication", _HERE.publications_prefix, rf"{_NAME}\.json"),
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
