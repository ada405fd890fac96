"""Which kinds of object a table consists of: the one list, in the words of ``docs/protocol.md``, section "Objects".

Whoever looks through a table (the orphan sweep, ``icedb fsck``) asks here. What is of no kind is reported and never
deleted: it may be somebody's, or a newer release's.
"""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final, Literal, get_args

from icedb_log.keys import ROLES, STAGING_FORMATS, TablePaths

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
]

OBJECT_KINDS: Final[tuple[ObjectKind, ...]] = get_args(ObjectKind)

_ID: Final = r"[0-9a-f-]{36}"
_NAME: Final = r"[^/]+"


def _patterns() -> Iterator[tuple[ObjectKind, str]]:
    """Yield each kind with what its keys look like, from the keys of a table that lies at the root of a store."""
    here = TablePaths("", "")
    formats = "|".join(re.escape(name) for name in STAGING_FORMATS)

    def below(prefix: str, name: str) -> str:
        return re.escape(prefix) + name

    yield "log_file", below(here.log_prefix, rf"{_NAME}\.jsonl")
    yield "data_file", below(here.data_prefix, r"(.+/)?[^/]+\.parquet")
    yield "config", re.escape(here.config_key)
    yield "staged_batch", below(here.staging_prefix, rf"{_ID}\.({formats})")
    yield "quarantine", below(here.quarantine_prefix, rf"{_ID}\.(json|batch\.({formats})|rows-[0-9a-f]+\.ndjson\.zst)")
    conflict = rf"{_ID}\.conflict-[0-9a-f]{{64}}"
    yield "quarantine", below(here.quarantine_prefix, rf"{conflict}\.(json|batch\.({formats}))")
    yield "quarantine", below(here.quarantine_prefix, rf"{_ID}\.ndjson(\.(gz|zst))?")  # of revision 1 (upgrades.md)
    for role in ROLES:
        yield "fence", re.escape(here.fence_key(role))
    yield "lease", below(here.leases_prefix, rf"{_NAME}\.json")
    yield "pin", below(here.pins_prefix, rf"{_NAME}\.jsonl")
    yield "import_record", below(here.imports_prefix, rf"{_NAME}\.json")
    yield "erasure", below(here.open_erasures_prefix, rf"{_NAME}\.json")
    yield "erasure", below(here.closed_erasures_prefix, rf"{_NAME}\.json")
    yield "view", below(here.views_prefix, rf"{_NAME}\.json")
    yield "refusal", below(here.refused_prefix, rf"{_NAME}\.json")
    yield "pressure", re.escape(here.pressure_key)
    yield "idempotency_key", below(here.idempotency_prefix, rf"{_NAME}\.json")
    yield "audit", below(here.audit_prefix, rf"{_NAME}\.jsonl")
    yield "orphan_record", re.escape(here.orphan_record_key)
    yield "clock", re.escape(here.clock_key)
    yield "purge", re.escape(here.purge_key)
    yield "rebuild", below(here.rebuilds_prefix, rf"{_NAME}\.json")
    yield "damaged_log", below(here.damaged_prefix, r".+")


def _by_kind() -> Mapping[ObjectKind, re.Pattern[str]]:
    found: dict[ObjectKind, list[str]] = {}
    for kind, pattern in _patterns():
        found.setdefault(kind, []).append(pattern)
    return {kind: re.compile("|".join(patterns), re.DOTALL) for kind, patterns in found.items()}


_KINDS: Final = _by_kind()
_DATA: Final = TablePaths("", "").data_prefix


def find_kind(paths: TablePaths, key: str) -> ObjectKind | None:
    """Return of which kind an object below a table's prefix is; ``None``: of none that this release knows."""
    if not key.startswith(f"{paths.prefix}/"):
        return None
    rest = key[len(paths.prefix) :]
    if rest.startswith(_DATA):  # most objects of most tables: no need to try every pattern
        return "data_file" if rest.endswith(".parquet") and not rest.endswith("/.parquet") else None
    return _find_other(rest)


@lru_cache(maxsize=4096)
def _find_other(rest: str) -> ObjectKind | None:
    """Return of which kind an object is that is no data file: sweeps see the same ones again and again."""
    return next((kind for kind, pattern in _KINDS.items() if pattern.fullmatch(rest)), None)
