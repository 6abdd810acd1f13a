"""Pictures that browser tests take: for who looks into a failure, and, by `make pictures`, for README and docs."""

from __future__ import annotations

import os
from pathlib import Path

from playwright.sync_api import Page

FOLDER = "TIDEMARK_PICTURES"
"""The environment variable that names the folder of the pictures that are to be kept."""

BLANK_BYTES, MOST_BYTES = 10_000, 200_000


def picture(page: Page, folder: Path, name: str, *, height: int | None = None) -> Path:
    """Take a picture of the page, of its first `height` pixels if that is given, and return its file.

    It is not blank, and no larger than a page of documentation can bear.
    """
    kept = os.environ.get(FOLDER)
    taken = (Path(kept).resolve() if kept else folder) / f"{name}.png"
    size = page.viewport_size
    clip = {"x": 0, "y": 0, "width": size["width"], "height": height} if size and height else None
    page.screenshot(path=str(taken), clip=clip, full_page=height is not None)  # type: ignore[arg-type]
    assert BLANK_BYTES < taken.stat().st_size <= MOST_BYTES
    return taken
