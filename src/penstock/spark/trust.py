"""The certificates that this machine trusts, in the form that Java reads.

A Java from a package of the system trusts what the system trusts; the one from the wheel brings its
own list, which lacks whatever an organisation has added: behind its proxy, nothing could be fetched.
"""

from __future__ import annotations

import logging
import ssl
import tempfile
import warnings
from pathlib import Path

PASSWORD = "changeit"  # noqa: S105  # Java's own default; the store holds public certificates only
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Alpine
    "/etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL
    "/etc/ssl/ca-bundle.pem",  # SUSE
    "/etc/ssl/cert.pem",  # macOS, BSD
)

_log = logging.getLogger(__name__)


def system_bundle() -> Path | None:
    """Return the file of certificates that the system trusts: SSL_CERT_FILE, OpenSSL's own, or a usual place."""
    known = ssl.get_default_verify_paths().cafile
    candidates = [Path(path) for path in (known, *_BUNDLES) if path]
    return next((path for path in candidates if path.is_file()), None)


def build_trust_store(folder: Path) -> Path | None:
    """Return a Java trust store of the system's certificates, building it if it is missing or out of date.

    None where there is nothing to build it from: Java's own list has to do then.
    """
    bundle = system_bundle()
    if bundle is None:
        return None
    store = folder / "trusted.p12"
    if not store.is_file() or store.stat().st_mtime < bundle.stat().st_mtime:
        content = _encode(bundle.read_bytes())
        if content is None:
            return None
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            file.write(content)
        Path(file.name).replace(store)
    return store


def _encode(bundle: bytes) -> bytes | None:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives.serialization import BestAvailableEncryption
        from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12Certificate, serialize_java_truststore
    except ImportError:
        _log.info("trust store not built: the cryptography package is missing")
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some roots are older than the rules for them
        certificates = x509.load_pem_x509_certificates(bundle)
        entries = [PKCS12Certificate(each, f"{number}".encode()) for number, each in enumerate(certificates)]
        return serialize_java_truststore(entries, BestAvailableEncryption(PASSWORD.encode()))
