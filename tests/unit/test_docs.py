"""The documentation compared with the code: links, commands, options, exit codes, settings, decisions."""

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

from jobs.command import from_arguments
from pipelines.cli import build
from scripts import settings_pages
from scripts.docs_site import anchor as anchor_of
from storage_core.base.errors import TidemarkError
from storage_core.change.declaration import RawLogDeclaration, TableDeclaration, load_raw_log
from storage_core.data.rows.columns import FORMER_NAMES, LAST_COLUMN_ID
from storage_core.data.settings.index import IndexDefinition
from storage_core.data.settings.layout import LANDING_KEY, RegionSpec
from storage_core.data.settings.table import GROUPS, SETTINGS, FeedingRawLog, LateData, Publish, TableConfig
from storage_core.data.steps import STEPS
from storage_core.log.sharing import SOURCE
from storage_core.log.snapshot import UNFINISHED_IMPORT
from storage_core.maintain.audit import INVARIANTS
from storage_core.maintain.findings import Kind
from storage_core.maintain.history import RENUMBERED_UP_TO

ROOT = Path(__file__).resolve().parents[2]
SPEC, OPERATIONS = ROOT / "docs" / "spec.md", ROOT / "docs" / "operations.md"
DECLARATIONS = ROOT / "docs" / "declarations.md"
ARCHITECTURE = ROOT / "docs" / "architecture" / "README.md"
DECISIONS = ROOT / "docs" / "decisions"
OLD_NUMBERS = DECISIONS / "old-numbers.md"
LAST_OLD_NUMBER = 198
ORCHESTRATION = ROOT / "docs" / "architecture" / "orchestration.md"
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
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
    """Return the cells of the table with this head, row by row. A `|` in a cell is escaped."""
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
    """Return every command of the shell examples, without trailing comments."""
    for language, block in FENCE.findall(_text(path)):
        if language == "sh":
            joined = re.sub(r"\\\n\s*", "", block)
            yield from (found for line in joined.splitlines() if (found := line.strip()))


def _shown_in(path: Path) -> Iterator[str]:
    yield from _shell_lines(path)
    yield from (each for each in INLINE.findall(FENCE.sub("", _text(path))) if each != NO_COMMAND)


@cache
def _commands_of(program: str) -> list[tuple[str, list[str]]]:
    """Return each use of this program in the documents: the document, and the words after the program's name."""
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


# Links.


def test_every_link_and_image_leads_somewhere() -> None:
    anchors = {path: {anchor_of(each, "-") for each in _headings(path)} for path in DOCUMENTS}
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


# Commands.


def test_every_command_that_a_text_in_the_code_names_exists() -> None:
    naming = re.compile(r"(?:`|[Rr]un: |\.venv/bin/)tidemark(?: -v)? ([a-z][a-z-]*)")
    named = [(where, found) for where, text in _texts_in_code() for found in naming.findall(text)]
    assert named
    assert [each for each in named if each[1] not in COMMANDS] == []


def test_every_tidemark_command_of_the_documents_parses() -> None:
    broken = []
    for where, words in _commands_of("tidemark"):
        name, *arguments = [each for each in words if each != "-v"]
        if name not in COMMANDS:
            broken.append(f"{where}: {' '.join(words)}: no such command")
        elif arguments:  # a command name without arguments is not an example
            try:
                COMMANDS[name].make_context(name, arguments)
            except typer.TyperException as error:
                broken.append(f"{where}: {' '.join(words)}: {error}")
    assert broken == []


def test_every_job_of_the_documents_parses() -> None:
    programs = [(where, words[1], words[2:]) for where, words in _commands_of("python") if words[:1] == ["-m"]]
    assert programs
    paths = {name: ROOT / name.replace(".", "/") for _, name, _ in programs}
    assert [name for name, path in paths.items() if not (path.with_suffix(".py").is_file() or path.is_dir())] == []
    broken = []
    for where, name, words in programs:
        if name == "jobs":
            try:
                from_arguments(words[0], words[1:])
            except (KeyError, SystemExit, TidemarkError) as error:
                broken.append(f"{where}: {name} {' '.join(words)}: {error}")
    assert broken == []


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


# Errors and settings.


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
        max_rejected=0.5,
        raw_logs=(FeedingRawLog(name="raw", table="t", stores=("memory://raw",)),),
        publish=Publish(delta="none"),
    )
    same = [each.name for each in fields(TableConfig) if getattr(changed, each.name) == each.default]
    assert same == ["compaction"], "which has a table of its own"
    assert {key for key in written if key.startswith("tidemark.")} == {
        *changed.to_configuration(),
        LANDING_KEY,
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


def test_the_operations_page_lists_exactly_the_settings_of_compaction() -> None:
    rows = _table(_section(OPERATIONS, "Set when splits are merged"), "Setting", "Means", "Default")
    assert [name.strip("`") for name, *_ in rows] == [name for name in SETTINGS if name.startswith("compaction.")]


def test_the_page_of_declarations_lists_exactly_the_fields_of_a_table() -> None:
    of_tables = _text(DECLARATIONS).replace(_section(DECLARATIONS, "Raw logs"), "")
    listed = re.findall(r"^\| `([^|`]+)` \|", of_tables, re.MULTILINE)
    fields_of_tables = {name for name in TableDeclaration.model_fields if name not in GROUPS}
    elsewhere = {name for name in SETTINGS if name.startswith("compaction.")} | {"former_windows"}
    assert sorted(listed) == sorted({*fields_of_tables, *SETTINGS, "compaction", "late_data"} - elsewhere)


def test_the_page_of_declarations_lists_exactly_the_fields_of_a_raw_log(tmp_path: Path) -> None:
    section = _section(DECLARATIONS, "Raw logs")
    rows = _table(section, "Field", "Type", "Default", "Meaning")
    assert [name.strip("`") for name, *_ in rows] == [*RawLogDeclaration.model_fields]
    (example,) = (text for language, text in FENCE.findall(section) if language == "yaml")
    (tmp_path / "events.yaml").write_text(example, encoding="utf-8")
    given = load_raw_log(tmp_path / "events.yaml")
    assert given.model_fields_set == RawLogDeclaration.model_fields.keys()
    values = {name.strip("`"): default.strip("`") for name, _, default, _ in rows}
    usual = {name: values[name] for name in ("closed_after", "schedule", "unique_for", "upkeep_schedule")}
    declared = RawLogDeclaration.model_validate({"name": "events", "stores": ["raw"], **usual})
    assert declared == RawLogDeclaration.model_validate({"name": "events", "stores": ["raw"]})


def test_pages_and_the_schema_say_what_the_table_of_settings_says() -> None:
    stale = [path.name for path, text in settings_pages.written().items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], "run: python -m scripts.settings_pages"


# Decisions.


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


def test_the_page_of_orchestration_lists_every_step_as_the_catalogue_has_it() -> None:
    rows = _table(
        _section(ORCHESTRATION, "Steps"), "Step", "Does", "Command", "Asset", "Follows", "Requested by", "Lease"
    )
    assert [[re.sub("`", "", cell) for cell in row] for row in rows] == [
        [
            each.name,
            each.summary,
            each.command,
            each.asset,
            ", ".join(each.follows),
            "sensor" if each.is_observable else "schedule" if each.asset else "",
            each.lease,
        ]
        for each in STEPS.values()
    ]


def test_the_index_of_decisions_lists_every_decision_once_in_the_order_of_its_topic() -> None:
    _, *topics = (DECISIONS / "README.md").read_text(encoding="utf-8").split("\n## ")
    listed = [[cell for cell, _ in _table(topic, "No", "Decision")] for topic in topics]
    files = sorted(path.name for path in DECISIONS.glob("0*.md"))
    assert sorted(cell for cells in listed for cell in cells) == [f"[{name[:4]}]({name})" for name in files]
    assert all(cells == sorted(cells) for cells in listed)
    assert [int(name[:4]) for name in files] == list(range(1, len(files) + 1))


def test_a_decision_has_its_number_its_status_and_its_four_parts() -> None:
    for path in sorted(DECISIONS.glob("0*.md")):
        text = _text(path)
        assert text.startswith(f"# {path.name[:4]} "), path.name
        status = r"Status: accepted\. Date: \d{4}-\d{2}-\d{2}\.(?: Supersedes: \d{4}(?:, \d{4})*\.)?"
        assert re.fullmatch(status, _superseding(text)), path.name
        parts = re.findall(r"^\*\*(\w+)\.\*\*", text, re.MULTILINE)
        assert parts == ["Problem", "Decision", "Rejected", "Cost"], path.name


def test_the_map_of_old_numbers_has_each_number_once_and_leads_somewhere() -> None:
    rows = _table(_text(OLD_NUMBERS), "Old", "Title", "Where now")
    assert [old for old, *_ in rows] == [f"{number:04}" for number in range(1, LAST_OLD_NUMBER + 1)]
    for old, title, place in rows:
        assert title, old
        if not place.startswith("dropped: "):
            target, _, anchor = _only_link(place).partition("#")
            path = (OLD_NUMBERS.parent / target).resolve()
            assert path.is_file(), old
            assert not anchor or anchor in {anchor_of(each, "-") for each in _headings(path)}, old


def test_a_decision_supersedes_the_old_numbers_that_the_map_leads_to_it() -> None:
    rows = _table(_text(OLD_NUMBERS), "Old", "Title", "Where now")
    mapped = {(old, _only_link(place)) for old, _, place in rows if "](" in place and "](../" not in place}
    stated = {
        (old, path.name)
        for path in DECISIONS.glob("0*.md")
        for old in re.findall(r"\b\d{4}\b", _superseding(_text(path)).partition("Supersedes: ")[2])
    }
    assert stated == mapped


def _superseding(decision: str) -> str:
    """Return the paragraph with the status, the date and the superseded decisions, as one line."""
    return " ".join(decision.split("\n\n")[1].split())


def _only_link(cell: str) -> str:
    (target,) = LINK.findall(cell)
    return str(target)


def test_the_page_of_a_folder_names_each_of_its_modules() -> None:
    pages = sorted(ROOT.glob("storage_core/*/README.md")) + [
        ROOT / top / "README.md" for top in ("jobs", "assets", "pipelines")
    ]
    lacking = []
    for page in pages:
        said = set(re.findall(r"`([a-z0-9_]+)[`/]", page.read_text(encoding="utf-8")))
        modules = {each.stem for each in page.parent.rglob("*.py")} - {"__init__", "__main__"}
        lacking += [f"{page.relative_to(ROOT)}: {each}" for each in sorted(modules - said)]
    assert len(pages) > 10
    assert lacking == []
