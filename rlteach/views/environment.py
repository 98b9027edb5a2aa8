"""Is this machine fit? Versions, devices, memory, a port, the notebook's kernel, chat templates, verdicts.

Every check says what it saw and, where something is missing, what to do. Nothing is installed or changed.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

NEEDED = 2e9  # bytes: the presets take 1.2 to 1.7 GB at their peak
SHOWN = ("torch", "transformers", "tokenizers", "numpy", "pydantic", "openai")
ANSWERS = (  # gold, answer, right? Numbers, notation, and one pair that needs the symbolic worker
    ("869", "869", True), ("0.5", r"\frac{1}{2}", True), (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}", True),
    ("869", "859", False), ("1/2", "1/3", False), ("x+1", "x-1", False), ("42", "4200", False))


@dataclass(frozen=True)
class Check:
    """One line: level is ok, note (works, with less) or fault."""

    name: str
    level: Literal["ok", "note", "fault"]
    seen: str
    remedy: str = ""

    def __str__(self) -> str:
        then = f": {self.remedy}" if self.remedy else ""
        return " ".join(f"{self.level:5} {self.name:17} {self.seen}{then}".split("\n"))


def environment() -> Iterator[Check]:
    """All checks, one after the other, so that a slow one does not hold up what is known."""
    for check in CHECKS:
        try:
            yield check()
        except Exception as error:  # a check that breaks is what somebody wants to read here
            yield Check(check.__name__, "fault", f"{type(error).__name__}: {error}",
                        "reinstall rlteach (pip install --force-reinstall rlteach)")


def versions() -> Check:
    """Python and the packages, against what rlteach asks for."""
    found = {name: version for name in SHOWN if (version := _version(name))}
    seen = f"Python {platform.python_version()}, " + ", ".join(f"{n} {v}" for n, v in found.items())
    bad = [*_unmet(), *(f"{name} is missing" for name in SHOWN if name not in found)]
    if bad:
        return Check("versions", "fault", f"{seen}; {'; '.join(dict.fromkeys(bad))}",
                     "pip install --upgrade rlteach")
    return Check("versions", "ok", seen)


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _unmet() -> list[str]:
    """Requirements of the installed rlteach that this environment does not meet; [] for a bare checkout."""
    from packaging.requirements import Requirement

    try:
        wanted = [Requirement(text) for text in metadata.requires("rlteach") or ()]
    except metadata.PackageNotFoundError:
        return []
    out = []
    for one in wanted:
        if one.marker is not None and not one.marker.evaluate({"extra": ""}):
            continue
        found = _version(one.name)
        if found is None:
            out.append(f"{one.name} is missing")
        elif not one.specifier.contains(found, prereleases=True):
            out.append(f"{one.name} {found} is not {one.specifier}")
    return out


def devices() -> Check:
    """What torch can train on; one small product is really computed there."""
    import torch

    names = ["cpu", *(f"cuda:{i}" for i in range(torch.cuda.device_count())),
             *(["mps"] if torch.backends.mps.is_available() else [])]
    for name in names:
        one = torch.ones(2, 2, device=name)
        if float((one @ one).sum()) != 8:
            return Check("devices", "fault", f"{name} computes 2 x 2 products wrongly", "set device='cpu'")
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return Check("devices", "ok", f"{', '.join(names)}{f' ({gpus[0]})' if gpus else ''}; "
                 f"{torch.get_num_threads()} threads of {os.cpu_count()} cores")


def memory() -> Check:
    """Free memory, where this system says."""
    free = _free()
    if free is None:
        return Check("memory", "note", "free memory is not known here", "install psutil to see it")
    seen = f"{free / 1e9:.1f} GB free"
    if free < NEEDED:
        return Check("memory", "note", seen, "a preset takes up to 1.7 GB: close other programs, or set "
                     "micro_batch and row_cap lower")
    return Check("memory", "ok", seen)


def _free() -> int | None:
    try:
        import psutil
    except ModuleNotFoundError:
        table = Path("/proc/meminfo")
        lines = table.read_text(encoding="ascii").splitlines() if table.is_file() else []
        found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
        return 1024 * int(found[0]) if found else None
    return int(psutil.virtual_memory().available)


def port() -> Check:
    """Can a server of ours be reached on the loopback?"""
    from rlteach.serving.ports import ServeError, listen

    try:
        with listen("127.0.0.1", 0) as server:
            number = server.getsockname()[1]
            with socket.create_connection(("127.0.0.1", number), timeout=3):
                return Check("port", "ok", f"127.0.0.1 takes connections (tried port {number})")
    except (ServeError, OSError) as error:
        return Check("port", "fault", str(error), "let this Python listen on 127.0.0.1 (firewall, sandbox): "
                     "plug-ins and served judges need it")


def kernel() -> Check:
    """Would a notebook run this Python?"""
    if importlib.util.find_spec("ipykernel") is None or importlib.util.find_spec("jupyter_client") is None:
        return Check("notebook kernel", "note", "no ipykernel here", "pip install \"rlteach[notebook]\"")
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    try:
        program = KernelSpecManager().get_kernel_spec("python3").argv[0]
    except NoSuchKernel:
        return Check("notebook kernel", "note", "there is no kernel named python3",
                     f"{sys.executable} -m ipykernel install --user")
    if program in ("python", "python3", f"python3.{sys.version_info.minor}"):  # the one that runs Jupyter
        program = shutil.which("jupyter") or sys.executable
    # not resolved: the Pythons of all virtual environments are links to the same file
    if Path(program).absolute().parent != Path(sys.executable).absolute().parent:
        return Check("notebook kernel", "note", f"notebooks are run by {program}, not by {sys.executable}",
                     f"begin Jupyter with {sys.executable} -m jupyterlab")
    return Check("notebook kernel", "ok", f"ipykernel {_version('ipykernel')}, python3 runs this Python")


def widgets() -> Check:
    """Buttons and knobs."""
    found = _version("ipywidgets")
    if found is None:
        return Check("widgets", "note", "no ipywidgets: pictures without buttons",
                     "pip install \"rlteach[notebook]\"")
    return Check("widgets", "ok", f"ipywidgets {found}")


def templates() -> Check:
    """The embedded models are there, and their chat templates leave earlier turns as they were."""
    from rlteach.agent.template import check_template
    from rlteach.policy.registry import ModelError, embedded_models, load_tokenizer

    models = embedded_models()
    if not models:
        return Check("models", "fault", "no embedded models found", "unset RLTEACH_DATA, or reinstall")
    for name, folder in models.items():
        try:
            check_template(load_tokenizer(str(folder)), name)
        except ModelError as error:
            return Check("models", "fault", str(error), "take the chat template that came with it")
    return Check("models", "ok", f"{', '.join(models)}; chat templates are prefix-preserving")


def verdicts() -> Check:
    """What the rule says of answers whose truth is known."""
    from rlteach.judger.rule import RuleJudger

    rule = RuleJudger()
    said = [(gold, answer, rule.grade_text((gold,), answer).status, right) for gold, answer, right in ANSWERS]
    bad = [f"gold {gold}, answer {answer}: {status}" for gold, answer, status, right in said
           if status != ("correct" if right else "incorrect")]
    if bad:
        return Check("verdicts", "fault", f"the rule is wrong on {len(bad)} of {len(said)} known answers "
                     f"({bad[0]})", "reinstall math-verify and latex2sympy2-extended")
    return Check("verdicts", "ok", f"the rule is right on {len(said)} known answers")


CHECKS: tuple[Callable[[], Check], ...] = (versions, devices, memory, port, kernel, widgets, templates,
                                           verdicts)
