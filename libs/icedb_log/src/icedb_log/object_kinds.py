"""Which kinds of object a table consists of: the one list, in the words of ``docs/protocol.md``, section "Objects".

Whoever looks through a table (the orphan sweep, ``icedb fsck``) asks here. What is of no kind is reported and never
deleted: it may be somebody's, or a newer release's.
"""

import re
from functools import lru_cache
from typing import Final, Literal, get_args

from icedb_log.formats import STAGING_FORMATS
from icedb_log.keys import ROLES, TablePaths

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
