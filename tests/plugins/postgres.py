"""Postgres for tests: clusters that start when a test first needs them, and a fresh database per test.

`cluster` and `database` are on the newest server found; `any_cluster` and `any_database` run the
test once per major version found, in `make test` with the oldest and the newest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from penstock.postgres.embedded import find_servers
from penstock.testing.postgres import Cluster, Clusters, Database

SERVERS = find_servers()
MAJORS = [server.version_major for server in SERVERS]


@pytest.fixture(scope="session")
def clusters() -> Iterator[Clusters]:
    started = Clusters(SERVERS)
    yield started
    started.close()


@pytest.fixture(scope="session")
def cluster(clusters: Clusters) -> Cluster:
    return clusters.get(clusters.newest)


@pytest.fixture
def database(cluster: Cluster) -> Iterator[Database]:
    with cluster.database() as lent:
        yield lent


def _param(major: int) -> Any:
    """Leave what lies between the oldest and the newest to the long run: it has never differed from both."""
    marks = () if major in (MAJORS[0], MAJORS[-1]) else pytest.mark.long
    return pytest.param(major, id=f"postgres{major}", marks=marks)


@pytest.fixture(params=[_param(major) for major in MAJORS])
def any_cluster(request: pytest.FixtureRequest, clusters: Clusters) -> Cluster:
    return clusters.get(request.param)


@pytest.fixture
def any_database(any_cluster: Cluster) -> Iterator[Database]:
    with any_cluster.database() as lent:
        yield lent
