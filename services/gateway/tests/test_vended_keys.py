"""Keys that are given away: what they say comes back, and nothing else is taken for one."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st
from icedb_gateway.settings import GatewaySettings
from icedb_gateway.vended_keys import KeyPair, Vended, VendedKeys
from icedb_service.settings import load_settings
from pydantic import ValidationError

KEYS = VendedKeys("a secret of the deployment, of 32 characters")
VENDED = Vended("login:ann@example.com", "events", 1_767_312_000_000)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=100)


@given(names, names, st.integers(0, 2**53))
def test_what_a_key_says_comes_back(identity, table, expires_ms):
    vended = Vended(identity, table, expires_ms)
    pair = KEYS.issue(vended)
    assert KEYS.read(pair.access_key_id) == (vended, pair.secret_access_key)
    assert pair.access_key_id.isascii()
    assert pair.access_key_id.isalnum()


def test_a_key_is_the_same_each_time_and_at_each_replica():
    assert VendedKeys("a secret of the deployment, of 32 characters").issue(VENDED) == KEYS.issue(VENDED)


def test_replicas_of_two_releases_make_the_same_key():
    """For as long as an upgrade takes. The secret is made for a purpose of its own: an id carries a part of the tag."""
    assert KEYS.issue(VENDED) == KeyPair(
        "ICEDBV17MO46NHXF5PA53N2ITESI6LJKZNTCNZWG4ZTCMRQGAYDAMBQFQRGK5TFNZ2HGIRMEJWG6Z3JNY5GC3TOIBSXQYLNOBWGKLTDN5WSEXI",
        "tANv5YGcudHAaL2tXnBqxmcsmIsazZRqsjjrVmJcKf8",
    )


def test_an_id_that_is_too_long_is_none_whoever_made_it():
    long = KEYS.issue(Vended("a" * 2000, "events", VENDED.expires_ms))
    assert len(long.access_key_id) > 2048
    assert KEYS.read(long.access_key_id) is None


def test_each_key_has_a_secret_of_its_own():
    others = [Vended("bob", "events", VENDED.expires_ms), Vended(VENDED.identity, "other", VENDED.expires_ms)]
    secrets = {KEYS.issue(each).secret_access_key for each in (VENDED, *others)}
    assert len(secrets) == 3


@pytest.mark.parametrize("secret", [None, "", "another secret of the deployment, as long"])
def test_a_key_of_another_deployment_is_none(secret):
    """Without a secret in the settings nobody can make one: not with an empty text either."""
    keys = VendedKeys(secret)
    assert keys.read(KEYS.issue(VENDED).access_key_id) is None
    assert VendedKeys(None).read(keys.issue(VENDED).access_key_id) is None


def test_every_changed_character_makes_it_none():
    key = KEYS.issue(VENDED).access_key_id
    for at, letter in enumerate(key[:-1]):  # the last may have bits that say nothing
        changed = key[:at] + ("A" if letter != "A" else "B") + key[at + 1 :]
        assert KEYS.read(changed) is None


def test_another_body_needs_another_tag():
    key = KEYS.issue(VENDED).access_key_id.removeprefix("ICEDBV1")
    decoded = base64.b32decode(key + "=" * (-len(key) % 8))
    forged = base64.b32encode(decoded.replace(b'"events"', b'"others"')).decode().rstrip("=")
    assert KEYS.read(f"ICEDBV1{forged}") is None


@pytest.mark.parametrize(
    "text", ["", "ICEDBV1", "ICEDBV1A", "ICEDBV1é", "ICEDBV1" + "A" * 5000, "READER", "icedbv1aaaa"]
)
def test_what_is_no_key(text):
    assert KEYS.read(text) is None


def test_a_pair_does_not_show_itself():
    pair = KEYS.issue(VENDED)
    assert pair.secret_access_key not in repr(pair)


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("ICEDB_GATEWAY_ICEBERG_SECRET", "short", "32 characters"),
        ("ICEDB_GATEWAY_ICEBERG_S3_URL", "s3.example.com/x", "https://s3.example.com"),
    ],
)
def test_settings_say_what_is_wrong(monkeypatch, name, value, says):
    monkeypatch.setenv("ICEDB_STORE", "file:///unused")
    monkeypatch.setenv(name, value)
    with pytest.raises(Exception, match=says):
        load_settings(GatewaySettings)


def test_vended_keys_with_an_access_file_need_a_secret():
    fields = {"store": "file:///unused", "gateway_iceberg_credentials": "vended"}
    assert GatewaySettings(**fields)
    with pytest.raises(ValidationError, match="ICEDB_GATEWAY_ICEBERG_SECRET"):
        GatewaySettings(**fields, access_file="/access.toml")
    assert GatewaySettings(**fields, access_file="/access.toml", gateway_iceberg_secret="x" * 32)
