"""`python -m penstock.receiver`: started by the driver, never by hand."""

import os
import sys
from importlib.abc import MetaPathFinder


class _WithoutPandas(MetaPathFinder):
    """Keeps Arrow from importing pandas whenever it meets a scalar: a second and 60 MiB that we have no use for."""

    def find_spec(self, fullname: str, _path: object = None, _target: object = None) -> None:
        """Refuse the one, and leave all others to the usual finders."""
        if fullname == "pandas":
            raise ModuleNotFoundError("the receiver does without pandas", name=fullname)


sys.meta_path.insert(0, _WithoutPandas())
# Arrow's other allocators keep what was freed.
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")

from penstock.receiver.process import main  # noqa: E402

if __name__ == "__main__":
    raise SystemExit(main())
