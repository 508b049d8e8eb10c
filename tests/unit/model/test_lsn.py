"""Positions print as Postgres prints them, read back equal, and sort as the log does."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.lsn import Lsn, Position

LSNS = st.integers(0, (1 << 64) - 1).map(Lsn)
POSITIONS = st.builds(Position, LSNS, st.integers(0, (1 << 63) - 1))


@given(LSNS)
def test_a_position_reads_back_what_it_prints(lsn: Lsn) -> None:
    assert Lsn.parse(str(lsn)) == lsn
    assert f"{lsn}" == str(lsn)
    assert repr(lsn) == f"Lsn('{lsn}')"
    assert pickle.loads(pickle.dumps(lsn)) == lsn


def test_it_prints_as_postgres_does() -> None:
    assert str(Lsn(0)) == "0/0"
    assert str(Lsn(0x16B374D848)) == "16/B374D848"
    assert str(Lsn((1 << 64) - 1)) == "FFFFFFFF/FFFFFFFF"


def test_lower_case_and_leading_zeros_are_read() -> None:
    assert Lsn.parse("00000016/b374d848") == Lsn(0x16B374D848)


@pytest.mark.parametrize("text", ["", "0", "/", "0/", "/0", "0/0/0", "g/0", "0/0\n", " 0/0", "-1/0", "123456789/0"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a log position"):
        Lsn.parse(text)


@pytest.mark.parametrize("value", [-1, 1 << 64])
def test_what_the_server_cannot_send_is_refused(value: int) -> None:
    with pytest.raises(ValueError, match="not a log position"):
        Lsn(value)


def test_a_format_aligns_the_text_or_prints_the_number() -> None:
    lsn = Lsn(255)
    assert (f"{lsn:>6}", f"{lsn:6}", f"{lsn:s}") == ("  0/FF", "0/FF  ", "0/FF")
    assert (f"{lsn:d}", f"{lsn:016x}") == ("255", "00000000000000ff")


@given(POSITIONS, POSITIONS)
def test_sequence_keys_sort_as_positions_do(left: Position, right: Position) -> None:
    assert (left < right) == (left.sequence_key < right.sequence_key)
    assert (left == right) == (left.sequence_key == right.sequence_key)
