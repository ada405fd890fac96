"""JSON taken apart into the texts of its values. Pure; a number is never read here.

An object or array becomes a column of text, and whoever reads that may want each digit of its numbers: so they stay as
they were written. White space between tokens goes, and characters that are escaped without need are written as
themselves, so that text can be searched for. msgspec gives up on some text that the engine takes (NaN, a comma before
the end, many levels), and on half a surrogate pair, which nobody takes: such text is cut token by token.
"""

import re
from collections.abc import Collection, Iterator
from typing import Final

import msgspec
import orjson

GIVEN_UP: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises where it gives up."""
_OBJECT: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARRAY: Final = msgspec.json.Decoder(list[msgspec.Raw])
_TOKEN: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\],:]|[^\s"{}\[\],:]+', re.DOTALL)
_ESCAPE: Final = re.compile(rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[0-9a-fA-F]{4}|u[0-9a-fA-F]{4}|.)", re.DOTALL)
_SPACE: Final = re.compile(rb"[ \t\r\n]")
_OPENING, _CLOSING = (b"{", b"["), (b"}", b"]")


def cut_array(document: bytes) -> list[bytes] | None:
    """Return the text of each element of a JSON array, without white space between tokens; None if msgspec gives up."""
    try:
        return [strip_spaces(bytes(element)) for element in _ARRAY.decode(document)]
    except GIVEN_UP:
        return None


def scan_array(document: bytes) -> list[bytes]:
    """Do as :func:`cut_array`, slowly, for any array that the engine takes."""
    return [b"".join(tokens) for tokens in _cut_tokens(document)]


def cut_object(text: str) -> Collection[tuple[str, bytes | msgspec.Raw]]:
    """Return keys and values of a JSON object that the engine takes; of a key that is there twice, one or both."""
    try:
        return _OBJECT.decode(text).items()
    except GIVEN_UP:
        return [(orjson.loads(key), b"".join(value)) for key, _, *value in _cut_tokens(text.encode())]


def cut_members(text: bytes) -> list[tuple[bytes, bytes]] | None:
    """Return key and value of each member of one JSON object, all of them: values as they were written.

    Args:
        text: An object; it may hold what no reader takes, such as half a surrogate pair.

    Returns:
        None if it is no object.
    """
    if not text.startswith(b"{"):
        return None
    try:
        found = [(orjson.dumps(name), strip_spaces(bytes(value))) for name, value in _OBJECT.decode(text).items()]
        # Of a key that is there twice msgspec gives one, and what was escaped in a key is not any more.
        if len(join_members(found)) == len(strip_spaces(text)):
            return found
    except GIVEN_UP:
        pass
    members = list(_cut_tokens(text))
    if any(member[1:2] != [b":"] or not member[2:] for member in members):
        return None
    return [(_unescape(key), b"".join(value)) for key, _, *value in members]


def _unescape(key: bytes) -> bytes:
    try:
        return orjson.dumps(orjson.loads(key))
    except orjson.JSONDecodeError:
        return key


def join_members(members: list[tuple[bytes, bytes]]) -> bytes:
    """Return an object with these members."""
    return b"{" + b",".join(b"%b:%b" % member for member in members) + b"}"


def find_problem(text: bytes) -> str:
    """Return why a text is not one JSON object; nothing if it is one."""
    try:
        _OBJECT.decode(text)
    except GIVEN_UP as error:
        return str(error)
    return ""


def is_balanced(text: bytes) -> bool:
    """Return whether a text is one object or array as far as brackets and quotes tell: no more can be hoped for."""
    open_tokens: list[bytes] = []
    end = 0
    for match in _TOKEN.finditer(text):
        token = match[0]
        if (end and not open_tokens) or text[end : match.start()].strip():
            return False
        end = match.end()
        if token in _OPENING:
            open_tokens.append(_CLOSING[_OPENING.index(token)])
        elif not open_tokens or (token in _CLOSING and open_tokens.pop() != token):
            return False
    return not open_tokens and bool(end) and not text[end:].strip()


def compact(text: bytes) -> bytes:
    """Return the text of a value; that of an object or array without white space and escapes that are not needed."""
    if not text.startswith(_OPENING):
        return text
    text = strip_spaces(text)
    return _ESCAPE.sub(_write_escape, text) if b"\\" in text else text


def strip_spaces(text: bytes) -> bytes:
    """Return JSON without white space between its tokens."""
    if _SPACE.search(text) is None:
        return text
    try:
        return msgspec.json.format(text, indent=-1)
    except GIVEN_UP:
        return b"".join(_TOKEN.findall(text))


def _write_escape(escape: re.Match[bytes]) -> bytes:
    return orjson.dumps(orjson.loads(b'"%b"' % escape[0]))[1:-1]


def _cut_tokens(text: bytes) -> Iterator[list[bytes]]:
    """Yield the tokens of each element of an array, or of each key, colon and value of an object."""
    depth = 0
    part: list[bytes] = []
    for match in _TOKEN.finditer(text):
        token = match[0]
        if token in _CLOSING:
            depth -= 1
            if part and part[-1] == b",":
                part.pop()  # the engine takes a comma before the end
        if depth == 0 and part:
            yield part
            return
        if depth == 1 and token == b",":
            yield part
            part = []
        elif depth:
            part.append(token)
        if token in _OPENING:
            depth += 1
