"""Writes the contracts as pages: gRPC from the .proto files with their comments, HTTP from its OpenAPI document."""  # noqa: INP001

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from google.protobuf import descriptor_pb2
from grpc_tools import protoc

HERE: Final = Path(__file__).resolve().parent
PROTO: Final = HERE.parent / "proto"
GRPC: Final = """# gRPC

What the front end of ingest and the snapshot service answer, from their contracts:
[ingest.proto](../../proto/icedb/v1/ingest.proto), [snapshot.proto](../../proto/icedb/v1/snapshot.proto). Both have reflection
and health. How to use them: [sending](../ingest.md#grpc), [reading](../snapshot-service.md), [grpcurl](../recipes/grpcurl.md).
"""
HTTP: Final = """# HTTP

What the front end of ingest answers over HTTP, from the OpenAPI document that it serves at `/openapi.json`, and the console's query
([one document](../schemas/openapi.json)). How to use it: [sending events](../ingest.md#http), [tables, queries](../http-tables.md).
Besides what stands here, each may answer 405 to another method, and 404 to another path.
"""
FIELD_TYPES: Final = {
    value.number: name.removeprefix("TYPE_").lower()
    for name, value in descriptor_pb2.FieldDescriptorProto.Type.DESCRIPTOR.values_by_name.items()
}
MESSAGE, ENUM, SERVICE = 4, 5, 6  # field numbers in descriptor.proto, which paths of comments are made of


def render_grpc_page() -> str:
    """Return the page of all services and messages."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "descriptors"
        sources = sorted(str(path.relative_to(PROTO)) for path in PROTO.glob("icedb/**/*.proto"))
        includes = Path(protoc.__file__).parent / "_proto"
        options = [f"-I{PROTO}", f"-I{includes}", "--include_source_info", f"--descriptor_set_out={out}"]
        if protoc.main(["protoc", *options, *sources]):
            raise RuntimeError("protoc refused a .proto file; it has printed why")
        files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
    return "\n".join([GRPC, *(line for file in files for line in _render_file(file))]) + "\n"


def _render_file(file: descriptor_pb2.FileDescriptorProto) -> Iterator[str]:
    comments = {tuple(each.path): _clean(each.leading_comments) for each in file.source_code_info.location}
    for number, service in enumerate(file.service):
        yield f"## {service.name}\n\n{comments.get((SERVICE, number), '')}\n"
        for at, method in enumerate(service.method):
            taken = ("stream " if method.client_streaming else "") + _link(method.input_type)
            given = ("stream " if method.server_streaming else "") + _link(method.output_type)
            yield f"### {method.name}\n\n{taken} → {given}\n\n{comments.get((SERVICE, number, 2, at), '')}\n"
    for number, message in enumerate(file.message_type):
        yield from _render_message(message, comments, (MESSAGE, number))
    for number, enum in enumerate(file.enum_type):
        yield f"### {enum.name}\n\n{comments.get((ENUM, number), '')}\n\n| value | number | meaning |\n| --- | --- | --- |"
        for at, value in enumerate(enum.value):
            yield f"| `{value.name}` | {value.number} | {_cell(comments.get((ENUM, number, 2, at), ''))} |"
        yield ""


def _render_message(
    message: descriptor_pb2.DescriptorProto, comments: dict[tuple[int, ...], str], path: tuple[int, ...]
) -> Iterator[str]:
    yield f"### {message.name}\n\n{comments.get(path, '')}\n"
    if message.field:
        yield "| field | type | number | meaning |\n| --- | --- | --- | --- |"
    for at, field in enumerate(message.field):
        kind = _link(field.type_name) if field.type_name else FIELD_TYPES[field.type]
        is_list = field.label == field.LABEL_REPEATED
        meaning = _cell(comments.get((*path, 2, at), ""))
        yield f"| `{field.name}` | {'repeated ' if is_list else ''}{kind} | {field.number} | {meaning} |"
    yield ""
    for at, nested in enumerate(message.nested_type):
        yield from _render_message(nested, comments, (*path, 3, at))


def _clean(comment: str) -> str:
    """Return a comment as Markdown: drawings are indented by more than one space and stay as they are."""
    return "\n".join(line.removeprefix(" ") for line in comment.splitlines()).replace("\n  ", "\n    ").strip("\n")


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _link(name: str) -> str:
    short = name.rpartition(".")[2]
    return f"[{short}](#{short.lower()})" if name.startswith(".icedb.") else f"`{name.removeprefix('.')}`"


def render_http_page() -> str:
    """Return the page of all operations."""
    document = json.loads((HERE / "schemas" / "openapi.json").read_text(encoding="utf-8"))
    parts = [HTTP]
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if method == "servers":
                continue
            parts += _render_operation(f"{method.upper()} {path}", operation)
    for name, schema in document["components"]["schemas"].items():
        shown = json.dumps(schema, indent=2).replace("#/components/schemas/", "#")
        parts.append(f"### {name}\n\n```json\n{shown}\n```\n")
    return "\n".join(parts)


def _render_operation(title: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"## `{title}`\n\n{operation['summary']} {operation.get('description', '')}\n"
    if "parameters" in operation:
        yield "| parameter | in | meaning |\n| --- | --- | --- |"
        for each in operation["parameters"]:
            values = "".join(f" `{value}`" for value in each["schema"].get("enum", ()))
            yield f"| `{each['name']}` | {each['in']} | {each['description']}{values} |"
        yield ""
    if "requestBody" in operation:
        yield "Body: " + ", ".join(f"`{name}`" for name in operation["requestBody"]["content"]) + "\n"
    yield "| status | body | meaning |\n| --- | --- | --- |"
    for status, answer in operation["responses"].items():
        ((media_type, content),) = answer["content"].items()
        name = content["schema"].get("$ref", "").rpartition("/")[2]
        yield f"| {status} | {f'[{name}](#{name.lower()})' if name else media_type} | {answer['description']} |"
    yield ""
