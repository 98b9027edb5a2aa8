"""`pytest -p plant_bug`: the whole session runs under the bug of the museum that RLTEACH_BUG names."""

from __future__ import annotations

import os
from contextlib import ExitStack

import pytest

from rlteach.course import museum

_planted = ExitStack()


def pytest_configure(config: pytest.Config) -> None:
    """Before the first test file is imported."""
    _planted.enter_context(museum.bug(os.environ["RLTEACH_BUG"]))


def pytest_unconfigure(config: pytest.Config) -> None:
    _planted.close()
