"""Delta Lake: exactly once, data and position in one commit."""

from penstock.destinations.delta.catalog import CatalogNames
from penstock.destinations.delta.destination import DeltaDestination

__all__ = ["CatalogNames", "DeltaDestination"]
