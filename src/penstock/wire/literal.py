"""Strict readers of single values in Postgres's text, for those that a vectorised cast would refuse or misread.

Each returns the number that Arrow stores (days, microseconds, a decimal), or a `Special` where
the target type has no such value; text that Postgres does not print is a `ValueError`.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal

# Arrow could store more; Spark, Delta, Iceberg and Python stop at these years.
MIN_DATE = dt.date.min.toordinal() - dt.date(1970, 1, 1).toordinal()
MAX_DATE = dt.date.max.toordinal() - dt.date(1970, 1, 1).toordinal()
_DAY_US = 86_400_000_000
MIN_TIMESTAMP = MIN_DATE * _DAY_US
MAX_TIMESTAMP = (MAX_DATE + 1) * _DAY_US - 1

_DATE_FORM = r"(?P<year>\d{4,7})-(?P<month>\d\d)-(?P<day>\d\d)"
_DATE = re.compile(rf"{_DATE_FORM}(?P<bc> BC)?", re.ASCII)
_TIMESTAMP = re.compile(
    rf"{_DATE_FORM} (?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:\.(?P<fraction>\d{{1,6}}))?"
    # Seconds in offsets are those of local mean times, before time zones.
    r"(?P<offset>(?P<sign>[+-])(?P<off_h>\d\d)(?::(?P<off_m>\d\d)(?::(?P<off_s>\d\d))?)?)?(?P<bc> BC)?",
    re.ASCII,
)
# Postgres prints digits on both sides of a point. A cast does not insist, so neither may this: rule 3 of `text`.
_NUMERIC = re.compile(r"-?(?:\d+\.?\d*|\.\d+)", re.ASCII)

# The Gregorian calendar repeats after this many years, and days.
_CYCLE_YEARS = 400
_CYCLE_DAYS = 146_097
_EPOCH_ORDINAL = dt.date(1970, 1, 1).toordinal()

_FLOATS = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


@dataclass(frozen=True, slots=True)
class Special:
    """A value that the target type cannot hold."""

    what: str
    """What it is and where, in words: never the value."""
    nearest: int | Decimal | None
    """The nearest value that the target type holds; None where none is near."""


def parse_date(text: str) -> int | Special:
    """Read a date as days since 1970."""
    if text in {"infinity", "-infinity"}:
        return Special("infinity in a date", MIN_DATE if text[0] == "-" else MAX_DATE)
    return _within(_days(_matched(_DATE, text)), MIN_DATE, MAX_DATE, "date")


def parse_timestamp(text: str) -> int | Special:
    """Read a timestamp without time zone as microseconds since 1970."""
    return _timestamp(text, "timestamp", zoned=False)


def parse_timestamptz(text: str) -> int | Special:
    """Read a timestamp with time zone, printed with any offset, as microseconds since 1970 in UTC."""
    return _timestamp(text, "timestamptz", zoned=True)


def parse_float(text: str) -> float:
    """Read the values that are words; all others are numbers, which a cast reads."""
    if text not in _FLOATS:
        raise ValueError("not a float")
    return _FLOATS[text]


def parse_numeric(text: str, precision: int, scale: int) -> Decimal | Special:
    """Read a numeric into a decimal of some precision and scale."""
    limit = Decimal((0, (9,) * precision, -scale))
    if text == "NaN":
        return Special("NaN in a numeric", None)
    if text in {"Infinity", "-Infinity"}:
        return Special("infinity in a numeric", limit.copy_negate() if text[0] == "-" else limit)
    if _NUMERIC.fullmatch(text) is None:
        raise ValueError("not a numeric")
    return _fit(Decimal(text), limit, scale)


def _fit(value: Decimal, limit: Decimal, scale: int) -> Decimal | Special:
    if value.copy_abs() > limit:
        return Special("a numeric with more digits than its decimal holds", limit.copy_sign(value))
    # Ties away from zero, as the server rounds. Within the limit 38 digits and one for the carry suffice.
    rounded = value.quantize(Decimal((0, (1,), -scale)), ROUND_HALF_UP, Context(prec=40))
    if rounded != value:
        return Special("a numeric with more fraction digits than its decimal holds", rounded)
    return rounded


def _timestamp(text: str, kind: str, *, zoned: bool) -> int | Special:
    if text in {"infinity", "-infinity"}:
        return Special(f"infinity in a {kind}", MIN_TIMESTAMP if text[0] == "-" else MAX_TIMESTAMP)
    match = _matched(_TIMESTAMP, text)
    if (match["offset"] is not None) != zoned:
        raise ValueError("an offset where none belongs, or none where one does")
    local = _days(match) * _DAY_US + _time_us(match)
    # Bounds are those of the moment in UTC: an offset can carry it over the first or last midnight.
    return _within(local - _offset_us(match), MIN_TIMESTAMP, MAX_TIMESTAMP, kind)


def _matched(form: re.Pattern[str], text: str) -> re.Match[str]:
    match = form.fullmatch(text)
    if match is None:
        raise ValueError("not a form that Postgres prints")
    return match


def _days(match: re.Match[str]) -> int:
    year = int(match["year"])
    if year == 0:
        raise ValueError("there is no year 0 between 1 BC and 1 AD")
    # Counted through zero, 1 BC is year 0; a year of the same place in its cycle has the same days.
    cycles, in_cycle = divmod(1 - year if match["bc"] else year, _CYCLE_YEARS)
    alike = dt.date(in_cycle + _CYCLE_YEARS, int(match["month"]), int(match["day"]))
    return alike.toordinal() + (cycles - 1) * _CYCLE_DAYS - _EPOCH_ORDINAL


def _time_us(match: re.Match[str]) -> int:
    time = dt.time(int(match["hour"]), int(match["minute"]), int(match["second"]))
    fraction = int((match["fraction"] or "0").ljust(6, "0"))
    return (time.hour * 3600 + time.minute * 60 + time.second) * 1_000_000 + fraction


def _offset_us(match: re.Match[str]) -> int:
    if match["offset"] is None:
        return 0
    seconds = int(match["off_h"]) * 3600 + int(match["off_m"] or 0) * 60 + int(match["off_s"] or 0)
    return (-seconds if match["sign"] == "-" else seconds) * 1_000_000


def _within(number: int, lowest: int, highest: int, kind: str) -> int | Special:
    if number < lowest:
        return Special(f"a year before 1 AD in a {kind}", lowest)
    if number > highest:
        return Special(f"a year past 9999 in a {kind}", highest)
    return number
