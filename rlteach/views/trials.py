"""One setting after the other: each is trained in the background, measured on dev, and kept for comparison.

No widget here: views/widgets.py puts knobs before it.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack, closing

import pandas as pd
import torch

from rlteach.config import Config
from rlteach.data import load_samples
from rlteach.training.evaluate import Evaluation, evaluate
from rlteach.training.experiment import build_trainer
from rlteach.training.judges import Judges
from rlteach.training.run import Run
from rlteach.training.trainer import OrealTrainer
from rlteach.types import StepRecord
from rlteach.views.doctor import Watch
from rlteach.views.settings import differences, label, line


class BusyError(RuntimeError):
    """A setting is being trained, and there is one at a time."""


class Trial:
    """One setting: its config, the Python line that makes it, its curves, its accuracy on dev.

    label: what differs from the setting that the laboratory began with. error: what went wrong, or None.
    dev: None until a run that finished has been measured. advice: what the doctor says of its steps.
    """

    def __init__(self, number: int, config: Config, name: str, python: str) -> None:
        self.number, self.config, self.label, self.line = number, config, name, python
        self.error: Exception | None = None
        self.dev: Evaluation | None = None
        self.seconds, self.advice = 0.0, ""
        self._run: Run | None = None
        self._watch: Watch | None = None
        self._kept: list[StepRecord] = []
        self._state, self._stopping = "loading", False
        self._ended = threading.Event()
        threading.Thread(target=self._go, name="rlteach-lab", daemon=True).start()

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    @property
    def state(self) -> str:
        """loading, running, measuring, finished, stopped or failed."""
        run = self._run
        return run.state if self._state == "running" and run is not None else self._state

    @property
    def records(self) -> list[StepRecord]:
        """The steps so far; of a run that has ended, without their groups."""
        run = self._run
        return list(self._kept if run is None else run.trainer.history)

    def look(self) -> None:
        """Let the doctor see the steps that are new."""
        run, watch = self._run, self._watch
        if run is not None and watch is not None:
            self.advice = watch.line(list(run.trainer.history), run)

    def stop(self) -> None:
        """After the step under way."""
        self._stopping = True
        if self._run is not None:
            self._run.stop()

    def wait(self) -> Trial:
        """Until it has ended; raises what went wrong. An interrupt stops it first."""
        try:
            self._ended.wait()
        except KeyboardInterrupt:
            self.stop()
            self._ended.wait()
        if self.error is not None:
            raise self.error
        return self

    def _go(self) -> None:
        try:
            if self.config.threads:
                torch.set_num_threads(self.config.threads)
            with ExitStack() as stack:
                judges = stack.enter_context(closing(Judges(self.config)))
                trainer = stack.enter_context(closing(build_trainer(self.config, judges.rewards)))
                self._train(trainer.start())
                if self._state == "finished":
                    self._state = "measuring"
                    self._measure(trainer, judges)
                    self._state = "finished"
        except Exception as error:  # told to whoever waits, and shown under the knobs
            self.error, self._state = error, "failed"
        finally:
            self._ended.set()

    def _train(self, run: Run) -> None:
        began = time.perf_counter()
        self._watch = Watch(run.trainer)
        self._run, self._state = run, "running"
        if self._stopping:
            run.stop()
        try:
            run.wait()
        finally:
            self.seconds = time.perf_counter() - began
            self.look()  # while the answers are there
            self._kept = [StepRecord(r.index, (), r.metrics) for r in run.trainer.history]
            self._run, self._state = None, run.state

    def _measure(self, trainer: OrealTrainer, judges: Judges) -> None:
        c = self.config
        rollout = None if c.rollout is None else trainer.rollouts
        self.dev = evaluate(trainer.policy, judges.examiner, load_samples(c.dev_data),
                            greedy=c.eval_greedy, rollout=rollout)

    def row(self) -> dict[str, object]:
        """Its line of the table of results."""
        records, dev = self.records, self.dev
        low, high = (None, None) if dev is None or dev.ci95 is None else dev.ci95
        reward = records[-1].metrics["reward/mean"] if records else None
        return {"setting": self.line, "differs": self.label, "state": self.state, "steps": len(records),
                "reward": reward, "dev_accuracy": None if dev is None else dev.accuracy,
                "low": low, "high": high, "seconds": round(self.seconds, 1)}


class Trials:
    """The present setting (`config`) and all that were run, from 1 on.

    Args:
        preset, changes: the setting to begin with; the others are told by what differs from it.

    Raises:
        ConfigError: there is no such preset, or the combination is refused.
    """

    def __init__(self, preset: str = "tiny", **changes: object) -> None:
        self.preset = preset
        self.base = self.config = Config.preset(preset, **changes)
        self.all: list[Trial] = []
        self._last: Trial | None = None  # clear() forgets it only when it has ended

    @property
    def present(self) -> Trial | None:
        """The one that is under way, if any."""
        return None if self._last is None or self._last.ended else self._last

    @property
    def line(self) -> str:
        """The Python that makes the present setting."""
        return line(self.preset, self.config)

    def set(self, **changes: object) -> None:
        """Change the present setting. Raises ConfigError, and changes nothing, when it is refused."""
        self.config = self.config.replace(**changes)

    def start(self) -> Trial:
        """Train the present setting in the background, then measure it on dev. Raises BusyError."""
        if self.present is not None:
            raise BusyError("one setting is trained at a time: stop it, or wait until it has been measured")
        name = label(self.config, self.base, self.preset)
        self._last = Trial(len(self.all) + 1, self.config, name, self.line)
        self.all.append(self._last)
        return self._last

    def clear(self) -> None:
        """Forget all settings that were run; one under way is stopped."""
        if self.present is not None:
            self.present.stop()
        self.all = []

    @property
    def results(self) -> pd.DataFrame:
        """One row a setting, numbered from 1: the Python line, what differs, state, steps, the last step's
        reward, accuracy on dev with the ends of its 95 % interval, seconds of training."""
        columns = ["setting", "differs", "state", "steps", "reward", "dev_accuracy", "low", "high", "seconds"]
        frame = pd.DataFrame([trial.row() for trial in self.all], columns=columns)
        frame.index = pd.Index([trial.number for trial in self.all], name="number")
        numbers = ["reward", "dev_accuracy", "low", "high", "seconds"]
        return frame.astype({"steps": int, **dict.fromkeys(numbers, float)})

    def comparison(self) -> pd.DataFrame:
        """One row a setting: the fields that are not the same in all of them, accuracy on dev and its
        interval, and whether that lies outside the first setting's. An overlap decides nothing."""
        fields = sorted({name for t in self.all for name in differences(t.config, self.all[0].config)})
        rows = [{name: getattr(t.config, name) for name in fields} for t in self.all]
        found = self.results[["dev_accuracy", "low", "high"]]
        frame = pd.DataFrame(rows, index=found.index, columns=fields).join(found)
        first = found.iloc[0] if len(found) else None
        frame["apart"] = [None if pd.isna([r.low, first.low]).any() else
                          bool(r.low > first.high or r.high < first.low) for r in found.itertuples()]
        return frame
