"""The layers of docs/architecture/README.md: imports go down only. The syntax tree is read, nothing is imported."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("tidemark", "storage_core", "jobs", "assets", "pipelines")
PROGRAMS = ("examples", "benchmarks", "scripts")
SUPPORT = "tests.support"

# From the highest to the lowest. A module may import its own layer and every layer below; names that share a line are
# one height and know nothing of each other.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("tidemark.__main__", "tidemark.dagster"),
    ("pipelines",),
    ("pipelines.alerts", "pipelines.processes"),
    ("pipelines.report",),
    ("pipelines.status",),
    ("pipelines.upkeep",),
    ("pipelines.runs",),
    ("pipelines.automation", "pipelines.instance", "pipelines.jobs"),
    ("pipelines.postgres_history", "pipelines.tables"),
    ("pipelines.environment", "pipelines.quantities", "pipelines.whole_file"),
    ("assets",),
    ("tidemark.spark",),
    ("jobs",),
    ("jobs.compacting", "jobs.delta"),
    ("jobs.running",),
    ("jobs.requests",),
    ("jobs.spark",),
    ("jobs.process", "jobs.reports"),
    ("tidemark",),
    ("storage_core.catalog",),
    ("storage_core.table", "storage_core"),
    ("storage_core.delta_source",),
    ("storage_core.forget", "storage_core.importing", "storage_core.cloning", "storage_core.publishing"),
    ("storage_core.dml",),
    ("storage_core.creation", "storage_core.append"),
    ("storage_core.alteration", "storage_core.raw_declaration"),
    ("storage_core.declaration",),
    ("storage_core.declaration_automation",),
    ("storage_core.declaration_file",),
    ("storage_core.declaration_upkeep",),
    ("storage_core.declaration_parts",),
    ("storage_core.named_settings",),
    ("storage_core.search",),
    ("storage_core.read", "storage_core.definition"),
    ("storage_core.repair",),
    ("storage_core.fsck",),
    ("storage_core.history",),
    ("storage_core.gc", "storage_core.audit"),
    ("storage_core.compaction",),
    ("storage_core.distribution",),
    ("storage_core.region", "storage_core.ingest", "storage_core.raw_log"),
    ("storage_core.index",),
    ("storage_core.split",),
    ("storage_core.leases",),
    ("storage_core.log",),
    ("storage_core.late_row_filter",),
    ("storage_core.quarantine",),
    ("storage_core.rows",),
    ("storage_core.formats",),
    ("storage_core.objectstore", "storage_core.engine", "storage_core.cache"),
    ("storage_core.settings",),
    ("storage_core.arguments", "storage_core.headroom", "storage_core.private_folder", "storage_core.scratch"),
    (
        "storage_core.clock",
        "storage_core.ids",
        "storage_core.process",
        "storage_core.repeated",
        "storage_core.seekable",
        "storage_core.system_errors",
        "storage_core.extras",
    ),
    ("storage_core.foreign_text",),
    ("storage_core.wording",),
    ("storage_core.errors",),
)
HEIGHT = {layer: -index for index, line in enumerate(LAYERS) for layer in line}

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
DEVELOPMENT = frozenset(Requirement(each).name for each in EXTRAS["dev"])

# What a folder never imports, by the first word of the module.
FORBIDDEN: Mapping[str, frozenset[str]] = {
    "storage_core": frozenset({"pyspark", "delta", "dagster", "dagster_pipes", "dagster_webserver", "dagster_graphql"}),
    "jobs": frozenset({"dagster", "dagster_webserver", "dagster_graphql"}),
    "assets": frozenset({"boto3", "pyspark", "pyarrow", "duckdb"}),
}


def layer_of(module: str) -> str | None:
    """The layer that a module belongs to: the longest name of the table that is the module or a parent of it."""
    parts = module.split(".")
    # `storage_core` itself is the façade and no parent of layers: an unknown `storage_core.x` has no layer.
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((name for name in names if name in HEIGHT and (name != "storage_core" or module == name)), None)


def imports_of(source: str, module: str, *, is_package: bool, known: frozenset[str]) -> Iterator[tuple[int, str]]:
    """Line and full name of every module that `source` imports, wherever in the file, for types only or not."""
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
    """What breaks the table in `sources` (module name to its text and whether it is a package), one sentence each."""
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
    if target_top in FORBIDDEN.get(top, ()):
        return f"{top} never imports {target_top}"
    if top in PRODUCT and target_top in PRODUCT:
        return _climbs(module, target)
    return None


def _climbs(module: str, target: str) -> str | None:
    """Why an import between two of our own modules is none that goes down, or None where it does."""
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
    """Every module of the product and its programs by name; `storage_core/__init__.py` is the module `storage_core`."""
    sources = {}
    for folder in (*PRODUCT, *PROGRAMS):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            is_package = parts[-1] == "__init__"
            sources[".".join(parts[:-1] if is_package else parts)] = (path.read_text(encoding="utf-8"), is_package)
    return sources


def test_imports_go_down_only() -> None:
    assert violations(_sources()) == []


def test_every_module_of_storage_core_has_a_layer() -> None:
    assert [name for name in _sources() if name.startswith("storage_core.") and layer_of(name) is None] == []


def _speakers_of(package: str) -> set[str]:
    """The modules of the jobs that import a package."""
    return {
        module
        for module, (source, is_package) in _sources().items()
        if module.startswith("jobs")
        for _, target in imports_of(source, module, is_package=is_package, known=frozenset())
        if target.partition(".")[0] == package
    }


def test_dagster_pipes_is_known_to_one_job_module_only() -> None:
    assert _speakers_of("dagster_pipes") == {"jobs.reports.pipes"}


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
        ("storage_core.log.commit", "def f():\n    import storage_core.gc.plan", "storage_core.gc is above"),
        ("storage_core.log.commit", "if TYPE_CHECKING:\n    from jobs import merge", "jobs is above"),
        ("storage_core.ingest.batch", "import storage_core.region.wal", "do not know each other"),
        ("storage_core.region.wal", "import storage_core.ingest.batch", "do not know each other"),
        ("storage_core.raw_log.writer", "import storage_core.region.wal", "do not know each other"),
        ("storage_core.rows.fold", "import pyspark.sql", "storage_core never imports pyspark"),
        ("storage_core.rows.fold", "import dagster_pipes as dp", "storage_core never imports dagster_pipes"),
        ("jobs.compact", "from dagster import asset", "jobs never imports dagster"),
        ("jobs.compact", "import assets.factory", "assets is above jobs"),
        ("assets.factory", "import pyarrow.parquet as pq", "assets never imports pyarrow"),
        ("assets.factory", "from pipelines.definitions import defs", "pipelines is above assets"),
        ("pipelines.cli", "import tests.unit.test_layers", "nothing imports other tests"),
        ("pipelines.cli", "import examples.demo", "the product does not need its programs"),
        ("storage_core.table", "from tests.support import clock", "only benchmarks import tests.support"),
        ("benchmarks.merging", "from tests.simulation import seeds", "nothing imports other tests"),
        ("storage_core.table", "import pytest", "comes with the extra dev"),
        ("storage_core.attic.old", "from storage_core import errors", "storage_core.attic.old is in no layer"),
    ],
)
def test_a_planted_violation_is_found(module: str, source: str, complaint: str) -> None:
    planted = {module: (source, False), "storage_core.errors": ("", False)}
    found = violations(planted)
    assert len(found) == 1
    assert complaint in found[0]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("storage_core.log.commit", "from storage_core import errors"),
        ("storage_core.log.commit", "from storage_core.log import actions\nfrom . import snapshot"),
        ("storage_core.region.merge", "from storage_core.split.write import write_split"),
        ("storage_core.clock", "from storage_core.errors import InvalidInput"),
        ("jobs.reports.pipes", "from dagster_pipes import open_dagster_pipes"),
        ("jobs.compact", "from storage_core import Table\nfrom pyspark.sql import SparkSession"),
        ("benchmarks.compaction", "import pyspark\nfrom storage_core import Table"),
        ("benchmarks.merging", "import polars\nfrom tests.support.clock import ManualClock"),
    ],
)
def test_an_import_that_goes_down_is_welcome(module: str, source: str) -> None:
    assert violations({module: (source, False), "storage_core.errors": ("", False)}) == []


def test_temporary_files_have_one_home() -> None:
    """Only `storage_core.scratch` makes them: in folders that are private, locked, and removed by the next process."""
    reaching = {
        path.relative_to(ROOT).as_posix()
        for top in PRODUCT
        for path in (ROOT / top).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Import) and "tempfile" in {each.name for each in node.names})
        or (isinstance(node, ast.ImportFrom) and node.module == "tempfile")
    }
    assert reaching == {"storage_core/scratch.py"}
