"""From a URI to the store that serves it: `file:///…` or a plain path, `s3://bucket/prefix`, `memory://name`."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from urllib.parse import unquote, urlsplit

from storage_core.errors import InvalidInput
from storage_core.objectstore.contract import Place
from storage_core.objectstore.local import LocalStore
from storage_core.objectstore.memory import MemoryStore
from storage_core.objectstore.s3 import S3Store
from storage_core.objectstore.s3_location import parse_s3_uri

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.ASCII | re.IGNORECASE)
_MEMORY_NAME = re.compile(r"[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*", re.ASCII)

# The one mutable state at module level: the content of `memory://name` has to live somewhere between two calls that
# name it, and the process is exactly the lifetime that the scheme promises.
_MEMORY_STORES: dict[str, MemoryStore] = {}
_MEMORY_LOCK = threading.Lock()


def open_store(uri: str | Path) -> Place:
    """Return the store rooted at `uri`; nothing is created or requested yet.

    The same `memory://name` is the same store everywhere in this process. What an `s3://` URI leaves open comes from
    the environment (`s3_location`). Raises `InvalidInput` for any other scheme, an empty path, a `file://` URI that
    names a host, and an `s3://` URI that holds credentials.
    """
    text = str(uri)
    scheme = _SCHEME.match(text)
    match scheme[1].lower() if scheme else None:
        case None:
            return LocalStore(_path(text, text))
        case "file":
            return LocalStore(_path(_file_path(text), text))
        case "memory":
            return _memory_store(text)
        case "s3":
            return S3Store(parse_s3_uri(text, os.environ))
        case other:
            message = f"{text}: unknown scheme {other!r}; use file:///…, a path, s3://bucket/prefix or memory://name"
            raise InvalidInput(message, uri=text)


def _path(path: str, uri: str) -> Path:
    if not path or "\x00" in path:
        raise InvalidInput(f"{uri!r} names no folder", uri=uri)
    return Path(path)


def _file_path(uri: str) -> str:
    parts = urlsplit(uri)
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment:
        raise InvalidInput(f"{uri}: expected file:/// and an absolute path on this machine", uri=uri)
    return unquote(parts.path)


def _memory_store(uri: str) -> MemoryStore:
    name = uri.split("://", 1)[1].rstrip("/")
    if not _MEMORY_NAME.fullmatch(name):
        raise InvalidInput(f"{uri}: expected memory:// and a name of letters, digits, '.', '_', '-', '/'", uri=uri)
    with _MEMORY_LOCK:
        return _MEMORY_STORES.setdefault(name, MemoryStore(name))
