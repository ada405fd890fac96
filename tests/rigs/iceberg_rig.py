"""A gateway whose Iceberg catalog tests ask, over plain HTTP and by S3, and tenants who may read."""

import json
import urllib.parse
from dataclasses import dataclass
from http.client import HTTPConnection

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError
from icedb_sim.rigs.access_rig import token_entry, write_access
from icedb_sim.rigs.gateway_rig import LIMIT_S, LOOPBACK, GatewayRig, start_gateway

SECRET = "a secret of the test, of 32 characters or more"
RED, BLUE, SLOW = "red-token-of-the-test", "blue-token-of-the-test", "slow-token-of-the-test"
RED_KEY = ("RED1", "red-secret-of-the-test")
VENDING = {"X-Iceberg-Access-Delegation": "vended-credentials"}


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        error = self.json["error"]
        assert error["code"] == self.status
        return error["type"], error["message"]


def write_tenants(folder):
    """Write an access file: red reads ``red_*``, blue and slow ``blue_*``, red appends to ``shared_inbox``."""
    names = {"red": RED, "blue": BLUE, "slow": SLOW}
    identities = {name: {"tokens": [token_entry(token)]} for name, token in names.items()}
    identities["red"]["access_keys"] = [{"id": RED_KEY[0], "secret": RED_KEY[1]}]
    identities["slow"]["rate"] = {"calls_per_s": 0.001, "burst": 1}
    grants = [
        {"identities": ["red"], "tables": ["red_*"], "verbs": ["read"]},
        {"identities": ["red"], "tables": ["shared_inbox"], "verbs": ["append"]},
        {"identities": ["blue", "slow"], "tables": ["blue_*"], "verbs": ["read"]},
    ]
    return write_access(folder / "access.json", {"identities": identities, "grants": grants})


def start_catalog(warehouse, **fields) -> GatewayRig:
    fields = {"gateway_staleness_ms": 0, **fields}
    return start_gateway(warehouse, **fields)


def uri(rig):
    return f"http://{LOOPBACK}:{rig.gateway.iceberg_port}"


def ask(rig, target, *, token=None, method="GET", form=None, headers=None):
    """Send one request to the catalog."""
    sent = dict(headers or {})
    if token is not None:
        sent["Authorization"] = f"Bearer {token}"
    body = None
    if form is not None:
        body = urllib.parse.urlencode(form)
        sent["Content-Type"] = "application/x-www-form-urlencoded"
    connection = HTTPConnection(LOOPBACK, rig.gateway.iceberg_port, timeout=LIMIT_S)
    try:
        connection.request(method, target, body, sent)
        answer = connection.getresponse()
        return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
    finally:
        connection.close()


def load(rig, table, *, token=None, headers=None, query=""):
    return ask(rig, f"/v1/namespaces/icedb/tables/{table}{query}", token=token, headers=headers)


def vended_client(config, **changed):
    """Return boto3 with the key that a load's ``config`` has."""
    given = {**config, **changed}
    return s3_client(
        given["s3.endpoint"], given["s3.access-key-id"], given["s3.secret-access-key"], given["s3.session-token"]
    )


def s3_client(endpoint, key_id, secret, session_token=None):
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=key_id,
        aws_secret_access_key=secret,
        aws_session_token=session_token,
        region_name="us-east-1",
        config=Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}),
    )


def code_of(call, **arguments):
    """Return the status and S3's code of a call; ``(200, "")`` if it is answered."""
    try:
        call(**arguments)
    except ClientError as error:
        found = error.response
        return found["ResponseMetadata"]["HTTPStatusCode"], found["Error"]["Code"]
    return 200, ""
