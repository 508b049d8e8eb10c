"""Where metrics are served."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from penstock.config.model import ConfigModel

_MAX_PORT = 65535


def split_address(text: str) -> tuple[str, int]:
    """Return the host and port of `host:port`; an IPv6 address stands in brackets."""
    host, _, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    is_bracketed = host == f"[{bare}]"
    if not bare or (":" in bare) != is_bracketed or not (port.isascii() and port.isdecimal()):
        raise ValueError("must be host:port, such as 127.0.0.1:9464 or [::1]:9464")
    if not 1 <= int(port) <= _MAX_PORT:
        raise ValueError(f"the port must be from 1 to {_MAX_PORT}")
    return bare, int(port)


def _check_address(text: str) -> str:
    split_address(text)
    return text


class MetricsConfig(ConfigModel):
    """Metrics for Prometheus, served over HTTP at /metrics while `penstock run` works."""

    address: Annotated[str, AfterValidator(_check_address)] | None = None
    """The host and port to listen on, such as 127.0.0.1:9464; 0.0.0.0 and [::] are every address of the machine. None
    serves nothing: whoever can connect reads the tables' names, so it is for you to say who can."""
