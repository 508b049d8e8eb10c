"""A destination in memory, for tests and first steps."""

from penstock.destinations.memory.destination import MemoryDestination

__all__ = ["MemoryDestination"]
