"""Replication envelopes: golden bytes, truncations, and times."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import WireError
from penstock.model.lsn import Lsn
from penstock.testing.strategies import lsns
from penstock.wire.stream import (
    PG_EPOCH,
    PrimaryKeepalive,
    XLogData,
    datetime_from_pg_us,
    decode_envelope,
    encode_status_update,
    pg_us_from_datetime,
)

XLOG_DATA = b"w" + bytes.fromhex("00000000016b3748 00000000016b3750 0002b1d2e5f3a0c4") + b"payload"
KEEPALIVE = b"k" + bytes.fromhex("00000000016b3750 0002b1d2e5f3a0c4 01")


def test_xlog_data_is_read_field_by_field() -> None:
    assert decode_envelope(XLOG_DATA) == XLogData(Lsn(0x16B3748), Lsn(0x16B3750), 0x2B1D2E5F3A0C4, b"payload")


def test_keepalive_is_read_field_by_field() -> None:
    assert decode_envelope(KEEPALIVE) == PrimaryKeepalive(Lsn(0x16B3750), 0x2B1D2E5F3A0C4, reply_requested=True)
    assert decode_envelope(memoryview(KEEPALIVE[:-1] + b"\0")) == PrimaryKeepalive(
        Lsn(0x16B3750), 0x2B1D2E5F3A0C4, reply_requested=False
    )


@pytest.mark.parametrize("size", range(25))
def test_a_truncated_xlog_data_is_refused(size: int) -> None:
    with pytest.raises(WireError):
        decode_envelope(XLOG_DATA[:size])


@pytest.mark.parametrize("size", range(len(KEEPALIVE)))
def test_a_truncated_keepalive_is_refused(size: int) -> None:
    with pytest.raises(WireError):
        decode_envelope(KEEPALIVE[:size])


def test_a_keepalive_with_trailing_bytes_is_refused() -> None:
    with pytest.raises(WireError, match="1 bytes follow its end"):
        decode_envelope(KEEPALIVE + b"\0")


def test_an_unknown_envelope_is_refused_by_name() -> None:
    with pytest.raises(WireError, match="'z'"):
        decode_envelope(b"z")


def test_status_update_has_the_bytes_the_manual_gives() -> None:
    update = encode_status_update(Lsn(3), Lsn(2), Lsn(1), 4, reply_requested=True)
    assert update == b"r" + bytes.fromhex("0000000000000003 0000000000000002 0000000000000001 0000000000000004 01")


@given(lsns(), lsns(), st.integers(-(1 << 63), (1 << 63) - 1), st.binary())
def test_every_xlog_data_reads_back(start: Lsn, end: Lsn, time_us: int, payload: bytes) -> None:
    data = b"w" + start.to_bytes(8) + end.to_bytes(8) + time_us.to_bytes(8, signed=True) + payload
    assert decode_envelope(data) == XLogData(start, end, time_us, payload)


@given(st.datetimes(timezones=st.timezones()))
def test_every_moment_survives_the_wire(moment: dt.datetime) -> None:
    # In UTC first: wall clocks of a zone may name no moment, or pass the last year.
    try:
        moment = moment.astimezone(dt.UTC)
    except OverflowError:
        return
    back = datetime_from_pg_us(pg_us_from_datetime(moment))
    assert back == moment
    assert back.tzinfo is dt.UTC


def test_the_wire_counts_from_2000() -> None:
    assert datetime_from_pg_us(0) == PG_EPOCH == dt.datetime(2000, 1, 1, tzinfo=dt.UTC)
    assert pg_us_from_datetime(dt.datetime(1999, 12, 31, 23, 59, 59, 999_999, tzinfo=dt.UTC)) == -1


@pytest.mark.parametrize("pg_us", [(1 << 63) - 1, -(1 << 63)])
def test_a_time_out_of_range_is_refused(pg_us: int) -> None:
    with pytest.raises(WireError, match="time"):
        datetime_from_pg_us(pg_us)
