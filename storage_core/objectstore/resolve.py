"""From a URI to the store that serves it: `file:///…` or a plain path, `s3://bucket/prefix`, `memory://name`."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote_to_bytes

from storage_core.errors import InvalidInput
from storage_core.objectstore.contract import Place
from storage_core.objectstore.local import LocalStore
from storage_core.objectstore.memory import MemoryStore
from storage_core.objectstore.s3_location import FROM_THE_ENVIRONMENT, USERINFO, parse_s3_uri

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):", re.ASCII | re.IGNORECASE)
_MEMORY_NAME = re.compile(r"[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*", re.ASCII)
_UNWRITABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")
_EXPECTED = "use file:///…, a path, s3://… or memory://…"
_MOST_CHARACTERS = 4096

# The one mutable state at module level: the content of `memory://name` has to live somewhere between two calls that
# name it, and the process is exactly the lifetime that the scheme promises.
_MEMORY_STORES: dict[str, MemoryStore] = {}
_MEMORY_LOCK = threading.Lock()


def open_store(uri: str | Path) -> Place:
    """Return the store rooted at `uri`; nothing is created or requested yet.

    The same `memory://name` is the same store everywhere in this process. What an `s3://` URI leaves open comes from
    the environment (`s3_location`). Raises `InvalidInput` for what is not exactly one of the forms, and for credentials
    in it. Messages name the scheme and no more: what is written in a wrong place may be a secret.
    """
    if isinstance(uri, Path):
        return _local_store(_plain_path(str(uri)))
    match scheme_of(uri):
        case None:
            return _local_store(_plain_path(uri))
        case "file":
            return _local_store(_file_path(uri))
        case "memory":
            return _memory_store(_memory_name(uri))
        case _:
            from storage_core.objectstore.s3 import S3Store  # and HTTP, which other places do not need

            return S3Store(parse_s3_uri(uri, os.environ))


def check_location(uri: str) -> str:
    """Return the text when `open_store` would take it, whatever the environment says. Raises `InvalidInput`."""
    match scheme_of(uri):
        case None:
            _plain_path(uri)
        case "file":
            _file_path(uri)
        case "memory":
            _memory_name(uri)
        case _:
            parse_s3_uri(uri, {})
    return uri


def canonical(uri: str) -> str:
    """Return one URI for all ways to write this place. Raises as `check_location`. No request."""
    match scheme_of(uri):
        case None:
            return _plain_path(uri).resolve().as_uri()
        case "file":
            return _file_path(uri).resolve().as_uri()
        case "memory":
            return f"memory://{_memory_name(uri)}"
        case _:
            return parse_s3_uri(uri, {}).uri


def with_locations_above(uri: str) -> tuple[str, ...]:
    """Return the completed location, and then each one that it lies in. Relative paths are of this directory.

    A location on S3 is completed from this environment. Raises `InvalidInput` for a location that is not valid. No
    request.
    """
    here = _completed(uri)
    return (here, *locations_above(here))


def overlap(one: str, other: str) -> bool:
    """Return whether both locations are one place, or one lies in the other. Relative paths are of this directory.

    Locations on S3 are compared as this environment completes them. Raises `InvalidInput` for a location that is not
    valid. No request.
    """
    here, there = with_locations_above(one), with_locations_above(other)
    return here[0] in there or there[0] in here


def written_alike(one: str, other: str) -> bool:
    """Return whether both locations are relative to the same folder, or neither is relative to one."""
    return is_relative(one) == is_relative(other)


def is_relative(uri: str) -> bool:
    """Return whether the location is a path that depends on the working directory."""
    return "://" not in uri and not Path(uri).is_absolute()


def _completed(uri: str) -> str:
    """The canonical location, without what differs between two ways to reach one bucket."""
    if scheme_of(uri) != "s3":
        return canonical(uri)
    return replace(parse_s3_uri(uri, os.environ), region=None, path_style=False).uri


def scheme_of(uri: str) -> str | None:
    """Return `file`, `memory` or `s3`, or None for a plain path. Raises `InvalidInput` for any other scheme."""
    if len(uri) > _MOST_CHARACTERS:
        raise InvalidInput(f"a location has at most {_MOST_CHARACTERS} characters, this one has {len(uri)}")
    bare = uri.strip()
    found = _SCHEME.match(bare)
    if found is not None and bare != uri:
        raise InvalidInput(
            f"a location with a scheme begins and ends without white space ({_EXPECTED}); a path that begins with it "
            "is written ./…"
        )
    if found is None:
        return None
    if not uri.startswith("//", found.end()):
        raise InvalidInput(
            f"a location that starts with a word and ':' needs '//' after it ({_EXPECTED}); a path whose first part "
            "holds ':' is written ./…"
        )
    scheme = found[1].lower()
    if scheme not in ("file", "memory", "s3"):
        raise InvalidInput(f"{scheme}://…: unknown scheme {scheme!r}; {_EXPECTED}")
    if _UNWRITABLE.search(uri):
        raise InvalidInput(f"{scheme}://…: it holds control characters; write it without them")
    return scheme


def name_of(uri: str) -> str:
    """Return the last part of a location, by which what is there is called."""
    return uri.partition("?")[0].rstrip("/").rpartition("/")[2] or uri


def locations_above(uri: str) -> Iterator[str]:
    """Yield the URIs of the places that the place of this canonical URI lies in, the nearest first. No request."""
    match scheme_of(uri):
        case "file":
            yield from (each.as_uri() for each in _file_path(uri).parents)
        case "s3":
            place = parse_s3_uri(uri, {})
            while place.prefix:
                place = replace(place, prefix=place.prefix.rpartition("/")[0])
                yield place.uri
        case "memory":
            name = _memory_name(uri)
            while "/" in name:
                name = name.rpartition("/")[0]
                yield f"memory://{name}"
        case _:
            return


def _local_store(path: Path) -> LocalStore:
    try:
        return LocalStore(path)
    except (OSError, RuntimeError, ValueError) as error:  # of links that lead in a circle, say
        raise InvalidInput(f"{path} names no folder: {error}", path=str(path)) from error


def _plain_path(path: str) -> Path:
    if not path or _UNWRITABLE.search(path):
        raise InvalidInput("the empty path, and one with control characters, names no folder")
    if USERINFO.search(path):
        raise InvalidInput(f"a path with name:…@: {FROM_THE_ENVIRONMENT}; {_EXPECTED}")
    return Path(path)


def _file_path(uri: str) -> Path:
    host, slash, path = uri.split("://", 1)[1].partition("/")
    if host.lower() not in ("", "localhost") or not slash or any(each in path for each in "?#"):
        raise InvalidInput(
            "file://…: expected file:/// and an absolute path on this machine, with %3F for ? and %23 for #"
        )
    if _ESCAPE.search(path):
        raise InvalidInput("file://…: a % that no two hexadecimal digits follow is written %25")
    try:
        segments = [unquote_to_bytes(each).decode() for each in path.split("/")]
    except UnicodeDecodeError as error:
        raise InvalidInput("file://…: its escapes are no UTF-8") from error
    if any("/" in each or each in (".", "..") or _UNWRITABLE.search(each) for each in segments):
        raise InvalidInput("file://…: an escaped '/' or control character, '.' or '..' in it names no folder")
    return _plain_path("/" + "/".join(segments))


def _memory_name(uri: str) -> str:
    name = uri.split("://", 1)[1].removesuffix("/")
    if not _MEMORY_NAME.fullmatch(name) or any(each in (".", "..") for each in name.split("/")):
        raise InvalidInput("memory://…: expected a name of letters, digits, '.', '_', '-', with '/' between its parts")
    return name


def _memory_store(name: str) -> MemoryStore:
    with _MEMORY_LOCK:
        return _MEMORY_STORES.setdefault(name, MemoryStore(name))
