"""What tests of access control need: an access file with tokens, keys of an issuer, and certificates, all made anew.

Nothing here is a secret: each run has its own.
"""

import ipaddress
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

import orjson
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from icedb_service.access.policy import hash_token
from joserfc import jwt
from joserfc.jwk import ECKey

ISSUER: Final = "https://login.test/"
AUDIENCE: Final = "icedb"
_BEGIN: Final = datetime.fromisoformat("2020-01-01T00:00:00+00:00")


class Authority:
    """A certificate authority of its own.

    Args:
        name: Its common name.
        days: How long after 2020 its certificates end.
    """

    def __init__(self, name: str = "test authority", *, days: int = 10_000) -> None:
        self._days = days
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(self._name, self._name, self._key, days).add_extension(
            x509.BasicConstraints(True, None), True
        )
        self._certificate = builder.sign(self._key, hashes.SHA256())

    def write(self, path: Path) -> Path:
        """Write the authority's certificate."""
        path.write_bytes(self._certificate.public_bytes(Encoding.PEM))
        return path

    def issue(self, folder: Path, name: str, *, dns: Sequence[str] = (), uris: Sequence[str] = ()) -> tuple[Path, Path]:
        """Write a certificate with this common name, and its key; return where. Servers: ``dns=("localhost",)``."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]), self._name, key, self._days)
        names: list[x509.GeneralName] = [x509.DNSName(each) for each in dns]
        names += [x509.UniformResourceIdentifier(each) for each in uris]
        if "localhost" in dns:
            names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), False)
        certificate = builder.sign(self._key, hashes.SHA256())
        cert_file, key_file = folder / f"{name}.crt", folder / f"{name}.key"
        cert_file.write_bytes(certificate.public_bytes(Encoding.PEM))
        key_file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return cert_file, key_file


class TokenIssuer:
    """An issuer of JWTs.

    Args:
        key_id: Of its key.
    """

    def __init__(self, key_id: str = "k1") -> None:
        self.key_id = key_id
        self._key = ECKey.generate_key("P-256", {"kid": key_id})

    def key_set(self) -> bytes:
        """Return its public keys as a JWK set."""
        return orjson.dumps({"keys": [self._key.as_dict(private=False)]})

    def write(self, folder: Path) -> dict[str, Any]:
        """Write its key set beside an access file; return how that file knows the issuer."""
        (folder / "keys.json").write_bytes(self.key_set())
        return {
            "issuer": ISSUER,
            "audience": AUDIENCE,
            "keys_file": "keys.json",
            "algorithms": ["ES256"],
            "identity_claim": "sub",
        }

    def sign(self, now_ms: int, **claims: Any) -> str:
        """Return a token that is valid for an hour; claims may be replaced, and left out with ``None``."""
        now_s = now_ms // 1000
        full = {"iss": ISSUER, "aud": AUDIENCE, "sub": "somebody", "iat": now_s, "exp": now_s + 3600, **claims}
        given = {name: value for name, value in full.items() if value is not None}
        return jwt.encode({"alg": "ES256", "kid": self.key_id}, given, self._key)


def write_access(path: Path, document: Mapping[str, Any]) -> Path:
    """Write an access file in JSON; ``version`` is added."""
    path.write_bytes(orjson.dumps({"version": 1, **document}))
    return path


def token_entry(token: str) -> dict[str, str]:
    """Return how an access file knows a token."""
    return {"sha256": hash_token(token)}


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_BEGIN)
        .not_valid_after(_BEGIN + timedelta(days=days))
    )
