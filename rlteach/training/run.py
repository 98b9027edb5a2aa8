"""A run in the background: start, pause, single steps, stop, always at a step's boundary.

Training has its own thread, so a notebook's cell returns at once and buttons stay alive. The
thread prints nothing: whoever wants to see something reads `run.history`.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import torch

from rlteach.training.interrupts import interrupts_stop, wait_for
from rlteach.training.judging import JudgeAwayError
from rlteach.training.metrics import table

if TYPE_CHECKING:
    import pandas as pd

    from rlteach.training.trainer import OrealTrainer


class _AbandonedError(Exception):
    """The step under way is given up before its update: the weights are those of the last one."""


class Run:
    """Steps `trainer` until config.total_steps, in a thread. Made by `trainer.start()`."""

    def __init__(self, trainer: OrealTrainer) -> None:
        self.trainer = trainer
        self.error: BaseException | None = None
        self._turn = threading.Condition()
        self._paused = self._stopping = self._abandoning = False
        self._busy = True  # inside a step, or on the way to one
        self._single = 0
        self._ended = threading.Event()  # Thread.join forgets a thread when it is interrupted (3.11)
        threading.Thread(target=self._loop, name="rlteach-run", daemon=True).start()

    @classmethod
    def of(cls, trainer: OrealTrainer, last: Run | None) -> Run:
        """`last` while it is under way, else a new run: two threads must not step one trainer."""
        if last is not None and last._stopping:
            last._ended.wait()
        return cls(trainer) if last is None or last._ended.is_set() else last

    @property
    def ended(self) -> bool:
        """Its thread takes no further step, and touches the models no more."""
        return self._ended.is_set()

    @property
    def state(self) -> str:
        """running, paused, stopped, finished or failed; pausing or stopping while the step after which
        it will pause or stop is under way."""
        if self._ended.is_set():
            if self.error is not None:
                return "failed"
            return "finished" if self.trainer.step_index >= self.trainer.config.total_steps else "stopped"
        with self._turn:
            if self._stopping:
                return "stopping"
            return "running" if not self._paused else "pausing" if self._moving() else "paused"

    @property
    def history(self) -> pd.DataFrame:
        """One row a finished step, one column a metric."""
        return table(self.trainer.history)

    def pause(self, *, wait: bool = False) -> Run:
        """After the step under way, wait for `resume` or `step`. With `wait`, return when it does; what
        went wrong in the step is raised then."""
        self._set(paused=True)
        return self._until_it_rests() if wait else self

    def resume(self) -> Run:
        """Go on after a pause."""
        self._set(paused=False)
        return self

    def step(self, *, wait: bool = False) -> Run:
        """One more step, then pause. With `wait`, return when it is over, or raise what went wrong in it."""
        with self._turn:
            self._paused, self._single = True, self._single + 1
            self._turn.notify_all()
        return self._until_it_rests() if wait else self

    def stop(self, *, give_up: bool = False) -> None:
        """After the step under way, end. `trainer.start()` goes on from there.

        give_up: end without that step, unless its update has begun.
        """
        self._set(stopping=True, abandoning=self._abandoning or give_up)
        self.trainer.grading.give_up = True  # a run that waits for its judge need not wait on

    def wait(self, timeout: float | None = None) -> Run:
        """Until the run has ended (or `timeout` seconds); raises what went wrong in it.

        Interrupting the wait stops the run at the next boundary; a second interrupt gives up the
        step under way.
        """
        with interrupts_stop(lambda: self):
            wait_for(self._ended, timeout)
        return self._unless_it_failed()

    def _unless_it_failed(self) -> Run:
        if self._ended.is_set() and self.error is not None:
            raise self.error
        return self

    def _moving(self) -> bool:
        """Is a step under way or due, of a run that was told to pause?"""
        return self._busy or self._single > 0

    def _until_it_rests(self) -> Run:
        """Paused, ended, or sent on by somebody else."""
        with self._turn:
            self._turn.wait_for(lambda: self._ended.is_set() or not (self._paused and self._moving()))
        return self._unless_it_failed()

    def __repr__(self) -> str:
        total = self.trainer.config.total_steps
        waiting = "" if self.trainer.grading.waiting is None else f", {self.trainer.grading.waiting}"
        return f"Run({self.state}, step {self.trainer.step_index} of {total}{waiting})"

    def _set(self, **flags: bool) -> None:
        with self._turn:
            for name, value in flags.items():
                setattr(self, f"_{name}", value)
            self._turn.notify_all()

    def _loop(self) -> None:
        trainer = self.trainer
        trainer.grading.give_up = False
        try:
            if trainer.config.threads:
                torch.set_num_threads(trainer.config.threads)  # a thread has its own setting
            while trainer.step_index < trainer.config.total_steps and self._may_go_on():
                self._one_step()
        except _AbandonedError:
            pass
        except BaseException as error:  # handed to whoever waits
            self.error = None if self._stopping and isinstance(error, JudgeAwayError) else error
        finally:
            with self._turn:
                self._ended.set()
                self._turn.notify_all()

    def _one_step(self) -> None:
        """trainer.step(), with a look at the second interrupt between the stages."""
        trainer = self.trainer
        groups = trainer.rollout(trainer.draw())
        self._give_up_if_asked()
        groups = trainer.select(trainer.grade(groups))
        self._give_up_if_asked()
        batch = trainer.shape(groups)
        self._give_up_if_asked()
        trainer.update(batch)

    def _give_up_if_asked(self) -> None:
        if self._abandoning:
            raise _AbandonedError

    def _may_go_on(self) -> bool:
        with self._turn:
            self._busy = False
            self._turn.notify_all()
            while self._paused and not self._single and not self._stopping:
                self._turn.wait()
            self._single = max(self._single - 1, 0)
            self._busy = True
            return not self._stopping
