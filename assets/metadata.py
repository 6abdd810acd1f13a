"""What a materialization shows of its job's report: one fixed set of metadata (docs/architecture/orchestration.md)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from dagster import JsonMetadataValue, MetadataValue

from assets.launcher import Report
from assets.partitions import partition_key
from storage_core.wording import first_of

_LATE = ("rows_late_accepted", "rows_late_quarantined", "rows_late_dropped")
_OF_A_WINDOW = ("rows_in", "rows_out", "bytes_in", "bytes_out", "splits_in", "splits_out")
_COUNTS = (*_OF_A_WINDOW, *_LATE, "version")
_TIMES = ("seconds", "spark_seconds")
_REQUESTS = ("get", "put", "list", "head", "delete")

PARTITION_METADATA = frozenset({*_OF_A_WINDOW, "version", "status", "commit_id"})
METADATA = frozenset(
    {
        *_COUNTS,
        *_TIMES,
        *(f"requests_{kind}" for kind in _REQUESTS),
        "status",
        "ran",
        "commit_id",
        "debt_left",
        "details",
    }
)

_LONGEST_LIST = 50


def metadata_of(report: Report, debt_left: int | None = None) -> dict[str, MetadataValue]:
    """Return the metadata of a materialization; its keys are exactly `METADATA`, less `debt_left` where none is given.

    Sizes are in bytes, times in seconds. `debt_left` is the number of windows in which a compaction would do something;
    a raw log has none. Lists in `details` are cut at 50 entries: the whole report is in the compute logs.
    """
    requests = mapping(report["requests"])
    return {
        **{name: MetadataValue.int(_whole(report[name])) for name in _COUNTS},
        **{name: MetadataValue.float(_number(report[name])) for name in _TIMES},
        **{f"requests_{kind}": MetadataValue.int(_whole(requests.get(kind, 0))) for kind in _REQUESTS},
        "status": MetadataValue.text(str(report["status"])),
        "ran": MetadataValue.text(str(report["ran"])),
        "commit_id": MetadataValue.text(str(report["commit_id"] or "")),
        **({} if debt_left is None else {"debt_left": MetadataValue.int(debt_left)}),
        "details": _details(mapping(report["details"])),
    }


def windows_failed(report: Report) -> list[tuple[int | None, str]]:
    """Return the windows that the job could not do, ascending, each with the kind and text of its error."""
    return [
        (
            window if isinstance(window := each.get("window"), int) else None,
            f"{each.get('error')}: {each.get('reason')}",
        )
        for each in entries_in(mapping(report["details"]), "windows_failed")
    ]


def metadata_of_partitions(report: Report, partitions: Sequence[str]) -> dict[str, dict[str, MetadataValue[Any]]]:
    """Return the metadata of each partition of a ranged run; its keys are exactly `PARTITION_METADATA`.

    They are what the run did to that window alone: nothing where it committed nothing to it. Of an ingest, `rows_in`
    are the rows that went in, and `bytes_in` is 0, for a file is read for several windows. What begins between two
    partitions, as former windows may, is of the one before.
    """
    names = sorted(partitions)
    done: dict[str, list[Mapping[str, object]]] = {}
    for each in entries_in(mapping(report["details"]), "by_window"):
        if isinstance(window := each["window"], int):
            place = bisect_right(names, partition_key(window))  # times in order are names in order
            if place:
                done.setdefault(names[place - 1], []).append(each)
    return {name: _metadata_of_partition(report, done.get(name, [])) for name in partitions}


def _metadata_of_partition(report: Report, commits: Sequence[Mapping[str, object]]) -> dict[str, MetadataValue[Any]]:
    last = commits[-1] if commits else {"version": report["version"], "commit_id": None}
    counts = {name: sum(_whole(each[name]) for each in commits) for name in _OF_A_WINDOW}
    return {
        **{name: MetadataValue.int(count) for name, count in counts.items()},
        "version": MetadataValue.int(_whole(last["version"])),
        "status": MetadataValue.text("committed" if commits else "nothing_to_do"),
        "commit_id": MetadataValue.text(str(last["commit_id"] or "")),
    }


def entries_in(details: Mapping[str, object], name: str) -> list[Mapping[str, object]]:
    """Return the objects that the details of a report list under a name; none where there is no such list."""
    listed = details.get(name)
    return [mapping(each) for each in listed] if isinstance(listed, list) else []


def json_value(value: object) -> MetadataValue[Any]:
    """Return a number of a report as a number, and anything else as JSON."""
    return MetadataValue.int(value) if isinstance(value, int) else MetadataValue.json(value)  # type: ignore[arg-type]


def _details(details: Mapping[str, object]) -> JsonMetadataValue:
    return MetadataValue.json({name: _shortened(value) for name, value in details.items()})


def _shortened(value: object) -> object:
    if isinstance(value, Mapping):
        return {name: _shortened(each) for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_shortened(each) for each in first_of(value, _LONGEST_LIST)]
    return value


def mapping(value: object) -> Mapping[str, object]:
    """Return the value as the object that it has to be. Raises `TypeError`."""
    if not isinstance(value, Mapping):
        raise TypeError(f"expected an object in the job report, found {type(value).__name__}")
    return value


def _whole(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError(f"expected a whole number in the job report, found {value!r}")
    return value


def _number(value: object) -> float:
    if not isinstance(value, int | float):
        raise TypeError(f"expected a number in the job report, found {value!r}")
    return float(value)
