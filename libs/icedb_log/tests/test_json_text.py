"""JSON that is cut token by token, where quicker readers give up."""

import pytest
from icedb_log.json_text import cut_members, cut_object, is_balanced, scan_array


@pytest.mark.parametrize("text", [b'{"a":1,"b":NaN}', b'{"a":1,"b":NaN,}', b'{ "a" : 1 , "b" : NaN , }'])
def test_a_comma_before_the_end_belongs_to_no_value(text):
    assert cut_members(text) == [(b'"a"', b"1"), (b'"b"', b"NaN")]
    assert list(cut_object(text.decode())) == [("a", b"1"), ("b", b"NaN")]
    assert scan_array(b"[" + text + b", [NaN,], ]") == [text.replace(b" ", b"").replace(b",}", b"}"), b"[NaN]"]


def test_a_key_that_nobody_can_read_is_kept_as_it_was_written():
    assert cut_members(rb'{"\ud83d":1,"\u0061":NaN}') == [(rb'"\ud83d"', b"1"), (b'"a"', b"NaN")]


@pytest.mark.parametrize(
    ("text", "is_whole"),
    [
        (b'{"a":[1,{}]}', True), (b" [] ", True), (b'{"a":1}"', False), (b'{"a":1} x', False), (b"{}{}", False),
        (b'{"a":"', False), (b"{]", False), (b"1", False), (b"", False), (b'"{}"', False), (b"[[]", False),
    ],
)  # fmt: skip
def test_brackets_and_quotes_tell_whether_a_text_is_whole(text, is_whole):
    assert is_balanced(text) == is_whole
