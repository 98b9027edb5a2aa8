"""A plug-in by its name, "package.module:function", found from the working directory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from rlteach.agent.plugins import Kind, PluginError, plugin_of


def load_plugin(name: str, *kinds: Kind) -> Callable[..., Any]:
    """The decorated function of that name.

    Raises:
        PluginError: there is no such module or function, importing it fails, or it is another kind.
    """
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise PluginError(f"the plug-in {name!r} is no name: write it as package.module:function")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(import_module(module), function)
    except Exception as error:  # whatever a user's module does when it is run
        raise PluginError(f"the plug-in {name!r} cannot be loaded ({type(error).__name__}: {error}): "
                          "mend it, or start where it is") from None
    plugin_of(found, *kinds)
    return found
