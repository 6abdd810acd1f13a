"""The freshness that a table declares, as Dagster judges it (decision 0164)."""

from __future__ import annotations

from datetime import timedelta

from dagster import FreshnessPolicy

from storage_core.declaration import TableDeclaration


def freshness_policy(declaration: TableDeclaration, step: str) -> FreshnessPolicy | None:
    """Return the policy of the asset of this step: the one that brings rows has it, where a freshness is declared.

    That is `ingested` of a table with a landing place and `merged` of a keyed one; other tables get rows from no step.
    """
    brings = "ingested" if declaration.landing else "merged"
    if declaration.freshness is None or step != brings:
        return None
    return FreshnessPolicy.time_window(fail_window=timedelta(milliseconds=declaration.freshness))
