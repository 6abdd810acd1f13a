"""The catalog of maintenance steps: each step is declared here once (decision 0041).

An entry contains the properties of a step that are fixed before the step runs. The fixed properties are the options of
a step, its position in the chain of a table, and the name and description of its asset. The step's job arguments,
command, asset, sensor entry and schedule are derived from the entry. The table in docs/architecture/orchestration.md is
also derived from the entries. Importing this module loads no library.

To add a step:

1. Write a dataclass of the step's options and the step's entry here. An entry with a `command` becomes a command of
   `tidemark`.
2. Write `run_<name>(job)` in the module `home` of the entry. The module `home` is in the folder with the code that does
   the work of the step. `job.carry_out` runs the loop of the step (`storage_core.log.job_run`). The arguments of
   `job.carry_out` are three functions: one plans the work, one predicts the cost, and one does the work.
3. Put larger work into a function with two arguments, a location and a work item. Mark the function with `as_task`.
   `job.map` runs the function in this process or in Spark.
4. If the storage shows when the step has work, write `due_<name>(inputs)` in the same module and set `is_observable`.
5. Run `python -m scripts.settings_pages`, which writes the JSON schema of `schedule` again. Run the tests of the
   documents. These tests report the rows that are missing in the tables of the documents.

A step without an `asset` has no Dagster job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Annotated, Any, Final, Protocol, get_type_hints

from storage_core.data.rows.window_range import EVERY_WINDOW, WindowRange
from storage_core.data.settings.layout import Mode

LOCAL_SPARK: Final = "local[*]"
"""The default Spark master of jobs, which runs Spark in this process with one task per core."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """The help of one option of a step, and its form in the `tidemark` command.

    Args:
        help: One or two sentences.
        metavar: The placeholder of the value in the help.
        command: The name of the command's option, if it differs from the name of the field. Empty: only jobs have the
            option.
        has_all: The command has an option --all. It has the same meaning as the absence of this option.
        is_duration: The command takes a duration such as 10m, and the job takes a number of milliseconds.
        choices: For a `Mode`, the help of each mode that has an option of its own.
    """

    help: str
    metavar: str | None = None
    command: str | None = None
    has_all: bool = False
    is_duration: bool = False
    choices: Mapping[Mode, str] | None = None


_ONLY_JOBS: Final = ""

_MODES: Final = {
    Mode.POLICY: "Only the merges that a scheduled run would make now.",
    Mode.REWINDOW: "Rewrite splits of an older window length in windows of the current length.",
    Mode.RESORT: "Rewrite splits of another sort schema in the table's order.",
}

Tables = Annotated[tuple[str, ...], Option(help="A tables/*.yaml file. Give one file per table.", command=_ONLY_JOBS)]
Root = Annotated[
    str | None, Option(help="The folder to which relative locations in these files are relative.", command=_ONLY_JOBS)
]
Windows = Annotated[WindowRange, Option(help="The windows (default: all).", has_all=True)]
TableUri = Annotated[str, Option(help="Location of the table: a path, file:///… or s3://….")]
DryRun = Annotated[bool, Option(help="Print what would be done, and change nothing.")]
ByWindow = Annotated[bool, Option(help="Report the metrics of each window.", command=_ONLY_JOBS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """The options of every run of a step: the Spark master that runs the tasks, and the id of the run.

    Commits and leases contain the id of the run.
    """

    master: Annotated[
        str,
        Option(help="The Spark master that runs the tasks, or sc://… of a Spark Connect server.", metavar="URL"),
    ] = LOCAL_SPARK
    run_id: Annotated[
        str | None, Option(help="Id of the run. Commits and leases contain the id.", command=_ONLY_JOBS)
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions(RunOptions):
    """The options of the steps of one table."""

    table_uri: TableUri
    dry_run: DryRun = False


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedOptions(TableOptions):
    """The options of steps that work on one table and take a lease on the table."""

    wait_ms: Annotated[
        int,
        Option(
            help="Wait this long, such as 10m, for another run of the step. Then exit with 3.",
            metavar="DURATION",
            command="wait",
            is_duration=True,
        ),
    ] = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingest(LeasedOptions):
    """The landed files to ingest. The declaration is used to create a table that does not exist."""

    windows: Windows = EVERY_WINDOW
    declaration: Annotated[str | None, Option(help="The file that declares the table.", metavar="FILE")] = None
    by_window: ByWindow = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryQuarantine(LeasedOptions):
    """The entries of the quarantine to retry. The declaration contains the present format and schema."""

    source: Annotated[
        str | None, Option(help="Only entries of this source: a landed file, or append.", metavar="TEXT")
    ] = None
    accept_late: Annotated[bool, Option(help="Also add late rows.")] = False
    declaration: Annotated[str | None, Option(help="The file that declares the table.", metavar="FILE")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Merge(LeasedOptions):
    """The treatment of records that a merge cannot apply (decision 0010)."""

    quarantine: Annotated[
        bool, Option(help="Put records that cannot be applied into quarantine, and merge the others.")
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sort(LeasedOptions):
    """The options of a sort. A sort has no options of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expire(TableOptions):
    """The options of an expiry. An expiry has no options of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compact(LeasedOptions):
    """The windows to compact, the kind of merges, and the bytes that a run may read (decision 0037)."""

    windows: Windows = EVERY_WINDOW
    mode: Annotated[Mode, Option(help="Which splits are merged (default: those of every window).", choices=_MODES)] = (
        Mode.FINALIZE
    )
    most_bytes: Annotated[
        int | None,
        Option(help="Read at most this many bytes, newest windows first.", metavar="N", command=_ONLY_JOBS),
    ] = None
    by_window: ByWindow = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint(LeasedOptions):
    """The form of the state that a checkpoint writes."""

    compact_state: Annotated[
        bool, Option(help="Write new manifests of all splits: the fewest files, and no tombstones.", command="compact")
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CatchUp(LeasedOptions):
    """The indexes to catch up, and whether their segments are trained again."""

    index: Annotated[str | None, Option(help="Only this index.", metavar="NAME", has_all=True)] = None
    retrain: Annotated[bool, Option(help="Train all segments of vector indexes again.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeSegments(LeasedOptions):
    """The indexes in which small segments are merged."""

    index: Annotated[str | None, Option(help="Only this index.", metavar="NAME")] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish(TableOptions):
    """The options of a publication. A publication has no options of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collect(LeasedOptions):
    """The time that an object stays before it is deleted."""

    horizon_ms: Annotated[
        int | None,
        Option(
            help="GC horizon for this run, such as 24h or 0s (default: the table's).",
            metavar="DURATION",
            command="horizon",
            is_duration=True,
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit(RunOptions):
    """The splits and compactions to audit. At most one of the last three fields may limit the selection."""

    table_uri: TableUri
    windows: Annotated[WindowRange, Option(help="The windows (default: all).")] = EVERY_WINDOW
    since: Annotated[
        int | None, Option(help="Only splits and compactions committed after this version.", metavar="VERSION")
    ] = None
    commits: Annotated[
        int | None, Option(help="Only the newest N compactions, and the splits that they wrote.", metavar="N")
    ] = None
    last_run: Annotated[
        bool, Option(help="Only the output of the job run that compacted last.", command=_ONLY_JOBS)
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Forget(RunOptions):
    """The rows to erase, and the raw logs that feed the table. `table` is the name of the table in these raw logs."""

    table_uri: TableUri
    where: Annotated[str, Option(help="Condition in SQL that selects the rows.", metavar="CONDITION")]
    table: Annotated[str | None, Option(help="Name of the table in the records of raw logs.")] = None
    raw_logs: Annotated[tuple[str, ...], Option(help="A raw_logs/*.yaml file. Give one file per raw log.")] = ()
    root: Root = None
    landing: Annotated[
        str | None,
        Option(help="The landing location, as JSON. The files at this location are searched, too.", command=_ONLY_JOBS),
    ] = None
    report: Annotated[bool, Option(help="Only report the objects that contain the rows, and change nothing.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RawLogOptions(RunOptions):
    """The options of the steps of one raw log: the files that declare the raw log and its tables."""

    raw_log: Annotated[str, Option(help="The raw_logs/*.yaml file that declares the raw log.", command=_ONLY_JOBS)]
    tables: Tables = ()
    root: Root = None
    dry_run: DryRun = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribute(RawLogOptions):
    """Options that select the missing chunks for which `distribute` stops waiting. `WRITER:LAST` gives up the missing
    chunks of a writer up to chunk number LAST.
    """

    skip_gaps: Annotated[
        tuple[str, ...],
        Option(help="Give up the missing chunks of a writer, up to chunk number LAST.", metavar="WRITER:LAST"),
    ] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HealRaw(RawLogOptions):
    """The way in which copies of chunks are compared."""

    verify: Annotated[bool, Option(help="Read and compare every copy.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectRaw(RawLogOptions):
    """The time for which a chunk stays in the collector's plan before the chunk is deleted."""

    horizon_ms: Annotated[
        int | None,
        Option(help="Time before a planned chunk is deleted (default: the usual horizon).", is_duration=True),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshCatalog(RunOptions):
    """The tables of the SQL catalog, each as `name=uri`.

    Without `url`, the environment contains the URL of the database.
    """

    tables: Annotated[tuple[str, ...], Option(help="Give one per table.", metavar="NAME=URI")] = ()
    url: Annotated[str | None, Option(help="The database (default: TIDEMARK_CATALOG of the environment).")] = None

    @property
    def places(self) -> dict[str, str]:
        """The URIs of the tables by their names."""
        return {name: uri for name, _, uri in (each.partition("=") for each in self.tables)}


class Landing(Protocol):
    """The location where new rows of a table arrive, with the same fields as in the table's declaration file."""

    @property
    def is_delta(self) -> bool:
        """Whether the rows land in a Delta table."""
        ...


class Publication(Protocol):
    """The formats in which a table is published, in the form of the table's declaration."""

    @property
    def formats(self) -> tuple[str, ...]:
        """The names of the formats."""
        ...


class Declared(Protocol):
    """The part of a declaration that determines the steps of a table."""

    @property
    def landing(self) -> Landing | None:
        """The location where rows land."""
        ...

    @property
    def publish(self) -> Publication:
        """The formats in which the table is published."""
        ...

    @property
    def primary_key(self) -> Sequence[str]:
        """The columns of the key."""
        ...

    @property
    def indexes(self) -> Sequence[object]:
        """The indexes."""
        ...

    @property
    def retention(self) -> int | None:
        """The retention of rows, in ms."""
        ...

    @property
    def window(self) -> int | None:
        """The duration of windows, in seconds."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step: its properties that are fixed before it runs.

    Attributes:
        name: The name of the step's job and of its Dagster job.
        home: The module that contains `run_<name>` and `due_<name>`.
        summary: What the step does, in one sentence.
        more: More help for people who run the command of the step.
        command: The command of `tidemark` that is made from the step. Empty if another command runs it.
        example: The arguments of the command in the example of its help.
        options: The class of the step's options.
        lease: The resource of the step's lease. Empty if the step takes no lease. `{windows}`, `{index}` and
            `{raw_log}` are replaced by the subject of the run.
        asset: The name of the step's asset. Empty if the step has no asset. `{index}` is replaced by the name of an
            index.
        promise: What the asset guarantees.
        follows: The steps before this step, if the table has them. The asset of this step depends on their assets.
        is_of: A function that returns whether a table with this declaration has the step.
        is_windowed: Returns whether the asset of a table has one partition per window.
        kinds: The engine of the work and the format of its result, as Dagster shows them.
        brings_rows: Whether the step brings new rows. It then runs without waiting for other maintenance (decision
            0037).
        is_fresh: Whether the step makes new rows visible. It then runs before the other steps.
        is_observable: Whether the storage shows that the step has work, so that the sensor can start the step.
        cron: The step's cron line (UTC), unless a declaration has another cron line. If it is empty, the step runs as
            soon as the storage shows work.
        item_bytes: The estimated bytes that one item reads, if the storage does not show them before the run.
    """

    name: str
    home: str
    summary: str
    options: type[RunOptions]
    more: str = ""
    command: str = ""
    example: str = ""
    lease: str = ""
    asset: str = ""
    promise: str = ""
    follows: tuple[str, ...] = ()
    is_of: Callable[[Declared], bool] = lambda _: True
    is_windowed: Callable[[Declared], bool] = lambda _: False
    kinds: frozenset[str] = frozenset({"python"})
    brings_rows: bool = False
    is_fresh: bool = False
    is_observable: bool = False
    cron: str = ""
    item_bytes: int = 2**16


def _lands_files(table: Declared) -> bool:
    return table.window is not None and not table.primary_key and not (table.landing and table.landing.is_delta)


_SPARK, _PARQUET = frozenset({"spark"}), frozenset({"spark", "parquet"})
_RECORDS_BYTES = 8 * 2**20

TABLE_STEPS: Final = (
    Step(
        name="ingest",
        home="jobs.ingest",
        summary="Ingest landed files, each row exactly once.",
        more=("Takes the files that are not in the table yet. A declared table that does not exist is created first."),
        options=Ingest,
        command="ingest",
        example="clicks",
        lease="ingest",
        asset="ingested",
        promise="Rows of landed files, each exactly once. Lines that are not valid rows are in quarantine.",
        is_of=lambda table: table.landing is not None,
        is_windowed=_lands_files,
        kinds=_PARQUET,
        brings_rows=True,
        is_fresh=True,
        is_observable=True,
    ),
    Step(
        name="retry_quarantine",
        home="jobs.ingest",
        summary="Add the lines and rows in quarantine that the present declaration accepts, each exactly once.",
        options=RetryQuarantine,
        lease="quarantine",
        asset="retried",
        promise="Lines of the quarantine that the present declaration accepts, each exactly once.",
        follows=("ingest",),
        is_of=lambda table: table.landing is not None and not table.landing.is_delta,
        brings_rows=True,
    ),
    Step(
        name="merge",
        home="storage_core.write.region.steps",
        summary="Apply flushed generations to a keyed table's base.",
        options=Merge,
        command="merge",
        example="planes",
        lease="merge",
        asset="merged",
        promise="Rows of region writers, applied to the base. The newest row of each key is kept.",
        follows=("ingest",),
        is_of=lambda table: bool(table.primary_key),
        kinds=_PARQUET,
        brings_rows=True,
        is_fresh=True,
        is_observable=True,
        item_bytes=_RECORDS_BYTES,
    ),
    Step(  # after the merge, because merged records need no sorting
        name="sort",
        home="storage_core.write.region.steps",
        summary="Sort unmerged generations, if a region has many.",
        options=Sort,
        command="sort",
        example="planes",
        lease="sort",
        asset="sorted",
        promise="Unmerged generations. If a region has many generations, they are combined into one generation that is "
        "sorted by key.",
        follows=("merge",),
        is_of=lambda table: bool(table.primary_key),
        kinds=_SPARK,
        brings_rows=True,
        is_observable=True,
        item_bytes=_RECORDS_BYTES,
    ),
    Step(  # before the compaction, because dropped windows need no rewriting
        name="expire",
        home="storage_core.compact.steps",
        summary="Remove windows that are older than the retention.",
        more=(
            "One commit removes whole windows. Older versions still contain the rows until garbage collection "
            "removes these versions and deletes the files."
        ),
        options=Expire,
        command="expire",
        example="clicks",
        asset="expired",
        promise="Whole windows that are older than the retention are dropped from the table.",
        follows=("ingest", "merge"),
        is_of=lambda table: table.retention is not None,
        is_observable=True,
        cron="2 * * * *",
    ),
    Step(
        name="compact",
        home="storage_core.compact.steps",
        summary="Rewrite the splits of a window as one sorted run.",
        options=Compact,
        command="compact",
        example="clicks --policy",
        lease="compact.{windows}",
        asset="compacted",
        promise="The splits of each window as one sorted run, with the same rows as before.",
        follows=("ingest", "merge", "expire"),
        is_windowed=lambda table: table.window is not None,
        kinds=_PARQUET,
        is_observable=True,
    ),
    Step(
        name="checkpoint",
        home="storage_core.maintain.steps",
        summary="Write the state of the table, so that it opens fast.",
        options=Checkpoint,
        command="checkpoint",
        example="clicks",
        lease="checkpoint",
        asset="checkpointed",
        promise="The state of the newest version as Avro, so that opening the table stays fast.",
        follows=("compact",),
        kinds=frozenset({"avro"}),
        is_observable=True,
        cron="20 * * * *",
    ),
    Step(
        name="catch_up",
        home="storage_core.index.steps",
        summary="Build the missing index segments of live splits.",
        more="Also merges small segments, and trains vector segments again whose clusters differ too much.",
        options=CatchUp,
        command="catch-up",
        example="clicks --index urls",
        lease="catch_up.{index}",
        asset="index_{index}",
        promise="Segments of the {kind} index on {columns} for all live splits.",
        follows=("compact",),
        is_of=lambda table: bool(table.indexes),
        kinds=_SPARK,
        is_observable=True,
        item_bytes=_RECORDS_BYTES,
    ),
    Step(
        name="publish",
        home="storage_core.interop.steps",
        summary="Publish the newest versions of a table as Delta and Iceberg.",
        options=Publish,
        asset="published",
        promise="The newest versions for readers of Delta or Iceberg: metadata that refers to the same files.",
        follows=("compact",),
        is_of=lambda table: bool(table.publish.formats),
        is_observable=True,
        cron="25 * * * *",
    ),
    Step(
        name="collect",
        home="storage_core.maintain.steps",
        summary="Delete objects that no retained version needs.",
        more=(
            "Deletes only objects that were not needed for the whole horizon. The settings of the table contain how "
            "long old versions are retained."
        ),
        options=Collect,
        command="gc",
        example="clicks --dry-run",
        lease="collect",
        asset="collected",
        promise="Objects that no retained version needs, deleted once they are older than the horizon.",
        follows=("checkpoint", "catch_up", "publish"),
        cron="30 3 * * *",
    ),
)
"""The steps of the assets of a table, in the order of their dependencies."""

OTHER_STEPS: Final = (
    Step(
        name="merge_segments",
        home="storage_core.index.steps",
        summary="Merge the small segments of an index.",
        more="Each catch-up merges small segments, too.",
        options=MergeSegments,
        command="merge-segments",
        example="clicks",
        lease="catch_up.{index}",
        kinds=_SPARK,
    ),
    Step(
        name="audit",
        home="storage_core.maintain.audit",
        summary="Check splits and compactions against their files.",
        more=(
            "Writes nothing. The rows of a merge cannot be checked if its inputs were collected. The output lists this "
            "merge as not checkable. Exits with 0 if nothing is violated, otherwise with 4."
        ),
        options=Audit,
        command="audit",
        example="clicks --commits 10",
        kinds=_SPARK,
    ),
    Step(
        name="forget",
        home="storage_core.raw_log_steps",
        summary="Erase rows that meet a condition, and report the objects that still contain the rows.",
        options=Forget,
    ),
    Step(
        name="distribute",
        home="storage_core.raw_log_steps",
        summary="Write the closed segments of a raw log to its tables.",
        more=(
            "Exits with 4 if missing chunks hold back later records of their writer. All other records are distributed."
        ),
        options=Distribute,
        command="distribute",
        example="events",
        lease="distribute.{raw_log}",
        asset="distributed",
        promise="Records of closed segments, each exactly once in its table or in quarantine.",
        kinds=_PARQUET,
        is_fresh=True,
    ),
    Step(
        name="heal_raw",
        home="storage_core.raw_log_steps",
        summary="Copy missing chunks between the stores of a raw log.",
        options=HealRaw,
        asset="raw_healed",
        promise="Every store has every chunk of which any store has an undamaged copy.",
    ),
    Step(
        name="collect_raw",
        home="storage_core.raw_log_steps",
        summary="Delete raw log chunks that every table has received and that are older than the raw log's retention.",
        options=CollectRaw,
        asset="raw_collected",
        promise="Chunks that are in every table and older than the retention are deleted.",
        follows=("distribute",),
    ),
    Step(
        name="refresh_catalog",
        home="storage_core.catalog.opening",
        summary="Update the SQL catalog to the newest version of each table.",
        options=RefreshCatalog,
        asset="refreshed",
        promise="The SQL catalog contains the newest version of every table.",
        kinds=frozenset({"sql"}),
    ),
)
"""The steps of raw logs, the steps over several tables, and the steps without an asset."""

STEPS: Final[Mapping[str, Step]] = {each.name: each for each in (*TABLE_STEPS, *OTHER_STEPS)}
OBSERVABLE: Final = frozenset(each.name for each in TABLE_STEPS if each.is_observable)
"""The steps whose pending work can be seen in the storage. Collections and checks have no observable pending work, so
they run on schedules.
"""

STEP_OF: Final[Mapping[type[RunOptions], Step]] = {each.options: each for each in STEPS.values()}


def step_of(options: RunOptions) -> Step:
    """Return the step that has these options."""
    return STEP_OF[type(options)]


def options_for(step: str, **given: object) -> RunOptions:
    """Return the options of a step with these values. Values for which the step has no option are omitted."""
    kind = STEPS[step].options
    names = {each.name for each in fields(kind)}
    values: dict[str, Any] = {name: value for name, value in given.items() if name in names}
    return kind(**values)


@dataclass(frozen=True, slots=True)
class Described:
    """A field of the options of a step: its name, type and default, and its help."""

    name: str
    kind: Any
    default: Any
    about: Option

    @property
    def is_required(self) -> bool:
        """Whether the field has no default."""
        return self.default is MISSING


def described(kind: type[RunOptions]) -> tuple[Described, ...]:
    """Return the fields of the options of a step. The step's own fields are first."""
    hints = get_type_hints(kind, include_extras=True)
    last = {each.name for each in fields(RunOptions)}
    later = {each.name for each in fields(LeasedOptions)}
    ordered = sorted(fields(kind), key=lambda each: (each.name in last, each.name in later))
    found = ((each, hints[each.name]) for each in ordered)
    return tuple(Described(each.name, hint.__origin__, each.default, hint.__metadata__[0]) for each, hint in found)
