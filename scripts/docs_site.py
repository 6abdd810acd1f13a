"""Hooks in `mkdocs.yml` that add pages outside `docs/` to the site and rewrite links that leave `docs/`.

The site contains `docs/` and the pages in the root of the repository. The site also contains the benchmark results and
the generated pages in `build/reference`. A link between two pages of the site becomes a link within the site. A link to
any other file of the repository becomes plain text, because the site does not contain this file.
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
"""The pages of the repository outside `docs/`, with their paths on the site."""

_FENCE = re.compile(r"^( *)(```|~~~).*?^\1\2 *$", re.MULTILINE | re.DOTALL)
_ROW = re.compile(r"^\|.*$", re.MULTILINE)
_CODE = re.compile(r"`[^`\n]+`")
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)\s]+)\)")


def anchor(text: str, separator: str) -> str:
    """Return the anchor of a heading in the same form as code hosts."""
    return re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", separator)


def diagram(source: str, _language: str, _class: str, _options: Any, _markdown: Any, **_: Any) -> str:
    """Return a Mermaid diagram as an image. The browser therefore needs no script and no other host for diagrams."""
    import mmdr

    svg = str(mmdr.render(source).svg())
    image = base64.b64encode(svg.encode()).decode("ascii")
    return f'<p><img class="diagram" alt="{html.escape(source)}" src="data:image/svg+xml;base64,{image}"></p>'


def on_files(files: Any, config: Any) -> Any:
    """Add the pages outside `docs/` and the generated pages."""
    from mkdocs.structure.files import File

    for name, path in OUTSIDE.items():
        files.append(File.generated(config, path, content=(ROOT / name).read_text(encoding="utf-8")))
    for page in sorted(REFERENCE.glob("*.md")):
        files.append(File.generated(config, f"reference/{page.name}", content=page.read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrite the links of a page that lead to files outside `docs/`."""
    return with_links_of_the_site(markdown, str(page.file.src_uri))


def with_links_of_the_site(markdown: str, page: str) -> str:
    """Return the Markdown of the page at this path of the site, with links only to pages of the site."""
    source = next((name for name, path in OUTSIDE.items() if path == page), f"docs/{page}")
    parts = []
    for text, is_code in _parts(markdown):
        parts.append(text if is_code else _ROW.sub(_with_plain_bars, _linked(text, source, page)))
    return "".join(parts)


def _linked(text: str, source: str, page: str) -> str:
    return _LINK.sub(lambda found: _rewritten(found, source, page), text)


def _with_plain_bars(row: re.Match[str]) -> str:
    """Return a table row without the backslashes before `|` in code. Sites such as GitHub need these backslashes."""
    return _CODE.sub(lambda code: code[0].replace(r"\|", "|"), row[0])


def _parts(markdown: str) -> Iterator[tuple[str, bool]]:
    """Yield the parts of a page. With each part, yield True if the part is a fenced block, and False otherwise."""
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
