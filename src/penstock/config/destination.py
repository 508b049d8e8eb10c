"""Where the data goes: one key per destination, of which exactly one is given."""

from __future__ import annotations

from pydantic import Field

from penstock.config.model import ConfigModel, OneOf, PathOrUrl


class DeltaConfig(ConfigModel):
    """Delta tables, at `<path>/<schema>/<table>`."""

    path: PathOrUrl = Field(min_length=1)
    """A folder, local or mounted. URLs of object stores are not supported yet."""
    cdc_columns: bool = True
    """Whether rows also carry _CHANGE_TYPE, _LSN and _TIMESTAMP. On: they cost little and answer most questions."""


class MemoryDestinationConfig(ConfigModel):
    """Keeps rows in memory: for trying things out."""


class DestinationConfig(OneOf):
    """The chosen destination."""

    delta: DeltaConfig | None = None
    memory: MemoryDestinationConfig | None = None
