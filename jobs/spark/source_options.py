"""The options of the Spark data source, as texts of a user, checked (docs/guide/7-spark.md)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from storage_core.errors import InvalidInput
from storage_core.foreign_text import quoted
from storage_core.read.follow import Limit, Unit
from storage_core.read.view import Consistency

_PATH = "path"
_BATCH = ("at", "consistency", "columns", "filter")
_STREAM = ("at", "columns", "changes", "max_rows", "max_bytes", "max_files")
_READ = (*_BATCH, *_STREAM[2:])
_TRUTH = {"true": True, "false": False}
_WRITE = ("application", "batch")
_MOST_BATCH = 2**63 - 1
_DIGITS = len(str(_MOST_BATCH))
_CHECKPOINT = "checkpointlocation"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What is read: of which table, which version, at which level, which columns, and which rows; of a stream how.

    `given` are the names of those that were given.
    """

    uri: str
    at: str | None = None
    consistency: str = Consistency.SNAPSHOT
    columns: tuple[str, ...] | None = None
    filter: str | None = None
    changes: bool = False
    limit: Limit | None = None
    given: tuple[str, ...] = ()

    @property
    def is_of_the_base(self) -> bool:
        """Whether the rows are those of a version."""
        return self.consistency == Consistency.SNAPSHOT

    def require_batch(self) -> None:
        """Raise `InvalidInput` where an option is of streams only."""
        _require(self.given, _BATCH, "spark.read")

    def require_stream(self) -> None:
        """Raise `InvalidInput` where an option is of batches only."""
        _require(self.given, _STREAM, "spark.readStream")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """Into which table is written, and whose work it is: a name and a number, once for each number."""

    uri: str
    application: tuple[str, int] | None = None


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Return the options of a read, of a batch or a stream. Raises `InvalidInput` for an unknown one."""
    if "pushdown" in map(str.lower, given):
        raise InvalidInput(
            "the format tidemark has no option pushdown: Spark plans a source in Python once for all that reads a data "
            "frame, so that the conditions of one part of a query would take rows from another; give the condition as "
            "the option filter, which prunes alike"
        )
    known = _known(given, _READ, "spark.read")
    return ReadOptions(
        uri=uri_of(given, "load"),
        at=known.get("at"),
        consistency=known.get("consistency", str(Consistency.SNAPSHOT)),
        columns=names_of(known.get("columns")),
        filter=known.get("filter"),
        changes=_truth("changes", known),
        limit=_limit(known),
        given=tuple(known),
    )


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Return the options of a batch write. Raises `InvalidInput` for an unknown one, and for half of the two."""
    known = _known(given, _WRITE, "df.write")
    name, number = known.get("application"), known.get("batch")
    if name is None and number is None:
        return WriteOptions(uri=uri_of(given, "save"))
    if not name or number is None or not number.isdecimal() or len(number) > _DIGITS or int(number) > _MOST_BATCH:
        raise InvalidInput(
            f"the options application and batch go together, a name and a number up to {_MOST_BATCH}, as in "
            f".option('application', 'nightly').option('batch', 17); found {quoted(name)} and {quoted(number)}"
        )
    return WriteOptions(uri=uri_of(given, "save"), application=(name, int(number)))


def sink_options(given: Mapping[str, str]) -> WriteOptions:
    """Return the options of a streaming write, whose work is told by Spark. Raises `InvalidInput` for any other."""
    _known(given, (_CHECKPOINT,), "df.writeStream")
    return WriteOptions(uri=uri_of(given, "start"))


def uri_of(given: Mapping[str, str], call: str) -> str:
    """Return where the table is. Raises `InvalidInput` where nobody says it in the `call`."""
    if not given.get(_PATH):
        raise InvalidInput(f"the location of the table is missing: name it, as in .{call}('s3://bucket/table')")
    return given[_PATH]


def names_of(text: str | None) -> tuple[str, ...] | None:
    """Return the names in a text: parted by commas, or as a JSON array where names have commas or blanks of theirs."""
    if text is None:
        return None
    if not text.lstrip().startswith("["):
        return tuple(each.strip() for each in text.split(",") if each.strip())
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidInput(
            f"columns are names parted by commas or a JSON array of them, found {quoted(text)}"
        ) from error
    return tuple(map(str, found))


def _limit(known: Mapping[str, str]) -> Limit | None:
    """How much a micro-batch reads at most."""
    units: tuple[Unit, ...] = ("rows", "bytes", "files")
    found = [(unit, known[f"max_{unit}"]) for unit in units if f"max_{unit}" in known]
    if not found:
        return None
    (unit, text), *others = found
    if others or not text.isdecimal() or not int(text):
        raise InvalidInput(
            f"a micro-batch has one limit, a number from 1 on as max_rows, max_bytes or max_files; found {found}"
        )
    return Limit(unit, int(text))


def _truth(name: str, known: Mapping[str, str]) -> bool:
    text = known.get(name, "false")
    if text.lower() not in _TRUTH:
        raise InvalidInput(f"the option {name} is true or false, found {quoted(text)}")
    return _TRUTH[text.lower()]


def _known(given: Mapping[str, str], names: tuple[str, ...], where: str) -> dict[str, str]:
    """The given options by their names in lower case, as Spark tells no case."""
    found = {name.lower(): value for name, value in given.items() if name.lower() != _PATH}
    _require(found, names, where)
    return found


def _require(given: Iterable[str], names: tuple[str, ...], where: str) -> None:
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise InvalidInput(
            f"{where} of the format tidemark has no option {', '.join(map(quoted, unknown))}; it has "
            f"{', '.join(names)}",
            options=unknown,
        )
