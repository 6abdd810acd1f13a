"""No file contains a package index host or a local path. Make targets have help, and code has docstrings."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from tests.tiers import LONG, NIGHTLY, REPRESENTATIVES, SPEAK_FOR_THE_PRODUCT

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("tidemark", "storage_core", "jobs", "assets", "pipelines")
# Folders that only contain output of tools or runs. `.gitignore` lists the same folders.
MADE = {".git", ".venv", ".uv", ".java", ".dagster", "warehouse", "landing", "spark-warehouse", "__pycache__", "build"}

# Written in pieces, so that this file does not contain the searched text.
INDEX_HOST = re.compile("|".join(["pypi" + r"\.org", "pythonhosted" + r"\.org", "index" + "-url", "find" + "-links"]))
MACHINE_PATH = re.compile(r"(?<![\w.~$}/-])/(?:(?:home|Users)/[a-z]\w*|root|work|opt/wheels)(?=[/\s\"'`)]|$)")
# The script that makes the lock files passes flags that keep host names out of the lock files.
KEEPS_HOSTS_OUT = re.compile(r"--no-emit-\S+")


def _files() -> list[Path]:
    """Return the files that git tracks or would track. Without git, return all files that no tool generated."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    if listed.returncode == 0:
        return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]
    return [path for path in ROOT.rglob("*") if path.is_file() and not _is_made(path.relative_to(ROOT))]


def _is_made(path: Path) -> bool:
    return any(part in MADE or part.endswith(("_cache", ".egg-info")) or part == ".hypothesis" for part in path.parts)


@cache
def _texts() -> dict[str, str]:
    """Return the content of every text file by its name."""
    found = {}
    for path in _files():
        with suppress(UnicodeDecodeError):
            found[str(path.relative_to(ROOT))] = path.read_text(encoding="utf-8")
    return found


def _lines_with(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{name}:{number}: {line.strip()[:100]}"
        for name, text in _texts().items()
        if name != "tests/unit/test_repository.py"
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(KEEPS_HOSTS_OUT.sub("", line))
    ]


def test_no_file_names_an_index_host() -> None:
    assert _lines_with(INDEX_HOST) == []


def test_no_file_names_a_path_of_one_machine() -> None:
    assert _lines_with(MACHINE_PATH) == []


@pytest.mark.parametrize("line", ["/home/ada/x", "see `/root/.cache`", 'cd "/Users/ada"', "uri: /work/main"])
def test_a_machine_path_would_be_found(line: str) -> None:
    assert MACHINE_PATH.search(line)


@pytest.mark.parametrize("line", ["https://example.com/home/ada", "tables/work/x", "<root>/.tmp/", "GET /homepage"])
def test_an_ordinary_path_is_no_machine_path(line: str) -> None:
    assert not MACHINE_PATH.search(line)


@pytest.mark.parametrize("lock", sorted((ROOT / "requirements").glob("*.lock")), ids=lambda path: path.name)
def test_a_lock_pins_every_package_by_hash_and_names_no_place(lock: Path) -> None:
    text = lock.read_text(encoding="utf-8")
    pins = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
    assert pins
    assert [line for line in pins if "==" not in line] == []
    assert [pin for pin in re.split(r"\n(?=\S)", text) if "--hash=sha256:" not in pin] == []
    assert "://" not in text


def test_the_demo_lock_pins_what_the_dev_lock_pins() -> None:
    demo, dev = (_pins(name) for name in ("demo.lock", "dev.lock"))
    assert demo
    assert demo - dev == set()


def _pins(lock: str) -> set[str]:
    """Return the pinned packages and versions, without extras and environment markers."""
    lines = (ROOT / "requirements" / lock).read_text().splitlines()
    return {re.sub(r"\[.*?\]| ;.*", "", line.rstrip(" \\")) for line in lines if re.match(r"\S+==", line)}


def test_make_help_lists_every_target() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    phony = re.search(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)
    assert phony is not None
    targets = phony.group(1).split()
    assert {
        "setup",
        "demo",
        "test",
        "test-browser",
        "check",
        "nightly",
        "lint",
        "types",
        "bench",
        "ui",
        "clean",
    } <= set(targets)
    command = ["make", "--no-print-directory", "help"]
    shown = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    explained = dict(re.findall(r"^  make (\S+) +(\S.+)$", shown, re.MULTILINE))
    assert sorted(explained) == sorted(targets)


def test_make_clean_keeps_what_a_run_or_a_user_made() -> None:
    command = ["make", "--no-print-directory", "--dry-run", "clean"]
    recipe = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    kept = (".venv", ".dagster", "warehouse", "landing", "RESULTS")
    assert [name for name in kept if name in recipe] == []


def test_ci_runs_make_check() -> None:
    script = ROOT / ".ci" / "run"
    assert script.stat().st_mode & 0o111
    text = script.read_text(encoding="utf-8")
    assert text.startswith("#!/usr/bin/env bash\n")
    assert "set -euo pipefail" in text
    assert re.search(r"^make check$", text, re.MULTILINE)


def _without_docstring(path: Path) -> Iterator[str]:
    """Yield the public names in a module that have no docstring. An empty module needs no docstring."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    name = str(path.relative_to(ROOT))
    if tree.body and ast.get_docstring(tree) is None:
        yield name
    for node in tree.body:
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if not node.name.startswith("_") and not ast.get_docstring(node):
            yield f"{name}:{node.lineno} {node.name}"


def test_every_public_module_class_and_function_has_a_docstring() -> None:
    modules = [path for folder in PRODUCT for path in sorted((ROOT / folder).rglob("*.py"))]
    assert modules
    assert [gap for path in modules for gap in _without_docstring(path)] == []


NOT_RUN = {"skip", "skipif", "xfail", "importorskip", "skipIf", "skipUnless", "SkipTest", "expectedFailure"}


def _excuses(text: str) -> list[int]:
    """Return the numbers of the lines that skip a test or allow a test to fail."""
    tree = ast.parse(text if any(each in text for each in NOT_RUN) else "")
    return [
        node.lineno
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and node.attr in NOT_RUN)
        or (isinstance(node, ast.ImportFrom) and NOT_RUN & {each.name for each in node.names})
    ]


def test_no_test_is_let_off() -> None:
    """A test that cannot run here fails with the missing requirement, and is never skipped."""
    files = sorted((ROOT / "tests").rglob("*.py"))
    assert [f"{file.relative_to(ROOT)}:{line}" for file in files for line in _excuses(file.read_text())] == []


@pytest.mark.parametrize(
    "line", ["pytest.skip('x')", "@pytest.mark.xfail\ndef test(): ...", "from pytest import importorskip"]
)
def test_an_excuse_would_be_found(line: str) -> None:
    assert _excuses(line)


def test_every_package_ships_its_types() -> None:
    assert [name for name in PRODUCT if not (ROOT / name / "py.typed").is_file()] == []


def test_every_file_that_a_tier_names_exists() -> None:
    named = SPEAK_FOR_THE_PRODUCT.union(REPRESENTATIVES, *LONG.values(), *NIGHTLY.values())
    for name in sorted(named):
        file, _, test = name.partition("[")[0].partition("::")
        assert (ROOT / file).is_file(), name
        assert f"def {test}" in (ROOT / file).read_text(), name


def test_every_file_that_a_package_reads_is_installed_with_it() -> None:
    packaged = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"][
        "package-data"
    ]
    for package in PRODUCT:
        own = (each for each in _files() if each.relative_to(ROOT).parts[0] == package)
        files = [each for each in own if each.suffix != ".py" and each.name != "README.md"]
        installed = {found for pattern in packaged[package] for found in (ROOT / package).glob(pattern)}
        assert {*files} <= installed, package
    assert "dagster.yaml" in packaged["pipelines"]
