"""What a materialization shows of its job's report: one fixed set of metadata (docs/architecture/orchestration.md)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

from dagster import JsonMetadataValue, MetadataValue

from assets.launcher import Report
from assets.partitions import partition_key
from jobs.reports.prices import Prices
from storage_core.wording import first_of

_LATE = ("rows_late_accepted", "rows_late_quarantined", "rows_late_dropped")
_OF_A_WINDOW = ("rows_in", "rows_out", "bytes_in", "bytes_out", "splits_in", "splits_out")
_COUNTS = (*_OF_A_WINDOW, *_LATE, "version")
_TIMES = ("seconds", "spark_seconds")
_REQUESTS = ("get", "put", "list", "head", "delete")

PARTITION_METADATA = frozenset({*_OF_A_WINDOW, "version", "status", "commit_id"})
PREDICTED_OF_PARTITION = frozenset({"predicted_bytes_in", "predicted_bytes_out", "predicted_benefit", "benefit"})
"""What a partition that is compacted has besides: the splits that are fewer are its benefit."""

METADATA = frozenset(
    {
        *_COUNTS,
        *_TIMES,
        *(f"requests_{kind}" for kind in _REQUESTS),
        "requests",
        "price",
        "status",
        "ran",
        "commit_id",
        "debt_left",
        "details",
    }
)
PREDICTED = frozenset({"benefit", "benefit_unit", "predicted_benefit", "predicted_requests", "predicted_price"})
"""What the materialization of a step has besides whose job says beforehand what it will do (decision 0173)."""

PREDICTED_BYTES = frozenset({"predicted_bytes_in", "predicted_bytes_out"})
"""The same, each where storage says it before."""

_LONGEST_LIST = 50


def metadata_of(report: Report, debt_left: int | None = None) -> dict[str, MetadataValue]:
    """Return the metadata of a materialization; its keys are exactly `METADATA`, less `debt_left` where none is given.

    And, of a job that predicts, `PREDICTED` and of `PREDICTED_BYTES` what it says. Sizes are in bytes, times in
    seconds, prices in the currency of `Prices`. `debt_left` is the number of windows in which a compaction would do
    something; a raw log has none. Lists in `details` are cut at 50 entries: the whole report is in the compute logs.
    """
    requests = {kind: _whole(mapping(report["requests"]).get(kind, 0)) for kind in _REQUESTS}
    return {
        **{name: MetadataValue.int(_whole(report[name])) for name in _COUNTS},
        **{name: MetadataValue.float(_number(report[name])) for name in _TIMES},
        **{f"requests_{kind}": MetadataValue.int(count) for kind, count in requests.items()},
        "requests": MetadataValue.int(sum(requests.values())),
        "price": MetadataValue.float(Prices().of(requests)),
        **_predicted(report),
        "status": MetadataValue.text(str(report["status"])),
        "ran": MetadataValue.text(str(report["ran"])),
        "commit_id": MetadataValue.text(str(report["commit_id"] or "")),
        **({} if debt_left is None else {"debt_left": MetadataValue.int(debt_left)}),
        "details": _details(mapping(report["details"])),
    }


def _predicted(report: Report) -> dict[str, MetadataValue[Any]]:
    """What the plan said of the run, and the benefit that came of it; nothing of a job that predicts nothing."""
    if not isinstance(predicted := report["predicted"], Mapping):
        return {}
    requests = {"get": _whole(predicted["gets"]), "put": _whole(predicted["puts"])}
    sizes = {name: predicted[name] for name in ("bytes_in", "bytes_out")}
    return {
        "benefit": MetadataValue.int(_whole(report["benefit"])),
        "benefit_unit": MetadataValue.text(str(predicted["unit"])),
        "predicted_benefit": MetadataValue.int(_whole(predicted["benefit"])),
        "predicted_requests": MetadataValue.int(sum(requests.values())),
        "predicted_price": MetadataValue.float(Prices().of(requests)),
        **{f"predicted_{name}": MetadataValue.int(_whole(size)) for name, size in sizes.items() if size is not None},
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

    Of a compaction, in whose windows the plan says what it will do, also `PREDICTED_OF_PARTITION`.
    They are what the run did to that window alone: nothing where it committed nothing to it. Of an ingest, `rows_in`
    are the rows that went in, and `bytes_in` is 0, for a file is read for several windows. What begins between two
    partitions, as former windows may, is of the one before.
    """
    details, names = mapping(report["details"]), sorted(partitions)
    done = _by_partition(entries_in(details, "by_window"), names)
    predicted = _by_partition(entries_in(details, "predicted_by_window"), names)
    return {
        name: _metadata_of_partition(report, done.get(name, [])) | _predicted_of(name, predicted, done)
        for name in partitions
    }


_Entries = Sequence[Mapping[str, object]]


def _by_partition(entries: _Entries, names: Sequence[str]) -> dict[str, list[Mapping[str, object]]]:
    found: dict[str, list[Mapping[str, object]]] = {}
    for each in entries:
        if isinstance(window := each["window"], int):
            place = bisect_right(names, partition_key(window))  # times in order are names in order
            if place:
                found.setdefault(names[place - 1], []).append(each)
    return found


def _predicted_of(
    name: str, predicted: Mapping[str, _Entries], done: Mapping[str, _Entries]
) -> dict[str, MetadataValue[Any]]:
    """What was said of a partition, and the splits that are fewer; nothing where nothing was said of any."""
    if not predicted:
        return {}
    said = {
        f"predicted_{what}": sum(_whole(each[what]) for each in predicted.get(name, ()))
        for what in ("bytes_in", "bytes_out", "benefit")
    }
    fewer = sum(_whole(each["splits_in"]) - _whole(each["splits_out"]) for each in done.get(name, ()))
    return {each: MetadataValue.int(count) for each, count in {**said, "benefit": fewer}.items()}


def _metadata_of_partition(report: Report, commits: _Entries) -> dict[str, MetadataValue[Any]]:
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
