"""Answers of the HTTP endpoint, held against the document that it serves at ``/openapi.json``."""

import re
from contextlib import contextmanager
from unittest.mock import patch

import orjson
from icedb_ingest.frontend.openapi import OPERATIONS, describe
from icedb_sim.rigs.frontend_rig import FrontendRig
from jsonschema import Draft202012Validator
from starlette.routing import Route

DOCUMENT = describe(Route(path, lambda request: None, methods=[method]) for method, path in OPERATIONS)
PATTERNS = {re.compile(re.sub(r"\{\w+\}", "[^/]+", path)): path for _, path in OPERATIONS}
DECLARED = {
    (path, method.upper(), int(status))
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
    for status in operation["responses"]
}


def check(method, path, answer):
    """Fail if the document does not say an answer; return what of the document it is."""
    found = next((found for pattern, found in PATTERNS.items() if pattern.fullmatch(path.partition("?")[0])), None)
    if found is None:
        assert answer.status == 404, (method, path, answer.status)
        return None
    if (method, found) not in OPERATIONS:
        assert answer.status == 405 or method in ("HEAD", "OPTIONS"), (method, path, answer.status)
        return None
    responses = DOCUMENT["paths"][found][method.lower()]["responses"]
    assert str(answer.status) in responses, (method, path, answer.status, answer.body)
    said = responses[str(answer.status)]
    ((media_type, content),) = said["content"].items()
    assert answer.headers["content-type"] == media_type
    assert all(name in answer.headers for name in said.get("headers", ())), (path, answer.status)
    schema = {**content["schema"], "components": DOCUMENT["components"]}
    Draft202012Validator(schema, format_checker=Draft202012Validator.FORMAT_CHECKER).validate(orjson.loads(answer.body))
    return found, method, answer.status


@contextmanager
def checked(seen=None):
    """Check every answer that a rig gets."""
    call = FrontendRig.call

    def checked_call(rig, method, path, *args, **headers):
        answer = call(rig, method, path, *args, **headers)
        found = check(method, path, answer)
        if seen is not None and found:
            seen.add(found)
        return answer

    with patch.object(FrontendRig, "call", checked_call):
        yield
