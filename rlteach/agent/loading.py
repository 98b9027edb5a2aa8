"""A plug-in by its name, as a config gives it: "package.module:function" or "path/to/file.py:function".

The working directory counts as a place of packages, as it does under `python -m`; so plugins/rollout.py
may say `from .other import x`, and "plugins/rollout.py:f" and "plugins.rollout:f" are the same function.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from rlteach.agent.plugins import Kind, PluginError, is_plugin, plugin_of

PACKAGE = Path(__file__).resolve().parents[1]
WAYS = "package.module:function or path/to/file.py:function"


def load_plugin(name: str, *kinds: Kind) -> Any:
    """The decorated function of that name, of one of these kinds.

    Raises:
        PluginError: there is no such module, file or function, it cannot be imported, or it is no plug-in
            of these kinds. The message names the plug-in and the remedy.
    """
    place, colon, function = name.rpartition(":")
    if not colon or not place.strip() or not function.isidentifier():
        raise PluginError(f"the plug-in {name!r} is no name: write it as {WAYS}")
    module = _module(name, *_where(name, place.strip()))
    if not hasattr(module, function):
        found = [n for n, value in vars(module).items() if is_plugin(value, *kinds)]
        have = f"it has {', '.join(found)}" if found else f"put @{kinds[0]} above a function there"
        raise PluginError(f"the plug-in {name!r}: {place} has no function {function!r}: {have}")
    try:
        plugin_of(getattr(module, function), *kinds)
    except PluginError as error:
        raise PluginError(f"the plug-in {name!r}: {error}") from None
    return getattr(module, function)


def _where(name: str, place: str) -> tuple[str, Path | None]:
    """(dotted name, the folder that it is found in; None: wherever Python finds it)."""
    here = Path.cwd().resolve()
    if not place.endswith(".py"):
        if "/" in place or "\\" in place or not all(part.isidentifier() for part in place.split(".")):
            raise PluginError(f"the plug-in {name!r} is no name: write it as {WAYS}")
        name_of_root = place.split(".")[0]
        root = here / name_of_root
        mine = root.is_dir() or root.with_suffix(".py").is_file()
        return place, here if mine and not _is_taken(name_of_root) else None
    file = Path(place).expanduser().resolve()
    if not file.is_file():
        raise PluginError(f"the plug-in {name!r}: there is no file {file}: paths count from the working "
                          "directory; check the path, or start where it is right")
    if file.is_relative_to(PACKAGE):  # such as a template's plug-ins, in a checkout
        return ".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts), None
    base = file.parent
    while (base / "__init__.py").is_file():
        base = base.parent
    inside = file.relative_to(here).with_suffix("").parts if file.is_relative_to(here) else ()
    if inside and all(part.isidentifier() for part in inside):  # folders without __init__.py, too
        base = here
    dotted = ".".join(file.relative_to(base).with_suffix("").parts)
    if not all(part.isidentifier() for part in dotted.split(".")):
        raise PluginError(f"the plug-in {name!r}: a module cannot be named {file.name}: use letters, digits "
                          "and _ only")
    return dotted, base


def _module(name: str, dotted: str, base: Path | None) -> ModuleType:
    """Import it, from `base` if there is one."""
    if base is not None:
        root = dotted.split(".")[0]
        if _is_taken(root) or not _forget_others(root, base):
            raise PluginError(f"the plug-in {name!r}: {root!r} is the name of another module of Python: "
                              "give the file or its folder another name")
        sys.path[:] = [str(base), *(place for place in sys.path if place != str(base))]
        importlib.invalidate_caches()  # the file may be younger than Python's list of its folder
    try:
        return importlib.import_module(dotted)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if dotted == missing or dotted.startswith(f"{missing}."):
            raise PluginError(f"the plug-in {name!r}: there is no module {missing!r} in the working "
                              "directory or among the installed packages: check the name, or start where "
                              "it is") from None
        raise PluginError(f"the plug-in {name!r} cannot be imported: it needs the module {missing!r}, which "
                          "is not there: install it, or mend the import") from None
    except (Exception, SystemExit) as error:  # whatever a user's module does when it is run
        why = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        remedy = "start in the folder above it" if "no known parent package" in why else "mend it"
        raise PluginError(f"the plug-in {name!r} cannot be imported ({why}): {remedy}") from None


def _is_taken(root: str) -> bool:
    return root in sys.stdlib_module_names or root == PACKAGE.name


def _forget_others(root: str, base: Path) -> bool:
    """Forget modules of the same name from another folder, such as the last workspace of a notebook.
    False: the name is that of an installed package, which stays."""
    known = [name for name in sys.modules if name == root or name.startswith(f"{root}.")]
    files = [Path(file).resolve() for name in known if (file := getattr(sys.modules[name], "__file__", None))]
    others = [file for file in files if not file.is_relative_to(base)]
    if any({"site-packages", "dist-packages"} & set(file.parts) for file in others):
        return False
    for name in known if others else ():
        del sys.modules[name]
    return True
