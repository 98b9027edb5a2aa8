"""The token-level reward model as it learns: the same few answers, scored again after chosen steps.

    watch = Snapshots(trainer, group)
    watch.take()
    for step in trainer:
        if step.index % 5 == 0:
            watch.take()
    watch.heatmap(step=5, answer=0)      watch.scores(answer=0)      watch.show()
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure
from torch import Tensor

from rlteach.training.trainer import OrealTrainer, positives
from rlteach.types import Group, Trajectory
from rlteach.views.inside import ViewError, trainer_of
from rlteach.views.plots import png
from rlteach.views.token_rewards import heatmap_of, scores_of, table_of
from rlteach.views.tokens import FirstWrong, answer_places, pieces


class Snapshots:
    """Scores of fixed answers, one set a step: a few kilobytes each, and no copy of a model.

    Args:
        trainer: one with a token-level reward model, or a run of it.
        answers: a graded group (its members that could be judged), or pairs (trajectory, right?).
        first_wrong: as for `token_table`.

    Raises:
        ViewError: there is no token-level model, or no answer that could be judged.
    """

    def __init__(self, trainer: OrealTrainer, answers: Group | Sequence[tuple[Trajectory, bool]], *,
                 first_wrong: FirstWrong = None) -> None:
        self.trainer, self.first_wrong = trainer_of(trainer), first_wrong
        if self.trainer is None or self.trainer.token_reward_model is None:
            raise ViewError("snapshots need a trainer with a token-level reward model, such as one of "
                            "the preset 'tiny-oreal'")
        if isinstance(answers, Group):
            signs = positives(answers, self.trainer.config.positive_threshold)
            answers = [(t, p) for t, p in zip(answers.trajectories, signs, strict=True) if p is not None]
        if not answers:
            raise ViewError("there is no answer to look at: give pairs (trajectory, right?), or a group with "
                            "an answer that could be judged")
        self.answers = tuple(answers)
        self._taken: dict[int, list[Tensor]] = {}  # step -> [1, T] an answer

    def take(self) -> None:
        """Score the answers as the model is now; a second time in a step replaces the first."""
        model = self.trainer.token_reward_model
        self._taken[self.trainer.step_index] = [scores_of(model, t) for t, _ in self.answers]

    @property
    def steps(self) -> list[int]:
        """The steps that were taken, 0 before training."""
        return sorted(self._taken)

    def scores(self, answer: int = 0) -> pd.DataFrame:
        """w of one answer: a row a sampled token, a column a step (and the token)."""
        trajectory, _ = self._answer(answer)
        places = answer_places(trajectory)
        tokens = pieces(self.trainer.policy.tokenizer, [trajectory.token_ids[at] for at in places])
        taken = {step: self._at(step)[answer][0, places].double().numpy() for step in self.steps}
        return pd.DataFrame({"token": tokens, **taken}, index=pd.Index(places, name="position"))

    def table(self, step: int, answer: int = 0) -> pd.DataFrame:
        """`token_table` of one answer as it was after a step."""
        trajectory, positive = self._answer(answer)
        return table_of(self._at(step)[answer], trajectory, positive, *self._words(), self.first_wrong)

    def heatmap(self, step: int, answer: int = 0) -> Figure:
        """`token_heatmap` of one answer as it was after a step."""
        trajectory, positive = self._answer(answer)
        title = f"step {step}, a {'right' if positive else 'wrong'} answer"
        scores = self._at(step)[answer]
        return heatmap_of(scores, trajectory, positive, *self._words(), self.first_wrong, title)

    def show(self) -> Any:
        """A slider over the steps, and a choice of the answer (needs ipywidgets)."""
        from rlteach.views.browse import ipywidgets, picture

        w = ipywidgets("without it, Snapshots.heatmap(step, answer) gives each picture")
        self._at(self.steps[0] if self.steps else 0)
        step = w.SelectionSlider(options=self.steps, description="step", continuous_update=False)
        answer = w.Dropdown(options=[(_name(t, p), i) for i, (t, p) in enumerate(self.answers)],
                            description="answer", layout=w.Layout(width="50em"))
        image = picture(w)

        def draw(_: Any = None) -> None:
            image.value = png(self.heatmap(step.value, answer.value))

        step.observe(draw, "value")
        answer.observe(draw, "value")
        draw()
        return w.VBox([w.HBox([step, answer]), image])

    def _words(self) -> tuple[Any, Any]:
        return self.trainer.config, self.trainer.policy.tokenizer

    def _at(self, step: int) -> list[Tensor]:
        if step not in self._taken:
            raise ViewError(f"no snapshot was taken after step {step}: there are {self.steps or 'none'}; "
                            "call take() in the body of the loop")
        return self._taken[step]

    def _answer(self, answer: int) -> tuple[Trajectory, bool]:
        if not 0 <= answer < len(self.answers):
            raise ViewError(f"there are answers 0 to {len(self.answers) - 1}; got {answer}")
        return self.answers[answer]


def _name(trajectory: Trajectory, positive: bool) -> str:
    text = " ".join(trajectory.response.split())
    return f"{'right' if positive else 'wrong'}: {text[:60]}"
