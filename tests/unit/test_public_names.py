"""Every public name of `import tidemark as tm` exists, is documented, and is loaded only on first use."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import tidemark as tm

HEAVY = ("pyarrow", "duckdb", "tantivy", "numpy", "boto3", "pyspark", "dagster", "pandas", "datafusion")


@pytest.mark.parametrize("name", tm.__all__)
def test_a_public_name_is_what_its_home_calls_so_and_documented(name: str) -> None:
    found = getattr(tm, name)
    assert found.__doc__
    home = found if name == "errors" else importlib.import_module(found.__module__)
    assert home.__name__.startswith("storage_core.")
    assert name == "errors" or getattr(home, name) is found


def test_type_checkers_see_the_names_that_programs_see() -> None:
    tree = ast.parse(Path(tm.__file__).read_text(encoding="utf-8"))
    typed = [node for node in tree.body if isinstance(node, ast.If)]
    seen = [alias.name for node in ast.walk(typed[0]) if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted(seen) == sorted(tm.__all__) == dir(tm)


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Tabel'"):
        tm.Tabel  # noqa: B018  # the misspelling is the test


def test_the_import_loads_no_heavy_library() -> None:
    program = f"import sys, tidemark; print([name for name in {HEAVY!r} if name in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert shown == "[]\n"
