"""The development S3 server, which lets each caller do what the policy of its name allows, and remembers what that was.

``python policed_s3.py --policies FOLDER --seen FILE --port PORT --bucket BUCKET``: an access key is the name of a policy,
``FOLDER/<name>.json``; one without a policy may do everything. Each kind of request goes to FILE once, a line of JSON.
It judges as far as these policies go: Allow, actions by name, resources with ``*``, and ``StringLike`` of ``s3:prefix``.
"""

import argparse
import io
import json
import re
import threading
from fnmatch import fnmatchcase
from pathlib import Path
from urllib.parse import parse_qs, unquote
from xml.etree import ElementTree as ET

from icedb_local.dev_s3 import make_app, make_server

CALLER = re.compile(r"Credential=([^/]+)/")
DENIED = b"<Error><Code>AccessDenied</Code><Message>by the policy of %s: %s %s</Message></Error>"


def read_policy(path, *, bucket, prefix):
    """Return the statements of a policy for a bucket and a prefix."""
    text = path.read_text().replace("BUCKET", bucket).replace("PREFIX", prefix)
    return json.loads(text)["Statement"]


def find_statement(statements, action, resource, *, listed=""):
    """Return the Sid of the statement that allows something; none: nothing does."""
    for each in statements:
        assert each["Effect"] == "Allow" and set(each) <= {"Sid", "Effect", "Action", "Resource", "Condition"}
        conditions = each.get("Condition", {"StringLike": {"s3:prefix": ["*"]}})
        assert set(conditions) == {"StringLike"} and set(conditions["StringLike"]) == {"s3:prefix"}
        if (
            action in each["Action"]
            and any(fnmatchcase(resource, pattern) for pattern in each["Resource"])
            and any(fnmatchcase(listed, pattern) for pattern in conditions["StringLike"]["s3:prefix"])
        ):
            return each["Sid"]
    return None


def ask_for(environ, *, bucket):
    """Return what a request needs: actions, each with its key (empty: the bucket), and what it lists."""
    method, query = environ["REQUEST_METHOD"], parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True)
    key = environ["PATH_INFO"].removeprefix(f"/{bucket}").lstrip("/")
    listed = query.get("prefix", [""])[0]
    if method == "POST" and "delete" in query:
        body = environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"]))
        environ["wsgi.input"] = io.BytesIO(body)
        keys = [each.text for each in ET.fromstring(body).iter() if each.tag.endswith("Key")]
        return [("s3:DeleteObject", each) for each in keys], listed
    if not key:
        return [("s3:ListBucketMultipartUploads" if "uploads" in query else "s3:ListBucket", "")], listed
    if method == "DELETE":
        return [("s3:AbortMultipartUpload" if "uploadId" in query else "s3:DeleteObject", key)], listed
    if method in ("GET", "HEAD"):
        return [("s3:GetObject", key)], listed
    source = unquote(environ.get("HTTP_X_AMZ_COPY_SOURCE", "")).lstrip("/").removeprefix(f"{bucket}/")
    return [("s3:PutObject", key), *([("s3:GetObject", source)] if source else [])], listed


class PolicedApp:
    """Judges requests before an application answers them."""

    def __init__(self, app, *, bucket, prefix, policies, seen):
        self._app, self._bucket, self._seen = app, bucket, seen
        self._policies = {
            path.stem: read_policy(path, bucket=bucket, prefix=prefix) for path in policies.glob("*.json")
        }
        self._lock, self._known = threading.Lock(), set()

    def __call__(self, environ, start_response):
        found = CALLER.search(environ.get("HTTP_AUTHORIZATION", ""))
        caller = found.group(1) if found else "nobody"
        if caller in self._policies:
            wanted, listed = ask_for(environ, bucket=self._bucket)
            for action, key in wanted:
                resource = f"arn:aws:s3:::{self._bucket}" + (f"/{key}" if key else "")
                sid = find_statement(self._policies[caller], action, resource, listed=listed)
                self._remember(caller, action, key or listed, sid)
                if sid is None:
                    body = DENIED % (caller.encode(), action.encode(), key.encode())
                    start_response("403 Forbidden", [("Content-Length", str(len(body)))])
                    return [body]
        return self._app(environ, start_response)

    def _remember(self, caller, action, key, sid):
        shape = re.sub(r"[0-9a-f-]{12,}|\d{4,}", "#", key)
        with self._lock:
            if (caller, action, shape, sid) not in self._known:
                self._known.add((caller, action, shape, sid))
                with self._seen.open("a") as lines:
                    lines.write(json.dumps({"caller": caller, "action": action, "key": shape, "sid": sid}) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--policies", type=Path, required=True)
    parser.add_argument("--seen", type=Path, required=True)
    parser.add_argument("--prefix", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--bucket", required=True)
    given = parser.parse_args()
    app = PolicedApp(
        make_app([given.bucket]), bucket=given.bucket, prefix=given.prefix, policies=given.policies, seen=given.seen
    )
    make_server(app, given.port).run()
