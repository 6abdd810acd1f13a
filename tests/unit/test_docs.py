"""What the documents promise, against the code: links, commands, options, exit codes, settings, decisions."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import fields
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from jobs.requests import audit as audit_request
from jobs.requests import distribute as distribute_request
from jobs.requests import raw_log as raw_log_request
from jobs.requests import request
from pipelines.cli import build
from storage_core.audit.audit import INVARIANTS
from storage_core.declaration import TableDeclaration
from storage_core.declaration_parts import CompactionDeclaration
from storage_core.errors import TidemarkError
from storage_core.fsck.report import Kind
from storage_core.history.renumbered import RENUMBERED_UP_TO
from storage_core.ingest.landing import LANDING
from storage_core.log.sharing import SOURCE
from storage_core.log.unfinished_import import UNFINISHED_IMPORT
from storage_core.rows.columns import FORMER_NAMES, LAST_COLUMN_ID
from storage_core.settings.compaction import CompactionSettings
from storage_core.settings.index import IndexDefinition
from storage_core.settings.late_data import LateData
from storage_core.settings.publish import Publish
from storage_core.settings.raw_logs import FeedingRawLog
from storage_core.settings.region_fields import RegionSpec
from storage_core.settings.table import TableConfig

ROOT = Path(__file__).resolve().parents[2]
README, SPEC, OPERATIONS = ROOT / "README.md", ROOT / "docs" / "spec.md", ROOT / "docs" / "operations.md"
DECLARATIONS = ROOT / "docs" / "declarations.md"
ARCHITECTURE = ROOT / "docs" / "architecture" / "README.md"
DECISIONS = ROOT / "docs" / "decisions"
DOCUMENTS = [README, ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
PRODUCT = ("storage_core", "jobs", "assets", "pipelines", "tidemark")
SOURCES = [path for folder in PRODUCT for path in (ROOT / folder).rglob("*.py")]
EXAMPLES = [*SOURCES, *(ROOT / "examples").rglob("*.py")]

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`\n]+)`")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
# The text whose hash is the sync marker of states (spec, section 4.1).
NO_COMMAND = "tidemark state"
OPTION = re.compile(r"--[a-z-]+")

TIDEMARK: Any = typer.main.get_command(build())
COMMANDS: dict[str, Any] = TIDEMARK.commands


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _anchor(heading: str) -> str:
    """The name that a rendered page gives to a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@cache
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _headings(path: Path) -> list[str]:
    return HEADING.findall(FENCE.sub("", _text(path)))


def _section(path: Path, heading: str) -> str:
    text = _text(path)
    found = re.search(rf"^(#+) {re.escape(heading)}\n(.*?)(?=^\1 |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"{_name(path)} has no section {heading!r}"
    return found[2]


def _table(text: str, *head: str) -> list[list[str]]:
    """The cells of the table with this head, row by row; a bar within a cell is written with a backslash."""
    lines = text.splitlines()
    start = next(index for index, line in enumerate(lines) if _cells(line)[: len(head)] == list(head))
    rows = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        rows.append(_cells(line))
    return rows


def _cells(line: str) -> list[str]:
    return [each.strip() for each in re.split(r"(?<!\\)\|", line)][1:-1]


def _shell_lines(path: Path) -> Iterator[str]:
    """Every command of the shell examples, without the comments behind it."""
    for language, block in FENCE.findall(_text(path)):
        if language == "sh":
            joined = re.sub(r"\\\n\s*", "", block)
            yield from (found for line in joined.splitlines() if (found := line.strip()))


def _shown_in(path: Path) -> Iterator[str]:
    yield from _shell_lines(path)
    yield from (each for each in INLINE.findall(FENCE.sub("", _text(path))) if each != NO_COMMAND)


@cache
def _commands_of(program: str) -> list[tuple[str, list[str]]]:
    """Where a document shows a command of this program, and the words behind its name."""
    begins = re.compile(rf"(\.venv/bin/)?{program} ")
    found = [
        (_name(path), shlex.split(text.partition(" | ")[0], comments=True)[1:])
        for path in DOCUMENTS
        for text in _shown_in(path)
        if begins.match(text) and text.count('"') % 2 == 0
    ]
    assert found
    return found


def _texts_in_code() -> Iterator[tuple[str, str]]:
    for path in EXAMPLES:
        for node in ast.walk(ast.parse(_text(path))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield f"{_name(path)}:{node.lineno}", node.value


def _kinds(error: type[TidemarkError] = TidemarkError) -> dict[str, int]:
    found = {error.kind: error.exit_code}
    for each in error.__subclasses__():
        if each.__module__ == TidemarkError.__module__:
            found |= _kinds(each)
    return found


# --- links


def test_every_link_and_image_leads_somewhere() -> None:
    anchors = {path: {*map(_anchor, _headings(path))} for path in DOCUMENTS}
    broken = []
    for path in DOCUMENTS:
        for target in LINK.findall(FENCE.sub("", _text(path))):
            place, _, anchor = target.partition("#")
            file = (path.parent / place).resolve() if place else path
            if "://" in target:
                continue
            if not file.exists() or (anchor and anchor not in anchors.get(file, ())):
                broken.append(f"{_name(path)}: {target}")
    assert broken == []


def test_every_section_that_a_message_points_to_exists() -> None:
    pointer = re.compile(r"`([^`]+)` in docs/(\w+\.md)")
    named = [(where, *found) for where, text in _texts_in_code() for found in pointer.findall(text)]
    assert named
    assert [each for each in named if each[1] not in _headings(ROOT / "docs" / each[2])] == []


def test_every_test_that_a_document_names_exists() -> None:
    naming = re.compile(r"((?:tests/[\w/]*)?test_\w+\.py)(?:::(\w+))?")
    modules = {_name(path): _text(path) for path in (ROOT / "tests").rglob("test_*.py")}
    named = [(_name(path), *each) for path in DOCUMENTS for each in naming.findall(_text(path))]
    assert named
    missing = []
    for where, file, test in named:
        texts = [text for module, text in modules.items() if module == file or module.endswith(f"/{file}")]
        if not texts or not all(f"def {test}(" in text for text in texts if test):
            missing.append(f"{where}: {file}{test and '::'}{test}")
    assert missing == []


# --- commands


def test_every_command_that_a_text_in_the_code_names_exists() -> None:
    naming = re.compile(r"(?:`|run: |\.venv/bin/)tidemark(?: -v)? ([a-z][a-z-]*)")
    named = [(where, found) for where, text in _texts_in_code() for found in naming.findall(text)]
    assert named
    assert [each for each in named if each[1] not in COMMANDS] == []


def test_every_tidemark_command_of_the_documents_parses() -> None:
    broken = []
    for where, words in _commands_of("tidemark"):
        name, *arguments = [each for each in words if each != "-v"]
        if name not in COMMANDS:
            broken.append(f"{where}: {' '.join(words)}: no such command")
        elif arguments:  # a bare name is mentioned, not shown
            try:
                COMMANDS[name].make_context(name, arguments)
            except typer.TyperException as error:
                broken.append(f"{where}: {' '.join(words)}: {error}")
    assert broken == []


def test_every_job_of_the_documents_parses() -> None:
    jobs = [
        (where, words[1].partition("."), words[2:]) for where, words in _commands_of("python") if words[:1] == ["-m"]
    ]
    assert jobs
    assert [where for where, (package, _, job), _ in jobs if not (ROOT / package / f"{job}.py").is_file()] == []
    broken = []
    for where, (package, _, job), words in jobs:
        if package == "jobs":
            try:
                _parse(job, words)
            except (SystemExit, TidemarkError) as error:
                broken.append(f"{where}: {job} {' '.join(words)}: {error}")
    assert broken == []


def _parse(job: str, words: list[str]) -> None:
    match job:
        case "audit":
            audit_request.parse(audit_request.parser("").parse_args(words))
        case "collect_raw" | "heal_raw":
            raw_log_request.parse(raw_log_request.parser(job, "").parse_args(words))
        case "distribute":
            distribute_request.parse(distribute_request.parser("").parse_args(words))
        case _:
            request.parse(request.parser(job, "").parse_args(words))


@pytest.mark.dagster
def test_every_dagster_command_of_the_documents_parses() -> None:
    import click
    from dagster._cli import cli

    broken = []
    for where, words in _commands_of("dagster"):
        command: Any = cli
        arguments = [*words]
        try:
            while hasattr(command, "commands"):
                command = command.commands[arguments.pop(0)]
            command.make_context("dagster", arguments)
        except (click.UsageError, LookupError) as error:
            broken.append(f"{where}: {' '.join(words)}: {error!r}")
    assert broken == []


def test_every_make_target_of_the_documents_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for path in DOCUMENTS:
        code = [*_shell_lines(path), *INLINE.findall(_text(path))]
        assert {found for text in code for found in re.findall(r"(?:^|&& )make ([a-z-]+)", text)} <= targets


def test_the_specification_lists_exactly_the_commands_with_their_options() -> None:
    listed: dict[str, set[str]] = {}
    for cell, *_ in _table(_section(SPEC, "17. Command line"), "Command", "Output"):
        for code in INLINE.findall(cell):
            listed.setdefault(code.split()[0], set()).update(OPTION.findall(code))
    assert sorted(listed) == sorted(COMMANDS)
    for name, options in listed.items():
        assert options <= {each for parameter in COMMANDS[name].params for each in parameter.opts}, name


# --- errors and settings


@pytest.mark.parametrize(
    ("path", "heading", "head", "kinds_at"),
    [
        (SPEC, "17. Command line", ("Exit code", "Meaning"), 2),
        (OPERATIONS, "Operations, by symptom", ("Exit code", "Kind"), 1),
    ],
    ids=["spec", "operations"],
)
def test_the_exit_codes_are_those_of_the_errors(path: Path, heading: str, head: tuple[str, str], kinds_at: int) -> None:
    rows = _table(_section(path, heading), *head)
    assert {kind: int(row[0]) for row in rows for kind in INLINE.findall(row[kinds_at])} == _kinds()


def test_the_specification_lists_exactly_the_operations_of_the_code() -> None:
    naming = re.compile(r'(?:\boperation(?:: str)? ?= ?|^(?:RESORT_)?OPERATION = )"([A-Z][A-Z ]*)"', re.MULTILINE)
    named = {found for path in SOURCES for found in naming.findall(_text(path))}
    rows = _table(_section(SPEC, "2.1 Actions"), "Field", "Rule")
    (rule,) = (rule for field, rule in rows if field == "`commitInfo.operation`")
    assert sorted(INLINE.findall(rule)) == sorted(named)


def test_the_specification_lists_exactly_the_settings_of_a_table_with_their_defaults() -> None:
    rows = _table(_section(SPEC, "2.3 Table configuration"), "Key", "Value", "Default")
    written = {key.strip("`").replace("<name>", "text"): default for key, _, default in rows}
    changed = TableConfig(
        time_column="time",
        sort_schema="timestamp/V2",
        window_seconds=7200,
        former_windows=(900,),
        coarse_window=True,
        primary_key=("time",),
        indexes=(IndexDefinition("text", "fulltext", ("message",)),),
        region_specs=(RegionSpec(id=2),),
        map_columns={"tags": "merge"},
        bloom_filters=("host",),
        partition_by=("host",),
        maintained_indexes=("text",),
        target_split_bytes=1,
        checkpoint_interval=1,
        checkpoint_format="json",
        manifest_entries=1,
        retained_states=3,
        split_compression="gzip",
        split_compression_level=2,
        split_metadata="packed",
        string_cut=1,
        checkpoint_compression="none",
        gc_horizon_ms=1,
        version_retention_ms=1,
        retention_ms=86_400_000,
        idle_after_ms=1,
        regions_by_hand=True,
        late_data=LateData(),
        raw_logs=(FeedingRawLog(name="raw", table="t", stores=("memory://raw",)),),
        publish=Publish(delta="none"),
    )
    assert [each.name for each in fields(TableConfig) if getattr(changed, each.name) == each.default] == []
    assert {key for key in written if key.startswith("tidemark.")} == {
        *changed.to_configuration(),
        LANDING,
        LAST_COLUMN_ID,
        FORMER_NAMES,
        RENUMBERED_UP_TO,
        SOURCE,
        UNFINISHED_IMPORT,
    }
    metrics = {key: int(found[0]) for key, text in written.items() if (found := re.match(r"\d+", text))}
    numbers = {key: text for key, text in changed.to_configuration().items() if text in ("1", "3")}
    assert metrics.keys() == numbers.keys()
    stored = {key: str(value) for key, value in metrics.items()}
    assert TableConfig.from_configuration(stored) == TableConfig()


def test_the_operations_page_lists_exactly_the_settings_of_compaction_with_their_defaults() -> None:
    rows = _table(_section(OPERATIONS, "Set when splits are merged"), "Field of `compaction`", "Default")
    written = {name.strip("`"): default for name, default, _ in rows}
    assert list(written) == list(CompactionDeclaration.model_fields)
    declared = {name: default for name, default in written.items() if default != "none"}
    assert CompactionDeclaration.model_validate(declared).setting() == CompactionSettings()
    assert {getattr(CompactionDeclaration(), name) for name in written.keys() - declared.keys()} == {None}


def test_the_page_of_declarations_lists_exactly_the_fields_of_a_table() -> None:
    cells = re.findall(r"^\| (`[^|]+`) \|", _text(DECLARATIONS), re.MULTILINE)
    assert sorted(name for each in cells for name in INLINE.findall(each)) == sorted(TableDeclaration.model_fields)


# --- decisions


def test_the_operations_page_says_of_every_kind_of_finding_what_it_means() -> None:
    table = _text(OPERATIONS).split("| `fsck` says |")[1].split("\n\n")[0]
    named = [name for row in table.splitlines()[2:] for name in INLINE.findall(row.split("|")[1])]
    meant = {name: {each for each in Kind if fnmatch(each, name.replace("…", "*"))} for name in named}
    assert [name for name, kinds in meant.items() if not kinds] == []
    assert set(Kind) - set().union(*meant.values()) == set()


def test_the_operations_page_advises_about_every_invariant_what_the_audit_advises() -> None:
    rows = _table(_section(OPERATIONS, "An invariant is violated"), "`audit` says", "Wrong is", "Do")
    written = [(name, re.sub(r"[`*]", "", do)) for names, _, do in rows for name in INLINE.findall(names)]
    assert sorted(written) == sorted((name, each.advice) for name, each in INVARIANTS.items())


def test_the_architecture_lists_every_folder_of_the_code_once() -> None:
    listed = [row[0].strip("`") for row in _table(_section(ARCHITECTURE, "Folders"), "Folder", "Holds")]
    folders = (path.parent for top in PRODUCT for path in (ROOT / top).rglob("*.py"))
    assert sorted(listed) == sorted({_name(folder) for folder in folders})


def test_the_index_of_decisions_lists_every_decision_once_in_the_order_of_its_topic() -> None:
    _, *topics = (DECISIONS / "README.md").read_text(encoding="utf-8").split("\n## ")
    listed = [[cell for cell, _ in _table(topic, "No", "Decision")] for topic in topics]
    files = sorted(path.name for path in DECISIONS.glob("0*.md"))
    assert sorted(cell for cells in listed for cell in cells) == [f"[{name[:4]}]({name})" for name in files]
    assert all(cells == sorted(cells) for cells in listed)
    assert [int(name[:4]) for name in files] == list(range(1, len(files) + 1))


def test_a_decision_has_its_number_and_its_four_parts() -> None:
    for path in sorted(DECISIONS.glob("0*.md")):
        text = _text(path)
        assert text.startswith(f"# {path.name[:4]} "), path.name
        parts = re.findall(r"^\*\*(\w+)\.\*\*", text, re.MULTILINE)
        assert parts == ["Problem", "Decision", "Rejected", "Cost"], path.name
