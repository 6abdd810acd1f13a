"""Locations of stores, and a probe of the required capabilities of a store.

A location is `file:///…` or a plain path, `s3://bucket/prefix`, or `memory://name`. `open_store` returns the store at a
location.

`probe` checks a store once before it is used for a table. Some servers with S3's protocol ignore the condition of a
conditional write. If a server ignores the condition, two writers would both commit the same version, and nobody would
notice. So Tidemark refuses the store with an error that contains the missing capability. Some gateways drop the user
metadata of objects. The reply to a put through a gateway without user metadata may be lost. The writer would then treat
its own object as another writer's object.
"""

from __future__ import annotations

import os
import re
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from urllib.parse import unquote_to_bytes

from storage_core.base.errors import InvalidInput, NotFound, TidemarkError, Unavailable, Unsupported
from storage_core.store.contract import Committed, IfAbsent, IfMatch, ObjectStore, OutcomeUnknown, Place, PutMode
from storage_core.store.local import LocalStore, not_a_folder
from storage_core.store.memory import MemoryStore
from storage_core.store.s3_location import FROM_THE_ENVIRONMENT, USERINFO, parse_s3_uri

_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):", re.ASCII | re.IGNORECASE)
_MEMORY_NAME = re.compile(r"[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*", re.ASCII)
_UNWRITABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")
_EXPECTED = "Use file:///…, a path, s3://… or memory://…"
_MOST_CHARACTERS = 4096

# This state is mutable at module level, because the content of `memory://name` exists until the process ends.
_MEMORY_STORES: dict[str, MemoryStore] = {}
_MEMORY_LOCK = threading.Lock()


def open_store(uri: str | Path) -> Place:
    """Return the store at `uri`. The function creates nothing and sends no request.

    Equal `memory://name` locations are the same store everywhere in this process. Settings that an `s3://` URI omits
    come from the environment (`s3_location`). Raises `InvalidInput` for any other form of location, and for a location
    that contains credentials. Messages contain only the scheme, because other parts of the location may be secret.
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
            from storage_core.store.s3 import S3Store  # The import also loads HTTP, which only locations on S3 need.

            return S3Store(parse_s3_uri(uri, os.environ))


def check_location(uri: str) -> str:
    """Return the text if it is a valid location for `open_store` in any environment. Raises `InvalidInput`."""
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
    """Return the canonical URI of a location, which is the same for all spellings of the location. No request.

    Raises the errors of `check_location`.
    """
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
    """Return the completed location, followed by all its parent locations.

    Relative paths start from the working directory. Parts that a location on S3 omits are taken from the environment.
    Raises `InvalidInput` for an invalid location. No request.
    """
    here = _completed(uri)
    return (here, *locations_above(here))


def overlap(one: str, other: str) -> bool:
    """Return whether both locations are equal, or one is inside the other.

    Relative paths start from the working directory. Before the comparison, parts that an S3 location omits are taken
    from the environment. Raises `InvalidInput` for an invalid location. No request.
    """
    here, there = with_locations_above(one), with_locations_above(other)
    return here[0] in there or there[0] in here


def written_alike(one: str, other: str) -> bool:
    """Return whether both locations are relative paths, or neither is."""
    return is_relative(one) == is_relative(other)


def is_relative(uri: str) -> bool:
    """Return whether the location is a path that depends on the working directory."""
    return "://" not in uri and not Path(uri).is_absolute()


def _completed(uri: str) -> str:
    """Return the canonical location, without the settings that may differ for the same bucket."""
    if scheme_of(uri) != "s3":
        return canonical(uri)
    return replace(parse_s3_uri(uri, os.environ), region=None, path_style=False).uri


def scheme_of(uri: str) -> str | None:
    """Return `file`, `memory` or `s3`, or None for a plain path. Raises `InvalidInput` for any other scheme."""
    if len(uri) > _MOST_CHARACTERS:
        raise InvalidInput(
            f"the location has {len(uri)} characters. The limit is {_MOST_CHARACTERS}. Use a shorter location"
        )
    bare = uri.strip()
    found = _SCHEME.match(bare)
    if found is not None and bare != uri:
        raise InvalidInput(
            f"the location begins or ends with white space. Remove the white space. {_EXPECTED}. Write a path that "
            "begins with white space as ./…"
        )
    if found is None:
        return None
    if not uri.startswith("//", found.end()):
        raise InvalidInput(
            f"the location starts with a scheme without '//'. {_EXPECTED}. Write a path whose first part contains "
            "':' as ./…"
        )
    scheme = found[1].lower()
    if scheme not in ("file", "memory", "s3"):
        raise InvalidInput(f"{scheme}://…: unknown scheme {scheme!r}. {_EXPECTED}")
    if _UNWRITABLE.search(uri):
        raise InvalidInput(
            f"{scheme}://…: the location contains control characters. Write the location without control characters"
        )
    return scheme


def is_missing(uri: str) -> bool:
    """Return whether a local folder does not exist.

    For a store that is not local, return False, because a prefix is not a folder.

    Raises `InvalidInput` if the text is not a location.
    """
    match scheme_of(uri):
        case None:
            return not Path(_plain_path(uri)).exists()
        case "file":
            return not Path(_file_path(uri)).exists()
        case _:
            return False


def name_of(uri: str) -> str:
    """Return the last part of a location. The catalog uses the last part as the default table name."""
    return uri.partition("?")[0].rstrip("/").rpartition("/")[2] or uri


def locations_above(uri: str) -> Iterator[str]:
    """Yield the URIs of all parent locations of a canonical URI, starting with the nearest. No request."""
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
    except (OSError, RuntimeError, ValueError) as error:  # For example, symlinks may form a circle.
        raise InvalidInput(f"{path} is not a usable folder: {error}", path=str(path)) from error


def _plain_path(path: str) -> Path:
    if not path or _UNWRITABLE.search(path):
        raise InvalidInput("the path is empty or has control characters. Give the path of a folder")
    if USERINFO.search(path):
        raise InvalidInput(f"the path name:…@… may contain credentials. {FROM_THE_ENVIRONMENT}. {_EXPECTED}")
    return Path(path)


def _file_path(uri: str) -> Path:
    host, slash, path = uri.split("://", 1)[1].partition("/")
    if host.lower() not in ("", "localhost") or not slash or any(each in path for each in "?#"):
        raise InvalidInput(
            "file://…: the URI is not valid. Write file:/// and an absolute path on this machine, with %3F for ? and "
            "%23 for #"
        )
    if _ESCAPE.search(path):
        raise InvalidInput(
            "file://…: the path has a % without two hexadecimal digits after it. Write %25 for a literal %"
        )
    try:
        segments = [unquote_to_bytes(each).decode() for each in path.split("/")]
    except UnicodeDecodeError as error:
        raise InvalidInput("file://…: the bytes of its % escapes are not UTF-8. Encode the path as UTF-8") from error
    if any("/" in each or each in (".", "..") or _UNWRITABLE.search(each) for each in segments):
        raise InvalidInput(
            "file://…: the path contains a '.', a '..', an escaped '/' or a control character. Write the path "
            "without these parts"
        )
    return _plain_path("/" + "/".join(segments))


def _memory_name(uri: str) -> str:
    name = uri.split("://", 1)[1].removesuffix("/")
    if not _MEMORY_NAME.fullmatch(name) or any(each in (".", "..") for each in name.split("/")):
        raise InvalidInput(
            "memory://…: the name is not valid. Use letters, digits, '.', '_' and '-', with '/' between the parts"
        )
    return name


def _memory_store(name: str) -> MemoryStore:
    with _MEMORY_LOCK:
        return _MEMORY_STORES.setdefault(name, MemoryStore(name))


_NEVER_AN_ETAG = '"tidemark-probe"'

# Mutable state at module level, because the probe runs once per process and store.
_PROVEN: set[str] = set()
_PROVEN_LOCK = threading.Lock()


class Capability(StrEnum):
    """A required capability of a store. The value is the name of the capability in reports."""

    CREATE_ONLY = "create_only"
    SWAP_FRESH = "swap_fresh"
    SWAP_STALE = "swap_stale"
    METADATA = "metadata"
    LIST = "list"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class Trial:
    """The result for one capability: whether the store has it, and the observed behaviour."""

    capability: Capability
    ok: bool
    found: str


@dataclass(frozen=True, slots=True)
class Probe:
    """The result of a probe, with one trial per capability."""

    uri: str
    trials: tuple[Trial, ...]

    @property
    def missing(self) -> tuple[Trial, ...]:
        """The capabilities that the store lacks."""
        return tuple(each for each in self.trials if not each.ok)

    def require(self) -> None:
        """Raise `Unsupported` if a capability is missing. The error contains the missing capabilities."""
        if self.missing:
            what = "; ".join(f"{each.capability}: {each.found}" for each in self.missing)
            raise Unsupported(
                f"{self.uri}: this store cannot hold a table, because it lacks {what}. Use a store with "
                "conditional writes and user metadata",
                uri=self.uri,
                missing=[str(each.capability) for each in self.missing],
            )


def probe(store: ObjectStore, key: str) -> Probe:
    """Try every capability on the store with a new object. After the trials, delete the object.

    Raises:
        Unavailable: The store cannot be reached, denies access, or does not report an outcome. The capabilities are
            then unknown.
        Unsupported: The store reports that the bucket is elsewhere. The capabilities are then unknown.

    Cost:
        Four PUTs, one LIST and two DELETEs. On S3 also one HEAD.
    """
    try:
        trials = (*_puts(store, key), _metadata(store, key), _listing(store, key), _deletion(store, key))
    except TidemarkError:
        with suppress(TidemarkError):  # The caller needs the trial's error. The collector removes a remaining object.
            store.delete([key])
        raise
    return Probe(store.uri, trials)


def require_capable(store: ObjectStore, new_key: Callable[[], str]) -> None:
    """Raise an error unless the store has every capability.

    The function probes the store once per process and URI. The trials write to a key that `new_key` returns.

    Local and memory stores are not probed, because the conformance tests cover them. Raises the errors of `probe`,
    `Unsupported`, and `InvalidInput` if there is a file at the location of a local store.
    """
    if not _is_remote(store):
        if store.uri.startswith("file://"):
            root = _file_path(store.uri)
            with suppress(OSError):  # the first request reports the error
                if not stat.S_ISDIR(root.stat().st_mode):
                    raise not_a_folder(root)
        return
    with _PROVEN_LOCK:
        if store.uri in _PROVEN:
            return
    probe(store, new_key()).require()
    with _PROVEN_LOCK:
        _PROVEN.add(store.uri)


def _is_remote(store: ObjectStore) -> bool:
    return store.uri.startswith("s3://")


def _puts(store: ObjectStore, key: str) -> tuple[Trial, ...]:
    first = _put(store, key, 1, IfAbsent())
    second = _put(store, key, 2, IfAbsent())
    if first is None:
        created = Trial(Capability.CREATE_ONLY, ok=False, found="the first write of a new key was refused")
    else:
        created = _refused(Capability.CREATE_ONLY, second, "a second create-only write")
    current = second or first or _NEVER_AN_ETAG
    fresh = _put(store, key, 3, IfMatch(current))
    found = "a write with the object's own ETag was " + ("refused" if fresh is None else "accepted")
    swapped = Trial(Capability.SWAP_FRESH, ok=fresh is not None, found=found)
    stale = _put(store, key, 4, IfMatch(current if fresh else _NEVER_AN_ETAG))
    return created, swapped, _refused(Capability.SWAP_STALE, stale, "a write with an outdated ETag")


def _put(store: ObjectStore, key: str, step: int, mode: PutMode) -> str | None:
    """Return the new ETag, or None if the put was refused.

    Every body is different, because an ETag may be a hash of the body.
    """
    try:
        result = store.put(key, f'{{"probe":"{key}","step":{step}}}'.encode(), mode)
    except Unsupported:
        return None
    if isinstance(result, OutcomeUnknown):
        raise Unavailable(f"{key}: the check of {store.uri} had no result ({result.reason}). Try again later", key=key)
    return result.etag if isinstance(result, Committed) else None


def _refused(capability: Capability, etag: str | None, what: str) -> Trial:
    return Trial(capability, ok=etag is None, found=f"{what} was {'refused' if etag is None else 'accepted'}")


def _metadata(store: ObjectStore, key: str) -> Trial:
    if not _is_remote(store):
        return Trial(Capability.METADATA, ok=True, found="metadata is not needed, because no reply can be lost")
    try:
        kept = store.head(key).write_id is not None
    except NotFound:
        return Trial(Capability.METADATA, ok=False, found="there is no object to check")
    found = f"the user metadata of a write was {'returned' if kept else 'not returned'}"
    return Trial(Capability.METADATA, ok=kept, found=found)


def _listing(store: ObjectStore, key: str) -> Trial:
    seen = any(info.key == key for info in store.list(key))
    return Trial(Capability.LIST, ok=seen, found=f"a key just written was {'listed' if seen else 'not listed'}")


def _deletion(store: ObjectStore, key: str) -> Trial:
    reason = store.delete([key])[key] or store.delete([key])[key]
    found = (
        "an object was deleted, and a second delete of it succeeded" if reason is None else f"a delete failed: {reason}"
    )
    return Trial(Capability.DELETE, ok=reason is None, found=found)
