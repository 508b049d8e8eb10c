"""A snapshot that the user holds, so that several frames show the same moment for as long as they are needed."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from penstock.postgres.snapshot import SessionSnapshot
from penstock.spark.table_options import source_address


def snapshot(**options: str) -> HeldSnapshot:
    """Return a snapshot to be entered, of the database that the options name as those of `spark.read` do.

    It holds back vacuum on the source until it is left.
    """
    return HeldSnapshot(options)


class HeldSnapshot:
    """One moment of a source, from entering to leaving."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = {name: str(value) for name, value in options.items()}
        self._snapshot = SessionSnapshot(source_address(self._options), application_name="penstock snapshot")

    def __enter__(self) -> Self:
        self._snapshot.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._snapshot.__exit__(kind, error, traceback)

    @property
    def name(self) -> str:
        """What option `snapshot` takes."""
        return self._snapshot.name

    @property
    def options(self) -> dict[str, str]:
        """The connection, its password included, and the snapshot: what a frame of this moment is read with."""
        return {**self._options, "snapshot": self.name}
