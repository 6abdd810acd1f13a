"""Prints the path of a Chromium that Playwright can use: `.venv/bin/python -m scripts.find_browser`.

The program tries these possibilities in order:

1. `TIDEMARK_CHROMIUM`
2. a Chromium or Chrome on PATH
3. a Chromium that Playwright has already downloaded
4. Debian's package (as root)
5. Playwright's own download

If every attempt fails, the program prints one sentence with instructions, and exits with 1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

from scripts.debian import install_first

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SENTENCE = (
    "the browser tests need Chromium, and none was found or could be installed: install it (Debian: the package "
    "chromium) or set TIDEMARK_CHROMIUM to the program, then run make test-browser again."
)


def find_browser() -> str | None:
    """Return the path of a Chromium. Install Chromium if necessary. Return None if no Chromium is available."""
    return os.environ.get("TIDEMARK_CHROMIUM") or _on_path() or _playwrights() or _install()


def _on_path() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name)) is not None), None)


def _playwrights() -> str | None:
    with sync_playwright() as playwright:
        path = playwright.chromium.executable_path
    return path if Path(path).exists() else None


def _install() -> str | None:
    if install_first("chromium"):
        return _on_path()
    command = [sys.executable, "-m", "playwright", "install", "chromium"]
    subprocess.run(command, check=False, stdout=sys.stderr)
    return _playwrights()


def main() -> int:
    """Print the path of a Chromium, or instructions to install one."""
    path = find_browser()
    if path is None:
        print(f"setup: {SENTENCE}", file=sys.stderr)
        return 1
    print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
