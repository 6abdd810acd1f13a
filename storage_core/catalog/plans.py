"""How a database answers a statement."""

from __future__ import annotations

from sqlalchemy import Connection

from storage_core.catalog.queries import Statement


def plan_of(connection: Connection, statement: Statement) -> str:
    """Return the plan of a statement, a line per step, as the database says it. The statement is not run."""
    text = str(statement.compile(connection, compile_kwargs={"literal_binds": True}))
    if connection.dialect.name == "postgresql":
        found = connection.exec_driver_sql(f"EXPLAIN {text}")
        return "\n".join(str(row[0]) for row in found)
    return "\n".join(str(row[-1]) for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}"))
