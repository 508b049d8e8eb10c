"""How the source database is reached."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, PositiveInt, SecretStr, ValidationInfo

from penstock.config.model import ConfigModel, resolve_place


def _check_address(text: str) -> str:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        raise ValueError("must be an IPv4 or IPv6 address") from None
    return text


def _resolve_certificates(text: str, info: ValidationInfo) -> str:
    return text if "-----BEGIN" in text else resolve_place(text, info)


class TlsConfig(ConfigModel):
    """Whether the connection is encrypted, and how the server proves who it is."""

    enabled: bool = False
    """Off by default, because a server on the same machine seldom has a certificate; turn it on for any other."""
    mode: Literal["verify-full", "verify-ca", "require"] = "verify-full"
    """What is checked when enabled. The default checks certificate and host name: less than that can be intercepted."""
    trusted_root_certs: Annotated[str, AfterValidator(_resolve_certificates)] | None = None
    """A PEM file, or PEM text. None trusts what the system trusts."""


class KeepaliveConfig(ConfigModel):
    """TCP keepalives: 30 + 3 * 10 seconds until a vanished server is noticed, within its own default of 60."""

    idle_secs: PositiveInt = 30
    """Silence before the first probe."""
    interval_secs: PositiveInt = 10
    """Pause between probes."""
    retries: PositiveInt = 3
    """Unanswered probes until the connection is given up."""


class PgConnectionConfig(ConfigModel):
    """Where the source is, and who we are to it."""

    host: str = Field(min_length=1)
    """The server's name; with TLS, the name its certificate must bear."""
    hostaddr: Annotated[str, AfterValidator(_check_address)] | None = None
    """An address to connect to, where the name cannot be looked up."""
    port: int = Field(default=5432, ge=1, le=65535)
    """Postgres's own default."""
    name: str = Field(min_length=1)
    """The database."""
    username: str = Field(min_length=1)
    """A role that may replicate and read the published tables."""
    password: SecretStr | None = None
    """Best given as ${NAME}, which is read from the environment. None where the server asks for none."""
    tls: TlsConfig = TlsConfig()
    keepalive: KeepaliveConfig = KeepaliveConfig()
    connect_timeout_s: PositiveInt = 10
    """Long enough for a far server, short enough that a wrong address is reported while one watches."""
