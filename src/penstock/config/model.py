"""What all configuration models share: frozen, strict about names, silent about values.

Relative paths are resolved against the folder given as the validation context `folder`, which is the
configuration file's; models built by hand have no such folder and keep paths as they are.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationInfo, model_validator

# Two letters at least, so that nothing takes a drive letter for a scheme.
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")


class ConfigModel(BaseModel):
    """A group of settings. An unknown name is an error, and no error repeats a value: it may be a secret."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, use_attribute_docstrings=True)


class OneOf(ConfigModel):
    """A choice: each field is an alternative with its own settings, and exactly one is given."""

    @model_validator(mode="after")
    def _check_exactly_one(self) -> OneOf:
        if len(self._given()) != 1:
            names = ", ".join(type(self).model_fields)
            raise ValueError(
                f"exactly one of {names} is needed, with its settings or {{}} for its defaults;"
                f" {len(self._given())} are given"
            )
        return self

    @property
    def kind(self) -> str:
        """The name of what was chosen."""
        (name,) = self._given()
        return name

    def _given(self) -> set[str]:
        return {name for name in type(self).model_fields if getattr(self, name) is not None}


def is_url(text: str) -> bool:
    """Whether a place is named by a URL and not by a path."""
    return _URL.match(text) is not None


def _resolve(path: Path, info: ValidationInfo) -> Path:
    if path.parts[:1] and path.parts[0].startswith("~"):
        raise ValueError("~ is not expanded: write the path in full, or ${HOME}/…")
    folder = (info.context or {}).get("folder")
    return Path(folder, path) if folder else path


def resolve_place(text: str, info: ValidationInfo) -> str:
    """Resolve a path, and leave a URL alone."""
    return text if is_url(text) else str(_resolve(Path(text), info))


def _refuse_url(path: Path, info: ValidationInfo) -> Path:
    if is_url(str(path)):
        raise ValueError("must be a folder or file of this machine: what is kept here is synced, which no URL allows")
    return _resolve(path, info)


LocalPath = Annotated[Path, AfterValidator(_refuse_url)]
"""A path on this machine."""

PathOrUrl = Annotated[str, AfterValidator(resolve_place)]
"""A path on this machine, or the URL of an object store."""
