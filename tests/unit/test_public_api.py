"""The package is the API: what it says it has is what it has, and importing it costs little."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import penstock

HEAVY = ("pyspark", "deltalake", "numba", "pyarrow", "pandas", "numpy", "psycopg")


def loaded_by(program: str) -> set[str]:
    """Return which heavy libraries a fresh interpreter has loaded after running a program."""
    ask = f"{program}\nimport sys\nprint(*(name for name in {HEAVY!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_every_name_in_all_is_there_and_is_documented_where_it_can_be() -> None:
    for name in penstock.__all__:
        found = getattr(penstock, name)
        assert not isinstance(found, type) or found.__doc__, name


def test_all_names_exactly_what_is_public() -> None:
    submodules = {"cli", "config", "contract", "errors", "failpoint", "model"}
    helpers = {"TYPE_CHECKING", "Any", "import_module"}
    loaded = {name for name in dir(penstock) if f"penstock.{name}" in sys.modules}
    public = {name for name in dir(penstock) if not name.startswith("_")} - loaded - submodules - helpers
    assert public == set(penstock.__all__)


def test_all_is_sorted_and_names_nothing_twice() -> None:
    assert len(set(penstock.__all__)) == len(penstock.__all__)
    assert list(penstock.__all__) == sorted(penstock.__all__, key=lambda name: (not name.isupper(), name))


def test_lazy_names_are_the_objects_of_their_modules() -> None:
    for name, module in penstock._LAZY.items():
        assert getattr(penstock, name) is getattr(importlib.import_module(module), name)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = penstock.Nothing


def test_import_loads_nothing_heavy() -> None:
    assert loaded_by("import penstock") == set()


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import contextlib, io\n"
        "from penstock.cli.main import main\n"
        "with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n"
        "    main(['--help'])\n"
    )
    assert loaded_by(program) == set()


def test_a_memory_pipeline_can_be_written_without_spark() -> None:
    """Heavy libraries that only some destinations need stay away until one of those is used."""
    program = "from penstock import MemoryDestination, MemoryStore, PipelineConfig"
    assert loaded_by(program) & {"pyspark", "deltalake", "numba"} == set()
