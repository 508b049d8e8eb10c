"""`penstock init`: writes the commented configuration file."""

from __future__ import annotations

from pathlib import Path

import typer

from penstock.config.template import read_template
from penstock.errors import ConfigError

_NEXT = """\
wrote {path}

Next:
  1. on the source:  create publication my_publication for table …;
                     (the server needs wal_level = logical, the role replication and select)
  2. in the file:    pipeline.id, publication_name, pg_connection, destination
  3. penstock check{option}
  4. penstock run{option}
"""


def write_config(path: Path, *, force: bool) -> None:
    """Write the template, but never over a file unless told to."""
    target = path / "penstock.yaml" if path.is_dir() else path
    try:
        with target.open("w" if force else "x", encoding="utf-8") as file:
            file.write(read_template())
    except FileExistsError:
        raise ConfigError(f"{target} exists already", remedy="Name another file, or replace it with --force.") from None
    except OSError as error:
        remedy = "Name a file in a folder that exists and can be written."
        raise ConfigError(f"{target} cannot be written: {error.strerror}", remedy=remedy) from None
    option = "" if target == Path("penstock.yaml") else f" -c {target}"
    typer.echo(_NEXT.format(path=target, option=option), nl=False)
