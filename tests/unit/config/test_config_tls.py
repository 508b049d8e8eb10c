"""Certificates are files or text, keys are secrets, and what could not verify anything is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from penstock.config.connection import PgConnectionConfig, TlsConfig
from penstock.errors import ErrorKind, PenstockError
from penstock.runtime.source import source_address

PEM = "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n"
KEY = "-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----\n"


def connection(**tls: Any) -> PgConnectionConfig:
    return PgConnectionConfig(host="h", name="n", username="u", tls=TlsConfig.model_validate({"enabled": True} | tls))


@pytest.mark.parametrize("given", [{"client_cert": PEM}, {"client_key": KEY}])
def test_a_client_certificate_and_its_key_come_together(given: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match="together, or not at all") as caught:
        connection(**given)
    assert "hunter2" not in str(caught.value)


def test_an_authority_that_vouches_for_anyone_needs_the_name_checked() -> None:
    with pytest.raises(ValidationError, match="verify-ca needs trusted_root_certs"):
        connection(mode="verify-ca")


def test_a_key_is_not_shown() -> None:
    assert "hunter2" not in repr(connection(client_cert=PEM, client_key=KEY))


def test_paths_of_certificates_start_at_the_files_folder(tmp_path: Path) -> None:
    given = {"client_cert": "certs/c.pem", "client_key": "certs/c.key"}
    tls = TlsConfig.model_validate(given, context={"folder": tmp_path})
    assert tls.client_cert == str(tmp_path / "certs/c.pem")
    assert tls.client_key is not None
    assert tls.client_key.get_secret_value() == str(tmp_path / "certs/c.key")


@pytest.mark.parametrize(
    ("tls", "expected"),
    [
        ({"enabled": False}, ("prefer", None)),
        ({}, ("verify-full", "system")),
        ({"mode": "require"}, ("require", None)),
        ({"mode": "verify-ca", "trusted_root_certs": "ca.pem"}, ("verify-ca", "ca.pem")),
    ],
)
def test_a_mode_trusts_what_it_can(tls: dict[str, Any], expected: tuple[str, str | None], tmp_path: Path) -> None:
    address = source_address(connection(**tls), tmp_path)
    assert (address.sslmode, address.sslrootcert) == expected


def test_text_becomes_files_that_only_we_can_read(tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    config = connection(trusted_root_certs=PEM, client_cert=PEM, client_key=KEY)
    for _ in range(2):
        address = source_address(config, state_dir)
    assert Path(address.sslrootcert or "").read_text() == Path(address.sslcert or "").read_text() == PEM
    assert Path(address.sslkey or "").read_text() == KEY
    assert sorted(path.name for path in state_dir.iterdir()) == [
        "client_cert.pem",
        "client_key.pem",
        "trusted_root_certs.pem",
    ]
    assert {path.stat().st_mode & 0o777 for path in state_dir.iterdir()} == {0o600}
    assert "hunter2" not in repr(address)


def test_a_state_dir_that_cannot_be_written_is_an_error_without_the_key(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PenstockError, match="cannot be written") as caught:
        source_address(connection(client_cert=PEM, client_key=KEY), tmp_path / "file")
    assert caught.value.kind is ErrorKind.LOG_IO
