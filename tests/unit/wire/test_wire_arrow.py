"""Which Arrow type each source type becomes, and what the policy `string` changes."""

from __future__ import annotations

import pyarrow as pa
import pytest

from penstock.model.special import SpecialValues
from penstock.model.table import Kind, PgType
from penstock.testing.strategies import array_type, numeric_type, simple_type
from penstock.wire.arrow import arrow_type

TYPES: list[tuple[PgType, pa.DataType, pa.DataType]] = [
    (simple_type(Kind.BOOL), pa.bool_(), pa.bool_()),
    (simple_type(Kind.INT2), pa.int16(), pa.int16()),
    (simple_type(Kind.INT4), pa.int32(), pa.int32()),
    (simple_type(Kind.INT8), pa.int64(), pa.int64()),
    (simple_type(Kind.OID), pa.int64(), pa.int64()),
    (simple_type(Kind.FLOAT4), pa.float32(), pa.float32()),
    (simple_type(Kind.FLOAT8), pa.float64(), pa.float64()),
    (simple_type(Kind.TEXT), pa.string(), pa.string()),
    (simple_type(Kind.BYTES), pa.binary(), pa.binary()),
    (simple_type(Kind.DATE), pa.date32(), pa.string()),
    (simple_type(Kind.TIMESTAMP), pa.timestamp("us"), pa.string()),
    (simple_type(Kind.TIMESTAMPTZ), pa.timestamp("us", "UTC"), pa.string()),
    (numeric_type(12, 2), pa.decimal128(12, 2), pa.string()),
    (numeric_type(38, 38), pa.decimal128(38, 38), pa.string()),
    (PgType("numeric(5)", Kind.NUMERIC, 5), pa.decimal128(5, 0), pa.string()),
    (PgType("numeric", Kind.NUMERIC), pa.string(), pa.string()),
    (numeric_type(39, 0), pa.string(), pa.string()),
    (numeric_type(5, -2), pa.string(), pa.string()),
    (numeric_type(3, 5), pa.string(), pa.string()),
    (array_type(simple_type(Kind.INT4)), pa.list_(pa.int32()), pa.string()),
    (array_type(numeric_type(12, 2)), pa.list_(pa.decimal128(12, 2)), pa.string()),
    (array_type(simple_type(Kind.TIMESTAMPTZ)), pa.list_(pa.timestamp("us", "UTC")), pa.string()),
]


@pytest.mark.parametrize(("source", "typed", "_stringed"), TYPES, ids=lambda value: str(getattr(value, "name", value)))
@pytest.mark.parametrize("policy", [SpecialValues.ERROR, SpecialValues.NULL, SpecialValues.CLAMP])
def test_a_source_type_has_one_arrow_type_under_every_policy_that_keeps_types(
    source: PgType, typed: pa.DataType, _stringed: pa.DataType, policy: SpecialValues
) -> None:
    assert arrow_type(source) == arrow_type(source, policy) == typed


@pytest.mark.parametrize(("source", "_typed", "stringed"), TYPES, ids=lambda value: str(getattr(value, "name", value)))
def test_the_policy_string_changes_only_types_with_special_values(
    source: PgType, _typed: pa.DataType, stringed: pa.DataType
) -> None:
    assert arrow_type(source, SpecialValues.STRING) == stringed


def test_every_kind_has_an_arrow_type() -> None:
    assert {source.kind for source, _, _ in TYPES} == set(Kind)
