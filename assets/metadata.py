"""The metadata that Dagster shows for assets and runs.

An asset shows the location, links, tags and code version of its table. A run shows a fixed set of metadata, which comes
from the report of its job (docs/architecture/orchestration.md).
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from dagster import JsonMetadataValue, MetadataValue

from assets.launcher import Report
from assets.steps import partition_key
from storage_core.base.text import first_of
from storage_core.change.declaration import TableDeclaration
from storage_core.data.rows.schema import to_schema_string
from storage_core.log.job_run import Prices

_LATE = ("rows_late_accepted", "rows_late_quarantined", "rows_late_dropped")
_OF_A_WINDOW = ("rows_in", "rows_out", "bytes_in", "bytes_out", "splits_in", "splits_out")
_DRIFT = ("fields_ignored", "fields_kept", "columns_added", "columns_widened")
_COUNTS = (*_OF_A_WINDOW, *_LATE, "rows_rejected", "rows_older", "tombstones", *_DRIFT, "version")
_TIMES = ("seconds", "spark_seconds")
_REQUESTS = ("get", "put", "list", "head", "delete")

PARTITION_METADATA = frozenset({*_OF_A_WINDOW, "version", "status", "commit_id"})
PREDICTED_OF_PARTITION = frozenset({"predicted_bytes_in", "predicted_bytes_out", "predicted_benefit", "benefit"})
"""Additional metadata of a compacted partition. The benefit of a partition is the reduction in its number of splits."""

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
"""Additional metadata of a step whose job predicts its own cost (docs/architecture/orchestration.md)."""

PREDICTED_BYTES = frozenset({"predicted_bytes_in", "predicted_bytes_out"})
"""Additional metadata of a step that predicts its work.

If storage did not contain the number before the run, the key is missing.
"""

_LONGEST_LIST = 50


def metadata_of(report: Report, debt_left: int | None = None) -> dict[str, MetadataValue]:
    """Return the metadata of a materialization.

    The result has the keys of `METADATA`. The key `debt_left` is missing if its value is None. A job can predict its
    work. The result then also has the keys of `PREDICTED`. The result has each key of `PREDICTED_BYTES` for which the
    number is known. Sizes are in bytes, times in seconds, and prices in the currency of `Prices`.

    Args:
        report: The report of the job. Lists in its `details` are cut at 50 entries. The compute logs contain all
            entries.
        debt_left: The number of windows with work for a compaction. None for a raw log.
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
    """Return the predicted work and the actual benefit, or an empty mapping for a job without predictions."""
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
    """Return the windows that the job could not process, in ascending order.

    Each window has the kind and text of its error.
    """
    return [
        (
            window if isinstance(window := each.get("window"), int) else None,
            f"{each.get('error')}: {each.get('reason')}",
        )
        for each in entries_in(mapping(report["details"]), "windows_failed")
    ]


def metadata_of_partitions(report: Report, partitions: Sequence[str]) -> dict[str, dict[str, MetadataValue[Any]]]:
    """Return the metadata of each partition of a ranged run. The metadata has exactly the keys of `PARTITION_METADATA`.

    If a compaction predicts its work per window, the metadata also has the keys of `PREDICTED_OF_PARTITION`. Each
    number counts only this window, and is 0 if the job committed nothing to this window. For an ingest, `rows_in` is
    the number of ingested rows. For an ingest, `bytes_in` of every window is 0, because the bytes of a file with rows
    of several windows belong to no single window. A window with an earlier window length may begin between the starts
    of two partitions. The metadata of the earlier partition then includes this window.
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
            place = bisect_right(names, partition_key(window))  # names have the same order as their times
            if place:
                found.setdefault(names[place - 1], []).append(each)
    return found


def _predicted_of(
    name: str, predicted: Mapping[str, _Entries], done: Mapping[str, _Entries]
) -> dict[str, MetadataValue[Any]]:
    """Return the predicted bytes and benefit of a partition's work, and the actual reduction in splits.

    Return an empty mapping if there is no prediction.
    """
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
    """Return the objects in the list `name` of a report's details. Return an empty list if this list is missing."""
    listed = details.get(name)
    return [mapping(each) for each in listed] if isinstance(listed, list) else []


def json_value(value: object) -> MetadataValue[Any]:
    """Convert a value of a report into metadata. A whole number stays a number, and any other value becomes JSON."""
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
    """Return the value if it is a mapping. Raises `TypeError` otherwise."""
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


Automated = Literal["on", "off", "when_started"]
"""The condition for automatic maintenance of a table: always, never, or after a person starts the automation."""

AUTOMATION_TAG: Final = "tidemark/automation"
_OPERATIONS: Final = Path(__file__).resolve().parents[1] / "docs" / "operations.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """The properties of the project that an asset shows: the state of its automation, and the address of the report."""

    automated: Automated = "when_started"
    report: str | None = None


def tags_of(declaration: TableDeclaration, project: Project) -> dict[str, str]:
    """Return the tags of each asset of the table."""
    return {**declaration.tags, AUTOMATION_TAG: project.automated}


def metadata_of_asset(declaration: TableDeclaration, project: Project) -> Mapping[str, object]:
    """Return the metadata of each asset of the table: its location and name, the report, and the operations guide.

    The metadata has no link to a file, because browsers do not open local files from a web page.
    """
    found: dict[str, object] = {"dagster/uri": declaration.uri, "dagster/table_name": declaration.name}
    if project.report is not None:
        found["report"] = MetadataValue.url(f"{project.report}#table-{declaration.name}")
    if _OPERATIONS.is_file():  # missing in an installed package
        found["operations"] = MetadataValue.path(str(_OPERATIONS))
    return found


def code_version(declaration: TableDeclaration) -> str:
    """Return the code version.

    The code version changes if the declaration requires different rows, files, indexes or another order.
    """
    settings = sorted(declaration.config().to_configuration().items())
    text = repr((to_schema_string(declaration.schema()), settings, declaration.landing))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
