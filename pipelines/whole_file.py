"""A text file that a reader sees whole: the one before, or the new one."""

from __future__ import annotations

import secrets
from contextlib import suppress
from pathlib import Path

from storage_core.system_errors import not_written


def write_whole(file: Path, text: str) -> None:
    """Put the text into the file, in place of what it held; its folder must be there.

    Readable as the umask of this process says. Raises `NotWritten`, and then the file is as it was.
    """
    temporary: Path | None = None
    try:
        half = file.with_name(f".{file.name[:100]}.{secrets.token_hex(8)}")
        with half.open("x", encoding="utf-8") as opened:
            temporary = half
            opened.write(text)
        half.replace(file)
    except OSError as error:
        if temporary is not None:
            with suppress(OSError):
                temporary.unlink()
        raise not_written(str(file), error) from error
