"""Tokens that were made to fool the check: each is refused, by the same path as one that nobody knows."""

import base64
import hmac
import json
import ssl

import pytest
from icedb_log.errors import Unauthenticated
from icedb_service.access import policy
from icedb_service.access.access_file import Identity
from icedb_service.settings import ServiceSettings
from icedb_service.tls import ssl_context
from icedb_sim.rigs.access_rig import ISSUER, Authority, TokenIssuer, token_entry
from icedb_sim.rigs.guard_rig import TOKEN, GuardRig


@pytest.fixture
def rig(tmp_path):
    return GuardRig(tmp_path)


@pytest.fixture
def clock(rig):
    return rig.clock


@pytest.fixture
def issuer(rig):
    return rig.issuer


@pytest.fixture
def guard(rig):
    return rig.make(rig.document)


def encode(value):
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def claims(clock, **more):
    now_s = clock.now_ms() // 1000
    return {"iss": ISSUER, "aud": "icedb", "sub": "team", "iat": now_s, "exp": now_s + 3600, **more}


def test_an_honest_token_is_taken(guard, clock, issuer):
    assert guard.identify(authorization=f"Bearer {issuer.sign(clock.now_ms())}") == Identity("login:somebody")


@pytest.mark.parametrize(
    "header",
    [
        {"alg": "none"},
        {"alg": "None", "kid": "k1"},
        {"alg": "HS256", "kid": "k1"},
        {"alg": "HS512", "kid": "k1"},
        {"alg": "ES384", "kid": "k1"},
        {"alg": "ES256", "kid": "../../../dev/null"},
        {"alg": "ES256", "kid": "k1' OR '1'='1"},
        {"alg": "ES256", "kid": {"a": 1}},
        {"alg": "ES256", "kid": None},
        {"alg": "ES256", "crit": ["x"], "kid": "k1"},
        {"alg": "ES256", "b64": False, "crit": ["b64"], "kid": "k1"},
        {"alg": ["ES256"], "kid": "k1"},
        {"kid": "k1"},
        [],
    ],
)
def test_a_header_cannot_choose_how_it_is_checked(guard, clock, issuer, header):
    signed = f"{encode(header)}.{encode(claims(clock))}"
    public = issuer.key_set()
    for key in (b"", public, json.loads(public)["keys"][0]["x"].encode()):
        for digest in ("sha256", "sha512"):
            token = f"{signed}.{encode(hmac.new(key, signed.encode(), digest).digest())}"
            with pytest.raises(Unauthenticated):
                guard.identify(authorization=f"Bearer {token}")
    for token in (f"{signed}.", f"{signed}.{encode(bytes(64))}"):
        with pytest.raises(Unauthenticated):
            guard.identify(authorization=f"Bearer {token}")


@pytest.mark.parametrize("name", ["jku", "x5u", "jwk", "x5c"])
def test_keys_that_a_token_brings_along_are_no_keys(guard, clock, name):
    stranger = TokenIssuer("k1")
    own = json.loads(stranger.key_set())["keys"][0]
    value = {"jwk": own, "x5c": ["MII"]}.get(name, "https://127.0.0.1:1/keys.json")
    _head, body, signature = stranger.sign(clock.now_ms()).split(".")
    token = f"{encode({'alg': 'ES256', 'kid': 'k1', name: value})}.{body}.{signature}"
    with pytest.raises(Unauthenticated):
        guard.identify(authorization=f"Bearer {token}")
    with pytest.raises(Unauthenticated):
        guard.identify(authorization=f"Bearer {stranger.sign(clock.now_ms())}")


@pytest.mark.parametrize(
    "more",
    [
        {"exp": 1},
        {"exp": None},
        {"aud": "other"},
        {"aud": None},
        {"iss": "https://evil.test/"},
        {"iss": None},
        {"nbf": 2**40},
        {"exp": "never"},
    ],
)
def test_claims_have_to_fit(guard, clock, issuer, more):
    with pytest.raises(Unauthenticated):
        guard.identify(authorization=f"Bearer {issuer.sign(clock.now_ms(), **more)}")


def test_a_changed_claim_is_noticed(guard, clock, issuer):
    head, _body, signature = issuer.sign(clock.now_ms()).split(".")
    token = f"{head}.{encode(claims(clock, sub='admin'))}.{signature}"
    with pytest.raises(Unauthenticated):
        guard.identify(authorization=f"Bearer {token}")


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        "Basic YTpi",
        "bearer\tx",
        "Bearer a b",
        f"Bearer {TOKEN} x",
        "Bearer " + "x" * 100_000,
        "Bearer \x00",
        "Bearer é",
    ],
)
def test_headers_that_are_no_token_are_nobodys(guard, header):
    with pytest.raises(Unauthenticated):
        guard.identify(authorization=header)


def test_tokens_are_hashed_and_compared_in_constant_time(guard, monkeypatch):
    """What is looked up and compared is a hash: how long it takes says nothing of the token that it was made of."""
    compared = []

    def compare(one, other):
        compared.append((one, other))
        return hmac_compare(one, other)

    hmac_compare = hmac.compare_digest
    monkeypatch.setattr(policy.hmac, "compare_digest", compare)
    assert guard.identify(authorization=f"Bearer {TOKEN}") == Identity("alpha")
    assert compared == [(token_entry(TOKEN)["sha256"],) * 2]
    with pytest.raises(Unauthenticated) as nearly:
        guard.identify(authorization=f"Bearer {TOKEN[:-1]}0")
    with pytest.raises(Unauthenticated) as nothing_like:
        guard.identify(authorization="Bearer zzz")
    assert str(nearly.value) == str(nothing_like.value)


def test_old_versions_of_tls_are_not_spoken(tmp_path, clock):
    cert_file, key_file = Authority().issue(tmp_path, "server", dns=("localhost",))
    settings = ServiceSettings(store="file:///x", tls_cert_file=str(cert_file), tls_key_file=str(key_file))
    assert ssl_context(settings, clock=clock).minimum_version >= ssl.TLSVersion.TLSv1_2
