from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from penstock.config.destination import SQLITE_PACKAGE, DestinationConfig, IcebergConfig
from penstock.spark.session import DELTA_PACKAGE, ICEBERG_PACKAGE, SparkSettings, session_conf


def config(**settings: Any) -> IcebergConfig:
    return IcebergConfig.model_validate(settings, context={"folder": Path("/etc/shop")})


def test_the_warehouse_is_the_catalog_unless_another_is_named() -> None:
    assert config(warehouse="lake").catalog_properties == {"type": "hadoop", "warehouse": "/etc/shop/lake"}


def test_a_database_is_a_sqlite_file_in_the_warehouse_unless_another_is_named() -> None:
    chosen = config(warehouse="/lake", catalog={"jdbc": {}})
    assert chosen.catalog_properties["uri"] == "jdbc:sqlite:/lake/catalog.sqlite"
    assert chosen.packages == (SQLITE_PACKAGE,)


def test_another_database_brings_its_driver() -> None:
    jdbc = {"uri": "jdbc:postgresql://db/lake", "driver_package": "org.postgresql:postgresql:42.7.8"}
    chosen = config(warehouse="/lake", catalog={"jdbc": {**jdbc, "properties": {"jdbc.user": "me"}}})
    assert chosen.packages == ("org.postgresql:postgresql:42.7.8",)
    assert chosen.catalog_properties == {
        "type": "jdbc",
        "warehouse": "/lake",
        "uri": "jdbc:postgresql://db/lake",
        "jdbc.schema-version": "V1",
        "jdbc.user": "me",
    }
    with pytest.raises(ValidationError, match="driver_package"):
        config(warehouse="/lake", catalog={"jdbc": {"uri": "jdbc:postgresql://db/lake"}})


def test_a_server_decides_where_its_tables_are() -> None:
    rest = {"uri": "http://catalog:8181", "properties": {"token": "hunter2", "header.x-tries": 3, "s3.path": True}}
    chosen = config(warehouse="main", catalog={"rest": rest})
    assert chosen.catalog_properties == {
        "type": "rest",
        "warehouse": "main",
        "uri": "http://catalog:8181",
        "token": "hunter2",
        "header.x-tries": "3",
        "s3.path": "true",
    }
    assert "warehouse" not in config(catalog={"rest": rest}).catalog_properties


def test_a_warehouse_is_needed_where_nobody_else_decides() -> None:
    with pytest.raises(ValidationError, match="a folder for the tables is needed"):
        config()


def test_spark_is_told_of_the_catalog_by_its_name() -> None:
    chosen = DestinationConfig(iceberg=config(warehouse="/lake", catalog_name="shop"))
    assert chosen.spark_conf == {
        "spark.sql.catalog.shop": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.shop.cache-enabled": "false",
        "spark.sql.catalog.shop.type": "hadoop",
        "spark.sql.catalog.shop.warehouse": "/lake",
    }


def test_secrets_are_neither_printed_nor_dumped() -> None:
    rest = {"uri": "http://catalog:8181", "properties": {"credential": "me:hunter2"}}
    chosen = config(catalog={"rest": rest})
    assert "hunter2" not in repr(chosen) + chosen.model_dump_json()


@pytest.mark.parametrize(
    ("formats", "packages", "extensions"),
    [
        (("delta",), (DELTA_PACKAGE,), "io.delta.sql.DeltaSparkSessionExtension"),
        (
            ("iceberg",),
            (ICEBERG_PACKAGE,),
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        ),
        ((), (), None),
    ],
)
def test_a_session_has_what_its_tables_need_and_no_more(
    formats: tuple[str, ...], packages: tuple[str, ...], extensions: str | None
) -> None:
    settings = SparkSettings(formats=formats)
    conf = session_conf(settings, "x")
    assert settings.all_packages == packages
    assert conf.get("spark.sql.extensions") == extensions
    assert ("spark.sql.catalog.spark_catalog" in conf) == ("delta" in formats)


def test_a_session_can_know_both_formats() -> None:
    conf = session_conf(SparkSettings(formats=("delta", "iceberg")), "x")
    assert conf["spark.sql.extensions"].count(",") == 1


@pytest.mark.parametrize(("chosen", "formats"), [("delta", ("delta",)), ("iceberg", ("iceberg",)), ("memory", ())])
def test_a_destination_says_which_formats_it_needs(chosen: str, formats: tuple[str, ...]) -> None:
    settings = {"delta": {"path": "/lake"}, "iceberg": {"warehouse": "/lake"}, "memory": {}}[chosen]
    assert DestinationConfig.model_validate({chosen: settings}).table_formats == formats
