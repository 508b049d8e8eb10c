"""Tables survive JSON, know their key, and quote their names."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.table import (
    Column,
    Kind,
    PgType,
    PipelineId,
    ReplicaIdentity,
    TableId,
    TableName,
    TableSchema,
    quote_identifier,
)

_ORDINALS = st.none() | st.integers(0, 31)
_SCALARS = st.builds(
    PgType, st.text(), st.sampled_from(Kind), st.none() | st.integers(1, 1000), st.none() | st.integers(-1000, 1000)
)
_TYPES = _SCALARS | st.builds(PgType, st.text(), st.just(Kind.ARRAY), element=_SCALARS)
_COLUMNS = st.builds(Column, st.text(), _TYPES, st.booleans(), _ORDINALS, st.none() | st.integers(1, 1600))
_SCHEMAS = st.builds(
    TableSchema,
    st.integers(1, (1 << 32) - 1).map(TableId),
    st.builds(TableName, st.text(), st.text()),
    st.lists(_COLUMNS, max_size=4).map(tuple),
    st.sampled_from(ReplicaIdentity),
)
INT8 = PgType("bigint", Kind.INT8)


@given(_SCHEMAS)
def test_a_schema_survives_json(schema: TableSchema) -> None:
    assert TableSchema.from_json(json.loads(json.dumps(schema.to_json()))) == schema


def test_a_key_is_in_table_order_whatever_its_index_has() -> None:
    columns = (Column("a", INT8, key_ordinal=1), Column("b", INT8), Column("c", INT8, key_ordinal=0))
    schema = TableSchema(TableId(1), TableName("public", "t"), columns)
    assert [column.name for column in schema.key] == ["a", "c"]
    assert schema.column_names == ("a", "b", "c")
    assert schema.column("b") is columns[1]


def test_a_table_may_have_no_key() -> None:
    assert TableSchema(TableId(1), TableName("public", "t"), (Column("a", INT8),)).key == ()


@pytest.mark.parametrize(
    ("name", "quoted"), [("orders", '"orders"'), ('a"b', '"a""b"'), ("select", '"select"'), ("Größe", '"Größe"')]
)
def test_an_identifier_is_always_quoted(name: str, quoted: str) -> None:
    assert quote_identifier(name) == quoted


@given(st.text())
def test_a_quoted_identifier_holds_no_lone_quote(name: str) -> None:
    quoted = quote_identifier(name)
    assert quoted[1:-1].replace('""', "").count('"') == 0
    assert quoted[1:-1].replace('""', '"') == name


def test_a_name_prints_plain_and_quotes_for_sql() -> None:
    name = TableName("Sales", "orders")
    assert str(name) == "Sales.orders"
    assert name.quoted == '"Sales"."orders"'


def test_a_pipeline_owns_one_slot() -> None:
    assert PipelineId("shop").slot_name == "penstock_shop"
