"""Signatures against botocore's signer: all that it signs is accepted, and nothing in which a byte was changed."""

import string
from datetime import datetime, timedelta
from urllib.parse import quote, urlencode, urlsplit

import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from icedb_gateway.errors import S3Error
from icedb_gateway.requests import parse_request
from icedb_gateway.signature import (
    MAX_EXPIRES_S,
    MAX_SKEW_MS,
    Claim,
    _read_time,
    check_signature,
    check_time,
    read_claim,
)

HOST = "gateway.test:9100"
ID, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
KEYS = st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), min_size=1, max_size=30)
NAMES = st.text(string.ascii_letters + string.digits + "-._~", min_size=1, max_size=8).filter(
    lambda name: not name.lower().startswith("x-amz") and name not in ("AWSAccessKeyId", "Signature")
)
QUERIES = st.dictionaries(NAMES, KEYS, max_size=4)
HEADERS = st.dictionaries(
    st.sampled_from(["Range", "If-None-Match", "x-amz-request-payer", "Accept", "x-amz-checksum-mode"]),
    st.text(string.ascii_letters + string.digits + ' =-,"', min_size=1, max_size=20).map(str.strip).filter(bool),
    max_size=3,
)


def make_scope(method, url, headers):
    parts = urlsplit(url)
    return {
        "type": "http",
        "method": method,
        "path": "not looked at",
        "raw_path": parts.path.encode(),
        "query_string": parts.query.encode(),
        "headers": [(name.lower().encode(), value.encode("latin-1")) for name, value in headers],
    }


def sign(signer, method="GET", key="events/a.parquet", query=(), headers=(), **options):
    """Sign as botocore does; return method, URL and headers, ready to be sent."""
    url = f"http://{HOST}/icedb/{quote(key, safe='/~')}"
    if query:
        url += "?" + urlencode(dict(query), quote_via=quote, safe="-._~")
    request = AWSRequest(method, url, dict(headers))
    signer(Credentials(ID, SECRET), "s3", "eu-central-1", **options).add_auth(request)
    sent = request.prepare()
    found = [(name, value if isinstance(value, str) else value.decode()) for name, value in sent.headers.items()]
    return method, sent.url, [("Host", HOST), *[pair for pair in found if pair[0].lower() != "host"]]


def verify(method, url, headers, *, secret=SECRET):
    request = parse_request(make_scope(method, url, headers))
    claim = read_claim(request.signed)
    assert claim is not None
    if claim.access_key_id != ID:
        raise S3Error("InvalidAccessKeyId", "nobody's", status=403)
    check_signature(request.signed, claim, secret=secret)
    return claim


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(["GET", "HEAD", "PUT", "DELETE"]), KEYS, QUERIES, HEADERS)
def test_what_botocore_signs_is_accepted(method, key, query, headers):
    verify(*sign(S3SigV4Auth, method, key, query, headers.items()))
    verify(*sign(S3SigV4QueryAuth, method, key, query, expires=60))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(KEYS, QUERIES, HEADERS, st.data())
def test_a_changed_byte_is_refused(key, query, headers, data):
    is_presigned = data.draw(st.booleans())
    if is_presigned:
        method, url, sent = sign(S3SigV4QueryAuth, "GET", key, query, expires=60)
    else:
        method, url, sent = sign(S3SigV4Auth, "GET", key, query, headers.items())
    part = data.draw(st.sampled_from(["method", "path", "query", "header", "secret"]))
    secret = SECRET
    pieces = urlsplit(url)
    if part == "method":
        method = "HEAD"
    elif part == "path":
        url = pieces._replace(path=pieces.path + data.draw(st.sampled_from(["x", "/", "%20"]))).geturl()
    elif part == "query":
        url = pieces._replace(query=(pieces.query + "&" if pieces.query else "") + "max-keys=7").geturl()
    elif part == "secret":
        secret += "x"
    else:
        signed = [at for at, (name, _) in enumerate(sent) if is_presigned is False or name == "Host"]
        at = data.draw(st.sampled_from(signed))
        name, value = sent[at]
        place = data.draw(st.integers(0, len(value) - 1))
        other = "1" if value[place] != "1" else "2"
        sent[at] = (name, value[:place] + other + value[place + 1 :])
    with pytest.raises(S3Error) as caught:
        verify(method, url, sent, secret=secret)
    assert caught.value.status in (400, 403)


@pytest.mark.parametrize("name", ["X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-SignedHeaders"])
def test_a_changed_parameter_of_a_presigned_url_is_refused(name):
    method, url, headers = sign(S3SigV4QueryAuth, expires=600)
    before, _, after = url.partition(f"{name}=")
    value, *rest = after.split("&", 1)
    changed = value.replace("eu-central-1", "eu-central-2") if name == "X-Amz-Credential" else value[:-1] + "3"
    changed = "3600" if name == "X-Amz-Expires" else changed
    with pytest.raises(S3Error):
        verify(method, "&".join([f"{before}{name}={changed}", *rest]), headers)


def test_an_amz_header_that_is_not_signed_is_refused():
    method, url, headers = sign(S3SigV4Auth)
    with pytest.raises(S3Error, match="not signed: x-amz-meta-a"):
        verify(method, url, [*headers, ("x-amz-meta-a", "b")])


def test_headers_that_botocore_leaves_out_may_be_signed_by_others():
    class SignsAll(S3SigV4Auth):
        def canonical_headers(self, headers_to_sign):
            return "\n".join(f"{name}:{value}" for name, value in sorted(headers_to_sign.items()))

        def headers_to_sign(self, request):
            return dict(super().headers_to_sign(request).items()) | {"user-agent": request.headers["User-Agent"]}

    method, url, headers = sign(SignsAll, headers=[("User-Agent", "another/1.0")])
    assert "user-agent" in dict(headers)["Authorization"]
    verify(method, url, headers)
    with pytest.raises(S3Error, match="does not match"):
        verify(method, url, replace(headers, "User-Agent", lambda _: "another/1.1"))


def test_what_proxies_add_does_not_matter():
    method, url, headers = sign(S3SigV4Auth)
    verify(method, url, [*headers, ("X-Forwarded-For", "10.0.0.1"), ("Accept-Encoding", "gzip")])


def replace(headers, name, change):
    return [(key, change(value) if key == name else value) for key, value in headers]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda value: value.replace("AWS4-HMAC-SHA256", "AWS4-ECDSA-P256-SHA256"), "InvalidRequest"),
        (lambda value: "AWS key:signature", "InvalidRequest"),
        (lambda value: value.replace("Signature=", "Signature=0"), "AuthorizationHeaderMalformed"),
        (lambda value: value.replace("SignedHeaders=", "SignedHeaders=z;"), "AuthorizationHeaderMalformed"),
        (lambda value: value.replace("/s3/", "/sqs/"), "AuthorizationHeaderMalformed"),
        (lambda value: value.replace("SignedHeaders=host;", "SignedHeaders="), "AccessDenied"),
        (
            lambda value: value.replace("SignedHeaders=host;", "SignedHeaders=host;host;"),
            "AuthorizationHeaderMalformed",
        ),
        (lambda value: value + ", Signature=00", "AuthorizationHeaderMalformed"),
        (lambda value: f"{value}, Signature={'0' * 64}", "AuthorizationHeaderMalformed"),
        (
            lambda value: value.replace("Credential=", "Credential=x/20260101/r/s3/aws4_request, Credential="),
            "AuthorizationHeaderMalformed",
        ),
        (lambda value: value.partition(", Signature")[0], "AuthorizationHeaderMalformed"),
        (lambda value: "AWS4-HMAC-SHA256", "AuthorizationHeaderMalformed"),
    ],
)
def test_malformed_authorization(change, code):
    method, url, headers = sign(S3SigV4Auth)
    with pytest.raises(S3Error) as caught:
        verify(method, url, replace(headers, "Authorization", change))
    assert caught.value.code == code


@pytest.mark.parametrize("place", [0, 1, 31, 32, 62, 63])
@pytest.mark.parametrize("signer", [S3SigV4Auth, S3SigV4QueryAuth])
def test_every_digit_of_a_signature_counts(signer, place):
    def change(text):
        before, mark, rest = text.partition("Signature=")
        other = "0" if rest[place] != "0" else "1"
        return before + mark + rest[:place] + other + rest[place + 1 :]

    method, url, headers = sign(signer, **({"expires": 60} if signer is S3SigV4QueryAuth else {}))
    url = change(url) if signer is S3SigV4QueryAuth else url
    with pytest.raises(S3Error) as caught:
        verify(method, url, replace(headers, "Authorization", change))
    assert caught.value.code == "SignatureDoesNotMatch"


@pytest.mark.parametrize("name", ["Algorithm", "Credential", "Date", "Expires", "SignedHeaders", "Signature"])
def test_a_parameter_that_is_there_twice_is_refused(name):
    method, url, headers = sign(S3SigV4QueryAuth, expires=60)
    value = url.partition(f"X-Amz-{name}=")[2].partition("&")[0]
    for again in (f"{url}&X-Amz-{name}={value}", url.replace("?", f"?X-Amz-{name}={value}&")):
        with pytest.raises(S3Error, match="is there twice"):
            verify(method, again, headers)


@pytest.mark.parametrize("day", [-1, 1])
def test_a_scope_is_of_the_very_day(day):
    method, url, headers = sign(S3SigV4Auth)
    signed = dict(headers)["X-Amz-Date"]
    other = datetime.strptime(signed, "%Y%m%dT%H%M%S%z") + timedelta(days=day)
    with pytest.raises(S3Error, match="date"):
        verify(method, url, replace(headers, "X-Amz-Date", lambda _: other.strftime("%Y%m%dT%H%M%SZ")))


def test_a_date_that_is_not_the_scopes_is_refused():
    method, url, headers = sign(S3SigV4Auth)
    with pytest.raises(S3Error, match="date"):
        verify(method, url, replace(headers, "X-Amz-Date", lambda _: "20010101T000000Z"))


def test_both_ways_at_once_are_refused_and_session_tokens_have_to_be_signed():
    method, url, headers = sign(S3SigV4QueryAuth, expires=60)
    with pytest.raises(S3Error, match="Only one auth mechanism"):
        verify(method, url, [*headers, ("Authorization", "AWS4-HMAC-SHA256 Credential=x")])
    method, url, headers = sign(S3SigV4Auth)
    with pytest.raises(S3Error, match="not signed: x-amz-security-token"):
        verify(method, url, [*headers, ("x-amz-security-token", "t")])


@pytest.mark.parametrize("name", ["Algorithm", "Credential", "Date", "Expires", "SignedHeaders", "Signature"])
def test_a_url_without_one_of_its_parameters_is_refused_and_not_unsigned(name):
    method, url, headers = sign(S3SigV4QueryAuth, expires=60)
    path, _, query = url.partition("?")
    rest = [part for part in query.split("&") if not part.startswith(f"X-Amz-{name}=")]
    with pytest.raises(S3Error, match=f"X-Amz-{name} is missing"):
        verify(method, f"{path}?{'&'.join(rest)}", headers)
    (only,) = {*query.split("&")} - {*rest}
    with pytest.raises(S3Error, match="is missing"):
        verify(method, f"{path}?{only}", headers)


def test_a_signature_of_version_2_is_refused_and_not_unsigned():
    for query in ("AWSAccessKeyId=READER&Expires=1&Signature=abc", "Signature=abc&AWSAccessKeyId=READER"):
        with pytest.raises(S3Error, match="authorization mechanism"):
            verify("GET", f"http://{HOST}/b/k?{query}", [("Host", HOST)])
    with pytest.raises(S3Error, match="authorization mechanism"):
        verify("GET", f"http://{HOST}/b/k", [("Host", HOST), ("Authorization", "AWS READER:abc")])


@pytest.mark.parametrize("signer", [S3SigV4Auth, S3SigV4QueryAuth])
def test_a_session_token_is_read_wherever_it_stands(signer):
    credentials = Credentials(ID, SECRET, "a-token")
    request = AWSRequest("GET", f"http://{HOST}/b/k", headers={"Host": HOST})
    signer(credentials, "s3", "eu-central-1", **({"expires": 60} if signer is S3SigV4QueryAuth else {})).add_auth(
        request
    )
    sent = request.prepare()
    headers = [(name, value if isinstance(value, str) else value.decode()) for name, value in sent.headers.items()]
    found = [pair for pair in headers if pair[0].lower() != "host"]
    assert verify("GET", sent.url, [("Host", HOST), *found]).session_token == "a-token"


@pytest.mark.parametrize("expires", ["0", "604801", "-1", "1e3", "٣"])
def test_expiries_out_of_bounds_are_refused(expires):
    method, url, headers = sign(S3SigV4QueryAuth, expires=60)
    with pytest.raises(S3Error) as caught:
        verify(method, url.replace("X-Amz-Expires=60", f"X-Amz-Expires={quote(expires)}"), headers)
    assert caught.value.code == "AuthorizationQueryParametersError"


def test_nothing_signed_is_nobody():
    assert read_claim(parse_request(make_scope("GET", f"http://{HOST}/", [("Host", HOST)])).signed) is None


SIGNED_MS = _read_time("20260102T030405Z")


def claim(expires_s=None):
    return Claim(ID, "r", "20260102T030405Z", ("host",), "0" * 64, "", expires_s)


@pytest.mark.parametrize("skew_ms", [-MAX_SKEW_MS, 0, MAX_SKEW_MS])
@pytest.mark.parametrize("expires_s", [None, MAX_EXPIRES_S])
def test_clocks_may_differ_by_a_quarter_of_an_hour(skew_ms, expires_s):
    check_time(claim(expires_s), now_ms=SIGNED_MS + skew_ms)


@pytest.mark.parametrize("expires_s", [1, MAX_EXPIRES_S])
def test_a_presigned_url_of_a_later_day_is_refused(expires_s):
    """It would outlive the seven days that one may last."""
    with pytest.raises(S3Error) as caught:
        check_time(claim(expires_s), now_ms=SIGNED_MS - MAX_SKEW_MS - 1)
    assert caught.value.code == "RequestTimeTooSkewed"


@pytest.mark.parametrize("skew_ms", [-MAX_SKEW_MS - 1, MAX_SKEW_MS + 1])
def test_and_no_more(skew_ms):
    with pytest.raises(S3Error) as caught:
        check_time(claim(), now_ms=SIGNED_MS + skew_ms)
    assert caught.value.code == "RequestTimeTooSkewed"


def test_a_presigned_url_lasts_as_long_as_it_says():
    check_time(claim(MAX_EXPIRES_S), now_ms=SIGNED_MS + MAX_EXPIRES_S * 1000)
    with pytest.raises(S3Error, match="expired"):
        check_time(claim(MAX_EXPIRES_S), now_ms=SIGNED_MS + MAX_EXPIRES_S * 1000 + 1)
    check_time(claim(3600), now_ms=SIGNED_MS + 3_600_000)
    with pytest.raises(S3Error, match="expired"):
        check_time(claim(3600), now_ms=SIGNED_MS + 3_600_001)
