"""The options that reading a table of Postgres takes, checked. No message repeats a value that may hold a password."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg
from pydantic import ValidationError

from penstock.config.pipeline import SpecialValuesConfig
from penstock.errors import ConfigError
from penstock.model.policy import ValuePolicies
from penstock.model.special import SpecialValues
from penstock.postgres.connection import SourceAddress
from penstock.spark.option import in_lower_case, limit, require_known, required

CONNECTION_OPTIONS = (
    "url",
    "host",
    "hostaddr",
    "port",
    "dbname",
    "user",
    "password",
    "sslmode",
    "sslrootcert",
    "sslcert",
    "sslkey",
)
_TABLE_OPTIONS = (
    *CONNECTION_OPTIONS,
    "table",
    "columns",
    "filter",
    "partitions",
    "blocksPerPartition",
    "specialValues",
    "snapshot",
    "snapshotTimeout",
)
_MODES = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_DEFAULT_PORT = 5432
_PORTS = range(1, 65536)
# Ten minutes: time to look at a result and ask again; longer, and a forgotten notebook would hold back vacuum.
_SNAPSHOT_TIMEOUT_S = 600

# A name, bare or quoted as in SQL, with the spaces around it.
_NAME = re.compile(r'\s*(?:"(?P<quoted>(?:[^"]|"")+)"|(?P<bare>[^",\s](?:[^",]*[^",\s])?))\s*')


@dataclass(frozen=True, slots=True)
class TableOptions:
    """What to read of which table, and how."""

    address: SourceAddress
    table: str
    """`schema.name`, or the oid."""
    columns: tuple[str, ...] | None
    """None for all."""
    row_filter: str | None
    partitions: int | None
    """At most so many tasks."""
    blocks_per_partition: int | None
    policies: ValuePolicies
    snapshot: str | None
    """One that somebody else holds; None to take and hold one."""
    snapshot_timeout_s: int


def reads_table(options: Mapping[str, str]) -> bool:
    """Whether options are about a table of Postgres, and not about a change log."""
    given = in_lower_case(options)
    return "log" not in given and bool(given.keys() & set(CONNECTION_OPTIONS))


def table_options(options: Mapping[str, str]) -> TableOptions:
    """Read the options of a table."""
    given = in_lower_case(options)
    require_known(given, _TABLE_OPTIONS, "a table of Postgres")
    if {"partitions", "blocksperpartition"} <= given.keys():
        raise ConfigError(
            "format penstock: options partitions and blocksPerPartition say the same thing twice",
            remedy="Give one of them.",
        )
    return TableOptions(
        address=source_address({name: given[name] for name in CONNECTION_OPTIONS if name in given}),
        table=required(given, "table", "a table, as schema.name or by its oid").strip(),
        columns=_names(given["columns"]) if "columns" in given else None,
        row_filter=_condition(given.get("filter")),
        partitions=limit(given, "partitions"),
        blocks_per_partition=limit(given, "blocksPerPartition"),
        policies=_policies(given.get("specialvalues", SpecialValues.ERROR)),
        snapshot=given.get("snapshot"),
        snapshot_timeout_s=limit(given, "snapshotTimeout") or _SNAPSHOT_TIMEOUT_S,
    )


def source_address(options: Mapping[str, str]) -> SourceAddress:
    """Read where the server is, from a URL or from single options, which win over it."""
    given = in_lower_case(options)
    require_known(given, CONNECTION_OPTIONS, "a connection")
    given = {**_parse_url(given.pop("url", "")), **given}
    mode = given.get("sslmode", "prefer")
    if mode not in _MODES:
        raise ConfigError("format penstock: option sslmode is unknown", remedy=f"Choose one of {', '.join(_MODES)}.")
    return SourceAddress(
        host=_host(required(given, "host", "the server's name, or give url")),
        port=_port(given.get("port")),
        dbname=required(given, "dbname", "the database, or give url"),
        user=required(given, "user", "a role that may read the table, or give url"),
        password=given.get("password"),
        sslmode=mode,
        # What the system trusts, where names are checked; elsewhere public authorities would vouch for anyone.
        sslrootcert=given.get("sslrootcert") or ("system" if mode == "verify-full" else None),
        sslcert=given.get("sslcert"),
        sslkey=given.get("sslkey"),
        hostaddr=given.get("hostaddr"),
    )


def _parse_url(url: str) -> dict[str, str]:
    try:
        parts: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(url.removeprefix("jdbc:"))
    except psycopg.ProgrammingError:
        raise ConfigError(
            "format penstock: option url cannot be read",
            remedy="Write postgresql://user@host:5432/dbname?sslmode=verify-full, with % escapes in its parts.",
        ) from None
    unknown = sorted(parts.keys() - set(CONNECTION_OPTIONS))
    if unknown:
        raise ConfigError(
            f"format penstock: option url has the parameter {', '.join(unknown)}, which means nothing here",
            remedy=f"These do: {', '.join(CONNECTION_OPTIONS[1:])}.",
        )
    return {name: str(value) for name, value in parts.items()}


def _host(text: str) -> str:
    if "," in text:
        raise ConfigError(
            "format penstock: several hosts are given",
            remedy="Name one server: all tasks must read the one that has the snapshot.",
        )
    return text


def _port(text: str | None) -> int:
    if text is None:
        return _DEFAULT_PORT
    if not (text.isascii() and text.isdigit() and int(text) in _PORTS):
        raise ConfigError("format penstock: option port is no port", remedy="Give a number from 1 to 65535.")
    return int(text)


def _names(text: str) -> tuple[str, ...]:
    """Read names between commas. A comma or a quote in a name, or a space at its ends, needs quotes around it."""
    names: list[str] = []
    start = 0
    while start <= len(text):
        match = _NAME.match(text, start)
        if match is None or text[match.end() : match.end() + 1] not in {",", ""}:
            raise ConfigError(
                "format penstock: option columns is no list of names",
                remedy='Put commas between names, and double quotes around odd ones: id, "Due, on".',
            )
        names.append(match["bare"] or match["quoted"].replace('""', '"'))
        start = match.end() + 1
    _require_distinct(names)
    return tuple(names)


def _require_distinct(names: Sequence[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(
            f"format penstock: option columns has {', '.join(twice)} twice", remedy="Name each column once."
        )


def _condition(text: str | None) -> str | None:
    """Return a condition that can be put in brackets: a line break ends the comment that it may end with."""
    return f"{text}\n" if text and text.strip() else None


def _policies(text: str) -> ValuePolicies:
    """Read a policy, or what the configuration has under `special_values`, as JSON."""
    try:
        given = json.loads(text) if text.lstrip().startswith("{") else {"policy": text.lower()}
        config = SpecialValuesConfig.model_validate(given)
    except (ValueError, ValidationError):
        raise ConfigError(
            "format penstock: option specialValues cannot be read",
            remedy=f"Choose one of {', '.join(SpecialValues)}; or give exceptions by column, as JSON: "
            '{"policy": "error", "columns": {"public.orders.due": "clamp"}}.',
        ) from None
    return ValuePolicies(config.policy, dict(config.columns))
