"""Copies of the table of settings: rows in pages of the docs, and the JSON schema of `tables/*.yaml`.

`python -m scripts.settings_pages` writes the copies again. A test compares the copies with the files. If a setting is
new, the program adds its row below the row of the preceding setting. In docs/spec.md, a person must add the row.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

from pipelines.declaration_schema import schema_text
from storage_core.change.declaration import TableDeclaration
from storage_core.data.settings.setting import Change
from storage_core.data.settings.table import GROUPS, SETTINGS
from storage_core.data.steps import STEPS, Step

ROOT: Final = Path(__file__).parents[1]
SCHEMA: Final = ROOT / "tables" / "table.schema.json"
PAGES: Final = (ROOT / "docs" / "declarations.md", ROOT / "docs" / "operations.md")

ORCHESTRATION: Final = ROOT / "docs" / "architecture" / "orchestration.md"

_STEPS = re.compile(r"(?<=\n\| Step \| Does \| Command \| Asset \| Follows \| Requested by \| Lease \|\n)(?:\|.*\n)+")
_TABLE = re.compile(r"(?<= \| Means \| Default \|\n\|---\|---\|---\|\n)(?:\|.*\n)+")
_ROW = re.compile(r"^\| `([a-z_.]+)` \|.*\| (.*) \|$", re.MULTILINE)


def means() -> Iterator[tuple[str, str, str | None]]:
    """Yield every field of a table and every part of a group. Each yielded tuple has a name, a meaning and a default.

    If a field is not a setting, its default is None. Each page itself describes the default of a field that is not a
    setting.
    """
    for name, field in TableDeclaration.model_fields.items():
        if name not in SETTINGS and name not in GROUPS:
            yield name, str(field.description), None
    for name, entry in SETTINGS.items():
        choices = ", ".join(f"`{each}`" for each in entry.choices)
        yield name, f"{entry.about}: {choices}" if choices else entry.about, entry.default_text


def with_rows(page: str) -> str:
    """Return the page with the current meanings and defaults of its fields. Rows that name no field do not change."""
    known = {name: (about.replace("|", r"\|"), usual) for name, about, usual in means()}

    def row(found: re.Match[str]) -> str:
        about, usual = known.get(found[1], (None, None))
        return found[0] if about is None else f"| `{found[1]}` | {about} | {found[2] if usual is None else usual} |"

    return _TABLE.sub(lambda table: _ROW.sub(row, table[0]), page)


def with_new_rows(page: str, listed: Collection[str]) -> str:
    """Return the page with rows for missing settings. Each new row follows the row of its predecessor in `SETTINGS`."""
    for before, name in pairwise(SETTINGS):
        if name not in listed and SETTINGS[name].change is not Change.WINDOW:
            page = _TABLE.sub(partial(_with_row, before, name), page)
    return page


def _with_row(before: str, name: str, table: re.Match[str]) -> str:
    return re.sub(rf"(?m)^\| `{re.escape(before)}` \|.*\n", rf"\g<0>| `{name}` | – | – |\n", table[0])


def _step_row(step: Step) -> str:
    requested = "sensor" if step.is_observable else "schedule" if step.asset else ""
    follows = ", ".join(f"`{each}`" for each in step.follows)
    named = [f"`{each}`" if each else "" for each in (step.command, step.asset)]
    cells = (f"`{step.name}`", step.summary, *named, follows, requested, f"`{step.lease}`" if step.lease else "")
    return f"| {' | '.join(cells)} |\n"


def with_steps(page: str) -> str:
    """Return the page with one row per step in the catalog of steps."""
    rows = "|---|---|---|---|---|---|---|\n" + "".join(map(_step_row, STEPS.values()))
    return _STEPS.sub(lambda _: rows, page)


def written() -> dict[Path, str]:
    """Return the text of every file that depends on the settings."""
    steps = {ORCHESTRATION: with_steps(ORCHESTRATION.read_text(encoding="utf-8"))}
    pages = {page: page.read_text(encoding="utf-8") for page in PAGES}
    listed = {found[1] for text in pages.values() for found in _ROW.finditer(text)}
    rows = {page: with_rows(with_new_rows(text, listed)) for page, text in pages.items()}
    return {SCHEMA: schema_text(), **steps, **rows}


if __name__ == "__main__":
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")
