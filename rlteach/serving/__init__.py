"""OpenAI-compatible HTTP over an Engine."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {"serve": "rlteach.serving.server", "Server": "rlteach.serving.server",
         "ServeError": "rlteach.serving.ports"}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'rlteach.serving' has no attribute {name!r}")
