"""What tables keep, as it is configured."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from penstock.config.destination import DeltaConfig, DestinationConfig, IcebergConfig, MemoryDestinationConfig
from penstock.config.load import load
from penstock.config.replicator import ReplicatorConfig
from penstock.errors import ConfigError
from penstock.model.mode import TableMode, TableModes
from penstock.model.table import TableId, TableName

ORDERS, EVENTS = TableName("public", "orders"), TableName("public", "events")


def modes(setting: object) -> TableModes:
    return DeltaConfig.model_validate({"path": "x", "modes": setting}).modes.table_modes


def test_a_mode_alone_is_for_all_tables() -> None:
    assert modes("history") == TableModes(TableMode.HISTORY)


def test_exceptions_are_listed_by_name_or_oid_and_the_oid_counts_first() -> None:
    chosen = modes({"default": "scd2", "tables": {"public.orders": "history", "16405": "current", 7: "current"}})
    assert chosen.of(ORDERS, TableId(1)) is TableMode.HISTORY
    assert chosen.of(ORDERS, TableId(16405)) is TableMode.CURRENT
    assert chosen.of(EVENTS, TableId(7)) is TableMode.CURRENT
    assert chosen.of(EVENTS, TableId(8)) is TableMode.SCD2


def test_what_is_listed_and_not_published_is_named() -> None:
    chosen = modes({"tables": {"public.orders": "history", "public.gone": "scd2", 9: "scd2", 1: "scd2"}})
    assert chosen.unknown([(ORDERS, TableId(1)), (EVENTS, TableId(2))]) == ["public.gone", "9"]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("newest", "'current', 'history' or 'scd2'"),
        ({"tables": {"public.orders": "type2"}}, "'current', 'history' or 'scd2'"),
        ({"tables": {"orders": "history"}}, r"schema\.table, or by a table's oid: orders"),
        ({"tables": ["public.orders"]}, "dictionary"),
        ({"public.orders": "history"}, "Extra inputs"),
    ],
)
def test_what_is_wrong_is_said(setting: object, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        modes(setting)


def test_both_lakes_have_modes_and_memory_has_only_the_present() -> None:
    iceberg = IcebergConfig.model_validate({"warehouse": "x", "modes": "scd2"})
    assert DestinationConfig(iceberg=iceberg).modes == TableModes(TableMode.SCD2)
    assert DestinationConfig(memory=MemoryDestinationConfig()).modes == TableModes()


def test_modes_come_from_a_file_and_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "penstock.yaml"
    file.write_text(
        "pipeline: {id: p, publication_name: p, pg_connection: {host: h, name: n, username: u}}\n"
        "destination:\n  delta:\n    path: lake\n    modes:\n      tables:\n        public.orders: history\n"
        "        16405: scd2\n"
    )
    tables: dict[str | int, TableMode] = {"public.orders": TableMode.HISTORY, 16405: TableMode.SCD2}
    assert load(ReplicatorConfig, file, environ={}).destination.modes == TableModes(TableMode.CURRENT, tables)
    environ = {"PENSTOCK_DESTINATION__DELTA__MODES__DEFAULT": "history"}
    assert load(ReplicatorConfig, file, environ=environ).destination.modes == TableModes(TableMode.HISTORY, tables)
    with pytest.raises(ConfigError, match="modes"):
        load(ReplicatorConfig, file, environ={"PENSTOCK_DESTINATION__DELTA__MODES__DEFAULT": "newest"})
