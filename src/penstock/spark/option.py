"""Options of `format("penstock")` as Spark passes them on: text, with names in lower case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from penstock.errors import ConfigError


def in_lower_case(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options by the names that Spark makes of those that users write."""
    return {name.lower(): value for name, value in options.items()}


def require_known(given: Mapping[str, str], known: Sequence[str], of: str) -> None:
    """Refuse names that mean nothing: a misspelt option would do nothing, unnoticed."""
    unknown = sorted(given.keys() - {name.lower() for name in known})
    if unknown:
        raise ConfigError(
            f"format penstock: unknown option {', '.join(unknown)}",
            remedy=f"The options of {of} are here: {', '.join(known)}.",
        )


def required(given: Mapping[str, str], name: str, wanted: str) -> str:
    """Return an option that must be given."""
    if not given.get(name.lower()):
        raise ConfigError(f"format penstock: option {name} is missing", remedy=f"Set it to {wanted}.")
    return given[name.lower()]


def limit(given: Mapping[str, str], name: str) -> int | None:
    """Return an option that is a number, if it is given."""
    text = given.get(name.lower())
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ConfigError(f"format penstock: option {name} is {text!r}", remedy="Give a whole number, 1 or more.")
    return int(text)
