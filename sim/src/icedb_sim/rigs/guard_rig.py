"""A guard over an access file with every kind of credentials, without any server."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from icedb_service.access.access_file import Identity
from icedb_service.access.guard import AccessGuard, RateLimits
from icedb_service.access.policy import AccessSource
from icedb_service.metrics import AccessMetrics
from prometheus_client import CollectorRegistry

from icedb_sim.fakes.manual_clock import ManualClock
from icedb_sim.rigs.access_rig import TokenIssuer, token_entry, write_access

TOKEN: Final = "icedb_alpha-token-0123456789"
OTHER: Final = "icedb_beta-token-0123456789"
OLD: Final = "icedb_old-token-0123456789"
SECRET: Final = "s3-secret-of-alpha"


class GuardRig:
    """What a guard is made of.

    Args:
        folder: Where the access file and the issuer's key set are written.

    Attributes:
        clock: The guard's.
        issuer: Who signs the JWTs that the guard takes.
        document: The access file: ``TOKEN``, ``OLD`` (expired) and ``SECRET`` are alpha's, ``OTHER`` is beta's.
    """

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.issuer = TokenIssuer()
        self._folder = folder
        self.document: dict[str, Any] = {
            "identities": {
                "alpha": {
                    "tokens": [token_entry(TOKEN), {**token_entry(OLD), "expires": "2020-01-01T00:00:00Z"}],
                    "certificates": ["alpha.internal", "spiffe://prod/alpha"],
                    "access_keys": [{"id": "ALPHAKEY", "secret": SECRET}],
                },
                "beta": {
                    "tokens": [token_entry(OTHER)],
                    "rate": {"calls_per_s": 2, "burst": 3},
                    "certificates": ["beta"],
                },
                "robot": {"jwt": [{"issuer": "login", "claims": {"groups": "robots"}}]},
            },
            "issuers": {"login": self.issuer.write(folder)},
            "grants": [
                {"identities": ["alpha"], "tables": ["a_*"], "verbs": ["read", "append"]},
                {"identities": ["beta", "robot"], "tables": ["b_?"], "verbs": ["read"]},
                {"identities": ["login:team-*"], "tables": ["t_*"], "verbs": ["append"]},
            ],
        }

    def make(self, document: Mapping[str, Any], *, registry: CollectorRegistry | None = None) -> AccessGuard:
        """Write an access file, and return a guard over it; its metrics go to ``registry``."""
        path = write_access(self._folder / "access.json", document)
        metrics = AccessMetrics(registry or CollectorRegistry())
        source = AccessSource(path, clock=self.clock, metrics=metrics)
        return AccessGuard(source, limits=RateLimits(self.clock), metrics=metrics)


def bearer(guard: AccessGuard, token: str) -> Identity:
    """Return whom a guard takes the bearer of a token for."""
    return guard.identify(authorization=f"Bearer {token}")
