"""What a learner is told about an answer to an exercise."""

from __future__ import annotations


def show_verdict(name: str, off: str | None) -> None:
    """Print "05.2: right", or "05.2: not yet: " and what is off."""
    print(f"{name}: right" if off is None else f"{name}: not yet: {off}")  # noqa: T201


def say(text: str) -> None:
    """Print what somebody asked to be told."""
    print(text)  # noqa: T201
