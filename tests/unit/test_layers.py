"""Modules import only modules of the same or a lower layer. The tests parse the modules and do not import them."""

from __future__ import annotations

import ast
import textwrap
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("tidemark", "storage_core", "jobs", "assets", "pipelines")
PROGRAMS = ("examples", "benchmarks", "scripts")
SUPPORT = "tests.support"

# From the highest to the lowest layer. A module may import its own layer and every lower layer. Names in one line are
# on the same level and must not import each other.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("tidemark",),
    ("pipelines",),
    ("assets",),
    ("jobs",),
    ("storage_core.catalog", "storage_core.raw_log_steps"),
    ("storage_core", "storage_core.table"),
    ("storage_core.interop", "storage_core.maintain"),
    ("storage_core.change",),
    ("storage_core.read",),
    ("storage_core.compact",),
    ("storage_core.write",),
    ("storage_core.index",),
    ("storage_core.split",),
    ("storage_core.log",),
    ("storage_core.data",),
    ("storage_core.engine", "storage_core.store"),
    ("storage_core.base",),
)
HEIGHT = {layer: -index for index, line in enumerate(LAYERS) for layer in line}

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
DEVELOPMENT = frozenset(Requirement(each).name for each in EXTRAS["dev"])

# Packages that a folder must not import. If several parents of a module are in the table, the longest name applies.
FORBIDDEN: Mapping[str, frozenset[str]] = {
    "storage_core": frozenset({"pyspark", "delta", "dagster", "dagster_pipes", "dagster_webserver", "dagster_graphql"}),
    "jobs": frozenset({"dagster", "dagster_webserver", "dagster_graphql"}),
    "assets": frozenset({"boto3", "pyspark", "pyarrow", "duckdb"}),
    "assets.io_manager": frozenset({"boto3", "duckdb"}),
}


def layer_of(module: str) -> str | None:
    """Return the layer of a module. The layer is the module itself or its nearest parent package in `HEIGHT`."""
    parts = module.split(".")
    # `storage_core` itself is the facade and not a parent of layers. A module `storage_core.x` that is not in `HEIGHT`
    # therefore has no layer.
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((name for name in names if name in HEIGHT and (name != "storage_core" or module == name)), None)


def imports_of(source: str, module: str, *, is_package: bool, known: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Return line and full name of every import in `source`, wherever it is, including imports for types."""
    package = module if is_package else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(module=target, names=names, level=level):
                base = _absolute(package, target, level)
                for alias in names:
                    submodule = f"{base}.{alias.name}"
                    yield node.lineno, submodule if submodule in known else base
            case _:
                pass


def _absolute(package: str, target: str | None, level: int) -> str:
    if level == 0:
        return target or ""
    parent = package.split(".")[: len(package.split(".")) - level + 1]
    return ".".join([*parent, target] if target else parent)


def violations(sources: Mapping[str, tuple[str, bool]]) -> list[str]:
    """Return the violations as sentences.

    `sources` maps the name of a module to its text and to whether it is a package.
    """
    known = frozenset(sources)
    found = []
    for module, (source, is_package) in sorted(sources.items()):
        for line, target in sorted(set(imports_of(source, module, is_package=is_package, known=known))):
            reason = _objection(module, target)
            if reason is not None:
                found.append(f"{module}:{line} imports {target}: {reason}")
    return found


def _objection(module: str, target: str) -> str | None:
    top, target_top = module.partition(".")[0], target.partition(".")[0]
    if target_top == "tests":
        supported = top == "benchmarks" and f"{target}.".startswith(f"{SUPPORT}.")
        return None if supported else f"only benchmarks import {SUPPORT}, and nothing imports other tests"
    if top in PRODUCT and target_top in PROGRAMS:
        return "the product does not need its programs"
    if top in PRODUCT and target_top in DEVELOPMENT:
        return f"{target_top} comes with the extra dev, which no user has"
    folder = max((each for each in FORBIDDEN if f"{module}.".startswith(f"{each}.")), key=len, default="")
    if target_top in FORBIDDEN.get(folder, ()):
        return f"{folder} never imports {target_top}"
    if top in PRODUCT and target_top in PRODUCT:
        return _climbs(module, target)
    return None


def _climbs(module: str, target: str) -> str | None:
    """Return the reason why an import between our modules violates the order of layers, or None."""
    ours, theirs = layer_of(module), layer_of(target)
    if ours is None or theirs is None:
        return f"{module if ours is None else target} is in no layer: give it its place in LAYERS"
    if ours == theirs or HEIGHT[theirs] < HEIGHT[ours]:
        return None
    if HEIGHT[theirs] > HEIGHT[ours]:
        return f"{theirs} is above {ours}"
    same_folder = {ours, theirs} == {"storage_core", "storage_core.table"}
    return None if same_folder else f"{ours} and {theirs} do not know each other"


def _sources() -> dict[str, tuple[str, bool]]:
    """Return all modules of `PRODUCT` and `PROGRAMS`. The module `storage_core` is `storage_core/__init__.py`."""
    sources = {}
    for folder in (*PRODUCT, *PROGRAMS):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            sources[".".join(parts[:-1] if is_package else parts)] = (path.read_text(encoding="utf-8"), is_package)
    return sources


def test_imports_go_down_only() -> None:
    assert violations(_sources()) == []


def test_no_module_imports_what_imports_it() -> None:
    """The rule covers top-level imports, imports in functions, and imports that only type checkers execute."""
    sources = {name: each for name, each in _sources().items() if name.partition(".")[0] in PRODUCT}
    packages = {name for name, (_, is_package) in sources.items() if is_package}
    known = frozenset(sources)
    graph = {
        name: {target for _, target in imports_of(source, name, is_package=is_package, known=known)} & known - packages
        for name, (source, is_package) in sources.items()
        if not is_package
    }
    tuple(TopologicalSorter(graph).static_order())  # raises CycleError, which names the cycle


def test_every_module_of_storage_core_has_a_layer() -> None:
    assert [name for name in _sources() if name.startswith("storage_core.") and layer_of(name) is None] == []


def _speakers_of(package: str) -> set[str]:
    """Return the modules of the jobs that import a package."""
    return {
        module
        for module, (source, is_package) in _sources().items()
        if module.startswith("jobs")
        for _, target in imports_of(source, module, is_package=is_package, known=frozenset())
        if target.partition(".")[0] == package
    }


def test_dagster_pipes_is_known_to_one_job_module_only() -> None:
    assert _speakers_of("dagster_pipes") == {"jobs.process"}


def test_spark_is_known_to_one_folder_of_the_jobs_only() -> None:
    assert {module.rpartition(".")[0] for module in _speakers_of("pyspark")} == {"jobs.spark"}


def test_one_module_of_the_product_opens_duckdb() -> None:
    product = {name: source for name, (source, _) in _sources().items() if name.partition(".")[0] in PRODUCT}
    assert [name for name, source in product.items() if "duckdb.connect(" in source] == ["storage_core.engine.session"]


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        ("storage_core.log.commit", "from storage_core.read.scan import scan", "storage_core.read is above"),
        ("storage_core.log.commit", "from storage_core.table import Table", "storage_core.table is above"),
        ("storage_core.log.commit", "from storage_core import Table", "storage_core is above"),
        ("storage_core.log.commit", "from ..read import scan", "storage_core.read is above"),
        (
            "storage_core.log.commit",
            "def f():\n    import storage_core.maintain.table_objects",
            "storage_core.maintain is above",
        ),
        ("storage_core.log.commit", "if TYPE_CHECKING:\n    from jobs import merge", "jobs is above"),
        ("storage_core.interop.importing", "import storage_core.maintain.table_objects", "do not know each other"),
        ("storage_core.maintain.table_objects", "import storage_core.interop.importing", "do not know each other"),
        ("storage_core.store.local", "import storage_core.engine.session", "do not know each other"),
        ("storage_core.data.rows.fold", "import pyspark.sql", "storage_core never imports pyspark"),
        ("storage_core.data.rows.fold", "import dagster_pipes as dp", "storage_core never imports dagster_pipes"),
        ("jobs.ingest", "from dagster import asset", "jobs never imports dagster"),
        ("jobs.ingest", "import assets.factory", "assets is above jobs"),
        ("assets.factory", "import pyarrow.parquet as pq", "assets never imports pyarrow"),
        ("assets.factory", "from pipelines.definitions import defs", "pipelines is above assets"),
        ("pipelines.cli", "import tests.unit.test_layers", "nothing imports other tests"),
        ("pipelines.cli", "import examples.demo", "the product does not need its programs"),
        ("storage_core.table", "from tests.support import clock", "only benchmarks import tests.support"),
        ("benchmarks.merging", "from tests.simulation import seeds", "nothing imports other tests"),
        ("storage_core.table", "import pytest", "comes with the extra dev"),
        ("storage_core.attic.old", "from storage_core.base import errors", "storage_core.attic.old is in no layer"),
    ],
)
def test_a_planted_violation_is_found(module: str, source: str, complaint: str) -> None:
    planted = {module: (source, False), "storage_core.base.errors": ("", False)}
    found = violations(planted)
    assert len(found) == 1
    assert complaint in found[0]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("storage_core.log.commit", "from storage_core.base import errors"),
        ("storage_core.log.commit", "from storage_core.log import actions\nfrom . import snapshot"),
        ("storage_core.write.region.merge", "from storage_core.split.writer import write_split"),
        ("storage_core.base.clock", "from storage_core.base.errors import InvalidInput"),
        ("jobs.process", "from dagster_pipes import open_dagster_pipes"),
        ("jobs.ingest", "from storage_core import Table\nfrom pyspark.sql import SparkSession"),
        ("benchmarks.compaction", "import pyspark\nfrom storage_core import Table"),
        ("benchmarks.merging", "import polars\nfrom tests.support.clock import ManualClock"),
    ],
)
def test_an_import_that_goes_down_is_welcome(module: str, source: str) -> None:
    assert violations({module: (source, False), "storage_core.base.errors": ("", False)}) == []


def test_temporary_files_have_one_home() -> None:
    """Only `storage_core.base.process` creates temporary files.

    The temporary files are in private, locked folders that the next process removes.
    """
    reaching = {
        path.relative_to(ROOT).as_posix()
        for top in PRODUCT
        for path in (ROOT / top).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Import) and "tempfile" in {each.name for each in node.names})
        or (isinstance(node, ast.ImportFrom) and node.module == "tempfile")
    }
    assert reaching == {"storage_core/base/process.py"}


def _programs(source: str) -> Iterator[str]:
    """Yield the string constants of a Python source that are themselves Python programs with imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "import" in node.value:
            text = textwrap.dedent(node.value)
            with suppress(SyntaxError):
                ast.parse(text)
                yield text


def test_programs_in_texts_import_what_exists() -> None:
    known = frozenset(_sources())
    unknown = [
        f"{path.relative_to(ROOT)}: {target}"
        for top in ("tests", "benchmarks")
        for path in sorted((ROOT / top).rglob("*.py"))
        if path.name != Path(__file__).name
        for text in _programs(path.read_text(encoding="utf-8"))
        for _, target in imports_of(text, "program", is_package=False, known=known)
        if target.partition(".")[0] in PRODUCT and target not in known
    ]
    assert unknown == []
