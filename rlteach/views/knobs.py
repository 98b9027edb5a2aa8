"""The widget of a knob: made from what settings.py says of a field, read, and turned from outside."""

from __future__ import annotations

import math
from typing import Any

from rlteach.views.settings import Knob

try:
    import ipywidgets
except ModuleNotFoundError:
    raise ModuleNotFoundError("rl.widgets needs ipywidgets: pip install ipywidgets, and restart the kernel; "
                              "rl.view shows a run without it") from None


def control(k: Knob, value: Any) -> Any:
    """The widget of a knob; its description is what the config says about the field."""
    common = {"description": k.name, "tooltip": k.description, "style": {"description_width": "130px"},
              "layout": {"width": "370px"}}
    if k.kind == "choice":
        return ipywidgets.Dropdown(options=k.options, value=value, **common)
    if k.kind == "bool":
        return ipywidgets.Checkbox(value=value, **common)
    if k.kind == "typed":
        return ipywidgets.BoundedIntText(min=k.low, max=k.high, value=value, **common)
    if k.kind == "log":
        return ipywidgets.FloatLogSlider(
            min=math.log10(k.low), max=math.log10(k.high), step=k.step, value=value, readout_format=".1e",
            continuous_update=False, **common)
    kind = ipywidgets.IntSlider if k.kind == "int" else ipywidgets.FloatSlider
    more = {} if k.kind == "int" else {"readout_format": ".3g"}
    return kind(min=k.low, max=k.high, step=k.step, value=value, continuous_update=False, **common, **more)


def read(widget: Any) -> Any:
    """Its value; of a logarithmic slider with two digits, which is what it shows."""
    return float(f"{widget.value:.1e}") if isinstance(widget, ipywidgets.FloatLogSlider) else widget.value


def put(widget: Any, value: Any) -> None:
    """Turn it to a value; a slider that ends before it is made longer."""
    if hasattr(widget, "max") and not isinstance(widget, ipywidgets.BoundedIntText):
        place = math.log10(value) if isinstance(widget, ipywidgets.FloatLogSlider) else value
        widget.max, widget.min = max(widget.max, place), min(widget.min, place)
    widget.value = value
