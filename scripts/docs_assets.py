"""Check that the built documentation site loads nothing from other hosts: `python -m scripts.docs_assets FOLDER`.

Pages may link to other hosts. However, pages must not load a script, a style, a font, an image or a frame from another
host.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final

_ADDRESS: Final = re.compile(r"(?:https?:)?//")
_IN_STYLES: Final = re.compile(r"(?:url\(\s*[\"']?|@import\s+[\"'])((?:https?:)?//[^\"')\s]+)")
_LINKS_THAT_LOAD: Final = {"stylesheet", "icon", "preload", "preconnect", "prefetch", "modulepreload", "manifest"}


class _Loads(HTMLParser):
    """The addresses that a page loads automatically."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Store the addresses from which a browser loads files for this tag."""
        values = {name: value or "" for name, value in attrs}
        if tag == "link" and not _LINKS_THAT_LOAD & set(values.get("rel", "").split()):
            return
        names = ("href",) if tag == "link" else () if tag == "a" else ("src", "srcset", "poster", "data")
        self.found += [values[name] for name in names if _ADDRESS.match(values.get(name, ""))]
        self.found += _IN_STYLES.findall(values.get("style", ""))


def loaded_by(text: str, suffix: str) -> list[str]:
    """Return the addresses on other hosts from which a file loads something.

    The file is a page (`.html`) or a style (`.css`).
    """
    if suffix == ".css":
        return _IN_STYLES.findall(text)
    page = _Loads()
    page.feed(text)
    return page.found


def foreign_assets(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the address of each file on another host that the site loads.

    With each address, yield the path of the site's HTML or CSS file that contains the address.
    """
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".html", ".css"):
            text = path.read_text(encoding="utf-8")
            yield from ((each, str(path.relative_to(folder))) for each in loaded_by(text, path.suffix))


def main(arguments: list[str]) -> int:
    """Print the address of each file that the site in a folder loads from another host.

    Return 1 if the site loads files from other hosts.
    """
    folder = Path(arguments[0])
    if not (folder / "index.html").is_file():
        print(f"{folder} contains no site. Run make docs.", file=sys.stderr)
        return 1
    files: dict[str, list[str]] = {}
    for address, file in foreign_assets(folder):
        files.setdefault(address, []).append(file)
    for address, found in files.items():
        print(f"{folder}: {len(found)} files load {address}, the first is {found[0]}", file=sys.stderr)
    return 1 if files else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
