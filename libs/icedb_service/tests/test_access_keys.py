"""Keys of issuers: read again, fetched from an address, remembered, and which of a set are taken."""

import json
from io import BytesIO

import pytest
import structlog
from icedb_log.errors import Unauthenticated, Unavailable
from icedb_service.access import policy
from icedb_service.access.access_file import Identity
from icedb_service.access.jwt_tokens import MAX_BYTES, FetchedKeys
from icedb_sim.rigs.access_rig import TokenIssuer
from icedb_sim.rigs.guard_rig import bearer
from joserfc.jwk import ECKey


def test_keys_of_an_issuer_change_with_their_file(guard, issuer, clock, tmp_path):
    newer = TokenIssuer("k2")
    with pytest.raises(Unauthenticated):
        bearer(guard, newer.sign(clock.now_ms(), sub="team-1"))
    (tmp_path / "keys.json").write_bytes(newer.key_set())
    clock.sleep_ms(1000)
    assert bearer(guard, newer.sign(clock.now_ms(), sub="team-1")) == Identity("login:team-1")
    with pytest.raises(Unauthenticated):
        bearer(guard, issuer.sign(clock.now_ms(), sub="team-1"))


def test_keys_from_an_address_are_fetched_beside_the_calls(make, document, issuer, clock, monkeypatch):
    answers = []
    started = []

    def download(_url):
        if not answers:
            raise OSError("no route")
        return answers[-1]

    monkeypatch.setattr("icedb_service.access.jwt_tokens._download", download)
    monkeypatch.setattr(
        "icedb_service.access.jwt_tokens.threading.Thread",
        lambda target, **_: type("Thread", (), {"start": staticmethod(lambda: started.append(target))}),
    )
    document["issuers"]["login"] |= {"keys_url": "https://login.test/keys"}
    del document["issuers"]["login"]["keys_file"]
    guard = make(document)
    token = issuer.sign(clock.now_ms(), sub="team-1")
    for _ in range(2):
        with pytest.raises(Unavailable):
            bearer(guard, token)
    assert len(started) == 1
    started.pop()()
    with pytest.raises(Unavailable):
        bearer(guard, token)
    answers.append(issuer.key_set())
    clock.sleep_ms(10_000)
    with pytest.raises(Unavailable):
        bearer(guard, token)
    started.pop()()
    assert bearer(guard, token) == Identity("login:team-1")
    assert not started
    newer = TokenIssuer("k2")
    answers.append(newer.key_set())
    clock.sleep_ms(10_000)
    with pytest.raises(Unauthenticated):  # the key is not known: fetched anew, once
        bearer(guard, newer.sign(clock.now_ms(), sub="team-1"))
    started.pop()()
    assert bearer(guard, newer.sign(clock.now_ms(), sub="team-1")) == Identity("login:team-1")


def test_a_valid_jwt_is_remembered_for_a_minute_and_never_past_its_end(guard, issuer, clock, monkeypatch):
    checked = []
    verify = policy.verify_jwt
    monkeypatch.setattr(policy, "verify_jwt", lambda *given, **more: checked.append(1) or verify(*given, **more))
    token = issuer.sign(clock.now_ms(), sub="team-1", exp=clock.now_ms() // 1000 + 90)
    for passed_ms, checks in ((0, 1), (0, 1), (59_000, 1), (2_000, 2), (30_000, 3), (10_000, 4)):
        clock.sleep_ms(passed_ms)
        assert bearer(guard, token) == Identity("login:team-1")
        assert len(checked) == checks
    clock.sleep_ms(50_000)  # its end, and what clocks may differ by
    for _ in range(2):
        with pytest.raises(Unauthenticated, match="expired"):
            bearer(guard, token)


def test_of_too_many_valid_jwts_the_oldest_is_checked_again(make, document, issuer, clock, monkeypatch):
    monkeypatch.setattr(policy, "MAX_REMEMBERED", 2)
    guard, checked, verify = make(document), [], policy.verify_jwt
    monkeypatch.setattr(
        policy, "verify_jwt", lambda token, *more, **named: checked.append(token) or verify(token, *more, **named)
    )
    tokens = [issuer.sign(clock.now_ms(), sub=f"team-{number}") for number in range(3)]
    for token in (*tokens, tokens[2], tokens[0]):
        bearer(guard, token)
    assert checked == [*tokens, tokens[0]]


PRIVATE = ECKey.generate_key("P-256", {"kid": "k1"}).as_dict(private=True)


@pytest.mark.parametrize(
    "keys",
    [
        [{"kty": "oct", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQ", "kid": "k1"}],
        [PRIVATE],
        [json.loads(TokenIssuer("k2").key_set())["keys"][0], PRIVATE],
    ],
    ids=["secret", "private", "private beside public"],
)
def test_only_public_keys_of_a_set_are_taken(clock, monkeypatch, keys):
    monkeypatch.setattr("icedb_service.access.jwt_tokens._download", lambda _url: json.dumps({"keys": keys}).encode())
    source = FetchedKeys("https://login.test/keys", clock=clock)
    with structlog.testing.capture_logs() as logs:
        source.fetch()
    assert "secret key" in logs[0]["error"]
    assert "c2VjcmV0LX" not in str(logs)
    assert PRIVATE["d"] not in str(logs)


@pytest.mark.parametrize("more", [0, 1])
def test_a_key_set_has_a_bound(clock, issuer, monkeypatch, more):
    body = issuer.key_set()
    body += b" " * (MAX_BYTES - len(body) + more)

    class Opener:
        def open(self, url, timeout):
            return BytesIO(body)

    monkeypatch.setattr("urllib.request.build_opener", lambda *_: Opener())
    source = FetchedKeys("https://login.test/keys", clock=clock)
    source._is_fetching = True
    with structlog.testing.capture_logs() as logs:
        source.fetch()
    assert logs[0]["event"] == ("jwt_keys_not_fetched" if more else "jwt_keys_fetched")
