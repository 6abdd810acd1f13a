"""What a materialization shows of its job's report: one fixed set of metadata (docs/architecture/orchestration.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dagster import AssetKey, AssetObservation, JsonMetadataValue, MetadataValue

from assets.launcher import Report
from assets.partitions import partition_key
from jobs.lists import shortened

_LATE = ("rows_late_accepted", "rows_late_quarantined", "rows_late_dropped")
_COUNTS = ("rows_in", "rows_out", *_LATE, "bytes_in", "bytes_out", "splits_in", "splits_out", "version")
_TIMES = ("seconds", "spark_seconds")
_REQUESTS = ("get", "put", "list", "head", "delete")

METADATA = frozenset(
    {
        *_COUNTS,
        *_TIMES,
        *(f"requests_{kind}" for kind in _REQUESTS),
        "status",
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
        "commit_id": MetadataValue.text(str(report["commit_id"] or "")),
        **({} if debt_left is None else {"debt_left": MetadataValue.int(debt_left)}),
        "details": _details(mapping(report["details"])),
    }


def windows_touched(report: Report) -> list[int]:
    """Return the starts of the windows that the job wrote, ascending; the bucket of null timestamps left out."""
    windows = mapping(report["details"]).get("windows", [])
    return sorted({each for each in windows if isinstance(each, int)}) if isinstance(windows, list) else []


def windows_failed(report: Report) -> list[tuple[int | None, str]]:
    """Return the windows that the job could not do, ascending, each with the kind and text of its error."""
    failed = mapping(report["details"]).get("windows_failed", [])
    entries = [mapping(each) for each in failed] if isinstance(failed, list) else []
    return [
        (
            window if isinstance(window := each.get("window"), int) else None,
            f"{each.get('error')}: {each.get('reason')}",
        )
        for each in entries
    ]


def observations(key: AssetKey, report: Report, partitions: int) -> Iterator[AssetObservation]:
    """Yield one observation per window that a run of so many partitions wrote, with the commit that it is in.

    Dagster copies the metadata of a ranged run to every partition of the range; these say which ones it touched. A run
    that wrote all of them in one commit has none: the copies say it, and each event is a write to Dagster's storage.
    """
    commits = _commits(report)
    touched = windows_touched(report)
    if len(touched) == partitions and len({commits.get(window, report)["version"] for window in touched}) == 1:
        return
    for window in touched:
        commit = commits.get(window, report)
        metadata = {
            "written_by_version": MetadataValue.int(_whole(commit["version"])),
            "commit_id": MetadataValue.text(str(commit["commit_id"] or "")),
        }
        yield AssetObservation(asset_key=key, partition=partition_key(window), metadata=metadata)


def commits_by_partition(report: Report) -> dict[str, dict[str, MetadataValue[Any]]]:
    """Return what the metadata of one partition says otherwise than `metadata_of`: the commit its window is in."""
    return {
        partition_key(window): {
            "version": MetadataValue.int(_whole(commit["version"])),
            "commit_id": MetadataValue.text(str(commit["commit_id"] or "")),
        }
        for window, commit in _commits(report).items()
    }


def _commits(report: Report) -> dict[int, Report]:
    """The commit of each window, where a job made several."""
    commits = mapping(report["details"]).get("commits", [])
    each_commit = [mapping(each) for each in commits] if isinstance(commits, list) else []
    return {
        window: commit for commit in each_commit if isinstance(windows := commit["windows"], list) for window in windows
    }


def json_value(value: object) -> MetadataValue[Any]:
    """Return a number of a report as a number, and anything else as JSON."""
    return MetadataValue.int(value) if isinstance(value, int) else MetadataValue.json(value)  # type: ignore[arg-type]


def _details(details: Mapping[str, object]) -> JsonMetadataValue:
    return MetadataValue.json({name: _shortened(value) for name, value in details.items()})


def _shortened(value: object) -> object:
    if isinstance(value, Mapping):
        return {name: _shortened(each) for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_shortened(each) for each in shortened(value, _LONGEST_LIST)]
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
