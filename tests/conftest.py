"""What every test sees: Hypothesis without deadlines, and no setting of the person who runs the tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

# On two busy cores a deadline is a coin toss. A failing example is printed so that it can be replayed.
settings.register_profile("tidemark", deadline=None, print_blob=True)
settings.load_profile("tidemark")


@pytest.fixture(scope="session", autouse=True)
def _no_personal_settings() -> Iterator[None]:
    """No test writes into the Dagster instance of the person who runs it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("DAGSTER_HOME", raising=False)
        patch.setenv("DAGSTER_DISABLE_TELEMETRY", "1")
        yield
