"""What the job that refreshes the SQL catalogue is asked to do, and its form as command-line arguments."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from jobs.requests.request import any_parser, parse_as
from jobs.spark.master import LOCAL_SPARK
from storage_core.errors import InvalidInput

CATALOG_URL: Final = "TIDEMARK_CATALOG"
"""The variable of the environment that has the URL of the catalogue: there may be a password in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogRequest:
    """One refresh of the catalogue. `tables` are `name=uri`; without a `url` the environment has it."""

    tables: tuple[str, ...] = ()
    url: str | None = None
    run_id: str | None = None
    master: str = LOCAL_SPARK

    @property
    def places(self) -> dict[str, str]:
        """The URIs of the tables by their names."""
        return {name: uri for name, _, uri in (each.partition("=") for each in self.tables)}


def catalog_url(url: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """Return the URL of the catalogue: the one given, else that of the environment. Raises `InvalidInput`."""
    found = url or environment.get(CATALOG_URL)
    if not found:
        raise InvalidInput(
            f"there is no URL of a catalogue; give --url sqlite:///catalog.db or postgresql://…, or set {CATALOG_URL}"
        )
    return found


def parser(job: str, summary: str) -> argparse.ArgumentParser:
    """Return the argument parser of the job."""
    result = any_parser(job, summary)
    result.add_argument("--table", dest="tables", action="append", default=[], help="NAME=URI; give one per table")
    result.add_argument("--url", help=f"the database (default: {CATALOG_URL} of the environment)")
    result.add_argument("--run-id", help="the run that asked for it")
    return result


def parse(arguments: argparse.Namespace) -> CatalogRequest:
    """Return the request for parsed arguments."""
    return parse_as(CatalogRequest, arguments)
