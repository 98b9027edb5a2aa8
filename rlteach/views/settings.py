"""Settings of a laboratory: knobs made from Config's own fields, and how two settings differ.

Bounds, choices and descriptions are those of rlteach/config.py; where a field has no upper bound, or one
that no slider can reach, the slider ends at a multiple of the present value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from rlteach.config import Config, ConfigError

KNOBS = ("temperature", "group_size", "policy_lr", "kl_coefficient", "kl_estimator", "selection", "advantage",
         "token_weighting", "negative_factor", "judger", "total_steps", "seed")
SHORT = {"policy_lr": "lr"}
REACH = {"float": 10, "int": 4, "log": 100}  # a slider ends at this multiple of the present value
LARGE = 10_000  # integers above it are typed, not slid


@dataclass(frozen=True)
class Knob:
    """One field: kind says how it is turned; low, high, step where it is a number; else its options."""

    name: str
    kind: Literal["choice", "bool", "int", "float", "log", "typed"]
    description: str
    low: float = 0
    high: float = 0
    step: float = 1
    options: tuple[Any, ...] = ()


def knob(name: str, config: Config) -> Knob:
    """The knob of a field, around its value in `config`.

    Raises:
        ConfigError: there is no such field, or it is neither a number, a choice nor a yes or no.
    """
    field = Config.model_fields.get(name)
    if field is None:
        raise ConfigError(f"there is no config field {name!r}: see `rlteach.Config.model_fields` for names")
    kind, text, value = field.annotation, field.description or "", getattr(config, name)
    if get_origin(kind) is Literal:
        return Knob(name, "choice", text, options=get_args(kind))
    if kind is bool:
        return Knob(name, "bool", text, options=(False, True))
    if kind not in (int, float):
        raise ConfigError(f"{name} cannot be a knob: it is no number, choice or yes and no; "
                          f"set it in code, as in lab.set({name}=...)")
    bounds = {key: getattr(part, key) for part in field.metadata for key in ("ge", "gt", "le", "lt")
              if hasattr(part, key)}
    if kind is int:
        return _integer(name, text, bounds, value)
    return _number(name, text, bounds, value)


def _integer(name: str, text: str, bounds: Mapping[str, int], value: int) -> Knob:
    low = bounds.get("ge", bounds.get("gt", 0) + 1 if "gt" in bounds else 0)
    bound = bounds.get("le", bounds["lt"] - 1 if "lt" in bounds else None)
    if bound is not None and bound > LARGE:
        return Knob(name, "typed", text, low, bound)
    high = REACH["int"] * max(value, 1)
    return Knob(name, "int", text, low, high if bound is None else min(high, bound))


def _number(name: str, text: str, bounds: Mapping[str, float], value: float) -> Knob:
    bound = bounds.get("le", bounds.get("lt", math.inf))
    if name.endswith("_lr"):
        reach = REACH["log"]
        return Knob(name, "log", text, value / reach, min(value * reach, bound), 0.05)
    high = min(REACH["float"] * (value or 0.1), bound)
    step = 10.0 ** (math.floor(math.log10(high)) - 2)
    low = bounds["ge"] if "ge" in bounds else bounds["gt"] + step if "gt" in bounds else 0
    return Knob(name, "float", text, low, high, step)


def differences(config: Config, base: Config) -> dict[str, tuple[Any, Any]]:
    """field -> (its value in base, its value in config), where they differ."""
    return {name: (old, new) for name in Config.model_fields if name != "name"
            and (old := getattr(base, name)) != (new := getattr(config, name))}


def label(config: Config, base: Config, otherwise: str) -> str:
    """lr 4e-4 -> 1e-3, group size 16 -> 4; `otherwise` where nothing differs."""
    parts = [f"{SHORT.get(name, name.replace('_', ' '))} {number(old)} -> {number(new)}"
             for name, (old, new) in differences(config, base).items()]
    return ", ".join(parts) or otherwise


def line(preset: str, config: Config) -> str:
    """The Python that makes this config: rl.Config.preset("tiny", group_size=4)."""
    changed = differences(config, Config.preset(preset))
    return "rl.Config.preset(" + ", ".join(
        [f'"{preset}"', *(f"{name}={plain(new)}" for name, (_, new) in changed.items())]) + ")"


def plain(value: Any) -> str:
    """As Python writes it, with double quotes around a simple text."""
    text = repr(value)
    return f'"{value}"' if isinstance(value, str) and text == f"'{value}'" and '"' not in value else text


def number(value: Any) -> str:
    """4e-4, 0.05, 16; what is no float as it is written."""
    if not isinstance(value, float) or value == 0 or 0.01 <= abs(value) < 1e5:
        return f"{value:g}" if isinstance(value, float) else str(value)
    mantissa, _, exponent = f"{value:.3e}".partition("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"
