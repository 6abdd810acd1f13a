"""The database of the catalog: its connection, its transactions, and the version of its tables.

The class and the error code of the database's error determine the class of Tidemark's error. The message of Tidemark's
error contains no text of the database's error except names.

`prepare` creates the tables, upgrades older tables, or refuses the database (`docs/spec.md`, "SQL catalog"). Upgrade
steps are additive: they add tables, columns and indexes, and change nothing else.
"""

from __future__ import annotations

import logging
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy import Connection

from storage_core.base.clock import Clock, Ids, SystemClock, SystemIds, random_pause_ms
from storage_core.base.errors import (
    CATALOG,
    CommitConflict,
    Corrupt,
    InvalidInput,
    NotFound,
    TidemarkError,
    Unavailable,
    Unsupported,
    needs,
)
from storage_core.base.text import alternatives, escaped, quoted, shortened, without_locations
from storage_core.catalog.schema import MARKER, METADATA

if TYPE_CHECKING:
    from sqlalchemy import URL, Engine
    from sqlalchemy.exc import SQLAlchemyError


# Statements of users. The catalog sends only statements that query rows. The catalog recognizes these statements by
# their first word.
#
# A read-only transaction is not enough, because it does not stop PostgreSQL from executing COPY to a file or a program.


ASKING: Final = frozenset({"select", "values", "table", "with", "show", "explain"})
"""The words with which a statement may begin."""

_OF_EXPLAIN: Final = frozenset({"analyze", "verbose", "query", "plan"})
_BEFORE_A_WORD: Final = re.compile(r"[\s(]+|--[^\n\r]*")
_WORD: Final = re.compile(r"\w+")
_OPTIONS: Final = re.compile(r"(?<=explain)\s*\([^()']*\)", re.IGNORECASE)
_COMMENT_MARK: Final = re.compile(r"/\*|\*/")


def require_read_statement(statement: str, place: str) -> None:
    """Raise `InvalidInput` if a statement does not query rows.

    The function also raises the error if the database driver would send only a part of the statement.
    """
    if "\0" in statement:  # PostgreSQL's driver would end the statement at a null character
        raise InvalidInput(f"{place}: the statement contains a null character. Leave it out", place=place)
    if any("\ud800" <= each <= "\udfff" for each in statement):
        raise InvalidInput(
            f"{place}: the statement contains a character that UTF-8 cannot encode. Write the statement in UTF-8",
            place=place,
        )
    words = _words(statement)
    first = found = next(words, "")
    if first == "explain":
        found = next((each for each in words if each not in _OF_EXPLAIN), "")
    if found not in ASKING - ({"explain", "show"} if first == "explain" else set()):
        name = f"{first} {found}".strip() if first == "explain" else first or "a character that is not a letter"
        raise InvalidInput(
            f"{place}: the statement begins with {quoted(name)}. "
            f"Begin the statement with {alternatives(sorted(ASKING))}",
            place=place,
        )


def _words(statement: str) -> Iterator[str]:
    """Yield the first words of a statement in lower case. Comments, parentheses and options are skipped."""
    at = 0
    while at < len(statement):
        if statement.startswith("/*", at):
            at = _comment_end(statement, at)
        elif found := _BEFORE_A_WORD.match(statement, at):
            at = found.end()
        elif found := _WORD.match(statement, at):
            yield found.group().lower()
            at = found.end()
            if options := _OPTIONS.match(statement, at):
                at = options.end()
        else:
            return


def _comment_end(statement: str, at: int) -> int:
    """Return the end of a comment. A comment may contain other comments, as in PostgreSQL.

    In SQLite, comments are not nested.
    """
    depth = 0
    for mark in _COMMENT_MARK.finditer(statement, at):
        depth += 1 if mark.group() == "/*" else -1
        if not depth:
            return mark.end()
    return len(statement)


# PostgreSQL roles for statements of users: roles that can only read. A statement can regain every right that its
# session had before, for example with `set_config('role', …)`. It is therefore not enough to remove the rights of the
# session for the time of one statement. The login role itself must have no rights over the server.


_MORE_THAN_TO_READ: Final = """
    SELECT rolname, CASE WHEN rolsuper THEN 'is a superuser' WHEN rolcreaterole THEN 'has CREATEROLE'
        WHEN rolreplication THEN 'has REPLICATION' ELSE 'reaches files or processes of the server' END,
        pg_catalog.quote_ident(coalesce(pg_catalog.current_schema(), 'public'))
    FROM pg_catalog.pg_roles
    WHERE pg_catalog.pg_has_role(session_user, oid, 'MEMBER') AND (rolsuper OR rolcreaterole OR rolreplication
        OR rolname IN ('pg_read_server_files', 'pg_write_server_files', 'pg_execute_server_program',
            'pg_signal_backend'))
    ORDER BY rolname = session_user DESC, rolsuper DESC, rolname LIMIT 1
"""
"""The query finds roles with more rights than the right to read.

A role counts even if its rights are not inherited, because a member can switch to the role.
"""


def require_reader(connection: Connection, place: str) -> None:
    """Raise `InvalidInput` if the PostgreSQL session can get rights over the server.

    The message of the error explains how to remove the session's rights over the server.
    """
    with connection.begin_nested() as whole:
        # The check uses the role of the login, even if a connection pool has set another role for the session.
        connection.exec_driver_sql("SET LOCAL SESSION AUTHORIZATION DEFAULT")
        found = connection.exec_driver_sql(_MORE_THAN_TO_READ).one_or_none()
        whole.rollback()
    if found is None:
        return
    role, right, schema = (escaped(str(each)) for each in found)
    raise InvalidInput(
        f"{place}: this connection has the role {role}, which {right}. A statement could use these rights. Connect "
        "as a role that can only read. Create such a role with: CREATE ROLE catalog_reader LOGIN PASSWORD '…'; GRANT "
        f"USAGE ON SCHEMA {schema} TO catalog_reader; GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO catalog_reader",
        place=place,
    )


ATTEMPTS: Final = 6
BUSY_SECONDS: Final = 30
"""The number of seconds that SQLite waits for another writer before it reports that the database is busy."""

_SQLITE_BUSY: Final = frozenset({5, 6})
_SQLITE_NOT_A_DATABASE: Final = 26
_SQLITE_DAMAGED: Final = frozenset({11, _SQLITE_NOT_A_DATABASE})
_SQLITE_DENIED: Final = 23
_SQLITE_STATEMENT: Final = frozenset({1, 8, 20, _SQLITE_DENIED, 25})
_OF_THE_CONNECTION: Final = frozenset(
    {
        *(sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH, sqlite3.SQLITE_PRAGMA),
        *(sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_SAVEPOINT),
    }
)
_AGAIN: Final = frozenset({"40001", "40P01", "55P03", "57P01", "57P02", "57P03"})
_STATEMENT: Final = frozenset({"0A", "22", "25", "42"})
_OF_THE_CALL: Final = frozenset({"ProgrammingError", "DataError"})
"""Classes of driver errors for an argument or a result that the driver cannot convert.

For example, a driver cannot convert the time `infinity`.
"""
_BEGIN: Final = "tidemark_begin"

_Made = TypeVar("_Made")
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Database:
    """Transactions on one database. Several processes may use the database concurrently."""

    engine: Engine
    place: str
    clock: Clock = field(default_factory=SystemClock, kw_only=True)
    ids: Ids = field(default_factory=SystemIds, kw_only=True)

    def write(self, work: Callable[[Connection], _Made]) -> _Made:
        """Run `work` in a transaction, commit, and return the result. If `work` raises, nothing is committed.

        If another transaction conflicts or the connection breaks, the transaction is tried again a few times. `work`
        must therefore change nothing outside the database.

        Raises:
            Unavailable: All attempts failed.
            CommitConflict: Another transaction created the same row.
            InvalidInput: The database refuses a statement.
            Corrupt: The database is damaged.
        """
        for failures in range(1, ATTEMPTS + 1):
            try:
                with self._connection("BEGIN IMMEDIATE") as connection:
                    return work(connection)
            except _RetryError as error:
                if failures == ATTEMPTS:
                    raise error.said from error.__cause__
                _logger.info("%s: attempt %d failed, trying again: %s", self.place, failures, error.said)
                self.clock.sleep_ms(random_pause_ms(self.ids, failures, first_ms=50, longest_ms=2_000))
        raise AssertionError("the last attempt returns or raises")

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Yield a read-only transaction that sees one state of the database. Raises the errors of `write`."""
        try:
            with self._connection("BEGIN", read_only=True) as connection:
                yield connection
        except _RetryError as error:
            raise error.said from error.__cause__

    def ask(self, statement: str) -> tuple[list[str], list[tuple[object, ...]]]:
        """Run one read-only statement of a user. Return the column names and the rows.

        Only statements that query rows are sent. In PostgreSQL, the role must not have rights over the server. The
        connection is closed after the statement, so no setting or lock remains.

        Raises:
            InvalidInput: The statement is not a query. Or the text contains several statements, because the second
                statement could run outside the read-only transaction. Or a SQLite statement concerns the connection or
                other files.
        """
        require_read_statement(statement, self.place)
        with self.read() as connection:
            if connection.dialect.name == "postgresql":
                connection.detach()
                require_reader(connection, self.place)
            driver: Any = connection.connection.dbapi_connection
            cursor = driver.cursor()
            is_sqlite = connection.dialect.name == "sqlite"
            if is_sqlite:
                driver.set_authorizer(_of_rows)
            try:
                # A prepared statement is always one statement. SQLite never accepts several statements.
                cursor.execute(statement, **({"prepare": True} if connection.dialect.name == "postgresql" else {}))
                if cursor.description is None:
                    raise InvalidInput("the statement returns no rows. Write a SELECT")
                return [each[0] for each in cursor.description], [tuple(row) for row in cursor.fetchall()]
            except connection.dialect.loaded_dbapi.Error as error:
                if _is_no_text(error):
                    raise InvalidInput(
                        f"{self.place}: the answer contains text that is not UTF-8. Select its bytes with "
                        "CAST(column AS BLOB)",
                        place=self.place,
                    ) from error
                raise _refused(error, self.place) from error
            finally:
                cursor.close()
                if is_sqlite:
                    driver.set_authorizer(None)

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()

    def _options(self, read_only: bool) -> dict[str, object]:  # noqa: FBT001  # one of two values
        if not read_only or self.engine.dialect.name != "postgresql":
            return {}
        return {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}

    @contextmanager
    def _connection(self, begin: str, *, read_only: bool = False) -> Iterator[Connection]:
        from sqlalchemy.exc import SQLAlchemyError

        try:
            with (
                self.engine.connect().execution_options(**{_BEGIN: begin}, **self._options(read_only)) as connection,
                connection.begin(),
                _reading(connection) if read_only else nullcontext(),
            ):
                yield connection
        except SQLAlchemyError as error:
            raise _meaning(error, self.place) from error


class _RetryError(Exception):
    """An error that another attempt may avoid. `said` is the error to raise if the last attempt fails."""

    def __init__(self, said: TidemarkError) -> None:
        super().__init__(str(said))
        self.said = said


def open_database(url: str, *, must_exist: bool, clock: Clock, ids: Ids) -> Database:
    """Return the database at `sqlite:///file` or `postgresql://…`. This function does not read or create anything.

    Raises:
        InvalidInput: The URL has another form.
        NotFound: The SQLite file is missing, and `must_exist` is True.
        Unavailable: The packages of the extra `catalog` are missing.
    """
    with needs(CATALOG, "the SQL catalog"):
        import sqlalchemy as sa

    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError as error:
        raise InvalidInput(f"{without_locations(shortened(url))!r} is not the URL of a database. {_FORMS}") from error
    backend = parsed.get_backend_name()
    place = _place(parsed)
    if backend == "sqlite":
        _require_file(parsed, place, must_exist=must_exist)
        engine = sa.create_engine(parsed.update_query_dict({"timeout": str(BUSY_SECONDS), **parsed.query}))
        _as_transactions(engine)
    elif backend == "postgresql":
        with needs(CATALOG, "a catalog in PostgreSQL"):
            engine = sa.create_engine(parsed.set(drivername="postgresql+psycopg"))
    else:
        raise InvalidInput(f"{place}: a catalog is stored in SQLite or PostgreSQL. {_FORMS}")
    return Database(engine, place, clock=clock, ids=ids)


_FORMS: Final = "Write sqlite:///catalog.db or postgresql://user@host/database"


def _place(url: URL) -> str:
    """Return the URL without its secret parts."""
    host = "" if url.host is None else url.host if url.port is None else f"{url.host}:{url.port}"
    return f"{url.get_backend_name()}://{host}/{url.database or ''}"


def _require_file(url: URL, place: str, *, must_exist: bool) -> None:
    if not url.database or url.database == ":memory:":
        raise InvalidInput(
            f"{place}: a catalog in memory ends with the process. Name a file, such as sqlite:///catalog.db"
        )
    file = Path(url.database)
    if not file.parent.is_dir():
        raise NotFound(f"{place}: the folder {file.parent} does not exist. Create the folder, or name another file")
    if file.is_dir():
        raise InvalidInput(
            f"{place}: this is a folder. Name a file in the folder, such as sqlite:///{file / 'catalog.db'}"
        )
    if must_exist and not file.is_file():
        raise NotFound(
            f"{place}: the catalog does not exist. Create the catalog with: tidemark catalog refresh --url …"
        )


def _as_transactions(engine: Engine) -> None:
    """Make SQLite begin a transaction when SQLAlchemy begins a transaction.

    Without this function, SQLite's driver would begin a transaction only at the first statement that writes.
    """
    from sqlalchemy import event

    @event.listens_for(engine, "connect")
    def _opened(connection: Any, _record: object) -> None:
        connection.isolation_level = None
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "cache_size=-65536", "secure_delete=ON"):
            connection.execute(f"PRAGMA {pragma}").close()

    @event.listens_for(engine, "begin")
    def _begun(connection: Connection) -> None:
        connection.exec_driver_sql(connection.get_execution_options().get(_BEGIN, "BEGIN"))


@contextmanager
def _reading(connection: Connection) -> Iterator[None]:
    """Make the transaction read-only. In SQLite, the whole connection is read-only until the end of the block."""
    if connection.dialect.name == "postgresql":  # connection options already make PostgreSQL read-only
        yield
        return
    connection.exec_driver_sql("PRAGMA query_only=1")
    try:
        yield
    finally:
        if not connection.invalidated:
            connection.exec_driver_sql("PRAGMA query_only=0")


def _of_rows(action: int, *_: object) -> int:
    """Decide which actions SQLite allows in a user's statement. `query_only` already prevents writes."""
    return sqlite3.SQLITE_DENY if action in _OF_THE_CONNECTION else sqlite3.SQLITE_OK


def _meaning(error: SQLAlchemyError, place: str) -> Exception:
    """Return the error to raise, wrapped in `_RetryError` if another attempt may succeed."""
    from sqlalchemy.exc import DBAPIError, IntegrityError

    if not isinstance(error, DBAPIError):
        return Unavailable(f"{place}: no connection is free, or the database does not answer. {_LATER}", place=place)
    if isinstance(error, IntegrityError):
        return CommitConflict(f"{place}: another process created the same row meanwhile. Try again", place=place)
    said = _refused(error.orig, place)
    again = isinstance(said, Unavailable) and (_is_passing(error.orig) or error.connection_invalidated)
    return _RetryError(said) if again else said


def _refused(cause: BaseException | None, place: str) -> TidemarkError:
    """Return our error for a database message about a statement or about the database itself."""
    state, code, text = getattr(cause, "sqlstate", None), _sqlite_code(cause), str(cause)
    if code == _SQLITE_NOT_A_DATABASE:
        return Corrupt(
            f"{place}: the file is not a database",
            advice="name another file. If the catalog was here, delete the file and refresh the catalog",
        )
    if code in _SQLITE_DAMAGED or _is_no_text(cause):
        return Corrupt(
            f"{place}: the catalog is damaged",
            advice="the catalog can be built again: delete the file, or name another, and refresh it",
        )
    if code == _SQLITE_DENIED:
        return InvalidInput(f"{place}: {_ONLY_READS}", place=place)
    is_statement = type(cause).__name__ in _OF_THE_CALL or code in _SQLITE_STATEMENT
    if is_statement or (state is not None and state[:2] in _STATEMENT):
        fault = _fault(text, _OF_STATEMENTS)
        return InvalidInput(f"{place}: {fault or 'the database refuses the statement. Correct it'}", place=place)
    fault = _fault(text, _OF_CONNECTIONS)
    return Unavailable(f"{place}: {fault or f'the database does not answer. {_CHECK}'}. {_LATER}", place=place)


_LATER: Final = "Try again when the database can be reached"
_CHECK: Final = "Check that the database runs, and check the host and port in the URL"
_ONLY_READS: Final = "only statements that read are allowed. Write a SELECT that changes nothing and reads only tables"

_OF_STATEMENTS: Final = (
    (r"no such column: (?P<name>\S+)", "unknown column {name}. Use a column of its table"),
    (r"column (?P<name>\S+) does not exist", "unknown column {name}. Use a column of its table"),
    (r"no such table: (?P<name>\S+)", "unknown table {name}. Use a table of the catalog, such as tables or splits"),
    (r"relation (?P<name>\S+) does not exist", "unknown table {name}. Use a table of the catalog, such as splits"),
    (r"no such function: (?P<name>\S+)", "unknown function {name}. Use a function of the database"),
    (r"function (?P<name>[^(\s]+)\(.*\) does not exist", "no function {name} takes these arguments. Correct the call"),
    (
        r"wrong number of arguments to function (?P<name>[^(\s]+)",
        "{name} has a wrong number of arguments. Correct the call",
    ),
    (r'near "(?P<name>.*?)": syntax error', "the statement is not valid SQL near {name}. Correct it there"),
    (r'syntax error at or near "(?P<name>.*?)"', "the statement is not valid SQL near {name}. Correct it there"),
    (r'unrecognized token: "(?P<name>.*?)"', "the statement is not valid SQL near {name}. Correct it there"),
    (r"incomplete input|at end of input", "the statement is not valid SQL: its end is missing. Correct it"),
    (
        r"(?:ambiguous column name: |column reference )(?P<name>\S+)",
        "{name} is in several tables. Write the name of the table before it",
    ),
    (r'invalid input syntax for type (?P<type>[\w ]+): "(?P<name>.*?)"', "{name} is not a value of the type {type}"),
    (
        r"permission denied for (?P<type>\w+) (?P<name>\S+)",
        "this role has no right to use the {type} {name}. Grant the right",
    ),
    (r"readonly database|read-only transaction", _ONLY_READS),
    (
        r"one statement at a time|multiple commands",
        "the text contains several statements. Send one statement at a time",
    ),
    (r"division by zero", "the statement divides by zero. Use nullif for the divisor"),
    (
        r"too big|too large|out of range|too small|overflow",
        "a value is out of the range of its type or of Python. Cast the value to another type",
    ),
    (r"binding|parameter", "the statement has a parameter without a value. Write the value into the statement"),
)
"""The faults of statements: patterns for the messages of SQLite and PostgreSQL, and our message for each fault."""

_OF_CONNECTIONS: Final = (
    (
        r"password authentication failed|no password supplied|pg_hba|role .* does not exist",
        "the database refuses this user. Check the user and the password in the URL",
    ),
    (
        r"database (?P<name>\S+) does not exist",
        "the database {name} does not exist. Create the database, or name another database in the URL",
    ),
    (r"resolve|translate host|Name or service", "the host is unknown. Check the host in the URL"),
    (r"is locked", "another process writes to the database now"),
    (r"unable to open", "the file cannot be opened. Check the permissions and the folder of the file"),
    (r"disk is full|No space left", "the disk is full. Free some space"),
    (
        r"statement timeout|canceling statement",
        "the server ended the statement, for example after its time limit",
    ),
)
"""The faults of connections: patterns for the messages of the drivers, and our message for each fault."""


def _fault(text: str, known: Sequence[tuple[str, str]]) -> str | None:
    """Return our message for a known fault, with the names from the database's message.

    Return None for an unknown fault.
    """
    for pattern, said in known:
        if found := re.search(pattern, text):
            names = {
                key: quoted(each.strip('"')) if key == "name" else shortened(each)
                for key, each in found.groupdict().items()
            }
            return said.format(**names)
    return None


def _is_no_text(cause: BaseException | None) -> bool:
    """Return True if SQLite's driver could not decode text as UTF-8. The driver's own errors have no SQLite code."""
    return isinstance(cause, sqlite3.OperationalError) and _sqlite_code(cause) is None


def _is_passing(cause: BaseException | None) -> bool:
    return _sqlite_code(cause) in _SQLITE_BUSY or getattr(cause, "sqlstate", None) in _AGAIN


def _sqlite_code(cause: BaseException | None) -> int | None:
    code = getattr(cause, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


FORMAT: Final = "tidemark-catalog"
FIRST: Final = 1

Step = Callable[[Connection], None]
STEPS: Mapping[int, Step] = {}
"""The upgrade steps.

Each version except the first has one step that upgrades the tables to this version. `schema` creates a new database at
the newest version.
"""

_LOCK: Final = 8_239_611_035_147


def prepare(database: Database, *, must_exist: bool, steps: Mapping[int, Step] = STEPS) -> None:
    """Create the tables in an empty database, or upgrade older tables, in one transaction.

    If the tables are up to date, the transaction only reads.

    Raises:
        InvalidInput: The database contains tables of another application.
        Unsupported: A newer release created the tables.
        NotFound: The database is empty, and `must_exist` is True.
    """
    newest = max((FIRST, *steps))
    with database.read() as connection:
        found = _found(connection, database.place, newest)
    if found == newest:
        return
    if found is None and must_exist:
        raise NotFound(
            f"{database.place}: the catalog does not exist. Create the catalog with: tidemark catalog refresh --url …",
            place=database.place,
        )
    database.write(lambda connection: _bring_forward(connection, database.place, steps))


def _bring_forward(connection: Connection, place: str, steps: Mapping[int, Step]) -> None:
    if connection.dialect.name == "postgresql":  # SQLite has only one writer
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")
    newest = max((FIRST, *steps))
    found = _found(connection, place, newest)
    if found is None:
        METADATA.create_all(connection)
        connection.execute(MARKER.insert(), {"format": FORMAT, "version": newest})
        return
    for version in range(found + 1, newest + 1):
        steps[version](connection)
        connection.execute(MARKER.update().values(version=version))
        _logger.info("the catalog %s is of version %d now", place, version)


def _found(connection: Connection, place: str, newest: int) -> int | None:
    """Return the version of the tables, or None for an empty database. Raises an error for foreign or newer tables."""
    inspector = sa.inspect(connection)
    names = inspector.get_table_names()
    if not names:
        return None
    if MARKER.name not in names:
        raise _foreign(place, f"the database contains the tables {quoted(', '.join(sorted(names)))}")
    columns = {each["name"] for each in inspector.get_columns(MARKER.name)}
    if columns != set(MARKER.c.keys()):
        raise _foreign(place, f"the table {MARKER.name} has the columns {quoted(', '.join(sorted(columns)))}")
    rows = [(str(name), int(version)) for name, version in connection.execute(MARKER.select())]
    if [name for name, _ in rows] != [FORMAT]:
        raise _foreign(place, f"the table {MARKER.name} contains {rows[:3]}")
    version = rows[0][1]
    if version > newest:
        raise Unsupported(
            f"{place}: the catalog has version {version}, but this release supports up to {newest}. Upgrade Tidemark"
        )
    if version == newest:
        _require_columns(inspector, place)
    return version


def _require_columns(inspector: sa.Inspector, place: str) -> None:
    known = {name: several for (_, name), several in inspector.get_multi_columns().items()}
    for table in METADATA.tables.values():
        there = {each["name"] for each in known.get(table.name, ())}
        if missing := sorted(set(table.c.keys()) - there):
            raise _foreign(place, f"its table {table.name} lacks the columns {quoted(', '.join(missing))}")


def _foreign(place: str, found: str) -> InvalidInput:
    return InvalidInput(
        f"{place}: the database is neither empty nor a catalog of Tidemark: {found}. Give the catalog its own "
        "database, or in PostgreSQL its own schema (?options=-csearch_path%3Dname)",
        place=place,
    )
