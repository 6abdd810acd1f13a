"""Commands that only read a table load no pandas, where the `pipeline` extra has installed it.

Arrow imports pandas, if it is installed, for the first array that it makes of Python's values, in case one is of
pandas. That takes longer than most of these commands.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


class _Finder:
    """Python finds every module but pandas."""

    def find_spec(self, fullname: str, _path: object, _target: object = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("this command needs no pandas", name=fullname)


@contextmanager
def without_pandas() -> Iterator[None]:
    """Keep pandas from being imported until the end; where it is loaded already, it stays."""
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
