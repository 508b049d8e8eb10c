"""Clusters that ask who comes: a role for every way of authenticating, and TLS where the server can."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from plugins.certificate import Authority, Certificate
from plugins.postgres import MAJORS, SERVERS
from psycopg import sql

from penstock.postgres.embedded import ServerBinaries
from penstock.testing.postgres import Cluster, Clusters, Database, start_cluster, wait_until

PASSWORD = "a pässword's ✓ %s"
UNPREPARED_PASSWORD = "\u0627 mixes directions"
"""What SASLprep refuses: libpq and servers then take it as it is."""

RULES = (
    ("host", "trusted", "trust"),
    ("host", "cleartext", "password"),
    ("host", "md5er", "md5"),
    ("host", "scrammer", "scram-sha-256"),
    ("host", "unprepared", "scram-sha-256"),
)
TLS_RULES = (
    ("hostssl", "certified", "cert"),
    ("hostssl", "encrypted", "trust"),
    ("hostnossl", "unencrypted", "trust"),
)


def _start(binaries: ServerBinaries, rules: tuple[tuple[str, str, str], ...]) -> Cluster:
    """Start a cluster, give it a role per rule, and wait until the rules are in force."""
    cluster = start_cluster(binaries, {"unix_socket_directories": "/tmp", "unix_socket_permissions": "0777"})
    admin = cluster.handle("postgres")
    for _, role, method in rules:
        _create_role(admin, role, "md5" if method == "md5" else "scram-sha-256")
    lines = [f"{kind} all {role} 127.0.0.1/32 {method}" for kind, role, method in rules]
    lines += [f"host all {cluster.server.username} 127.0.0.1/32 trust", "local all trusted trust"]
    (cluster.server.cluster_dir / "pg_hba.conf").write_text("\n".join(lines) + "\n")
    admin.execute("alter system set log_connections = on")
    admin.execute("select pg_reload_conf()")
    # Read after the rules are: so are they, once it is.
    wait_until(lambda: admin.execute("show log_connections") != [("off",)], "the rules to be in force")
    return cluster


def _create_role(admin: Database, role: str, encryption: str) -> None:
    password = UNPREPARED_PASSWORD if role == "unprepared" else PASSWORD
    with admin.connect() as connection:
        connection.execute(f"set password_encryption = '{encryption}'")
        connection.execute(
            sql.SQL("create role {} login replication password {}").format(sql.Identifier(role), password)
        )


@pytest.fixture(scope="session")
def guarded_clusters() -> Iterator[dict[int, Cluster]]:
    """Those that were started, by version; in whatever order tests run, none is started twice."""
    started: dict[int, Cluster] = {}
    yield started
    for cluster in started.values():
        cluster.server.remove()


@pytest.fixture(params=SERVERS, ids=[f"postgres{major}" for major in MAJORS])
def guarded_cluster(request: pytest.FixtureRequest, guarded_clusters: dict[int, Cluster]) -> Cluster:
    """A cluster with a role per method, without TLS; the test runs once per version."""
    binaries: ServerBinaries = request.param
    if binaries.version_major not in guarded_clusters:
        guarded_clusters[binaries.version_major] = _start(binaries, RULES)
    return guarded_clusters[binaries.version_major]


@pytest.fixture(scope="session")
def server_certificate(authority: Authority) -> Certificate:
    """What the TLS cluster shows: it is localhost by name, and not by number."""
    return authority.issue("server", hosts=["localhost"])


@pytest.fixture(scope="session")
def tls_cluster(clusters: Clusters, authority: Authority, server_certificate: Certificate) -> Iterator[Cluster]:
    """A cluster with TLS, of the newest version whose build has it."""
    binaries = next((server for server in reversed(SERVERS) if _has_tls(clusters, server)), None)
    if binaries is None:
        pytest.skip("no server here was built with TLS")
    cluster = _start(binaries, RULES + TLS_RULES)
    _turn_tls_on(cluster, authority, server_certificate)
    yield cluster
    cluster.server.remove()


@pytest.fixture
def tls_database(tls_cluster: Cluster) -> Iterator[Database]:
    with tls_cluster.database() as lent:
        yield lent


def _has_tls(clusters: Clusters, server: ServerBinaries) -> bool:
    return clusters.get(server.version_major).handle("postgres").execute("show ssl_library") != [("",)]


def _turn_tls_on(cluster: Cluster, authority: Authority, shown: Certificate) -> None:
    admin = cluster.handle("postgres")
    files = {"ssl_cert_file": shown.certificate, "ssl_key_file": shown.key, "ssl_ca_file": authority.certificate}
    for setting, file in files.items():
        admin.execute(f"alter system set {setting} = '{_lend(cluster, file)}'")
    admin.execute("alter system set ssl = on")
    admin.execute("select pg_reload_conf()")
    wait_until(lambda: admin.execute("show ssl") == [("on",)], "TLS to be on")


def _lend(cluster: Cluster, file: Path) -> str:
    """Copy a file to where the server finds it, as its own."""
    home = cluster.server.cluster_dir
    copy = home / file.name
    copy.touch(mode=0o600)
    copy.write_bytes(file.read_bytes())
    owner = home.stat()
    os.chown(copy, owner.st_uid, owner.st_gid)
    return file.name
