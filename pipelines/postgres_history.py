"""Dagster's history in PostgreSQL, at the URL that `TIDEMARK_DAGSTER_POSTGRES` of the environment holds.

The URL stays out of every file, for it may hold a password. Dagster's storage writes for the driver psycopg2, which
SQLAlchemy from 2.1 on takes only when a URL names it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Self

from dagster._config.config_schema import UserConfigSchema
from dagster._serdes import ConfigurableClassData
from dagster_postgres import DagsterPostgresStorage

from pipelines.environment import POSTGRES
from storage_core.errors import InvalidInput

_SCHEMES = ("postgresql", "postgres", "postgresql+psycopg2")


class PostgresHistory(DagsterPostgresStorage):
    """The storage of an instance whose settings are those of `pipelines.instance`."""

    @classmethod
    def config_type(cls) -> UserConfigSchema:
        """Return that there is nothing to set: the environment says it all."""
        return {}

    @classmethod
    def from_config_value(cls, inst_data: ConfigurableClassData | None, config_value: Mapping[str, Any]) -> Self:
        """Open the database, and make its tables where there are none. Raises `InvalidInput` for what is no URL."""
        del config_value
        return cls(postgres_url=database_url(os.environ), inst_data=inst_data)


def database_url(environment: Mapping[str, str]) -> str:
    """Return the URL of the database with its driver. Raises `InvalidInput`, which does not repeat it."""
    scheme, separator, rest = environment.get(POSTGRES, "").partition("://")
    if scheme not in _SCHEMES or not separator:
        raise InvalidInput(
            f"{POSTGRES} is {'no URL of PostgreSQL' if environment.get(POSTGRES) else 'not set'}, where this instance "
            "keeps its history; set it to postgresql://USER:PASSWORD@HOST:5432/DATABASE in every process of Dagster"
        )
    return f"postgresql+psycopg2://{rest}"
