"""How the source database is reached."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, PositiveInt, SecretStr, ValidationInfo, model_validator

from penstock.config.model import ConfigModel, resolve_place


def _check_address(text: str) -> str:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        raise ValueError("must be an IPv4 or IPv6 address") from None
    return text


def is_pem(text: str) -> bool:
    """Whether a certificate or key is given as it is, and not as the path of its file."""
    return "-----BEGIN" in text


def _resolve_certificates(text: str, info: ValidationInfo) -> str:
    return text if is_pem(text) else resolve_place(text, info)


def _resolve_key(key: SecretStr, info: ValidationInfo) -> SecretStr:
    return SecretStr(_resolve_certificates(key.get_secret_value(), info))


class TlsConfig(ConfigModel):
    """Whether the connection is encrypted, and how the server proves who it is."""

    enabled: bool = False
    """Off by default, because a server on the same machine seldom has a certificate; turn it on for any other."""
    mode: Literal["verify-full", "verify-ca", "require"] = "verify-full"
    """What is checked when enabled. The default checks certificate and host name: less than that can be intercepted."""
    trusted_root_certs: Annotated[str, AfterValidator(_resolve_certificates)] | None = None
    """A PEM file, or PEM text. None trusts what the system trusts under verify-full, and anyone under require."""
    client_cert: Annotated[str, AfterValidator(_resolve_certificates)] | None = None
    """The certificate that we show a server which asks for one, as a PEM file or PEM text; chain included."""
    client_key: Annotated[SecretStr, AfterValidator(_resolve_key)] | None = None
    """Its key, without a passphrase: a PEM file that nobody else may read, or PEM text, best given as ${NAME}."""

    @model_validator(mode="after")
    def _check_complete(self) -> Self:
        if (self.client_cert is None) != (self.client_key is None):
            raise ValueError("client_cert and client_key are given together, or not at all")
        if self.enabled and self.mode == "verify-ca" and self.trusted_root_certs is None:
            # Anyone can get a certificate for a name of their own from a public authority.
            raise ValueError("mode verify-ca needs trusted_root_certs; use verify-full with those of the system")
        return self


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
