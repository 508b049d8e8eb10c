"""Defaults as documented, frozen, and without secrets in anything that is printed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr, ValidationError

from penstock.config import (
    BatchConfig,
    DeltaConfig,
    DestinationConfig,
    LogConfig,
    MemoryStoreConfig,
    PgConnectionConfig,
    PipelineConfig,
    ReplicatorConfig,
    SparkConfig,
    StoreConfig,
    TlsConfig,
    read_template,
)
from penstock.config.load import _model_of
from penstock.config.model import ConfigModel
from penstock.model.mode import TableMode, TableModes
from penstock.model.special import SpecialValues
from penstock.model.table import PipelineId, TableName

SECRET = "hunter2"
CONNECTION = PgConnectionConfig(host="localhost", name="shop", username="penstock", password=SecretStr(SECRET))


def _pipeline(**settings: Any) -> PipelineConfig:
    required = {"id": "shop", "publication_name": "shop_pub", "pg_connection": CONNECTION}
    return PipelineConfig.model_validate(required | settings)


def _replicator(**settings: Any) -> ReplicatorConfig:
    required = {"pipeline": _pipeline(), "destination": {"memory": {}}}
    return ReplicatorConfig.model_validate(required | settings)


def _fields(model: type[ConfigModel]) -> Iterator[tuple[str, bool]]:
    """Every setting's name, and whether it holds a group of settings."""
    for name, info in model.model_fields.items():
        group = _model_of(info.annotation)
        yield name, group is not None
        if group is not None:
            yield from _fields(group)


@pytest.fixture
def template(tmp_path: Path) -> Path:
    path = tmp_path / "penstock.yaml"
    path.write_text(read_template(), "utf-8")
    return path


def test_the_template_loads_and_equals_the_defaults(template: Path) -> None:
    expected = ReplicatorConfig.model_validate(
        {
            "pipeline": {
                "id": "my_pipeline",
                "publication_name": "my_publication",
                "pg_connection": {"host": "localhost", "name": "my_database", "username": "penstock", "password": "x"},
            },
            "destination": {"delta": {"path": "lake"}},
        },
        context={"folder": template.parent},
    )
    assert ReplicatorConfig.load(template, environ={"PGPASSWORD": "x"}) == expected


def test_the_template_shows_every_setting() -> None:
    text = read_template()
    assert [name for name, _ in _fields(ReplicatorConfig) if not re.search(rf"\b{name}: ?", text)] == []


def test_the_log_cannot_keep_more_than_it_may_hold() -> None:
    assert LogConfig(max_bytes=10, keep_bytes=10).keep_bytes == 10
    with pytest.raises(ValidationError, match="keep_bytes must be at most max_bytes"):
        LogConfig(max_bytes=10, keep_bytes=11)


def test_nothing_is_kept_beyond_need_unless_asked_for() -> None:
    assert (LogConfig().keep_ms, LogConfig().keep_bytes) == (0, 0)


def test_the_defaults_are_those_of_the_design() -> None:
    pipeline = _pipeline()
    assert pipeline.batch == BatchConfig(max_fill_ms=1000, max_bytes=67108864, merge_every_ms=2000)
    assert (pipeline.max_table_sync_workers, pipeline.max_copy_connections_per_table) == (4, 4)
    assert (pipeline.table_error_retry_delay_ms, pipeline.table_error_retry_max_attempts) == (10_000, 5)
    assert (pipeline.ack, pipeline.invalidated_slot) == ("applied", "error")
    assert pipeline.special_values.policy is SpecialValues.ERROR
    assert pipeline.log == LogConfig(max_bytes=10 * 1024**3)
    connection = pipeline.pg_connection
    assert (connection.port, connection.tls.mode) == (5432, "verify-full")
    keepalive = connection.keepalive
    assert (keepalive.idle_secs, keepalive.interval_secs, keepalive.retries) == (30, 10, 3)
    config = _replicator()
    assert (config.state_dir, config.sqlite_path) == (Path(".penstock"), Path(".penstock/state.sqlite"))
    assert (config.store.kind, config.spark) == ("sqlite", SparkConfig(master="local[*]", driver_memory="2g"))
    assert DeltaConfig(path="x").cdc_columns
    assert DeltaConfig(path="x").modes.table_modes == TableModes(TableMode.CURRENT)


def test_every_setting_that_is_no_group_says_why_or_what() -> None:
    def undescribed(model: type[ConfigModel]) -> list[str]:
        own = [name for name, info in model.model_fields.items() if not info.description]
        groups = filter(None, (_model_of(info.annotation) for info in model.model_fields.values()))
        return [name for name in own if _model_of(model.model_fields[name].annotation) is None] + [
            name for group in groups for name in undescribed(group)
        ]

    assert undescribed(ReplicatorConfig) == []


@pytest.mark.parametrize("value", ["shop", "a_1", "0", 7, 0, 2**64 - 1, "x" * 32])
def test_an_id_is_a_number_or_a_short_plain_name(value: object) -> None:
    pipeline = _pipeline(id=value)
    assert isinstance(pipeline.id, PipelineId)
    assert pipeline.id == str(value)
    assert len(pipeline.id.slot_name) <= 63


@pytest.mark.parametrize("value", ["", "Shop", "a-b", "x" * 33, "a b", "a\n", -1, True, None, 1.5, []])
def test_any_other_id_is_refused(value: object) -> None:
    with pytest.raises(ValidationError, match="must be a whole number, or 1 to 32"):
        _pipeline(id=value)


def test_a_policy_stands_alone_or_with_exceptions() -> None:
    assert _pipeline(special_values="clamp").special_values.policy is SpecialValues.CLAMP
    settings = {"policy": "null", "columns": {"public.orders.paid_at": "string"}}
    policies = _pipeline(special_values=settings).value_policies
    assert policies.of(TableName("public", "orders"), "paid_at") is SpecialValues.STRING
    assert policies.of(TableName("public", "orders"), "id") is SpecialValues.NULL


def test_no_secret_is_printed_or_serialised() -> None:
    config = _replicator(spark={"conf": {"spark.hadoop.fs.s3a.secret.key": SECRET, "spark.x": "shown"}})
    for text in (repr(config), str(config), config.model_dump_json(), f"{config}", repr(config.spark)):
        assert SECRET not in text
    assert '"spark.x":"shown"' in config.model_dump_json()
    assert config.spark.conf["spark.hadoop.fs.s3a.secret.key"] == SECRET
    password = config.pipeline.pg_connection.password
    assert password is not None
    assert password.get_secret_value() == SECRET


def test_no_validation_error_repeats_a_value() -> None:
    with pytest.raises(ValidationError) as caught:
        PgConnectionConfig.model_validate({"host": "h", "name": "n", "password": [SECRET], "pasword": SECRET})
    assert SECRET not in str(caught.value)


def test_configuration_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        CONNECTION.port = 1


def test_spark_settings_may_be_written_as_numbers_and_booleans() -> None:
    spark = SparkConfig.model_validate({"conf": {"a": True, "b": 4, "c": "x", "d": 0.5}})
    assert spark.conf == {"a": "true", "b": "4", "c": "x", "d": "0.5"}


@pytest.mark.parametrize("memory", ["2", "0g", "2 g", "g", "lots"])
def test_a_size_that_the_jvm_would_refuse_is_refused_here(memory: str) -> None:
    with pytest.raises(ValidationError):
        SparkConfig(driver_memory=memory)


@pytest.mark.parametrize("address", ["192.0.2.1", "2001:db8::1"])
def test_an_address_is_numeric(address: str) -> None:
    assert CONNECTION.model_copy(update={"hostaddr": address}).hostaddr == address
    with pytest.raises(ValidationError, match="must be an IPv4 or IPv6 address"):
        PgConnectionConfig(host="h", name="n", username="u", hostaddr=f"{address}.example.com")


@pytest.mark.parametrize("mode", ["prefer", "allow", "disable"])
def test_tls_that_can_silently_be_none_is_not_offered(mode: str) -> None:
    with pytest.raises(ValidationError):
        TlsConfig.model_validate({"enabled": True, "mode": mode})


def test_a_choice_knows_what_was_chosen() -> None:
    assert DestinationConfig(delta=DeltaConfig(path="lake")).kind == "delta"
    assert StoreConfig(memory=MemoryStoreConfig()).kind == "memory"
    with pytest.raises(ValidationError, match="exactly one of sqlite, memory is needed"):
        StoreConfig()


def test_the_models_describe_themselves_as_json_schema() -> None:
    assert "pipeline" in ReplicatorConfig.model_json_schema()["properties"]


def test_paths_of_models_built_by_hand_are_left_as_they_are() -> None:
    assert _replicator(store={"sqlite": {"path": "here.sqlite"}}).sqlite_path == Path("here.sqlite")
    assert _replicator(store={"memory": {}}).sqlite_path is None
