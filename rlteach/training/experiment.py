"""One experiment on disk: measure, train, choose the checkpoint on dev, measure once more.

    experiment = Experiment.create(config, folder)
    experiment.measure_before()
    for step in experiment.steps(): ...        # trains, logs, evaluates on dev, keeps the best
    summary = experiment.finish()              # the best checkpoint on test, the last beside it
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlteach.agent.tracing import Tracer
from rlteach.config import Config
from rlteach.data import load_samples
from rlteach.policy.policy import Policy, Reference
from rlteach.training import plugins
from rlteach.training.checkpoint import CheckpointError, load_checkpoint, save_checkpoint
from rlteach.training.evaluate import Evaluation, evaluate
from rlteach.training.files import new_folder, write_json
from rlteach.training.interrupts import interrupts_held
from rlteach.training.judges import Judges
from rlteach.training.runlog import RunLog, machine, versions
from rlteach.training.trainer import OrealTrainer
from rlteach.types import Judger, Sample, StepRecord


class Experiment:
    """A trainer, its run directory and the three data splits."""

    def __init__(self, log: RunLog, trainer: OrealTrainer, judges: Judges,
                 dev: Sequence[Sample], test: Sequence[Sample]) -> None:
        self.log, self.trainer, self.judges, self.config = log, trainer, judges, log.config
        self.dev, self.test = dev, test
        self.best_dev: float | None = None
        self.logged, self.elapsed = 0, 0.0  # the last step in the log; seconds of training
        self.summary: dict[str, Any] = {
            "preset": self.config.name, "seed": self.config.seed, "state": "running"}
        judges.keep_in(log.folder)
        plugins.trace(Tracer(log.folder / "trace.jsonl"), trainer.rollouts, judges.rewards, judges.examiner)

    @classmethod
    def create(cls, config: Config, folder: Path) -> Experiment:
        """Everything is loaded and checked before anything is written."""
        with _parts(config) as (trainer, judges, dev, test):
            plugins.check_questions(
                trainer.policy, trainer.samples, [*dev, *test], plugin=config.rollout is not None)
            return cls(RunLog.create(folder, config), trainer, judges, dev, test)

    @classmethod
    def resume(cls, folder: Path) -> Experiment:
        """Go on from the latest checkpoint of a run (from its start when it has none)."""
        log = RunLog.open(folder)
        with _parts(log.config) as (trainer, judges, dev, test):
            self = cls(log, trainer, judges, dev, test)
            checkpoint = log.latest_checkpoint()
            if checkpoint is not None:
                state = load_checkpoint(self.trainer, checkpoint)
                self.elapsed = state["elapsed"]
            self.logged = self.trainer.step_index
            self.trainer.history = log.metrics(up_to=self.logged)
            seen = [r.metrics["dev/accuracy"] for r in self.trainer.history if "dev/accuracy" in r.metrics]
            self.best_dev = max((a for a in seen if a is not None), default=None)
            self.summary |= log.summary()
            log.note(f"resumed at step {self.trainer.step_index}")
            return self

    def close(self) -> None:
        """Stop the threads and servers of the rollout and of the judges. May be called again; an error
        that ends the run, and `finish`, do it, too. What was written stays."""
        self.trainer.close()
        self.judges.close()

    def __enter__(self) -> Experiment:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _measure(self, policy: Policy, samples: Sequence[Sample]) -> Evaluation:
        """The way config.rollout and config.eval_greedy say, by the examiner."""
        c = self.config
        rollout = None if c.rollout is None else self.trainer.rollouts
        return evaluate(policy, self.judges.examiner, samples, greedy=c.eval_greedy, rollout=rollout)

    def measure_before(self) -> Evaluation:
        """Test accuracy of the untrained policy (the reference's weights)."""
        with _closed_after_an_error(self):
            before = self._measure(Policy.load(config=self.config), self.test)
        self.summary["before"] = before.as_dict()
        write_json(self.log.folder / "summary.json", self.summary)
        return before

    def steps(self) -> Iterator[StepRecord]:
        """Train to config.total_steps; leaving the loop early keeps a checkpoint to resume from.

        An interrupt is held back until the step is over and logged; a second one gives up a step
        whose update has not begun.
        """
        began = time.perf_counter() - self.elapsed
        trainer, c = self.trainer, self.config
        try:
            while trainer.step_index < c.total_steps:
                with _closed_after_an_error(self), interrupts_held(self._at_boundary):
                    record = self._step(began)
                yield record
        finally:
            if self._at_boundary() and trainer.step_index < c.total_steps:
                self.checkpoint()
                self.log.note(f"stopped after step {trainer.step_index} of {c.total_steps}")

    def _at_boundary(self) -> bool:
        """Are the weights those of the last step that was logged?"""
        return self.trainer.step_index == self.logged and not self.trainer.learner.unfinished

    def _step(self, began: float) -> StepRecord:
        """One step, its measurement on dev, its line in the log, its checkpoint, where they are due."""
        trainer, c = self.trainer, self.config
        record = trainer.step()
        last = trainer.step_index == c.total_steps
        if c.eval_interval and (trainer.step_index % c.eval_interval == 0 or last):
            record = self._measure_dev(record)
        self.elapsed = time.perf_counter() - began
        self.log.record(record)
        self.logged = trainer.step_index
        if trainer.step_index % checkpoint_steps(c) == 0 or last:
            self.checkpoint()
        return record

    def checkpoint(self) -> None:
        """Under checkpoints/step-NNNNN, unless it is there already."""
        folder = self.log.folder / "checkpoints" / f"step-{self.trainer.step_index:05d}"
        if not folder.exists():
            save_checkpoint(self.trainer, folder, elapsed=self.elapsed)

    def _measure_dev(self, record: StepRecord) -> StepRecord:
        """The record with dev accuracy in its metrics; a new best is saved."""
        found = self._measure(self.trainer.policy, self.dev)
        record = replace(record, metrics={**record.metrics, "dev/accuracy": found.accuracy})
        self.trainer.history[-1] = record
        # of equal ones the later: it saw more, and dev cannot tell them apart
        if found.accuracy is not None and (self.best_dev is None or found.accuracy >= self.best_dev):
            self.best_dev = found.accuracy
            self._save_best()
        return record

    def _save_best(self) -> None:
        """Like a checkpoint, but only what transformers needs."""
        with new_folder(self.log.folder / "checkpoints" / "best") as folder:
            self.trainer.policy.save(folder)

    def finish(self) -> dict[str, Any]:
        """Measure the best checkpoint once on test, the last one beside it; write summary.json."""
        best = self.log.folder / "checkpoints" / "best"
        if not best.exists():
            self._save_best()
        history = self.trainer.history
        try:
            after = self._measure(Policy.load(str(best), self.config), self.test)
            last = self._measure(self.trainer.policy, self.test)
        finally:
            self.close()
        at = [r for r in history if r.metrics.get("dev/accuracy") == self.best_dev]
        unscorable = sum(r.metrics["judge/unscorable"] for r in history) / max(len(history), 1)
        self.summary |= {
            "state": "finished", "steps": self.trainer.step_index, "seconds": round(self.elapsed, 2),
            "tokens": int(sum(r.metrics["tokens/rollout"] for r in history)),
            "after": after.as_dict(), "last_step": last.as_dict(),
            "best_step": at[-1].index if at and self.best_dev is not None else self.trainer.step_index,
            "unscorable": unscorable, "versions": versions() | self.judges.versions, "machine": machine(),
        }
        write_json(self.log.folder / "summary.json", self.summary)
        self.log.note(f"finished: {self.summary['before'].get('accuracy')} -> {after.accuracy}")
        self.evaluations = {"after": after, "last_step": last}
        return self.summary


def build_trainer(config: Config, judger: Judger) -> OrealTrainer:
    """Policy, reference, rollout and questions, as the config names them."""
    reference = None
    if config.reference is not None:
        reference = Reference(Policy.load(config.reference, config).model, logits_chunk=config.logits_chunk)
    policy, samples = Policy.load(config=config), load_samples(config.train_data)
    return OrealTrainer(policy, judger, samples, config, reference, plugins.rollout_of(config))


@contextmanager
def _parts(config: Config) -> Iterator[tuple[OrealTrainer, Judges, list[Sample], list[Sample]]]:
    """Trainer, judges, dev and test; an error in the block leaves no thread and no server behind."""
    with ExitStack() as stack:
        judges = stack.enter_context(closing(Judges(config)))
        trainer = stack.enter_context(closing(build_trainer(config, judges.rewards)))
        yield trainer, judges, load_samples(config.dev_data), load_samples(config.test_data)
        stack.pop_all()


@contextmanager
def _closed_after_an_error(experiment: Experiment) -> Iterator[None]:
    """What was interrupted can go on; what failed is resumed from its folder."""
    try:
        yield
    except Exception:
        experiment.close()
        raise


def checkpoint_steps(config: Config) -> int:
    """checkpoint_interval in steps: -1 the whole run, below 1 a share of it."""
    interval = config.checkpoint_interval
    if interval < 0:
        return config.total_steps
    return max(round(interval * config.total_steps), 1) if interval < 1 else int(interval)


__all__ = ["CheckpointError", "Experiment", "build_trainer"]
