"""Screenshots of browser tests, to investigate failures and, with `make pictures`, for the README and docs."""

from __future__ import annotations

import os
from pathlib import Path

from playwright.sync_api import Page

FOLDER = "TIDEMARK_PICTURES"
"""The environment variable with the folder for screenshots to keep."""

BLANK_BYTES, MOST_BYTES = 10_000, 200_000


def picture(page: Page, folder: Path, name: str, *, height: int | None = None) -> Path:
    """Take a screenshot of the page, or of its first `height` pixels, and return the file.

    Fail if the screenshot is blank, or too large for a page of the documentation.
    """
    kept = os.environ.get(FOLDER)
    taken = (Path(kept).resolve() if kept else folder) / f"{name}.png"
    size = page.viewport_size
    clip = {"x": 0, "y": 0, "width": size["width"], "height": height} if size and height else None
    page.screenshot(path=str(taken), clip=clip, full_page=height is not None)  # type: ignore[arg-type]
    assert BLANK_BYTES < taken.stat().st_size <= MOST_BYTES
    return taken
