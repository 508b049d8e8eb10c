"""Writes docs/reference/configuration.md from the configuration models: their docstrings are the documentation.

Run it after a change of `penstock.config`; a unit test fails while the page is stale.
"""
# ruff: noqa: INP001  (a program, not a package)

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from penstock.config.replicator import ReplicatorConfig

PAGE = Path(__file__).parent / "reference" / "configuration.md"
Schema: TypeAlias = dict[str, Any]

HEAD = """\
# Configuration

<!-- Written by docs/generate_reference.py from src/penstock/config: edit the docstrings there, then run it. -->

One YAML file, `./penstock.yaml` unless `--config` names another. `penstock init` writes one with every setting and its
default. Three layers, each over the one before:

1. the file, in which `${NAME}` and `${NAME:-default}` are read from the environment and `$${` is a plain `${`;
2. environment variables: `PENSTOCK_` and a setting's path, `__` between the steps, e.g.
   `PENSTOCK_PIPELINE__BATCH__MAX_FILL_MS=500`;
3. from Python, the argument `overrides` of `ReplicatorConfig.load` and `PipelineConfig.load`.

An unknown setting is an error, and everything that is wrong is reported at once, with its line; never a value, which
may be a secret. Relative paths start at the file's folder.
"""


def render() -> str:
    """Return the page."""
    schema = ReplicatorConfig.model_json_schema()
    sections = [_section(path, group) for path, group in _groups(schema, schema["$defs"])]
    return "\n".join([HEAD, *sections])


def _groups(schema: Schema, definitions: dict[str, Schema], path: str = "") -> Iterator[tuple[str, Schema]]:
    """Yield every group of settings, the outer ones first; below each setting its own schema, references resolved."""
    fields = {name: _resolved(field, definitions) for name, field in schema["properties"].items()}
    yield path, {**schema, "properties": fields}
    for name, field in fields.items():
        if "properties" in field:
            yield from _groups(field, definitions, f"{path}.{name}".lstrip("."))


def _resolved(field: Schema, definitions: dict[str, Schema]) -> Schema:
    """Return a field's schema without references; that it may also be null is told by its default."""
    options = [option for option in field.get("anyOf", [field]) if option.get("type") != "null"]
    if len(options) > 1:
        return {**field, "options": [_resolved(option, definitions) for option in options]}
    reference = options[0].get("$ref", "").removeprefix("#/$defs/")
    found = definitions[reference] if reference else options[0]
    return {**found, **{key: value for key, value in field.items() if key not in {"$ref", "anyOf"}}}


def _section(path: str, group: Schema) -> str:
    title = f"## `{path}`" if path else "## The file"
    about = _line(group["description"])
    required = set(group.get("required", ()))
    rows = [_row(path, name, field, name in required) for name, field in group["properties"].items()]
    if not rows:
        return f"{title}\n\n{about} It has no settings.\n"
    if _is_choice(group):
        about += " Exactly one is given, with its settings or `{}` for its defaults."
    table = "\n".join(["| setting | type | default | |", "|---|---|---|---|", *rows])
    return f"{title}\n\n{about}\n\n{table}\n"


def _is_choice(group: Schema) -> bool:
    return all("properties" in field and field.get("default", "") is None for field in group["properties"].values())


def _row(path: str, name: str, field: Schema, is_required: bool) -> str:
    is_group = "properties" in field
    default = "**required**" if is_required else "" if is_group else _value(_default(field))
    kind = f"[group](#{path.replace('.', '')}{name})" if is_group else _type(field)
    return f"| `{name}` | {kind} | {default} | {_line(field.get('description', ''))} |"


def _default(field: Schema) -> Any:
    return field.get("default", {} if field.get("type") == "object" else None)


def _type(field: Schema) -> str:
    if "options" in field:
        return " or ".join(_type(option) for option in field["options"])
    if "enum" in field:
        return ", ".join(_value(each) for each in field["enum"])
    if "pattern" in field:
        return f"text like `{field['pattern'].strip('^$')}`"
    if field["type"] == "object":
        return "mapping"
    bounds = [f"{words} {field[key]}" for key, words in _BOUNDS.items() if key in field]
    return ", ".join([_TYPES.get(field.get("format", ""), _TYPES[field["type"]]), *bounds])


_TYPES = {"integer": "whole number", "string": "text", "boolean": "true, false", "path": "path", "password": "secret"}
_BOUNDS = {"minimum": "at least", "exclusiveMinimum": "more than", "maximum": "at most"}


def _value(value: Any) -> str:
    if value is None:
        return "none"
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def _line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(render())
