"""The options that reading a change log takes, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from penstock.changelog.folder import Folder
from penstock.errors import ConfigError
from penstock.model.lsn import Lsn
from penstock.model.policy import ValuePolicies
from penstock.model.special import SpecialValues
from penstock.spark.option import in_lower_case, limit, require_known, required
from penstock.storage.s3 import S3Settings

Place: TypeAlias = Lsn | Literal["earliest", "latest"]
"""Where to begin or end: a position, or an end of the log."""

_S3 = {
    "s3Endpoint": "endpoint",
    "s3Region": "region",
    "s3AccessKeyId": "access_key_id",
    "s3SecretAccessKey": "secret_access_key",
    "s3SessionToken": "session_token",
}
_EITHER = ("log", "table", "startingPosition", "specialValues", *_S3)
_BATCH = (*_EITHER, "endingPosition")
_STREAM = (*_EITHER, "maxBytesPerTrigger", "maxEntriesPerTrigger")
# The others need a column of another type, which the log's schema would have to say.
_POLICIES = (SpecialValues.ERROR, SpecialValues.NULL, SpecialValues.CLAMP)


@dataclass(frozen=True, slots=True)
class LogOptions:
    """What to read of which log."""

    log: Folder
    table: str
    """`schema.name`, or the oid."""
    start: Place
    end: Place
    policies: ValuePolicies
    max_bytes: int | None
    max_entries: int | None


def batch_options(options: Mapping[str, str]) -> LogOptions:
    """Read the options of `spark.read`."""
    return _read(options, _BATCH)


def stream_options(options: Mapping[str, str]) -> LogOptions:
    """Read the options of `spark.readStream`."""
    return _read(options, _STREAM)


def any_options(options: Mapping[str, str]) -> LogOptions:
    """Read options before it is known whether a batch or a stream is wanted."""
    return _read(options, tuple(dict.fromkeys(_BATCH + _STREAM)))


def _read(options: Mapping[str, str], known: tuple[str, ...]) -> LogOptions:
    given = in_lower_case(options)
    require_known(given, known, "a change log")
    return LogOptions(
        log=_folder(required(given, "log", "the folder of a change log"), given),
        table=required(given, "table", "a table, as schema.name or by its oid"),
        start=_place("startingPosition", given.get("startingposition", "earliest")),
        end=_place("endingPosition", given.get("endingposition", "latest")),
        policies=ValuePolicies(_policy(given.get("specialvalues", "error"))),
        max_bytes=limit(given, "maxBytesPerTrigger"),
        max_entries=limit(given, "maxEntriesPerTrigger"),
    )


def _folder(text: str, given: Mapping[str, str]) -> Folder:
    plain = text.removeprefix("file://") if text.startswith("file:///") else text
    if plain.startswith(("s3://", "s3a://")):
        named = {name: given[option.lower()] for option, name in _S3.items() if option.lower() in given}
        return Folder(plain, S3Settings(**named))
    if "://" in plain:
        raise ConfigError(
            f"format penstock: option log is a URL ({plain.partition('://')[0]}://…)",
            remedy="A change log is a folder that driver and executors can reach, or s3://bucket/folder.",
        )
    # Tasks may run in another folder than the one that a relative path was meant for.
    return Folder.on_disk(Path(plain).absolute())


def _place(name: str, text: str) -> Place:
    word = text.lower()
    if word == "earliest":
        return "earliest"
    if word == "latest":
        return "latest"
    try:
        return Lsn.parse(text)
    except ValueError:
        raise ConfigError(
            f"format penstock: option {name} is {text!r}, which is no position",
            remedy="Give a position as Postgres prints it, such as 16/B374D848, or earliest, or latest.",
        ) from None


def _policy(text: str) -> SpecialValues:
    if text.lower() not in _POLICIES:
        raise ConfigError(
            f"format penstock: option specialValues is {text!r}", remedy=f"Choose one of {', '.join(_POLICIES)}."
        )
    return SpecialValues(text.lower())
