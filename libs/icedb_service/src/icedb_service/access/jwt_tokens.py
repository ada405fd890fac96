"""Checks JSON Web Tokens: signature, algorithm, issuer, audience and times. The work is joserfc's."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from icedb_log.clock import Clock
from icedb_log.errors import Unauthenticated
from icedb_log.units import SECOND_MS
from joserfc import jwt
from joserfc.errors import ExpiredTokenError, InvalidKeyIdError, JoseError
from joserfc.jwt import JWTClaimsRegistry

from icedb_service.access.key_sets import KeySource

PARTS: Final = 3


@dataclass(frozen=True, slots=True)
class Issuer:
    """Who issues tokens.

    Attributes:
        name: As the access file has it.
        issuer: The claim ``iss``.
        audience: The claim ``aud`` that is ours.
        algorithms: Signatures that are taken.
        leeway_s: By how much clocks may differ.
        identity_claim: The claim that names an identity of its own, if any.
        source: Its keys.
    """

    name: str
    issuer: str
    audience: str
    algorithms: tuple[str, ...]
    leeway_s: int
    identity_claim: str | None
    source: KeySource


def looks_like_jwt(token: str) -> bool:
    """Whether a token has the form of a signed JWT."""
    return token.count(".") == PARTS - 1 and token.startswith("ey")


def verify_jwt(token: str, issuer: Issuer, *, clock: Clock) -> Mapping[str, Any] | None:
    """Return the claims of a token of this issuer; ``None`` if it is not signed with a key of the issuer.

    Raises:
        Unauthenticated: It is the issuer's, and is expired, not valid yet, or for somebody else.
        Unavailable: The issuer's keys are not there yet.
    """
    keys = issuer.source.keys()
    try:
        claims = jwt.decode(token, keys, algorithms=list(issuer.algorithms)).claims
    except InvalidKeyIdError:
        issuer.source.miss()
        return None
    except (JoseError, ValueError, TypeError):
        return None
    checks = JWTClaimsRegistry(
        now=clock.now_ms() // SECOND_MS,
        leeway=issuer.leeway_s,
        iss={"essential": True, "value": issuer.issuer},
        aud={"essential": True, "value": issuer.audience},
        exp={"essential": True},
    )
    try:
        checks.validate(claims)
    except ExpiredTokenError:
        raise Unauthenticated("the token has expired; get a new one") from None
    except JoseError as error:
        claim = getattr(error, "claim", None) or "?"
        raise Unauthenticated(f"the token is not valid here: its claim {str(claim)[:20]!r} does not fit") from None
    return claims
