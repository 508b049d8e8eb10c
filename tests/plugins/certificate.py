"""Certificates for tests: authorities that vouch for what they are asked to, true or not."""

from __future__ import annotations

import datetime as dt
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = dt.timedelta(days=1)


@dataclass(frozen=True)
class Certificate:
    """Files of a certificate and its key."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates, and is trusted where its own is."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._numbers = itertools.count()
        self._name = _name(name)
        self._key = ec.generate_private_key(ec.SECP256R1())
        signed = (
            _builder(self._name, self._name, self._key, _DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = folder / f"{name}.pem"
        self.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *, hosts: Iterable[str] = (), valid_for: dt.timedelta = _DAY) -> Certificate:
        """Sign a new key; with a negative validity it has expired."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(name), self._name, key, valid_for)
        if names := [x509.DNSName(host) for host in hosts]:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        signed = builder.sign(self._key, hashes.SHA256())
        path = self._folder / f"{name}-{next(self._numbers)}"
        issued = Certificate(path.with_suffix(".pem"), path.with_suffix(".key"))
        issued.certificate.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
        issued.key.touch(mode=0o600)
        issued.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return issued


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "trusted")


@pytest.fixture(scope="session")
def other_authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("other_authority"), "other")


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, valid_for: dt.timedelta
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 2 * _DAY)
        .not_valid_after(now + valid_for)
    )
