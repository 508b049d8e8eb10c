"""Which tables are copied: every form of the choice, by name and by id, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from penstock.config import PipelineConfig, TableSyncCopy
from penstock.errors import ConfigError
from penstock.model.table import TableId, TableName

ORDERS, ITEMS, DOTTED = TableName("public", "orders"), TableName("public", "items"), TableName("a.b", "c.d")
TABLES = [(ORDERS, TableId(1)), (ITEMS, TableId(2)), (DOTTED, TableId(3))]
CONNECTION = {"host": "localhost", "name": "shop", "username": "penstock"}


def chosen(setting: Any) -> TableSyncCopy:
    required = {"id": "shop", "publication_name": "p", "pg_connection": CONNECTION}
    return PipelineConfig.model_validate({**required, "table_sync_copy": setting}).table_sync_copy


def copied(setting: Any) -> list[int]:
    choice = chosen(setting)
    return [int(oid) for name, oid in TABLES if choice.copies(name, oid)]


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("all", [1, 2, 3]),
        ("none", []),
        ({"only": ["public.orders"]}, [1]),
        ({"only": [2, "public.orders"]}, [1, 2]),
        ({"only": ["a.b.c.d"]}, [3]),
        ({"except": ["public.orders"]}, [2, 3]),
        ({"except": [1, "3"]}, [2]),
        ({"only": "public.orders, 2"}, [1, 2]),
        ({"only": ["orders.public"]}, []),
    ],
)
def test_each_form_copies_what_it_says(setting: Any, expected: list[int]) -> None:
    assert copied(setting) == expected


def test_all_is_the_default() -> None:
    config = PipelineConfig.model_validate({"id": "shop", "publication_name": "p", "pg_connection": CONNECTION})
    assert config.table_sync_copy == TableSyncCopy() == chosen("all")


@given(st.sets(st.sampled_from([1, 2, 3, "public.orders", "public.items", "a.b.c.d", "public.gone"]), min_size=1))
def test_only_and_except_of_the_same_list_divide_the_tables(listed: set[str | int]) -> None:
    only, others = copied({"only": list(listed)}), copied({"except": list(listed)})
    assert sorted(only + others) == [1, 2, 3]


@pytest.mark.parametrize("setting", ["all", "none", {"only": ["public.orders", 2]}, {"except": [3]}])
def test_a_choice_survives_its_serialisation(setting: Any) -> None:
    assert chosen(setting).to_setting() == setting
    assert chosen(chosen(setting).to_setting()) == chosen(chosen(setting)) == chosen(setting)


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("some", "must be all, none"),
        (None, "must be all, none"),
        (True, "must be all, none"),
        (["public.orders"], "must be all, none"),
        ({}, "must be all, none"),
        ({"onyl": ["public.orders"]}, "must be all, none"),
        ({"only": ["public.a"], "except": ["public.b"]}, "exclude each other"),
        ({"only": []}, "at least one"),
        ({"only": None}, "at least one"),
        ({"only": {"public.orders": 1}}, "at least one"),
        ({"only": ["public.a", "orders"]}, "only: entry 2 must be schema.table"),
        ({"except": [""]}, "except: entry 1 must be schema.table"),
        ({"except": [".a"]}, "entry 1"),
        ({"except": ["a."]}, "entry 1"),
        ({"except": [True]}, "entry 1"),
        ({"except": [-1]}, "entry 1"),
        ({"except": [1.5]}, "entry 1"),
    ],
)
def test_anything_else_is_refused_with_what_is_right(setting: Any, problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        chosen(setting)


def test_what_is_listed_and_not_there_is_told_in_its_order() -> None:
    choice = chosen({"only": ["public.gone", 1, 99, "public.items"]})
    assert choice.unknown(TABLES) == ["public.gone", "99"]
    assert chosen("all").unknown(TABLES) == []


def test_a_variable_of_the_environment_can_choose(tmp_path: Path) -> None:
    file = tmp_path / "penstock.yaml"
    file.write_text(
        "pipeline:\n  id: shop\n  publication_name: p\n  pg_connection: {host: h, name: n, username: u}\n"
        "  table_sync_copy: {only: [public.items]}\n"
    )
    assert PipelineConfig.load(file, environ={}).table_sync_copy == chosen({"only": ["public.items"]})
    variable = "PENSTOCK_PIPELINE__TABLE_SYNC_COPY"
    assert PipelineConfig.load(file, environ={variable: "none"}).table_sync_copy == chosen("none")
    listed = PipelineConfig.load(file, environ={f"{variable}__ONLY": "public.orders,7"}).table_sync_copy
    assert listed == chosen({"only": ["public.orders", 7]})
    with pytest.raises(ConfigError, match=r"pipeline\.table_sync_copy .*exclude each other"):
        PipelineConfig.load(file, environ={f"{variable}__EXCEPT": "public.orders"})
