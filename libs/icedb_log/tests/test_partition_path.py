"""Partition values survive the way into a key and back, and no two share a form."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from icedb_log.errors import InvalidRequest
from icedb_log.table.partitions import (
    HIVE_NULL,
    decode_partition_value,
    encode_partition_value,
    parse_partition_path,
)

TEXTS = st.text(
    alphabet=st.one_of(st.sampled_from("_05af/=. %+A"), st.characters(exclude_categories=["Cs"])), max_size=12
)


@given(TEXTS)
@example("")
@example("_")
@example("_5f")
@example(HIVE_NULL)
@example("__20")
def test_a_value_survives_the_round_trip_in_allowed_characters(value):
    encoded = encode_partition_value(value)
    assert re.fullmatch(r"[A-Za-z0-9._-]+", encoded)
    assert encoded != HIVE_NULL
    assert decode_partition_value(encoded) == value


@given(TEXTS, TEXTS)
@example("", "_")
@example("_", "_5f")
@example(" ", "_20")
def test_two_values_never_share_a_form(left, right):
    assert (encode_partition_value(left) == encode_partition_value(right)) == (left == right)


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        ("2023-06-07", "2023-06-07"),
        ("user_1", "user_1"),
        ("user_ab", "user_5fab"),
        ("São Paulo", "S_c3_a3o_20Paulo"),
        ("../etc", ".._2fetc"),
        ("", "_"),
        ("_", "_5f"),
        (HIVE_NULL, "_5f_HIVE_DEFAULT_PARTITION__"),
    ],
)
def test_forms_are_fixed(value, encoded):
    assert encode_partition_value(value) == encoded


@pytest.mark.parametrize("foreign", ["user_ab", "a_41", "%20", "x+y", "", "_4"])
def test_a_form_of_another_writer_stands_for_itself(foreign):
    assert decode_partition_value(foreign) == foreign


def test_a_path_is_split_into_decoded_values():
    assert parse_partition_path("d=2023-06-07/c=S_c3_a3o") == (("d", "2023-06-07"), ("c", "São"))
    assert parse_partition_path("") == ()


@pytest.mark.parametrize("path", ["d", "d=1/x", "=1", "d=1//e=2"])
def test_a_path_that_is_not_hive_is_refused(path):
    with pytest.raises(InvalidRequest, match="is not name=value"):
        parse_partition_path(path)
