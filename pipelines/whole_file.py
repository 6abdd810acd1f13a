"""A text file that a reader sees whole: the one before, or the new one."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from storage_core.system_errors import not_written


def write_whole(file: Path, text: str) -> None:
    """Put the text into the file, in place of what it held; its folder must be there.

    Readable as the umask of this process says. Raises `NotWritten`, and then the file is as it was.
    """
    temporary: str | None = None
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{file.name[:100]}.", dir=file.parent)
        with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
            opened.write(text)
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)
        Path(temporary).replace(file)
    except OSError as error:
        if temporary is not None:
            with suppress(OSError):
                Path(temporary).unlink()
        raise not_written(str(file), error) from error
