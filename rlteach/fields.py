"""What a config field may hold: numbers with bounds, addresses, plug-ins by name."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

Share = Annotated[float, Field(ge=0, le=1)]
Beta = Annotated[float, Field(ge=0, lt=1)]
Rate = Annotated[float, Field(gt=0, le=1)]
Steps = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Urls = Annotated[tuple[str, ...], BeforeValidator(lambda urls: (urls,) if isinstance(urls, str) else urls)]


def _plugin_name(name: str) -> str:
    if not all(part.strip() for part in name.rpartition(":")):
        raise ValueError("must be package.module:function or path/to/file.py:function")
    return name


PluginName = Annotated[str, AfterValidator(_plugin_name)]


class Grader(BaseModel):
    """A grader plug-in, its weight among the others, and the environment variables it is run with.

    envs are written to RUN/config.json: a key belongs into your own environment, not here.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    plugin: PluginName
    weight: float = Field(1.0, gt=0, le=1e6)
    envs: dict[str, str] = Field(default_factory=dict)


def _graders(given: Any) -> Any:
    """A plug-in's name is a grader of weight 1; one grader is a list of one."""
    many = given if isinstance(given, list | tuple) else () if given is None else (given,)
    return tuple({"plugin": one} if isinstance(one, str) else one for one in many)


Graders = Annotated[tuple[Grader, ...], BeforeValidator(_graders)]
