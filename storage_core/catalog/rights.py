"""Which roles of PostgreSQL may send a statement of anybody: those that cannot get more rights than to read.

A statement can take back every right that its session ever had, by `set_config('role', …)` and its like. Rights that
are lowered for a statement therefore protect nothing: the role that logged in must not have them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from storage_core.errors import InvalidInput
from storage_core.foreign_text import escaped

if TYPE_CHECKING:
    from sqlalchemy import Connection

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
"""A member counts whether or not it inherits: it can become the role."""


def require_reader(connection: Connection, place: str) -> None:
    """Raise `InvalidInput` for a session of PostgreSQL that can get rights over the server, and say how to ask."""
    with connection.begin_nested() as whole:
        # The role that logged in, also where a pool of connections has set another for the session.
        connection.exec_driver_sql("SET LOCAL SESSION AUTHORIZATION DEFAULT")
        found = connection.exec_driver_sql(_MORE_THAN_TO_READ).one_or_none()
        whole.rollback()
    if found is None:
        return
    role, right, schema = (escaped(str(each)) for each in found)
    raise InvalidInput(
        f"{place}: this connection may act as {role}, which {right}. A statement could use these rights. Connect as "
        "a role that can only read. Make one with: CREATE ROLE catalog_reader LOGIN PASSWORD '…'; "
        f"GRANT USAGE ON SCHEMA {schema} TO catalog_reader; "
        f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO catalog_reader",
        place=place,
    )
