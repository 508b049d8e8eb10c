"""How Spark is started."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, Field, field_serializer

from penstock.config.model import ConfigModel

# The keys whose values Spark itself hides from its pages and logs (spark.redaction.regex).
_SECRET_KEY = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)


def _as_text(value: object) -> object:
    """Turn YAML's booleans and numbers into what Spark reads; users need not quote them."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


class SparkConfig(ConfigModel):
    """Where Spark runs, and its settings."""

    master: str = Field(default="local[*]", min_length=1)
    """This machine, all cores; spark://, yarn or k8s:// for a cluster."""
    conf: dict[str, Annotated[str, BeforeValidator(_as_text)]] = Field(default_factory=dict, repr=False)
    """Spark's own settings; they win over ours."""
    driver_memory: str = Field(default="2g", pattern=r"^[1-9][0-9]*[kmgtKMGT]$")
    """The JVM's heap. The driver plans and, locally, also executes: 2 GiB merges a million rows."""

    @field_serializer("conf", when_used="json")
    def _hide_secrets(self, conf: dict[str, str]) -> dict[str, str]:
        return {key: "**********" if _SECRET_KEY.search(key) else value for key, value in conf.items()}
