"""Which files an import means: URL patterns, what may be read, and the objects that match.

A pattern is ``s3://bucket/path/*.parquet`` or ``file:///folder/**/*.parquet``. ``*``, ``?`` and ``[…]`` stay within
one component of the path, ``**`` stands for any number of folders, and a pattern that ends with a slash means every
``.parquet`` file below. Wildcards do not match names that begin with ``_`` or ``.`` (unless they are Hive folders,
``_x=1``): that is where other tools keep what is not, or not yet, data. Nothing in a URL is percent-decoded.
"""

import fnmatch
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from icedb_log.errors import InvalidRequest, NotFound
from icedb_log.jobs import SourceFile
from icedb_log.store.object_store import ObjectInfo, ObjectStore, check_key, list_all

MAX_PATTERNS: Final = 10_000
MAX_SOURCE_FILES: Final = 100_000
"""Files of one run. More are asked for with several patterns, one run after another."""

_WILDCARD: Final = re.compile(r"[*?\[]")
_VISIBLE: Final = r"(?!\.|_(?![^/]*=))"
_SHOWN_CHARS: Final = 200
_FORMS: Final = "use s3://bucket/path/*.parquet or file:///absolute/folder/*.parquet; ** stands for any folders"


@dataclass(frozen=True, slots=True)
class SourcePattern:
    """A parsed pattern.

    Attributes:
        text: As it was given.
        store_url: What to open.
        url_prefix: What the URL of each match begins with; a key follows.
        literal_prefix: What the key of each match begins with.
        regex: What the whole key matches; ``None``: the key is ``literal_prefix``, exactly.
    """

    text: str
    store_url: str
    url_prefix: str
    literal_prefix: str
    regex: re.Pattern[str] | None

    @property
    def literal_folder(self) -> str:
        """The URL of the folder that all matches lie below, with a slash at its end."""
        return f"{self.url_prefix}{self.literal_prefix}".rpartition("/")[0] + "/"


def parse_pattern(text: str) -> SourcePattern:
    """Parse a pattern. Raises InvalidRequest with the allowed forms."""
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in ("s3", "file"):
        raise InvalidRequest(f"import source {text[:_SHOWN_CHARS]!r}: {_FORMS}")
    if scheme == "file" and not rest.startswith("/"):
        raise InvalidRequest(f"import source {text[:_SHOWN_CHARS]!r}: not an absolute path (three slashes); {_FORMS}")
    top, separator, path = rest.lstrip("/").partition("/")
    if not top or not separator or _WILDCARD.search(top) or "@" in top:
        raise InvalidRequest(
            f"import source {text[:_SHOWN_CHARS]!r}: the bucket, or the first folder, must be written out; {_FORMS}"
        )
    if not path or path.endswith("/"):
        path = f"{path}**/*.parquet"
    literal = path[: match.start()] if (match := _WILDCARD.search(path)) else path
    try:
        check_key(re.sub(_WILDCARD, "x", path))
        if scheme == "file":
            check_key(top)
    except InvalidRequest as error:
        raise InvalidRequest(f"import source {text[:_SHOWN_CHARS]!r}: {error}") from error
    is_file = scheme == "file"
    return SourcePattern(
        text=text,
        store_url=f"file:///{quote(top)}" if is_file else f"s3://{top}",
        url_prefix=f"file:///{top}/" if is_file else f"s3://{top}/",
        literal_prefix=literal,
        regex=_compile(path) if match else None,
    )


def require_allowed(pattern: SourcePattern, allowed: Sequence[str]) -> None:
    """Refuse a pattern that reaches outside what a worker may read on request.

    Args:
        pattern: What is asked for.
        allowed: URL prefixes, whole components: ``s3://``, ``s3://bucket/in``, ``file:///data/in``.

    Raises:
        InvalidRequest: Names the setting.
    """
    if not any(pattern.literal_folder.startswith(_as_folder(prefix)) for prefix in allowed):
        raise InvalidRequest(
            f"import source {pattern.text[:_SHOWN_CHARS]!r}: the ingest worker may read "
            f"{', '.join(allowed) or 'nothing'} only; set ICEDB_IMPORT_SOURCES of the worker, or send a file of your "
            "own with `icedb ingest TABLE FILE`"
        )


def list_sources(
    patterns: Sequence[SourcePattern], *, open_store: Callable[[str], ObjectStore], allowed: Sequence[str]
) -> tuple[SourceFile, ...]:
    """Return the objects that the patterns match, each once, ascending by URL.

    Costs a listing for each distinct prefix of patterns with wildcards, a HEAD for each of the others.

    Args:
        patterns: What is asked for.
        open_store: Opens a store by its URL.
        allowed: As for :func:`require_allowed`.

    Raises:
        InvalidRequest: A pattern is not allowed, or too many files match.
        NotFound: A pattern matches nothing; names it.
        Unavailable: A store did not answer.
    """
    if not patterns or len(patterns) > MAX_PATTERNS:
        raise InvalidRequest(f"{len(patterns)} import sources: give 1 to {MAX_PATTERNS}, and use wildcards")
    stores: dict[str, ObjectStore] = {}
    listings: dict[tuple[str, str], tuple[ObjectInfo, ...]] = {}
    found: dict[str, SourceFile] = {}
    for pattern in patterns:
        require_allowed(pattern, allowed)
        store = stores.get(pattern.store_url) or stores.setdefault(pattern.store_url, open_store(pattern.store_url))
        matches = [_describe(pattern, info) for info in _match(store, pattern, listings)]
        matches = [source for source in matches if _stays_inside(source, allowed)]
        if not matches:
            raise NotFound(
                f"import source {pattern.text[:_SHOWN_CHARS]!r} matches no object that the ingest worker can see"
                f"{'' if pattern.store_url.startswith('s3:') else ' on its own machine'}; check the path, and whether "
                "each * stands for one component (** for any number)"
            )
        found.update((source.url, source) for source in matches)
        if len(found) > MAX_SOURCE_FILES:
            raise InvalidRequest(f"more than {MAX_SOURCE_FILES} files match: import them with several runs")
    return tuple(found[url] for url in sorted(found))


def _match(
    store: ObjectStore, pattern: SourcePattern, listings: dict[tuple[str, str], tuple[ObjectInfo, ...]]
) -> list[ObjectInfo]:
    if pattern.regex is None:
        try:
            return [store.head(pattern.literal_prefix)]
        except NotFound:
            return []
    place = (pattern.store_url, pattern.literal_prefix)
    if place not in listings:
        listings[place] = list_all(store, pattern.literal_prefix).objects
    return [info for info in listings[place] if pattern.regex.fullmatch(info.key)]


def _describe(pattern: SourcePattern, info: ObjectInfo) -> SourceFile:
    return SourceFile(
        store_url=pattern.store_url,
        key=info.key,
        url=f"{pattern.url_prefix}{info.key}",
        etag=info.etag,
        size_bytes=info.size_bytes,
        modified_ms=info.modified_ms,
        is_named=pattern.regex is None,
    )


def _stays_inside(source: SourceFile, allowed: Sequence[str]) -> bool:
    """Whether a file of this machine really lies where its name says: a symbolic link may lead elsewhere."""
    path = source.url.removeprefix("file://")
    if path == source.url:
        return True
    real = f"file://{os.path.realpath(path)}"
    folders = (prefix for prefix in allowed if prefix.startswith("file://"))
    return any(
        real.startswith(_as_folder(f"file://{os.path.realpath(prefix.removeprefix('file://'))}")) for prefix in folders
    )


def _as_folder(prefix: str) -> str:
    return prefix if prefix.endswith("/") else f"{prefix}/"


def _compile(path: str) -> re.Pattern[str]:
    parts: list[str] = []
    components = path.split("/")
    for number, component in enumerate(components):
        is_last = number == len(components) - 1
        if component == "**":
            parts.append(f"(?:{_VISIBLE}[^/]+/)*" if not is_last else f"(?:{_VISIBLE}[^/]+/)*{_VISIBLE}[^/]+")
            continue
        visible = _VISIBLE if _WILDCARD.match(component) else ""
        translated = "".join(_compile_piece(piece) for piece in re.findall(r"\*+|\?|\[[^\]/]+\]|.", component))
        parts.append(f"{visible}(?:{translated}){'' if is_last else '/'}")
    return re.compile("".join(parts))


def _compile_piece(piece: str) -> str:
    """Translate a piece of a component; its wildcards never match a slash."""
    if piece.startswith("*"):
        return "[^/]*"
    if piece == "?":
        return "[^/]"
    if len(piece) > 1:  # a set, as fnmatch understands it; never a slash
        inner = fnmatch.translate(piece).removeprefix("(?s:").removesuffix(r")\Z").removesuffix(r")\z")
        return f"(?!/){inner}"
    return re.escape(piece)
