"""The cache of this user: `cache`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.commands import output
from pipelines.commands.arguments import Json
from pipelines.commands.output import cell, number

if TYPE_CHECKING:
    from pathlib import Path

Clear = Annotated[bool, typer.Option("--clear", help="Remove what is in it; reads that run go on.")]


def cache(*, clear: Clear = False, as_json: Json = False) -> None:
    """Show what this disk keeps of tables on S3; or clear it.

    --clear also removes the temporary files of processes that were killed.
    TIDEMARK_CACHE_DIR names another folder, TIDEMARK_CACHE_MIB the most that it may take; 0 turns the cache off.
    """
    from storage_core.cache.bounded_folder import BoundedFolder
    from storage_core.scratch import remove_abandoned
    from storage_core.settings.cache import CacheSettings
    from storage_core.system_errors import unavailable

    settings = CacheSettings.of(os.environ)
    found: dict[str, object] = {
        "folder": None if settings.folder is None else str(settings.folder),
        "most_bytes": settings.most_bytes if settings.is_on else 0,
    }
    if clear:
        for each in {None, settings.folder}:
            remove_abandoned(each)
    try:
        folder = None if settings.folder is None else BoundedFolder(settings.folder, settings.most_bytes)
        cleared = folder.clear() if clear and folder is not None else 0
        entries = [] if folder is None else folder.entries()
    except OSError as error:
        raise unavailable(f"cache {settings.folder}", error) from error
    found |= {"bytes": sum(each.size_bytes for each in entries), "entries": len(entries), "cleared_bytes": cleared}
    if as_json:
        output.json_line(found)
    else:
        output.fields(found, {"folder": cell, **dict.fromkeys(list(found)[1:], number)})


def folder_of_segments() -> Path | None:
    """Return the folder of the cache; None where there is none, and where none can be made."""
    from storage_core.settings.cache import CacheSettings

    settings = CacheSettings.of(os.environ)
    if settings.folder is None or not settings.is_on:
        return None
    try:
        settings.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return None
    return settings.folder
