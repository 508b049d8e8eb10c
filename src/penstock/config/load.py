"""Reads configuration: file, then environment, then overrides. The only reader of the environment.

The file is YAML; `${NAME}` and `${NAME:-default}` in its values are read from the environment, `$${` is a plain
`${`. Environment variables named `PENSTOCK_` and a setting's path, `__` between the steps, replace what the
file says, and overrides, shaped like the file, replace both. Everything that is wrong is reported at once, by
path and place; never a value, for it may be a secret.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, TypeAlias, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from penstock.config.model import ConfigModel
from penstock.errors import ConfigError

DEFAULT_FILE = Path("penstock.yaml")
PREFIX = "PENSTOCK_"
_NEST = "__"
_REFERENCE = re.compile(r"\$(?P<escaped>\$\{)|\$\{(?P<body>[^}]*)\}")
_BODY = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?P<has_default>:-(?P<default>.*))?\Z", re.DOTALL)

M = TypeVar("M", bound=ConfigModel)
FieldPath: TypeAlias = tuple[str, ...]


@dataclass
class _Layers:
    """The settings as merged so far, where each came from, and what is wrong with them."""

    data: dict[str, Any] = field(default_factory=dict)
    origins: dict[FieldPath, str] = field(default_factory=dict)
    problems: dict[FieldPath, str] = field(default_factory=dict)

    def put(self, path: FieldPath, value: Any, origin: str) -> None:
        """Set one value over whatever is there; what was wrong with that no longer matters."""
        node = self.data
        for key in path[:-1]:
            if not isinstance(node.get(key), dict):
                node[key] = {}
            node = node[key]
        node[path[-1]] = value
        self.origins[path] = origin
        self.problems = {known: problem for known, problem in self.problems.items() if known[: len(path)] != path}

    def describe(self, path: FieldPath, problem: str) -> str:
        """Return one line of the report, with the nearest place that is known."""
        above = (self.origins.get(path[:length]) for length in range(len(path), 0, -1))
        below = (origin for known, origin in self.origins.items() if known[: len(path)] == path)
        origin = next(filter(None, (*above, *below)), None)
        where = f" ({origin})" if origin else ""
        return f"{'.'.join(path)}{where}: {problem}"


def load(
    model: type[M],
    path: str | os.PathLike[str] | None = None,
    *,
    section: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    environ: Mapping[str, str] | None = None,
) -> M:
    """Build a model from the file at `path`, or ./penstock.yaml, under the environment and the overrides.

    With a `section` only that part of file, environment and overrides is used. Without a file the
    other two must be enough. Raises `ConfigError` that lists every problem.
    """
    environ = os.environ if environ is None else environ
    overrides = overrides or {}
    variables = dict(_variables(model, section, environ))
    file = _find(path, has_others=bool(variables or overrides))
    layers = _Layers()
    if file is not None:
        _add_file(layers, file, section, environ)
    for name, setting in variables.items():
        for field_path, value in _leaves(setting):
            layers.put(field_path, value, name)
    for field_path, value in _leaves(overrides):
        layers.put(field_path, value, "override")
    return _build(model, layers, section, file)


def failpoints_from_environment(environ: Mapping[str, str] | None = None) -> str:
    """Return the failpoints a main is asked to arm with `penstock.failpoint.arm`; empty for none."""
    return (os.environ if environ is None else environ).get("PENSTOCK_FAILPOINTS", "")


def _find(path: str | os.PathLike[str] | None, *, has_others: bool) -> Path | None:
    if path is not None:
        return Path(path)
    if DEFAULT_FILE.is_file():
        return DEFAULT_FILE
    if has_others:
        return None
    raise ConfigError(
        f"there is no {DEFAULT_FILE} in {Path.cwd()}",
        remedy="Write one with `penstock init`, or name another with --config.",
    )


def _add_file(layers: _Layers, file: Path, section: str | None, environ: Mapping[str, str]) -> None:
    data, lines = _parse(file)
    for path, value in _leaves(data):
        if section in (None, path[0]):
            expanded, problem = _expand(value, environ)
            layers.put(path, expanded, f"{file.name}:{lines[path]}" if path in lines else file.name)
            if problem:
                layers.problems[path] = problem
    layers.origins.update({path: f"{file.name}:{line}" for path, line in lines.items() if path not in layers.origins})


def _parse(file: Path) -> tuple[dict[str, Any], dict[FieldPath, int]]:
    """Return a file's settings, and the line of each."""
    text = _read_text(file)
    try:
        node = yaml.compose(text, yaml.SafeLoader)
        lines = dict(_lines(node, (), file, set()))
        data = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(file, error) from None
    except yaml.YAMLError:
        raise ConfigError(f"{file} is not YAML text") from None
    except ValueError:
        # A date such as 2026-13-45, which YAML takes for one before it looks at the month.
        raise ConfigError(f"{file} holds a value that YAML cannot read; put it in quotes") from None
    if not isinstance(data, dict | None):
        raise ConfigError(f"{file} must hold a mapping with `pipeline:` and `destination:`")
    return data or {}, lines


def _read_text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except FileNotFoundError:
        remedy = "Correct the path, or write the file with `penstock init`."
        raise ConfigError(f"there is no file {file}", remedy=remedy) from None
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file} is not UTF-8 text") from None


def _syntax_error(file: Path, error: yaml.MarkedYAMLError) -> ConfigError:
    # The parser's own words may quote the value it stumbled over.
    mark = error.problem_mark or error.context_mark
    where = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    return ConfigError(
        f"{file}{where}: not valid YAML",
        remedy="Check indentation, and quote values that hold any of : # { } [ ] , & * ! | > ' \" % @ `",
    )


def _lines(node: yaml.Node | None, path: FieldPath, file: Path, seen: set[int]) -> Iterator[tuple[FieldPath, int]]:
    """Yield each setting's line; a setting given twice is an error, where YAML would take the last."""
    if not isinstance(node, yaml.MappingNode) or id(node) in seen:
        return
    seen.add(id(node))
    keys: set[str] = set()
    for key, value in node.value:
        here, line = (*path, str(key.value)), key.start_mark.line + 1
        if here[-1] in keys:
            raise ConfigError(f"{file}, line {line}: {'.'.join(here)} is given twice")
        keys.add(here[-1])
        yield here, line
        yield from _lines(value, here, file, seen)


def _leaves(data: Mapping[Any, Any], path: FieldPath = ()) -> Iterator[tuple[FieldPath, Any]]:
    for key, value in data.items():
        here = (*path, str(key))
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, here)
        else:
            yield here, value


def _expand(value: Any, environ: Mapping[str, str]) -> tuple[Any, str | None]:
    """Return a file's value with its references replaced, and what is wrong with them if anything is."""
    if not isinstance(value, str):
        return value, None
    try:
        return _REFERENCE.sub(lambda match: _look_up(match, environ), value), None
    except LookupError as error:
        return value, str(error.args[0])


def _look_up(match: re.Match[str], environ: Mapping[str, str]) -> str:
    if match["escaped"]:
        return "${"
    body = _BODY.match(match["body"])
    if body is None:
        raise LookupError("holds ${…} that is neither ${NAME} nor ${NAME:-default}; write $${ for a plain ${")
    # As in a shell: `:-` also replaces what is set but empty.
    value = environ.get(body["name"]) or (body["default"] if body["has_default"] else environ.get(body["name"]))
    if value is None:
        raise LookupError(f"the environment variable {body['name']} is not set")
    return value


def _variables(
    model: type[ConfigModel], section: str | None, environ: Mapping[str, str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the variables that are settings, sorted, each shaped like the file.

    Names without a nesting that are no field are someone else's: a container platform makes
    up PENSTOCK_PORT and the like.
    """
    for name in sorted(environ):
        path = tuple(name.removeprefix(PREFIX).lower().split(_NEST))
        is_setting = path[0] == section if section else len(path) > 1 or path[0] in model.model_fields
        if name.startswith(PREFIX) and is_setting:
            value = _variable_value(model, path[1:] if section else path, environ[name])
            yield name, _nested(path, value)


def _nested(path: FieldPath, value: Any) -> Any:
    return {path[0]: _nested(path[1:], value)} if path else value


def _variable_value(model: type[ConfigModel], path: FieldPath, text: str) -> Any:
    """Read a mapping where one belongs; anything else stays text, which the models convert as needed."""
    if not _takes_mapping(model, path):
        return text
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return text
    return value if isinstance(value, dict) else text


def _takes_mapping(model: type[ConfigModel], path: FieldPath) -> bool:
    if not path:
        return True
    annotation = getattr(_field_at(model, path), "annotation", None)
    return _model_of(annotation) is not None or get_origin(annotation) is dict


def _field_at(model: type[ConfigModel], path: FieldPath) -> FieldInfo | None:
    parent = _model_at(model, path[:-1])
    return parent.model_fields.get(path[-1]) if parent else None


def _model_at(model: type[ConfigModel], path: FieldPath) -> type[ConfigModel] | None:
    """Return the model of the group that a path names, if it names one."""
    at: type[ConfigModel] | None = model
    for key in path:
        info = at.model_fields.get(key) if at else None
        at = _model_of(info.annotation) if info else None
    return at


def _model_of(annotation: Any) -> type[ConfigModel] | None:
    if get_origin(annotation) in (Union, UnionType):
        return next(filter(None, map(_model_of, get_args(annotation))), None)
    return annotation if isinstance(annotation, type) and issubclass(annotation, ConfigModel) else None


def _build(model: type[M], layers: _Layers, section: str | None, file: Path | None) -> M:
    folder = (file.parent if file else Path()).absolute()
    prefix: FieldPath = (section,) if section else ()
    data = layers.data.get(section, {}) if section else layers.data
    try:
        built = model.model_validate(data, context={"folder": folder})
    except ValidationError as error:
        _add_problems(
            layers, model, prefix, error.errors(include_url=False, include_context=False, include_input=False)
        )
    if layers.problems:
        raise _report(layers, file)
    return built


def _add_problems(layers: _Layers, model: type[ConfigModel], prefix: FieldPath, errors: list[ErrorDetails]) -> None:
    for error in errors:
        path = tuple(str(step) for step in error["loc"] if step != "[key]")
        layers.problems.setdefault((*prefix, *path), _explain(model, path, error))


def _explain(model: type[ConfigModel], path: FieldPath, error: ErrorDetails) -> str:
    match error["type"]:
        case "missing":
            return f"required{_description(model, path)}"
        case "extra_forbidden":
            return f"unknown setting{_suggestion(model, path)}"
        case "model_type" | "model_attributes_type" | "dict_type":
            return "must be a mapping of settings"
        case "string_type":
            return "must be text; in YAML, put it in quotes"
        case _:
            return error["msg"].removeprefix("Value error, ").replace("Input should be", "must be")


def _description(model: type[ConfigModel], path: FieldPath) -> str:
    info = _field_at(model, path)
    return f": {info.description.rstrip('.')}" if info and info.description else ""


def _suggestion(model: type[ConfigModel], path: FieldPath) -> str:
    parent = _model_at(model, path[:-1])
    names = list(parent.model_fields) if parent else []
    nearest = difflib.get_close_matches(path[-1], names, n=1)
    if nearest:
        return f"; did you mean {nearest[0]}?"
    return f"; there are: {', '.join(names)}" if names else "; this has no settings"


def _report(layers: _Layers, file: Path | None) -> ConfigError:
    lines = [layers.describe(path, problem) for path, problem in layers.problems.items()]
    count = "1 problem" if len(lines) == 1 else f"{len(lines)} problems"
    return ConfigError("\n  ".join([f"{count} in the configuration {file or '(environment only)'}:", *lines]))
