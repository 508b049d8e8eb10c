"""What lake tables get besides what is written to them."""

from __future__ import annotations

from pydantic import Field

from penstock.config.model import ConfigModel


class UpkeepConfig(ConfigModel):
    """Upkeep of tables while changes are applied: small files put together, what is out of retention removed."""

    is_enabled: bool = True
    """Whether there is any. Without it tables become slower to read and to write by the hour."""
    every_s: int = Field(default=60, ge=1)
    """How long each table waits between two upkeeps, brief ones aside. What they remove and rewrite costs readers
    little for a minute."""
    brief_after_batches: int = Field(default=4, ge=1)
    """After how many batches of a table its small files are put together, without waiting for the next upkeep, but
    eight times in between at most. Each makes a small table slower to read by about ten milliseconds."""
    target_file_bytes: int = Field(default=64 << 20, ge=1 << 20)
    """How large data files become. Those of half that size are left alone, unless many of their rows are gone."""
    keep_versions_s: int = Field(default=3600, ge=0)
    """For how long files are kept that only former versions of a table need. An hour: longer than most queries take.
    Of versions themselves, which all who read or write the table pay for, those of the last ten minutes stay; with
    more than an hour, and in the mode `history`, all of that time."""
