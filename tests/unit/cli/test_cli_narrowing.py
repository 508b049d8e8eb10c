from __future__ import annotations

import pyarrow as pa

from penstock.cli.compare import compare, narrowed

SOURCE = pa.table(
    {
        "id": pa.array([1, 2], pa.int16()),
        "several": pa.array([[1, None], None], pa.list_(pa.int16())),
        "wide": pa.array([1, 2], pa.int32()),
    }
)
WIDENED = SOURCE.cast(pa.schema([("id", pa.int32()), ("several", pa.list_(pa.int32())), ("wide", pa.int32())]))


def test_integers_that_a_lake_widened_are_equal_to_the_sources() -> None:
    assert not compare(SOURCE, WIDENED, ["id"]).is_equal
    assert compare(SOURCE, narrowed(WIDENED, SOURCE.schema), ["id"]).is_equal


def test_a_value_that_only_the_wide_type_holds_is_a_difference() -> None:
    wrong = WIDENED.set_column(0, "id", pa.array([1, 1 << 20], pa.int32()))
    assert compare(SOURCE, narrowed(wrong, SOURCE.schema), ["id"]).columns == ("id",)


def test_columns_of_the_lake_alone_stay_as_they_are() -> None:
    more = WIDENED.append_column("more", pa.array([1, 2], pa.int32()))
    assert narrowed(more, SOURCE.schema).schema.field("more").type == pa.int32()
