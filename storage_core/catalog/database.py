"""The database of a catalogue: its place, transactions, and what its errors mean.

What an error means is decided by its class and by the code that the database gave it, never by the text of a message.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from storage_core.catalog.asking import require_read_statement
from storage_core.catalog.rights import require_reader
from storage_core.clock import Clock, SystemClock
from storage_core.errors import CommitConflict, Corrupt, InvalidInput, NotFound, TidemarkError, Unavailable
from storage_core.extras import CATALOG, needs
from storage_core.foreign_text import shortened, without_locations
from storage_core.ids import Ids, SystemIds, random_pause_ms

if TYPE_CHECKING:
    from sqlalchemy import URL, Connection, Engine
    from sqlalchemy.exc import SQLAlchemyError

ATTEMPTS: Final = 6
BUSY_SECONDS: Final = 30
"""How long SQLite waits for another writer before it says that the database is busy."""

_SQLITE_BUSY: Final = frozenset({5, 6})
_SQLITE_DAMAGED: Final = frozenset({11, 26})
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
"""Errors of a driver about what it was given, or what it cannot make of an answer, such as a time without end."""
_BEGIN: Final = "tidemark_begin"

_Made = TypeVar("_Made")
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Database:
    """Transactions on one database. Any number of processes may work on it."""

    engine: Engine
    place: str
    clock: Clock = field(default_factory=SystemClock, kw_only=True)
    ids: Ids = field(default_factory=SystemIds, kw_only=True)

    def write(self, work: Callable[[Connection], _Made]) -> _Made:
        """Return what `work` returns once all that it did is committed; where it raises, nothing is.

        It is tried again, a few times, where another transaction was in the way or the connection broke, so it must do
        nothing outside of the database. Raises `Unavailable` after that, `CommitConflict` for a row that another
        transaction has made meanwhile, `InvalidInput` and `Corrupt`.
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
        """Give a transaction that sees one state of the database and changes nothing. Raises as `write` does."""
        try:
            with self._connection("BEGIN", read_only=True) as connection:
                yield connection
        except _RetryError as error:
            raise error.said from error.__cause__

    def ask(self, statement: str) -> tuple[list[str], list[tuple[object, ...]]]:
        """Return the names and rows of one statement of anybody, which can change nothing.

        Only statements that ask are sent (`catalog.asking`), in PostgreSQL only by roles without rights over the server
        (`catalog.rights`). There the connection ends with the question, so that no setting or lock outlives it. Raises
        `InvalidInput` for others, for several in one text: the second could begin outside of what is read only; and
        for one of SQLite that is about the connection, which goes on after it, or about other files.
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
                # Prepared, it can be one statement only; SQLite takes no more anyway.
                cursor.execute(statement, **({"prepare": True} if connection.dialect.name == "postgresql" else {}))
                if cursor.description is None:
                    raise InvalidInput("the statement returns no rows; ask with select")
                return [each[0] for each in cursor.description], [tuple(row) for row in cursor.fetchall()]
            except connection.dialect.loaded_dbapi.Error as error:
                if _is_no_text(error):
                    raise InvalidInput(
                        f"{self.place}: the answer holds text that is not UTF-8. Ask for its bytes: "
                        "CAST(column AS BLOB)",
                        place=self.place,
                    ) from error
                advice = "; here statements ask for rows, with select" if _sqlite_code(error) == _SQLITE_DENIED else ""
                raise _refused(error, f"{self.place}: {shortened(str(error).strip())}{advice}", self.place) from error
            finally:
                cursor.close()
                if is_sqlite:
                    driver.set_authorizer(None)

    def close(self) -> None:
        """Close every connection."""
        self.engine.dispose()

    def _options(self, read_only: bool) -> dict[str, object]:  # noqa: FBT001  # one of two
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
    """What may go well another time; `said` is the error where it does not."""

    def __init__(self, said: TidemarkError) -> None:
        super().__init__(str(said))
        self.said = said


def open_database(url: str, *, must_exist: bool, clock: Clock, ids: Ids) -> Database:
    """Return the database at `sqlite:///file` or `postgresql://…`. Nothing is read or made yet.

    Raises `InvalidInput` for another URL, `NotFound` for a file of SQLite that `must_exist`, `Unavailable` without the
    packages of the extra `catalog`.
    """
    with needs(CATALOG, "the SQL catalogue"):
        import sqlalchemy as sa

    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError as error:
        raise InvalidInput(f"{without_locations(shortened(url))!r} is no URL of a database; {_FORMS}") from error
    backend = parsed.get_backend_name()
    place = _place(parsed)
    if backend == "sqlite":
        _require_file(parsed, place, must_exist=must_exist)
        engine = sa.create_engine(parsed.update_query_dict({"timeout": str(BUSY_SECONDS), **parsed.query}))
        _as_transactions(engine)
    elif backend == "postgresql":
        with needs(CATALOG, "a catalogue in PostgreSQL"):
            engine = sa.create_engine(parsed.set(drivername="postgresql+psycopg"))
    else:
        raise InvalidInput(f"{place}: a catalogue is in SQLite or PostgreSQL; {_FORMS}")
    return Database(engine, place, clock=clock, ids=ids)


_FORMS: Final = "write sqlite:///catalog.db or postgresql://user@host/database"


def _place(url: URL) -> str:
    """The URL without what may be secret."""
    host = "" if url.host is None else url.host if url.port is None else f"{url.host}:{url.port}"
    return f"{url.get_backend_name()}://{host}/{url.database or ''}"


def _require_file(url: URL, place: str, *, must_exist: bool) -> None:
    if not url.database or url.database == ":memory:":
        raise InvalidInput(f"{place}: name a file, as in sqlite:///catalog.db; memory is gone with the process")
    file = Path(url.database)
    if not file.parent.is_dir():
        raise NotFound(f"{place}: there is no folder {file.parent}; make it, or name another file")
    if file.is_dir():
        raise InvalidInput(f"{place}: this is a folder; name a file in it, as in sqlite:///{file / 'catalog.db'}")
    if must_exist and not file.is_file():
        raise NotFound(f"{place}: there is no catalogue; make it with: tidemark catalog refresh --url …")


def _as_transactions(engine: Engine) -> None:
    """Let SQLite begin where SQLAlchemy does; its driver would begin at the first statement that writes."""
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
    """Let the transaction change nothing. Of SQLite it is the connection that is made so, until it goes back."""
    if connection.dialect.name == "postgresql":  # whose options say so
        yield
        return
    connection.exec_driver_sql("PRAGMA query_only=1")
    try:
        yield
    finally:
        if not connection.invalidated:
            connection.exec_driver_sql("PRAGMA query_only=0")


def _of_rows(action: int, *_: object) -> int:
    """Tell SQLite what a statement of anybody may do; that it writes nothing is said by `query_only`."""
    return sqlite3.SQLITE_DENY if action in _OF_THE_CONNECTION else sqlite3.SQLITE_OK


def _meaning(error: SQLAlchemyError, place: str) -> Exception:
    """Return the error of ours, in a `_RetryError` where another attempt may go well."""
    from sqlalchemy.exc import DBAPIError, IntegrityError

    if not isinstance(error, DBAPIError):
        return Unavailable(f"{place}: {shortened(str(error))}", place=place)
    text = f"{place}: {shortened(str(error.orig).strip())}"
    if isinstance(error, IntegrityError):
        return CommitConflict(f"{text}; another process has made it meanwhile, try again", place=place)
    said = _refused(error.orig, text, place)
    again = isinstance(said, Unavailable) and (_is_passing(error.orig) or error.connection_invalidated)
    return _RetryError(said) if again else said


def _refused(cause: BaseException | None, text: str, place: str) -> TidemarkError:
    """What the database says of a statement, or of itself."""
    state, code = getattr(cause, "sqlstate", None), _sqlite_code(cause)
    if code in _SQLITE_DAMAGED or _is_no_text(cause):
        return Corrupt(text, advice="the catalogue is derived: delete the file, or name another, and refresh it")
    is_statement = type(cause).__name__ in _OF_THE_CALL or code in _SQLITE_STATEMENT
    if is_statement or (state is not None and state[:2] in _STATEMENT):
        return InvalidInput(text, place=place)
    return Unavailable(f"{text}; try again when the database can be reached", place=place)


def _is_no_text(cause: BaseException | None) -> bool:
    """Whether the driver of SQLite could not read text as UTF-8: its own errors of work have no code of SQLite."""
    return isinstance(cause, sqlite3.OperationalError) and _sqlite_code(cause) is None


def _is_passing(cause: BaseException | None) -> bool:
    return _sqlite_code(cause) in _SQLITE_BUSY or getattr(cause, "sqlstate", None) in _AGAIN


def _sqlite_code(cause: BaseException | None) -> int | None:
    code = getattr(cause, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF
