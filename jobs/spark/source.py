"""The Spark data source `tidemark`, for example `spark.read.format("tidemark").load(uri)` (decision 0034).

Spark calls the source in Python processes on the driver and on the executors. These processes import the source.
`register` sends the code of the source to the workers. The package `storage_core` reads, writes and commits.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import PySparkTypeError
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from jobs.spark.session import is_elsewhere, ship_code
from storage_core.base.clock import SystemClock, SystemIds
from storage_core.base.errors import InvalidInput, TidemarkError
from storage_core.base.text import quoted
from storage_core.data.rows.schema import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION, to_schema_string
from storage_core.read.follow import (
    BEGINNING,
    Change,
    Follower,
    Limit,
    Position,
    ReadTask,
    Unit,
    Wanted,
    changed_rows,
    plan_read_tasks,
    rows_of,
)
from storage_core.read.scan import require_valid_filter
from storage_core.read.sql_predicate import from_sql
from storage_core.read.view import Consistency
from storage_core.split.context import context_of
from storage_core.table import Table
from storage_core.write.append import WrittenRows, commit_rows, fitting, write_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Options of the data source. Users pass all options as strings (docs/guide/7-spark.md).


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
    """The options of a read.

    Attributes:
        uri: The location of the table.
        at: A version, a time or a tag.
        consistency: The consistency level.
        columns: The columns, or None for all.
        filter: A condition in SQL.
        changes: A stream returns changes instead of rows.
        limit: The limit of a micro-batch of a stream.
        given: The names of the options that were given.
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
        """Whether the read returns only rows of a version, and no unmerged rows."""
        return self.consistency == Consistency.SNAPSHOT

    def require_batch(self) -> None:
        """Raise `InvalidInput` if an option is valid only for streams."""
        _require(self.given, _BATCH, "spark.read")

    def require_stream(self) -> None:
        """Raise `InvalidInput` if an option is valid only for batches."""
        _require(self.given, _STREAM, "spark.readStream")


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """The options of a write: the location of the table, and optionally an application and a number.

    For each application and number, rows are written only once.
    """

    uri: str
    application: tuple[str, int] | None = None


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """Return the options of a batch read or of a streaming read. Raises `InvalidInput` for an unknown option."""
    if "pushdown" in map(str.lower, given):
        raise InvalidInput(
            "the format tidemark has no option pushdown. Spark plans a Python source once for all uses of a data "
            "frame, so the conditions of one use would remove rows from another. Give the condition as the option "
            "filter, which prunes in the same way."
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
    """Return the options of a batch write.

    Raises:
        InvalidInput: An option is unknown, or only one of `application` and `batch` is given.
    """
    known = _known(given, _WRITE, "df.write")
    name, number = known.get("application"), known.get("batch")
    if name is None and number is None:
        return WriteOptions(uri=uri_of(given, "save"))
    if not name or number is None or not number.isdecimal() or len(number) > _DIGITS or int(number) > _MOST_BATCH:
        raise InvalidInput(
            f"the options application and batch are {quoted(name)} and {quoted(number)}. Give both, a name and a "
            f"number up to {_MOST_BATCH}, as in .option('application', 'nightly').option('batch', 17)."
        )
    return WriteOptions(uri=uri_of(given, "save"), application=(name, int(number)))


def sink_options(given: Mapping[str, str]) -> WriteOptions:
    """Return the options of a streaming write.

    The option `application` is not valid here, because Spark itself identifies the work of a stream. Raises
    `InvalidInput` for any other option.
    """
    _known(given, (_CHECKPOINT,), "df.writeStream")
    return WriteOptions(uri=uri_of(given, "start"))


def uri_of(given: Mapping[str, str], call: str) -> str:
    """Return the location of the table. Raises `InvalidInput` if the options of `call` have no location."""
    if not given.get(_PATH):
        raise InvalidInput(
            f"the location of the table is missing. Give the location as in .{call}('s3://bucket/table')."
        )
    return given[_PATH]


def names_of(text: str | None) -> tuple[str, ...] | None:
    """Return the names that a text contains.

    The text separates names by commas. If names contain commas or spaces, the text is a JSON array.
    """
    if text is None:
        return None
    if not text.lstrip().startswith("["):
        return tuple(each.strip() for each in text.split(",") if each.strip())
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InvalidInput(
            f"columns is {quoted(text)}. Write names separated by commas, or a JSON array of names."
        ) from error
    return tuple(map(str, found))


def _limit(known: Mapping[str, str]) -> Limit | None:
    """Return the limit of a micro-batch, or None."""
    units: tuple[Unit, ...] = ("rows", "bytes", "files")
    found = [(unit, known[f"max_{unit}"]) for unit in units if f"max_{unit}" in known]
    if not found:
        return None
    (unit, text), *others = found
    if others or not text.isdecimal() or not int(text):
        shown = ", ".join(f"max_{each} {quoted(given)}" for each, given in found)
        raise InvalidInput(
            f"the limits of a micro-batch are {shown}. Give only one of max_rows, max_bytes and max_files, 1 or more"
        )
    return Limit(unit, int(text))


def _truth(name: str, known: Mapping[str, str]) -> bool:
    text = known.get(name, "false")
    if text.lower() not in _TRUTH:
        raise InvalidInput(f"the option {name} is {quoted(text)}. Write true or false.")
    return _TRUTH[text.lower()]


def _known(given: Mapping[str, str], names: tuple[str, ...], where: str) -> dict[str, str]:
    """Return the given options with lower-case names, because Spark ignores the case of option names."""
    found = {name.lower(): value for name, value in given.items() if name.lower() != _PATH}
    _require(found, names, where)
    return found


def _require(given: Iterable[str], names: tuple[str, ...], where: str) -> None:
    unknown = sorted(set(given) - set(names))
    if unknown:
        raise InvalidInput(
            f"{where} of the format tidemark has no option {', '.join(map(quoted, unknown))}. The options are "
            f"{', '.join(names)}.",
            options=unknown,
        )


# Garbage collection in the Python workers of Spark.


_DAEMON = "pyspark.daemon"


def freeze_gc_in_daemon() -> None:
    """In a Spark worker, exclude all existing objects from Python's garbage collection.

    Spark's daemon makes every worker run a garbage collection after each task. If a collection examined the imported
    modules, it would be as slow as a read of a few hundred thousand rows. A garbage collection would also free no
    module, because the worker still uses all modules. Outside a Spark worker, this function does nothing.
    """
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if spec is not None and spec.name == _DAEMON:
        _freeze(len(sys.modules))


@cache
def _freeze(modules: int) -> None:  # noqa: ARG001  # more modules freeze again
    gc.freeze()


# Columns of a table in Spark's types. The log stores the columns as a Spark schema (`rows.schema`).


def spark_schema(schema: pa.Schema, columns: Sequence[str] | None = None) -> StructType:
    """Return all columns, or the given columns in the given order. An embedding has the type array of floats."""
    chosen = schema if columns is None else pa.schema([schema.field(name) for name in columns])
    described = json.loads(to_schema_string(chosen))
    return StructType.fromJson({**described, "fields": [{**each, "metadata": {}} for each in described["fields"]]})


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow types of the rows that Spark sends for these columns.

    Raises:
        InvalidInput: Arrow does not have the type of a column, such as an interval of months.
    """
    fields = []
    for each in schema.fields:
        try:
            fields += to_arrow_schema(StructType([each]), timezone="UTC")
        except PySparkTypeError as error:
            raise InvalidInput(
                f"column {each.name!r} has the Spark type {each.dataType.simpleString()}, which tables do not "
                "support. Cast the column first, for example to string.",
                column=each.name,
            ) from error
    return pa.schema(fields)


def change_schema(columns: StructType) -> StructType:
    """Return these columns and the additional columns that describe a change (see `read.changes`)."""
    return StructType(
        [
            *columns.fields,
            StructField(CHANGE_TYPE, StringType(), nullable=False),
            StructField(COMMIT_VERSION, LongType(), nullable=False),
            StructField(COMMIT_TIMESTAMP, TimestampType(), nullable=False),
        ]
    )


def require_schema(given: StructType, expected: StructType) -> None:
    """Raise `InvalidInput` if the columns in Spark differ from the columns of the table."""
    if given != expected:
        raise InvalidInput(
            f"the columns in Spark are {given.simpleString()}, but the table has {expected.simpleString()}. Leave "
            "schema(…) out, and use the option columns. If the table was altered in the meantime, load it again."
        )


# Batch reads. The driver plans a read once, and tasks read the rows with `storage_core`.


class TableReader(DataSourceReader):
    """The rows of a table at a version or at a higher consistency level. Each Spark partition is one read task."""

    def __init__(self, options: ReadOptions, schema: StructType, *, version: int, batch_rows: int) -> None:
        """Read `version` of the table.

        At a consistency level above `snapshot`, the content of the table is captured when the query is planned.
        """
        self._options = options
        self._version = version
        self._schema = schema
        self._batch_rows = batch_rows

    def partitions(self) -> list[InputPartition]:
        """Return one partition per read task.

        Cost: the requests of opening the table, of a scan, and of `plan_read_tasks`.
        """
        options = self._options
        table = Table.open(options.uri, at=self._version if options.is_of_the_base else None)
        scan = table.scan(options.columns, options.filter, consistency=options.consistency)
        require_schema(self._schema, spark_schema(scan.snapshot.schema, options.columns))
        found = [InputPartition(each) for each in plan_read_tasks(scan)]
        freeze_gc_in_daemon()
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a read task. If no read task exists, Spark passes a partition without a value."""
        if partition.value is None:
            return iter(())
        options = self._options
        wanted = Wanted(columns=options.columns, filter=None if options.filter is None else from_sql(options.filter))
        return spark_batches(partition.value, wanted, self._schema, self._batch_rows)


def spark_batches(portion: ReadTask, wanted: Wanted, schema: StructType, batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Yield the selected rows of a read task, with the schema's types as Spark's Arrow types."""
    types = to_arrow_schema(schema, timezone="UTC")
    for batch in rows_of(portion, wanted, batch_rows=batch_rows):
        yield batch.cast(types)
    freeze_gc_in_daemon()


# Streaming reads. A streaming read returns the rows of a table at a version, and then the changes of each later
# version.
#
# Spark's offset is a position of `storage_core.read.follow`. If a query continues from its checkpoint, it reads between
# the stored offsets. The current content of the table does not matter.


class TableStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The rows of a table as a stream. The stream begins with the rows at `version`, and all later rows follow.

    If changes are requested, the stream contains only the changes after `version`. Spark creates one object on the
    driver, and keeps this object until the query ends. The Spark tasks call `read` on copies of this object.
    """

    def __init__(self, options: ReadOptions, schema: StructType, *, version: int, batch_rows: int) -> None:
        self._options = options
        self._schema = schema
        self._version = version
        self._batch_rows = batch_rows
        self._last: int | None = None
        self._follower: Follower | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's names, here and below
        """Return the offset at which every query begins.

        Spark calls this method until the first micro-batch is committed.
        """
        return asdict(BEGINNING)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """Return the read limit that the options set."""
        match self._options.limit:
            case None:
                return ReadAllAvailable()
            case Limit("rows", most):
                return ReadMaxRows(most)
            case Limit("bytes", most):
                return ReadMaxBytes(most)
            case Limit(_, most):
                return ReadMaxFiles(most)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end offset of the next micro-batch.

        The requests and errors are the same as of `Follower.advance`.
        """
        end = self._following().advance(Position(**start), _limit_of(limit), last=self._last)
        return asdict(end)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Exclude all versions that are committed after this call."""
        self._last = Table.open(self._options.uri).version

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the work between two offsets. A partition contains a read task or the changes of one version."""
        return [InputPartition(each) for each in self._following().work(Position(**start), Position(**end))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a read task, or the changed rows of a version."""
        if not isinstance(partition.value, Change):
            wanted = Wanted(columns=self._options.columns)
            yield from spark_batches(partition.value, wanted, self._schema, self._batch_rows)
            return
        types = to_arrow_schema(self._schema, timezone="UTC")
        for batch in changed_rows(partition.value, with_labels=self._options.changes):
            for first in range(0, batch.num_rows, self._batch_rows):
                yield batch.select(types.names).slice(first, self._batch_rows).cast(types)

    def _following(self) -> Follower:
        """Return the reader of the log. Raises `InvalidInput` if the columns of the table and the query differ."""
        if self._follower is None:
            table = Table.open(self._options.uri)
            columns = spark_schema(table.snapshot.schema, self._options.columns)
            require_schema(self._schema, change_schema(columns) if self._options.changes else columns)
            changes = self._options.changes
            self._follower = Follower(table.log, table.snapshot.schema, first=self._version, as_changes=changes)
        return self._follower


def _limit_of(limit: ReadLimit) -> Limit | None:
    match limit:
        case ReadMaxRows(max_rows=most):
            return Limit("rows", most)
        case ReadMaxBytes(max_bytes=most):
            return Limit("bytes", most)
        case ReadMaxFiles(max_files=most):
            return Limit("files", most)
        case _:
            return None


# Writes. Tasks write splits, and the driver commits the splits once. The options of a batch can contain the id of an
# application and the number of the batch. The commit then also stores the application id and the batch number. For a
# stream, the id of the query and the number of the micro-batch identify a micro-batch. The checkpoint of the query
# stores the id. If Spark runs a micro-batch again after a failure, its rows are added only once.


_QUERY = "sql.streaming.queryId"


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    """The splits that a task wrote, as JSON. In a stream, the object also contains the id of the query."""

    rows: str
    query: str | None = None


class TableWriter(DataSourceArrowWriter):
    """Appends a data frame in one commit."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        """Raise `InvalidInput` for the mode `overwrite`, for a keyed table, or for unknown columns."""
        if overwrite:
            raise InvalidInput(
                "the format tidemark does not support mode('overwrite'). Write with mode('append'). To replace rows, "
                "use Table.overwrite or Table.delete."
            )
        self._options = options
        self._version = _open(options.uri, schema).version

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of a task as splits."""
        return Written(_written(self._options.uri, iterator, self._version).to_json())

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the splits of the tasks, unless the same work is already committed."""
        _commit(self._options.uri, _parts(messages), self._options.application)


class StreamWriter(DataSourceStreamArrowWriter):
    """Appends each micro-batch of a query exactly once, in one commit."""

    def __init__(self, options: WriteOptions, schema: StructType, *, overwrite: bool) -> None:
        """Raise `InvalidInput` in the same cases as `TableWriter`.

        The output mode `complete` would overwrite the table.
        """
        if overwrite:
            raise InvalidInput(
                "the format tidemark supports only the output mode append for streams. For complete results, use "
                "foreachBatch with Table.overwrite."
            )
        self._options = options
        _open(options.uri, schema)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write the rows of a task as splits for the current version.

        The version may have changed since the query began.
        """
        context = TaskContext.get()
        query = None if context is None else context.getLocalProperty(_QUERY)
        return Written(_written(self._options.uri, iterator, None).to_json(), query)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Commit the micro-batch, unless it is already committed."""
        query = next((each.query for each in messages if isinstance(each, Written)), None)
        if query is None:
            raise TidemarkError(
                f"the query that writes batch {batchId} is unknown, because no task of Spark reported it"
            )
        _commit(self._options.uri, _parts(messages), (f"spark query {query}", batchId))


def _open(uri: str, schema: StructType) -> Table:
    """Return the table if tasks can append rows with these columns. Raise `InvalidInput` otherwise."""
    table = Table.open(uri)
    table.require_capable()
    if table.config.kind == "keyed":
        raise InvalidInput(
            f"{uri}: many tasks cannot write to a keyed table, which needs one writer. Write the rows with "
            "Table.open(uri).append(frame.toArrow()). For a stream, call append in foreachBatch. "
            "A repeated write of the "
            "same rows changes nothing.",
            uri=uri,
        )
    list(fitting(arrow_schema(schema).empty_table(), table.schema))
    return table


def _written(uri: str, batches: Iterator[pa.RecordBatch], version: int | None) -> WrittenRows:
    table = Table.open(uri, at=version)
    first = next(batches, None)
    if first is None:
        return WrittenRows(version=table.version)

    def every() -> Iterator[pa.RecordBatch]:
        yield first
        yield from batches

    rows = pa.RecordBatchReader.from_batches(first.schema, every())
    pieces = fitting(rows, table.schema, table.config.nonzero_vectors)
    written = write_rows(table.store, context_of(table.snapshot), pieces, clock=SystemClock(), ids=SystemIds())
    freeze_gc_in_daemon()
    return written


def _parts(messages: Sequence[WriterCommitMessage | None]) -> list[WrittenRows]:
    return [WrittenRows.from_json(each.rows) for each in messages if isinstance(each, Written)]


def _commit(uri: str, parts: Sequence[WrittenRows], application: tuple[str, int] | None) -> None:
    if parts:
        planned = Table.open(uri, at=min(each.version for each in parts))
        commit_rows(planned.log, planned.snapshot, parts, application)


# The data source.


BATCH_ROWS = "spark.sql.execution.arrow.maxRecordsPerBatch"


class TableSource(DataSource):
    """The data source of a table in Spark. Spark gets a subclass of this class from `source_for`."""

    batch_rows: ClassVar[int] = 10_000

    _version: int | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "tidemark"

    def schema(self) -> StructType:
        """Return the columns that a query reads.

        Every query over the loaded data frame then reads the version that is the newest at this call.

        Cost: the requests of opening the table.

        Raises:
            NotFound: The table does not exist.
            InvalidInput: The options do not fit the table.
        """
        options = read_options(self.options)
        table = Table.open(options.uri, at=options.at)
        is_refused = options.at is not None or options.consistency not in [*Consistency]
        level = options.consistency if is_refused else Consistency.SNAPSHOT
        scan = table.scan(options.columns, options.filter, consistency=level)
        if scan.filter is not None:
            require_valid_filter(scan.filter, scan.snapshot.schema)
        self._version = table.version
        columns = spark_schema(table.schema, options.columns)
        freeze_gc_in_daemon()
        return change_schema(columns) if options.changes else columns

    def reader(self, schema: StructType) -> TableReader:
        """Return a reader for a batch."""
        options = read_options(self.options)
        options.require_batch()
        return TableReader(options, schema, version=self._loaded, batch_rows=self.batch_rows)

    def streamReader(self, schema: StructType) -> TableStream:  # noqa: N802  # Spark's name
        """Return a reader for a stream."""
        options = read_options(self.options)
        options.require_stream()
        return TableStream(options, schema, version=self._loaded, batch_rows=self.batch_rows)

    def writer(self, schema: StructType, overwrite: bool) -> TableWriter:  # noqa: FBT001  # Spark defines the signature
        """Return a writer for a batch."""
        return TableWriter(write_options(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: FBT001, N802
        """Return a writer for a stream."""
        return StreamWriter(sink_options(self.options), schema, overwrite=overwrite)

    @property
    def _loaded(self) -> int:
        """The newest version at the time when the data frame was loaded."""
        if self._version is None:
            raise InvalidInput(
                "schema(…) is not supported, because the table defines the columns. Leave schema(…) out, and use the "
                "option columns."
            )
        return self._version


def register(spark: SparkSession) -> None:
    """Register the format `tidemark` in a session. Send the code of the format to the workers of the session.

    The number of rows per batch comes from the current settings of the session.
    """
    if is_elsewhere(spark):
        ship_code(spark)
    spark.dataSource.register(source_for(spark))


def source_for(spark: SparkSession) -> type[TableSource]:
    """Return the class that Spark registers.

    Spark sends this class and its attributes to other processes. These processes import only the base class.
    """
    rows = int(spark.conf.get(BATCH_ROWS, "0") or 0)
    return type(f"{TableSource.__name__}Here", (TableSource,), {"batch_rows": rows} if rows > 0 else {})
