"""The vector of `tidemark search --vector`: numbers as JSON, or of a file of numpy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted

_MAGIC: Final = b"\x93NUMPY"
_DO: Final = "write it by numpy.save('query.npy', vector), or give the numbers as JSON: --vector '[0.1,0.2]'"


def vector_of(text: str) -> object:
    """Return the numbers of a JSON list, or of the file behind an @. Raises `InvalidInput`."""
    if text.startswith("@"):
        return _in_file(text[1:])
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        found = f"--vector: {quoted(text)} is no list of numbers as JSON ({error})"
        raise InvalidInput(f"{found}; write [0.1,0.2], or @ and a file of numpy: @query.npy") from error


def _in_file(path: str) -> object:
    import numpy as np

    expected, first = "expected a file of numpy (.npy) with one vector", b""
    try:
        with Path(path).open("rb") as file:
            first = file.read(len(_MAGIC))
            file.seek(0)
            return np.lib.format.read_array(file)
    except OSError as error:
        raise InvalidInput(f"--vector: {quoted(path)} cannot be read: {error.strerror or error}; {expected}") from error
    except (ValueError, EOFError, MemoryError, RecursionError, SyntaxError) as error:
        why = "it holds objects of Python" if "Object arrays" in str(error) else "it is cut or damaged"
        found = why if first == _MAGIC else f"it begins with {first!r}"
        raise InvalidInput(f"--vector: {quoted(path)} is not read: {found}; {expected}: {_DO}") from error
