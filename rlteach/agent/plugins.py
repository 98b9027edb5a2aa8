"""The decorators that make a function a plug-in: they attach a description and change nothing.

    @rollout(runtime=Runtime(timeout=60))
    async def search(context, proxy, sample): ...

A decorated function is still the function: it can be called in a cell, imported, decorated again.
Redefining one under the same name replaces it, as with any function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

from rlteach.agent.types import Runtime

Kind = Literal["rollout", "group_grader", "single_grader"]
Function = TypeVar("Function", bound=Callable[..., Any])
MARK = "rlteach_plugin"
TAKES: dict[Kind, tuple[str, ...]] = {
    "rollout": ("context", "proxy", "sample"), "group_grader": ("context", "sample", "trajectories"),
    "single_grader": ("context", "sample", "trajectory")}


class PluginError(ValueError):
    """A function that cannot be used as this plug-in; the message says why."""


@dataclass(frozen=True)
class Plugin:
    """The description that a decorator attached."""

    kind: Kind
    name: str
    description: str
    runtime: Runtime
    is_async: bool


def _decorator(kind: Kind) -> Callable[..., Any]:
    def decorate(function: Any = None, *, name: str | None = None, description: str = "",
                 runtime: Runtime | Mapping[str, Any] | None = None) -> Any:
        def attach(target: Function) -> Function:
            settings = runtime if isinstance(runtime, Runtime) else Runtime(**(runtime or {}))
            if settings.min_replicas > settings.max_replicas:
                raise PluginError(f"{target.__name__}: min_replicas {settings.min_replicas} is above "
                                  f"max_replicas {settings.max_replicas}")
            _check_signature(target, kind)
            found = Plugin(kind, name or target.__name__, description, settings,
                           inspect.iscoroutinefunction(inspect.unwrap(target)))
            setattr(target, MARK, found)
            if kind != "rollout":
                target.__judger__ = partial(_judger, target)
            return target

        return attach if function is None else attach(function)

    decorate.__name__ = kind
    decorate.__doc__ = (f"Make a function ({', '.join(TAKES[kind])}) a {kind.replace('_', ' ')}. It may be "
                        "sync (runs on a thread) or async (runs on the loop); name defaults to its own.")
    return decorate


rollout = _decorator("rollout")
group_grader = _decorator("group_grader")
single_grader = _decorator("single_grader")


def _judger(function: Callable[..., Any], envs: Mapping[str, str] | None = None) -> Any:
    from rlteach.agent.graders import PluginJudger

    return PluginJudger(function, envs)


def plugin_of(function: Any, *kinds: Kind) -> Plugin:
    """The description of a decorated function.

    Raises:
        PluginError: it is not decorated, or is another kind of plug-in.
    """
    found = getattr(function, MARK, None)
    name = getattr(function, "__name__", type(function).__name__)
    wanted = " or ".join(f"@{kind}" for kind in kinds)
    if not isinstance(found, Plugin):
        raise PluginError(f"{name} is no plug-in: put {wanted} above its definition")
    if found.kind not in kinds:
        raise PluginError(f"{name} is a {found.kind.replace('_', ' ')}: {wanted} is needed here")
    return found


def is_plugin(function: Any, *kinds: Kind) -> bool:
    found = getattr(function, MARK, None)
    return isinstance(found, Plugin) and found.kind in kinds


def _check_signature(function: Callable[..., Any], kind: Kind) -> None:
    try:
        inspect.signature(function).bind(*TAKES[kind])
    except TypeError:
        raise PluginError(f"{function.__name__}: a {kind.replace('_', ' ')} takes "
                          f"({', '.join(TAKES[kind])}), by position") from None
    except ValueError:  # some callables do not say what they take
        pass
