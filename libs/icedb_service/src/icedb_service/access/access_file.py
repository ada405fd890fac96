"""The access file: who there is, how each is recognised, and who may do what. Its model, and how it is read.

TOML or JSON, by the file's ending. What it says is checked as a whole; an error names the file, the line where the
entry begins, and the entry, and never repeats a value: it may be a secret that stands in the wrong place.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from icedb_log.errors import InvalidRequest
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator


class Verb(StrEnum):
    """What somebody may do with a table."""

    READ = "read"
    APPEND = "append"
    MAINTAIN = "maintain"
    ERASE = "erase"


@dataclass(frozen=True, slots=True)
class Identity:
    """Somebody who was recognised."""

    name: str


@dataclass(frozen=True, slots=True)
class AccessKey:
    """A key pair of the S3 gateway.

    Attributes:
        identity: Whose it is.
        secret: What signatures are made with; never logged.
    """

    identity: Identity
    secret: str

    def __repr__(self) -> str:
        return f"AccessKey({self.identity.name})"


ANYBODY = Identity("anybody")
"""Everybody, where no policy is set."""


MAX_FILE_BYTES: Final = 4 * 1024 * 1024
ANONYMOUS: Final = "anonymous"
SEGMENT: Final = "segment"
RESERVED: Final = (ANONYMOUS, SEGMENT)
"""Identities without credentials: callers who show none, and webhooks whose signature or write key fits."""

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "Ed25519", "EdDSA"]
"""Signatures with a public key. Those with a shared secret, and ``none``, are never taken."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}")
_KEYS_URL: Final = re.compile(r"https://|http://(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?/")
_SHA256_OF_NOTHING: Final = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

Pattern = Annotated[str, Field(pattern=r"^[!-~]{1,300}$")]
TablePattern = Annotated[str, Field(pattern=r"^[a-z0-9_*?]{1,63}$")]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class TokenEntry(_Entry):
    """A bearer token, known by its hash: tokens have 256 random bits, so a fast hash cannot be searched."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", repr=False)]
    expires: AwareDatetime | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.sha256 == _SHA256_OF_NOTHING:
            raise ValueError("this is the hash of an empty token; make one with `icedb-access new-token`")
        return self


class JwtRule(_Entry):
    """Tokens of an issuer whose claims are these."""

    issuer: str
    claims: Annotated[dict[str, str], Field(min_length=1)]


class AccessKeyEntry(_Entry):
    """A key of the S3 gateway. Signatures need the secret itself: it stands here, or in a file of its own."""

    id: Annotated[str, Field(pattern=r"^[A-Za-z0-9]{4,128}$")]
    secret: SecretStr | None = None
    secret_file: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.secret is None) == (self.secret_file is None):
            raise ValueError("give exactly one of secret and secret_file")
        return self


class RateEntry(_Entry):
    """Calls of one identity, for each process: ``burst`` at once, ``calls_per_s`` in the long run."""

    calls_per_s: Annotated[float, Field(gt=0, le=1_000_000)]
    burst: Annotated[int, Field(ge=1, le=1_000_000)]


class IdentityEntry(_Entry):
    """One identity: any of its credentials will do."""

    tokens: tuple[TokenEntry, ...] = ()
    certificates: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    jwt: tuple[JwtRule, ...] = ()
    access_keys: tuple[AccessKeyEntry, ...] = ()
    rate: RateEntry | None = None


class IssuerEntry(_Entry):
    """Who issues JWTs, and how they are checked."""

    issuer: Annotated[str, Field(min_length=1)]
    audience: Annotated[str, Field(min_length=1)]
    keys_file: str | None = None
    keys_url: str | None = None
    algorithms: Annotated[tuple[Algorithm, ...], Field(min_length=1)] = ("RS256", "ES256")
    leeway_s: Annotated[int, Field(ge=0, le=300)] = 60
    identity_claim: str | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.keys_file is None) == (self.keys_url is None):
            raise ValueError("give exactly one of keys_file and keys_url")
        if self.keys_url is not None and not _KEYS_URL.match(self.keys_url):
            raise ValueError("keys_url has to begin with https://: over plain http an attacker can replace the keys")
        return self


class GrantEntry(_Entry):
    """These identities may do this with these tables."""

    identities: Annotated[tuple[Pattern, ...], Field(min_length=1)]
    tables: Annotated[tuple[TablePattern, ...], Field(min_length=1)]
    verbs: Annotated[tuple[Verb, ...], Field(min_length=1)]


class AccessFile(_Entry):
    """The whole file."""

    version: Literal[1]
    identities: dict[str, IdentityEntry] = {}
    issuers: dict[str, IssuerEntry] = {}
    grants: tuple[GrantEntry, ...] = ()
    default_rate: RateEntry | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        for problem in _find_problems(self):
            raise ValueError(problem)
        return self


def read_access_file(path: Path) -> AccessFile:
    """Read and check an access file.

    Raises:
        InvalidRequest: It cannot be read, or is wrong; names the file, the line and the entry.
    """
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InvalidRequest(f"access file {path}: larger than {MAX_FILE_BYTES} bytes")
        text = path.read_text(encoding="utf-8")
        document = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise InvalidRequest(f"access file {path}: {error.strerror} (ICEDB_ACCESS_FILE)") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"access file {path}: not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise InvalidRequest(f"access file {path}: line {error.lineno}: {error.msg}") from None
    except tomllib.TOMLDecodeError as error:
        raise InvalidRequest(f"access file {path}: {error}") from None
    except RecursionError:
        raise InvalidRequest(f"access file {path}: nested too deeply") from None
    except ValueError as error:  # a number of thousands of digits
        raise InvalidRequest(f"access file {path}: {error}") from None
    try:
        return AccessFile.model_validate(document)
    except ValidationError as error:
        raise InvalidRequest(f"access file {path}: " + "; ".join(_explain(text, error))) from None


def _find_problems(access: AccessFile) -> Iterator[str]:
    yield from _check_names(access)
    yield from _check_credentials(access)
    for number, grant in enumerate(access.grants):
        for pattern in grant.identities:
            if not _can_match(access, pattern):
                yield f"grants[{number}]: no identity is called {pattern!r}; define it, or correct the name"


def _check_names(access: AccessFile) -> Iterator[str]:
    for kind, names in (("identities", access.identities), ("issuers", access.issuers)):
        for name in names:
            if not _NAME.fullmatch(name):
                yield f"{kind}: {name[:100]!r} is no name; use letters, digits and . _ @ -"
    for name in RESERVED:
        entry = access.identities.get(name)
        if entry is not None and (entry.tokens or entry.certificates or entry.jwt or entry.access_keys):
            yield f"identities.{name}: takes no credentials; it is who shows none of this file's"


def _check_credentials(access: AccessFile) -> Iterator[str]:
    owners: dict[tuple[str, str], str] = {}
    for name, entry in access.identities.items():
        shown = [
            *(("token", token.sha256) for token in entry.tokens),
            *(("certificate name", certificate) for certificate in entry.certificates),
            *(("access key", key.id) for key in entry.access_keys),
        ]
        for credential in shown:
            owner = owners.setdefault(credential, name)
            if owner != name:
                yield f"identities.{name}: a {credential[0]} of it is one of {owner}, too; each belongs to one identity"
        for rule in entry.jwt:
            if rule.issuer not in access.issuers:
                yield f"identities.{name}.jwt: no issuer is called {rule.issuer[:100]!r}; define it under issuers"


def _can_match(access: AccessFile, pattern: str) -> bool:
    if "*" in pattern or "?" in pattern or pattern in access.identities or pattern in RESERVED:
        return True
    issuer, colon, _ = pattern.partition(":")
    return bool(colon) and issuer in access.issuers and access.issuers[issuer].identity_claim is not None


def _explain(text: str, error: ValidationError) -> Iterator[str]:
    for problem in error.errors(include_url=False, include_input=False, include_context=False):
        where = _spell(problem["loc"])
        line = _find_line(text, problem["loc"])
        message = str(problem["msg"]).removeprefix("Value error, ")
        yield "".join((f"line {line}: " if line else "", f"{where}: " if where else "", message))


def _spell(loc: Sequence[int | str]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".")


def _find_line(text: str, loc: Sequence[Any]) -> int | None:
    """Return the line where the innermost table of a TOML file begins that holds the entry, if it can be told."""
    for depth in range(len(loc), 0, -1):
        part = loc[:depth]
        name = r"\s*\.\s*".join(rf'"?{re.escape(str(each))}"?' for each in part if isinstance(each, str))
        found = [m.start() for m in re.finditer(rf"^[ \t]*\[\[?\s*{name}\s*\]", text, re.MULTILINE)]
        number = part[-1] if isinstance(part[-1], int) else 0
        if number < len(found):
            return text.count("\n", 0, found[number]) + 1
    return None
