"""`rlteach doctor`: of a run, why it learns nothing; without one, whether this machine is fit."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def doctor_command(
    run: Annotated[Path | None, typer.Argument(
        help="run directory [default: look at this Python and this machine]")] = None,
) -> None:
    """Say what is wrong with a run, or with this environment. Exit code 1 when something is."""
    if run is None:
        from rlteach.views.environment import environment

        faults = 0
        for check in environment():
            typer.echo(str(check))
            faults += check.level == "fault"
        raise typer.Exit(int(faults > 0))
    from rlteach.views.doctor import doctor

    report = doctor(run)
    typer.echo(repr(report))
    raise typer.Exit(int(not report.healthy))
