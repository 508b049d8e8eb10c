from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from penstock.changelog.folder import Folder
from penstock.cli.wiring import assemble
from penstock.config.destination import DestinationConfig, IcebergConfig
from penstock.config.pipeline import LogConfig
from penstock.config.replicator import ReplicatorConfig
from penstock.config.s3 import AWS_PACKAGE, S3Config
from penstock.errors import DestinationError
from penstock.postgres.connection import SourceAddress
from penstock.receiver.settings import ReceiverSettings
from penstock.runtime.source import log_folder

KEYS = {"access_key_id": "me", "secret_access_key": "hush"}
JDBC = {"jdbc": {"uri": "jdbc:sqlite:/srv/catalog.sqlite"}}


def iceberg(**settings: Any) -> IcebergConfig:
    return IcebergConfig.model_validate(settings)


def test_keys_come_together_or_from_elsewhere() -> None:
    assert S3Config().secret_access_key is None
    for name, value in KEYS.items():
        with pytest.raises(ValidationError, match="given together"):
            S3Config.model_validate({name: value})


def test_secrets_are_neither_printed_nor_dumped() -> None:
    config = DestinationConfig.model_validate(
        {"delta": {"path": "s3://b/lake", "s3": {**KEYS, "session_token": "shh"}}}
    )
    for text in (repr(config), config.model_dump_json()):
        assert "hush" not in text
        assert "shh" not in text


def log(**settings: Any) -> LogConfig:
    return LogConfig.model_validate(settings)


def test_a_log_is_in_a_folder_or_in_a_bucket(tmp_path: Path) -> None:
    assert log_folder(log(), tmp_path) == Folder.on_disk(tmp_path / "log")
    assert log_folder(log(location="/srv/log"), tmp_path) == Folder("/srv/log")
    place = log_folder(log(location="s3://b/log", s3=KEYS), tmp_path)
    assert (place.path("LOCK"), place.is_local, str(place)) == ("log/LOCK", False, "s3://b/log")
    assert place.s3 is not None
    assert place.s3.secret_access_key == "hush"
    assert "hush" not in repr((place, log(location="s3://b/log", s3=KEYS)))
    for wrong in ("gs://b/log", "s3://b", "s3://b/"):
        with pytest.raises(ValidationError, match="s3://bucket/folder"):
            log(location=wrong)


def test_the_receiver_is_told_of_a_bucket_with_its_secrets(tmp_path: Path) -> None:
    address = SourceAddress(host="localhost", port=5432, dbname="d", user="u")
    place = log_folder(log(location="s3://b/log", s3=KEYS), tmp_path)
    settings = ReceiverSettings(address, "s", "p", place, tmp_path)
    assert ReceiverSettings.from_line(settings.to_line()) == settings
    assert "hush" not in repr(settings)


def test_iceberg_is_told_of_a_bucket_and_fetches_what_it_needs_for_it_only_then() -> None:
    chosen = iceberg(warehouse="s3://b/lake", catalog=JDBC, s3={"endpoint": "http://127.0.0.1:9000", **KEYS})
    assert chosen.catalog_properties == {
        "type": "jdbc",
        "warehouse": "s3://b/lake",
        "uri": "jdbc:sqlite:/srv/catalog.sqlite",
        "jdbc.schema-version": "V1",
        "jdbc.busy_timeout": "60000",
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "s3.endpoint": "http://127.0.0.1:9000",
        "s3.path-style-access": "true",
        "client.region": "us-east-1",
        "s3.access-key-id": "me",
        "s3.secret-access-key": "hush",
    }
    assert AWS_PACKAGE in chosen.packages
    assert AWS_PACKAGE in iceberg(warehouse="s3://b/lake", catalog=JDBC).packages
    assert AWS_PACKAGE in iceberg(catalog={"rest": {"uri": "http://c"}}, s3={}).packages
    assert AWS_PACKAGE not in iceberg(warehouse="/lake", catalog=JDBC).packages


def test_a_catalog_beside_a_bucket_is_somewhere_else() -> None:
    with pytest.raises(ValidationError, match="needs a uri"):
        iceberg(warehouse="s3://b/lake", catalog={"jdbc": {}})


def replicator(**settings: Any) -> ReplicatorConfig:
    connection = {"host": "h", "name": "n", "username": "u"}
    pipeline = {"id": "p", "publication_name": "pub", "pg_connection": connection}
    return ReplicatorConfig.model_validate({"pipeline": pipeline, "store": {"memory": {}}, **settings})


def test_folders_of_a_bucket_are_no_catalog() -> None:
    with pytest.raises(DestinationError, match="hadoop catalog"):
        assemble(replicator(destination={"iceberg": {"warehouse": "s3://b/lake"}}))


def test_the_log_stays_on_a_disk() -> None:
    with pytest.raises(ValidationError, match="of this machine"):
        replicator(destination={"memory": {}}, state_dir="s3://b/state")
