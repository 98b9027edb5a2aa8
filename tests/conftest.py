"""One thread: the models here are so small that a second one only costs time.

known_gaps.txt lists tests that were written before what they ask for: each is run, is expected to
fail, and is taken off the list by whoever mends it.
"""

from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)
GAPS = (Path(__file__).parent / "known_gaps.txt").read_text(encoding="utf-8").splitlines()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.removeprefix("tests/") in GAPS:
            item.add_marker(pytest.mark.xfail(reason="known gap: tests/known_gaps.txt", strict=False))
