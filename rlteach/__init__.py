"""rlteach: watch a language model learn by reinforcement, and read how.

    import rlteach as rl
    config = rl.Config.preset("tiny")
    policy = rl.Policy.load("tiny-math", config)
    trainer = rl.OrealTrainer(policy, rl.RuleJudger(), rl.load_samples(config.train_data), config)
    for step in trainer:
        print(step)

The names are loaded when they are first used: `import rlteach` alone pulls in no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_WHERE = {
    "rlteach.types": ("Message", "Sample", "Trajectory", "Judgement", "Group", "StepRecord", "Judger"),
    "rlteach.config": ("Config", "ConfigError", "data_path"),
    "rlteach.policy.policy": ("Policy", "Reference"),
    "rlteach.policy.registry": ("ModelError", "embedded_models"),
    "rlteach.policy.token_reward_model": ("TokenRewardModel",),
    "rlteach.judger.rule": ("RuleJudger",),
    "rlteach.judger.llm": ("LLMJudger",),
    "rlteach.judger.hosts": ("JudgeError",),
    "rlteach.judger.compose": (
        "RandomJudger", "Router", "RuleThenLLM", "agrade", "graders", "register_judger"),
    "rlteach.policy.engine": ("Engine",),
    "rlteach.serving.server": ("serve",),
    "rlteach.serving.fake_judge": ("FakeJudge",),
    "rlteach.data": ("DataError", "load_samples"),
    "rlteach.training.evaluate": ("Evaluation", "evaluate"),
    "rlteach.training.metrics": ("table",),
    "rlteach.training.trainer": ("OrealTrainer",),
    "rlteach.views.plots": ("curves",),
    "rlteach.views.browse": ("browse",),
    "rlteach.views.inside": ("group_table", "trajectories"),
    "rlteach.views.probabilities": ("probability_heatmap", "token_probabilities"),
    "rlteach.views.snapshots": ("Snapshots",),
    "rlteach.views.token_rewards": ("token_heatmap", "token_table"),
    "rlteach.course.checking": ("check",),
    "rlteach.views.live": ("view",),
    "rlteach.views.doctor": ("doctor",),
    "rlteach.views.widgets": ("widgets",),
}
_MODULES = ("widgets",)  # names that are the module itself
_HOME = {name: module for module, names in _WHERE.items() for name in names}
__all__ = sorted(_HOME)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    if name in _HOME:
        module = import_module(_HOME[name])
        return module if name in _MODULES else getattr(module, name)
    raise AttributeError(f"module 'rlteach' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
