"""Hooks of the documentation site (`mkdocs.yml`): the pages outside of `docs/`, and links that leave `docs/`.

The site contains `docs/`, the pages of the repository root, the benchmark results, and the generated pages of
`build/reference`. A link between two of these pages becomes a link of the site. A link to another file of the
repository becomes the text of the link, because the site does not contain the file.
"""

from __future__ import annotations

import base64
import html
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
REFERENCE: Final = ROOT / "build" / "reference"

OUTSIDE: Final = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/RESULTS.md": "benchmarks.md",
}
"""Pages of the repository outside of `docs/`, and their paths on the site."""

_FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
_ROW = re.compile(r"^\|.*$", re.MULTILINE)
_CODE = re.compile(r"`[^`\n]+`")
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s]+)\)")


def anchor(text: str, separator: str) -> str:
    """Return the anchor of a heading, as code hosts compute it."""
    return re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", separator)


def diagram(source: str, _language: str, _class: str, _options: Any, _markdown: Any, **_: Any) -> str:
    """Return a Mermaid diagram as an image. No script and no other host draws the diagram in the browser."""
    import mmdr

    svg = str(mmdr.render(source).svg())
    image = base64.b64encode(svg.encode()).decode("ascii")
    return f'<p><img class="diagram" alt="{html.escape(source)}" src="data:image/svg+xml;base64,{image}"></p>'


def on_files(files: Any, config: Any) -> Any:
    """Add the pages outside of `docs/` and the generated pages."""
    from mkdocs.structure.files import File

    for name, path in OUTSIDE.items():
        files.append(File.generated(config, path, content=(ROOT / name).read_text(encoding="utf-8")))
    for page in sorted(REFERENCE.glob("*.md")):
        files.append(File.generated(config, f"reference/{page.name}", content=page.read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite the links of a page that lead out of `docs/`."""
    return with_links_of_the_site(markdown, str(page.file.src_uri))


def with_links_of_the_site(markdown: str, page: str) -> str:
    """Return the Markdown of the page at this path of the site, with links between pages of the site only."""
    source = next((name for name, path in OUTSIDE.items() if path == page), f"docs/{page}")
    parts = []
    for text, is_code in _parts(markdown):
        parts.append(text if is_code else _ROW.sub(_with_plain_bars, _linked(text, source, page)))
    return "".join(parts)


def _linked(text: str, source: str, page: str) -> str:
    return _LINK.sub(lambda found: _rewritten(found, source, page), text)


def _with_plain_bars(row: re.Match[str]) -> str:
    """Return a row of a table without the backslashes that code hosts need before a bar in code."""
    return _CODE.sub(lambda code: code[0].replace(r"\|", "|"), row[0])


def _parts(markdown: str) -> Iterator[tuple[str, bool]]:
    """Yield the pieces of a page, each with True if it is a fenced block."""
    end = 0
    for fence in _FENCE.finditer(markdown):
        yield markdown[end : fence.start()], False
        yield fence[0], True
        end = fence.end()
    yield markdown[end:], False


def _rewritten(link: re.Match[str], source: str, page: str) -> str:
    is_image, text, target = link.groups()
    place, mark, heading = target.partition("#")
    if not place or "://" in target or target.startswith("mailto:") or page.startswith("reference/"):
        return link[0]
    path = os.path.normpath(PurePosixPath(source).parent / place)
    if path in OUTSIDE:
        there = OUTSIDE[path]
    elif path.startswith("docs/"):
        there = path.removeprefix("docs/") + ("/README.md" if (ROOT / path).is_dir() else "")
    else:
        return text
    return f"{is_image}[{text}]({os.path.relpath(there, PurePosixPath(page).parent)}{mark}{heading})"
