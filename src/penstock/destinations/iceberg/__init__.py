"""Apache Iceberg: exactly once, data and position in one commit."""

from penstock.destinations.iceberg.catalog import CatalogSettings
from penstock.destinations.iceberg.destination import IcebergDestination

__all__ = ["CatalogSettings", "IcebergDestination"]
