"""Layers, references, paths, and the one report of everything that is wrong."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.config import PipelineConfig, ReplicatorConfig, failpoints_from_environment
from penstock.config.load import _expand
from penstock.errors import ConfigError
from penstock.model.table import PipelineId

MINIMAL = """\
pipeline:
  id: shop
  publication_name: shop_pub
  pg_connection: {host: localhost, name: shop, username: penstock}
destination:
  memory: {}
"""
Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(text: str) -> Path:
        path = tmp_path / "penstock.yaml"
        path.write_text(text, "utf-8")
        return path

    return write_file


def _load(path: Path | None, environ: dict[str, str] | None = None, **overrides: Any) -> ReplicatorConfig:
    return ReplicatorConfig.load(path, environ=environ or {}, overrides=overrides)


def _problems(path: Path | None, environ: dict[str, str] | None = None, **overrides: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        _load(path, environ, **overrides)
    assert caught.value.__cause__ is None, "a cause would print the values"
    return str(caught.value)


def test_a_variable_beats_the_file_and_an_override_beats_both(write: Write) -> None:
    path = write(MINIMAL.replace("  id", "  batch: {max_fill_ms: 1, max_bytes: 1}\n  max_table_sync_workers: 1\n  id"))
    environ = {"PENSTOCK_PIPELINE__BATCH__MAX_FILL_MS": "2", "PENSTOCK_PIPELINE__MAX_TABLE_SYNC_WORKERS": "2"}
    pipeline = _load(path, environ, pipeline={"batch": {"max_fill_ms": 3}}).pipeline
    assert (pipeline.batch.max_bytes, pipeline.max_table_sync_workers, pipeline.batch.max_fill_ms) == (1, 2, 3)
    assert pipeline.max_copy_connections_per_table == 4, "what no layer gives is the default"


def test_the_pipeline_alone_can_be_loaded_from_a_whole_file(write: Write) -> None:
    path = write(MINIMAL + 'state_dir: "${UNSET}"\nnonsense: 1\n')
    environ = {"PENSTOCK_PIPELINE__ACK": "staged", "PENSTOCK_SPARK__NONSENSE": "1"}
    pipeline = PipelineConfig.load(path, environ=environ, overrides={"pipeline": {"publication_name": "other"}})
    assert (pipeline.id, pipeline.ack, pipeline.publication_name) == (PipelineId("shop"), "staged", "other")


def test_a_pipeline_that_is_missing_is_reported_by_its_fields(write: Write) -> None:
    with pytest.raises(ConfigError, match=r"pipeline\.publication_name: required"):
        PipelineConfig.load(write("destination: {memory: {}}"), environ={})
    with pytest.raises(ConfigError, match=r"pipeline \(penstock\.yaml:1\): must be a mapping of settings"):
        PipelineConfig.load(write("pipeline:\n"), environ={})


def test_without_a_path_the_file_in_the_working_folder_is_read(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write(MINIMAL).parent)
    assert _load(None).pipeline.id == "shop"


def test_without_a_file_the_variables_can_be_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environ = {
        "PENSTOCK_PIPELINE__ID": "7",
        "PENSTOCK_PIPELINE__PUBLICATION_NAME": "pub",
        "PENSTOCK_PIPELINE__PG_CONNECTION": "{host: db, name: '1', username: u}",
        "PENSTOCK_PIPELINE__PG_CONNECTION__NAME": "123",
        "PENSTOCK_PIPELINE__PG_CONNECTION__TLS__ENABLED": "true",
        "PENSTOCK_PIPELINE__SPECIAL_VALUES": "null",
        "PENSTOCK_DESTINATION__DELTA__PATH": "lake",
        "PENSTOCK_STATE_DIR": "state",
    }
    config = _load(None, environ)
    assert config.pipeline.id == PipelineId("7")
    assert config.pipeline.pg_connection.name == "123", "text stays text, whatever it looks like"
    assert config.pipeline.pg_connection.tls.enabled
    assert config.pipeline.special_values.policy == "null"
    assert config.state_dir == tmp_path / "state"


def test_without_anything_the_way_to_begin_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"there is no penstock\.yaml in") as caught:
        _load(None, {"PENSTOCK_PORT": "tcp://10.0.0.1"})
    assert "penstock init" in caught.value.remedy


def test_a_named_file_that_is_missing_is_never_replaced_by_variables(tmp_path: Path) -> None:
    assert "there is no file" in _problems(tmp_path / "other.yaml", {"PENSTOCK_PIPELINE__ID": "7"})


def test_the_process_environment_is_the_default(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_PIPELINE__ID", "from_env")
    assert ReplicatorConfig.load(write(MINIMAL)).pipeline.id == "from_env"
    assert PipelineConfig.load(os.fspath(write(MINIMAL))).id == "from_env"


def test_references_are_read_from_the_environment(write: Write) -> None:
    path = write(
        MINIMAL.replace(
            "host: localhost", 'host: "${HOST}.example.com", port: "${PORT:-6432}", password: "${PASSWORD}"'
        )
    )
    connection = _load(path, {"HOST": "db", "PASSWORD": "p: {x}"}).pipeline.pg_connection
    assert (connection.host, connection.port) == ("db.example.com", 6432)
    assert connection.password is not None
    assert connection.password.get_secret_value() == "p: {x}", "a value is never parsed again"
    assert _load(path, {"HOST": "db", "PORT": "1", "PASSWORD": "x"}).pipeline.pg_connection.port == 1


def test_an_unset_reference_names_variable_and_field(write: Write) -> None:
    message = _problems(write(MINIMAL.replace("host: localhost", 'host: "${DB_HOST}"')))
    assert "pipeline.pg_connection.host (penstock.yaml:4): the environment variable DB_HOST is not set" in message


def test_an_unset_reference_under_another_layer_does_not_matter(write: Write) -> None:
    path = write(MINIMAL.replace("host: localhost", 'host: "${DB_HOST}"'))
    assert _load(path, {"PENSTOCK_PIPELINE__PG_CONNECTION__HOST": "db"}).pipeline.pg_connection.host == "db"
    assert _load(path, pipeline={"pg_connection": {"host": "db"}}).pipeline.pg_connection.host == "db"


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("${A}", "1"),
        ("x${A}y${A}", "x1y1"),
        ("${B:-}", ""),
        ("${B:-a:-b}", "a:-b"),
        ("${EMPTY:-default}", "default"),
        ("${EMPTY}", ""),
        ("$${A}", "${A}"),
        ("$A costs 5$", "$A costs 5$"),
    ],
)
def test_a_reference_expands_as_in_a_shell(text: str, expanded: str) -> None:
    assert _expand(text, {"A": "1", "EMPTY": ""}) == (expanded, None)


@pytest.mark.parametrize("text", ["${}", "${1A}", "${A-b}", "${A.b}"])
def test_what_only_looks_like_a_reference_is_refused(write: Write, text: str) -> None:
    assert "neither ${NAME} nor" in _problems(write(MINIMAL.replace("localhost", f'"{text}"')))


@given(st.text(alphabet="ab${}:-", max_size=12))
def test_expansion_never_fails_otherwise_than_by_a_problem(text: str) -> None:
    expanded, problem = _expand(text, {"a": "1"})
    assert (expanded == text) if problem else isinstance(expanded, str)


def test_everything_wrong_is_one_report_by_path_and_line(write: Write) -> None:
    path = write("""\
pipeline:
  id: Shop
  publicaton_name: x
  pg_connection: {host: h, port: 70000, name: n, username: u, tls: {enabled: perhaps}}
  ack: later
  batch: 5
destination: {delta: {}}
""")
    lines = _problems(path, {"PENSTOCK_PIPELINE__LOG__MAX_BYTES": "much", "PENSTOCK_PIPLINE__ID": "7"}).splitlines()
    assert lines[0] == f"10 problems in the configuration {path}:"
    assert {line.strip().split(":")[0] if "yaml" not in line else line.strip().split(")")[0] for line in lines[1:]} == {
        "pipeline.id (penstock.yaml:2",
        "pipeline.publication_name (penstock.yaml:1",
        "pipeline.publicaton_name (penstock.yaml:3",
        "pipeline.pg_connection.port (penstock.yaml:4",
        "pipeline.pg_connection.tls.enabled (penstock.yaml:4",
        "pipeline.ack (penstock.yaml:5",
        "pipeline.batch (penstock.yaml:6",
        "destination.delta.path (penstock.yaml:7",
        "pipeline.log.max_bytes (PENSTOCK_PIPELINE__LOG__MAX_BYTES)",
        "pipline (PENSTOCK_PIPLINE__ID)",
    }


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ("  publicaton_name: x", "publicaton_name (penstock.yaml:1): unknown setting; did you mean publication_name?"),
        ("  zzz: 1", "unknown setting; there are: id, publication_name, pg_connection,"),
        ("  ack: later", "must be 'applied' or 'staged'"),
        ("  ack: 5", "must be 'applied' or 'staged'"),
        ("  batch: {max_bytes: 0}", "pipeline.batch.max_bytes (penstock.yaml:1): must be greater than 0"),
        ("  batch: []", "must be a mapping of settings"),
        ("  special_values:", 'write "null" in quotes'),
        ("  special_values: zero", "must be 'error', 'null', 'clamp' or 'string'"),
        ("  special_values: {policy: }", "must be 'error', 'null', 'clamp' or 'string'"),
        ("  special_values: {columns: {orders: clamp}}", "must be named schema.table.column: orders"),
        ("  invalidated_slot: recreate", "must be 'error' or 'resync'"),
    ],
)
def test_a_wrong_setting_says_what_was_expected(write: Write, setting: str, expected: str) -> None:
    assert expected in _problems(write(f"pipeline: &p\n{setting}\n")).replace(":2)", ":1)")


@pytest.mark.parametrize("section", ["", "delta: {path: x}\n  memory: {}", "delta:"])
def test_a_destination_is_exactly_one_of_those_listed(write: Write, section: str) -> None:
    message = _problems(write(MINIMAL.replace("memory: {}", section or "{}")))
    assert "destination (penstock.yaml:5): exactly one of delta, iceberg, memory is needed" in message


def test_a_store_is_exactly_one_of_those_listed(write: Write) -> None:
    message = _problems(write(MINIMAL + "store: {sqlite: {}, memory: {}}\n"))
    assert "store (penstock.yaml:7): exactly one of sqlite, memory is needed" in message


def test_another_destination_is_chosen_by_unsetting_the_first(write: Write) -> None:
    config = _load(write(MINIMAL), destination={"memory": None, "delta": {"path": "s3://bucket/lake"}})
    assert config.destination.kind == "delta"


def test_relative_paths_start_at_the_file_and_urls_stay(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = "tls: {enabled: true, trusted_root_certs: certs/ca.pem}"
    text = MINIMAL.replace("host:", f"{certificate}, host:").replace("memory: {}", "delta: {path: ./lake}")
    path = write(text + "store: {sqlite: {path: db/s.sqlite}}\n")
    folder = path.parent
    monkeypatch.chdir(folder.parent)
    config = _load(Path(folder.name) / "penstock.yaml")
    assert config.destination.delta is not None
    assert config.destination.delta.path == str(folder / "lake")
    assert config.state_dir == folder / ".penstock"
    assert config.sqlite_path == folder / "db/s.sqlite"
    assert config.pipeline.pg_connection.tls.trusted_root_certs == str(folder / "certs/ca.pem")
    remote = _load(path, destination={"delta": {"path": "s3a://bucket/lake"}}, state_dir="/var/lib/penstock")
    assert remote.destination.delta is not None
    assert remote.destination.delta.path == "s3a://bucket/lake"
    assert remote.state_dir == Path("/var/lib/penstock")


def test_certificates_can_be_given_as_text(write: Write) -> None:
    pem = "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----\n"
    config = _load(write(MINIMAL), pipeline={"pg_connection": {"tls": {"trusted_root_certs": pem}}})
    assert config.pipeline.pg_connection.tls.trusted_root_certs == pem


def test_a_home_folder_is_refused_rather_than_created_by_name(write: Write) -> None:
    assert "state_dir (penstock.yaml:7): ~ is not expanded" in _problems(write(MINIMAL + "state_dir: ~/state\n"))


@pytest.mark.parametrize(
    "password",
    ["hunter2 }", "*hunter2", "!hunter2", "{hunter2: 1}", "[hunter2]", "&hunter2 [", "2026-01-01", "'hunter2"],
)
def test_no_report_repeats_what_may_be_a_secret(write: Write, password: str) -> None:
    path = write(MINIMAL.replace("  publication_name", f"  password: {password}\n  publication_name"))
    message = _problems(path)
    assert "hunter2" not in message
    assert "2026" not in message
    path = write(MINIMAL.replace("username: penstock", f"username: 5, password: {password}"))
    message = _problems(path)
    assert "hunter2" not in message
    assert "2026" not in message


@pytest.mark.parametrize("key", ["password", "pasword"])
def test_a_secret_of_the_environment_is_text_and_never_repeated(write: Write, key: str) -> None:
    environ = {f"PENSTOCK_PIPELINE__PG_CONNECTION__{key.upper()}": "{hunter2: [", "PENSTOCK_PIPELINE__ACK": "hunter2"}
    message = _problems(write(MINIMAL), environ)
    assert "hunter2" not in message
    assert ("did you mean password?" in message) == (key == "pasword")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"pipeline: {id: [}", "line 1, column 17: not valid YAML"),
        (b"pipeline: \x00", "is not YAML text"),
        (b"pipeline: \xff", "is not UTF-8 text"),
        (b"pipeline: {id: 2026-13-45}", "a value that YAML cannot read"),
        (b"- a\n- b\n", "must hold a mapping"),
        (b"pipeline: {id: a,\n  id: b}", "line 2: pipeline.id is given twice"),
        (b"a: 1\n---\nb: 2\n", "not valid YAML"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused_clearly(tmp_path: Path, content: bytes, expected: str) -> None:
    path = tmp_path / "penstock.yaml"
    path.write_bytes(content)
    assert expected in _problems(path)


def test_a_folder_is_not_a_file(tmp_path: Path) -> None:
    assert "cannot be read" in _problems(tmp_path)


def test_an_empty_file_lacks_what_is_required(write: Write) -> None:
    message = _problems(write(""))
    assert "pipeline: required: What is replicated, and how" in message
    assert "destination: required: Where the data goes" in message


def test_anchors_and_merge_keys_are_ordinary_yaml(write: Write) -> None:
    text = MINIMAL.replace("{host: localhost", "{<<: {host: ignored}, host: localhost")
    assert _load(write(text)).pipeline.pg_connection.host == "localhost"


def test_a_file_that_contains_itself_ends_in_a_report(write: Write) -> None:
    assert "must be a mapping" in _problems(write("pipeline: &p [*p]\n"))


@settings(max_examples=25)
@given(st.dictionaries(st.sampled_from(["pipeline", "destination", "store", "spark", "x"]), st.none() | st.text()))
def test_any_mapping_without_a_pipeline_is_reported_not_crashed_on(
    tmp_path_factory: pytest.TempPathFactory, data: dict[str, Any]
) -> None:
    path = tmp_path_factory.mktemp("any") / "penstock.yaml"
    path.write_text(yaml.safe_dump(data), "utf-8")
    _problems(path)


def test_variables_of_others_are_left_alone(write: Write) -> None:
    environ = {"PENSTOCK_PORT": "tcp://1", "PENSTOCK_FAILPOINTS": "a.b=kill", "PENSTOCKX__PIPELINE": "1", "PATH": "/"}
    assert _load(write(MINIMAL), environ) == _load(write(MINIMAL))


def test_failpoints_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_FAILPOINTS", raising=False)
    assert failpoints_from_environment() == ""
    monkeypatch.setenv("PENSTOCK_FAILPOINTS", "a.b=kill")
    assert failpoints_from_environment() == "a.b=kill"
    assert failpoints_from_environment({"PENSTOCK_FAILPOINTS": "c.d=raise"}) == "c.d=raise"
