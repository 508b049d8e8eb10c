"""The trust store that the wheel's Java is given."""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, pkcs12
from cryptography.x509.oid import NameOID

from penstock.spark import trust


def make_certificate(name: str) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now).not_valid_after(now + dt.timedelta(days=1))
    return builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "bundle.pem"
    path.write_bytes(make_certificate("one") + make_certificate("two"))
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    return path


def names_in(store: Path) -> set[str]:
    loaded = pkcs12.load_pkcs12(store.read_bytes(), trust.PASSWORD.encode())
    return {entry.certificate.subject.rfc4514_string() for entry in loaded.additional_certs}


def test_the_store_holds_what_the_system_trusts(bundle: Path, tmp_path: Path) -> None:
    store = trust.build_trust_store(tmp_path / "java")
    assert store is not None
    assert names_in(store) == {"CN=one", "CN=two"}


def test_the_store_is_built_again_only_when_the_bundle_changed(bundle: Path, tmp_path: Path) -> None:
    store = trust.build_trust_store(tmp_path)
    assert store is not None
    first = store.stat().st_mtime_ns
    assert trust.build_trust_store(tmp_path) == store
    assert store.stat().st_mtime_ns == first
    bundle.write_bytes(make_certificate("three"))
    os.utime(bundle, (store.stat().st_mtime + 10, store.stat().st_mtime + 10))
    trust.build_trust_store(tmp_path)
    assert names_in(store) == {"CN=three"}


def test_without_a_bundle_java_keeps_its_own_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust, "system_bundle", lambda: None)
    assert trust.build_trust_store(tmp_path) is None
