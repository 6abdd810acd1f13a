"""Write the generated pages of the reference: the Python API, the commands, the exit codes and the metrics.

    python -m scripts.reference_pages [FOLDER]

The default folder is `build/reference`. `make docs` writes these pages before it builds the site. The repository
therefore contains no generated page. The pages of the Python API contain directives. mkdocstrings replaces these
directives by the docstrings.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import typer

import tidemark
import tidemark.dagster
from pipelines import status
from pipelines.cli import build
from storage_core.base.errors import TidemarkError

ROOT: Final = Path(__file__).resolve().parents[1]
FOLDER: Final = ROOT / "build" / "reference"

_GROUPS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "table": ("Table", ("Table",)),
    "writers": ("Writers and raw logs", ("WriterOptions", "RawLog", "RawStore", "LateData", "Appended")),
    "reads": (
        "Reads and conditions",
        ("Consistency", "Filter", "col", "Scan", "SqlResult", "Plan", "QueryLimits", "HistoryPage", "HistoryEntry"),
    ),
    "changes": (
        "Changes, imports and forgetting",
        (
            "expr",
            "Expression",
            "Changed",
            "Imported",
            "Cloned",
            "Mirrored",
            "IndexDefinition",
            "Forgotten",
            "ForgetReport",
            "Held",
            "RawTable",
        ),
    ),
    "catalog": ("SQL catalog", ("open_catalog",)),
}
"""The pages for the public names.

Each entry has the file, the title and the names. A test checks that each public name is on one page.
"""

_RETURNED: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "writers": (
        ("Writer of one region", "storage_core.write.region.writer.RegionWriter"),
        ("Writer of several regions", "storage_core.write.region.router.RoutingWriter"),
    ),
    "catalog": (("Catalog", "storage_core.catalog.catalog.Catalog"),),
}
"""Classes that public functions return but that have no public name.

Each entry has the page, the heading and the class.
"""

_FEWEST_METRICS: Final = 15


def pages() -> dict[str, str]:
    """Return the text of each generated page by its name."""
    found = {f"python-{name}.md": _names(name) for name in _GROUPS}
    found["python-errors.md"] = _directive_page("Errors", "tidemark.errors", "storage_core.base.errors")
    found["python-spark.md"] = _directive_page("Spark", "tidemark.spark", "tidemark.spark")
    found["python-dagster.md"] = _dagster()
    return found | {"commands.md": _commands(), "exit-codes.md": _exit_codes(), "metrics.md": _metrics()}


def documented() -> set[str]:
    """Return the public names of `tidemark` that are on at least one page."""
    return {"errors", *(name for _, names in _GROUPS.values() for name in names)}


def _names(page: str) -> str:
    title, names = _GROUPS[page]
    homes = tidemark._HOMES  # noqa: SLF001  # this attribute contains the public names
    named = [_directive(f"tm.{name}", f"{homes[name]}.{name}") for name in names]
    returned = [_directive(shown, path) for shown, path in _RETURNED.get(page, ())]
    return "\n".join([f"# {title}\n\nImport the library as `import tidemark as tm`.\n", *named, *returned])


def _dagster() -> str:
    homes = tidemark.dagster._HOMES  # noqa: SLF001  # this attribute contains the public names
    parts = ["# Dagster\n\nImport these names from `tidemark.dagster`.\n"]
    return "\n".join([*parts, *(_directive(name, f"{homes[name]}.{name}") for name in tidemark.dagster.__all__)])


def _directive_page(title: str, shown: str, module: str) -> str:
    return f"# {title}\n\n::: {module}\n    options:\n      heading: {shown}\n"


def _directive(shown: str, path: str) -> str:
    return f"::: {path}\n    options:\n      heading: {shown}\n      toc_label: {shown}\n"


# Commands.


def _commands() -> str:
    group: Any = typer.main.get_command(build())
    panels: dict[str, list[Any]] = {}
    for command in group.commands.values():
        panels.setdefault(str(command.rich_help_panel or "Commands"), []).append(command)
    parts = [
        "# Commands\n",
        "Every command prints a table for people, or JSON with `--json`. `tidemark COMMAND --help` prints its text.",
        "The [exit codes](exit-codes.md) are the same for all commands.\n",
    ]
    for panel, commands in panels.items():
        parts.append(f"## {panel}\n")
        parts += [_command(command) for command in commands]
    return "\n".join(parts)


def _command(command: Any) -> str:
    shown = [each for each in command.params if not each.hidden]
    arguments = [each for each in shown if each.param_type_name == "argument"]
    options = [each for each in shown if each.param_type_name == "option"]
    usage = " ".join(["tidemark", command.name, *map(_usage, arguments), "[OPTIONS]"])
    parts = [f"### `{command.name}`\n", f"{_text(command.help)}\n", f"```text\n{usage}\n```\n"]
    if arguments:
        rows = [f"| `{_metavar(each)}` | {_cell(each.help)} |" for each in arguments]
        parts.append("\n".join(["| Argument | Meaning |", "|---|---|", *rows]) + "\n")
    rows = [f"| {_spelling(each)} | {_cell(each.help)} | {_default(each)} |" for each in options]
    if rows:
        parts.append("\n".join(["| Option | Meaning | Default |", "|---|---|---|", *rows]) + "\n")
    return "\n".join(parts)


def _metavar(parameter: Any) -> str:
    return str(parameter.metavar or parameter.name.upper())


def _usage(parameter: Any) -> str:
    name = _metavar(parameter) + ("..." if parameter.nargs == -1 else "")
    return name if parameter.required else f"[{name}]"


def _spelling(parameter: Any) -> str:
    names = ", ".join(f"`{each}`" for each in [*parameter.opts, *parameter.secondary_opts])
    return names if parameter.is_flag else f"{names} `{_metavar(parameter)}`"


def _default(parameter: Any) -> str:
    default = parameter.default
    if parameter.required:
        return "required"
    is_shown = isinstance(default, str | int | float) and not isinstance(default, bool) and default != ""
    return f"`{default}`" if is_shown else ""


def _text(text: str | None) -> str:
    r"""Return help as Markdown. Only the text before `\f` is shown, and brackets and stars are plain characters."""
    plain = inspect.cleandoc((text or "").partition("\f")[0])
    return re.sub(r"([<*_\[])", r"\\\1", plain)


def _cell(text: str | None) -> str:
    return _text(text).replace("|", r"\|").replace("\n", " ")


# Exit codes and metrics.


def _exit_codes() -> str:
    lines = [(code, f"`{kind}` | `tm.errors.{name}`", about) for code, kind, name, about in _errors()]
    lines.append((0, " | ", "The work is done, or there was nothing to do."))
    lines.append((7, " | ", "`tidemark status`: a table is behind its declared freshness, or rejects too many rows."))
    rows = [f"| {code} | {cells} | {about} |" for code, cells, about in sorted(lines)]
    return "\n".join(
        [
            "# Exit codes\n",
            "A command or a job ends with the exit code of its error. The message starts with the kind.",
            "[Operations](../operations.md#operations-by-symptom) describes what to do.\n",
            "| Exit code | Kind | Error in Python | Meaning |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def _errors(error: type[TidemarkError] = TidemarkError) -> Iterator[tuple[int, str, str, str]]:
    yield error.exit_code, error.kind, error.__name__, _cell((inspect.getdoc(error) or "").partition("\n\n")[0])
    for each in error.__subclasses__():
        if each.__module__ == TidemarkError.__module__:
            yield from _errors(each)


def _metrics() -> str:
    rows = sorted(_families())
    if len(rows) < _FEWEST_METRICS:
        raise LookupError(f"pipelines.status declares {len(rows)} metrics; at least {_FEWEST_METRICS} are expected")
    return "\n".join(
        [
            "# Metrics\n",
            "`tidemark metrics` prints these metrics as OpenMetrics text. Each metric has the label `table`.",
            "Metrics of steps also have `step`, metrics of indexes `index`, metrics of published formats `format`.\n",
            "| Metric | Unit | Meaning |",
            "|---|---|---|",
            *(f"| `{name}` | {unit} | {_cell(meaning)} |" for name, unit, meaning in rows),
            "",
        ]
    )


def _families() -> Iterator[tuple[str, str, str]]:
    """Yield each metric that `pipelines/status.py` declares, with its full name, unit and help text."""
    for node in ast.walk(ast.parse(inspect.getsource(status))):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "_Family"):
            continue
        name, about, unit = [*(str(each.value) for each in node.args if isinstance(each, ast.Constant)), ""][:3]
        yield "_".join(filter(None, ("tidemark", name, unit))), unit, about


def main(arguments: list[str]) -> int:
    """Write the pages into a folder."""
    folder = Path(arguments[0]) if arguments else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
