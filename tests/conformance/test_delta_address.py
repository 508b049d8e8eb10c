"""Where a Delta lake can be."""

from __future__ import annotations

import pytest

from penstock.destinations.delta.destination import DeltaDestination
from penstock.errors import DestinationError, ErrorKind
from penstock.model.table import PipelineId
from penstock.store import MemoryStore
from penstock.testing.batch import no_spark


def test_a_lake_on_a_store_that_is_not_known_is_refused_rather_than_half_served() -> None:
    with pytest.raises(DestinationError, match="hdfs://names/lake") as raised:
        DeltaDestination("hdfs://names/lake", pipeline=PipelineId("p"), spark=no_spark, tables=MemoryStore())
    assert raised.value.kind is ErrorKind.DESTINATION_UNSUPPORTED
