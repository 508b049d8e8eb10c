"""Every extension point, as Protocols: what Penstock asks of a destination and of a store.

All methods block, are called on the driver, and may be called from several threads at once.
"""

from penstock.contract.batch import CopiedFile, EventBatch, RowBatch, TableChanges
from penstock.contract.destination import Destination, Moded, Positioned
from penstock.contract.store import CleanupStore, SchemaStore, StateStore, Store
from penstock.contract.upkeep import Maintained, Upkeep

__all__ = [
    "CleanupStore",
    "CopiedFile",
    "Destination",
    "EventBatch",
    "Maintained",
    "Moded",
    "Positioned",
    "RowBatch",
    "SchemaStore",
    "StateStore",
    "Store",
    "TableChanges",
    "Upkeep",
]
