"""Train this workspace's plug-ins on this workspace's data: python job.py"""

from __future__ import annotations

import rlteach as rl
from plugins.rollout import weather_rollout
from plugins.weather_grader import weather_grader

CONFIG = {"train_data": "data/weather.jsonl", "dev_data": "data/weather_dev.jsonl",
          "test_data": "data/weather_dev.jsonl"}
GRADERS = [(weather_grader, 1.0, {})]  # (plug-in, weight, environment variables that only it sees)


def main(out: str = "runs/model", **changes: object) -> list[rl.StepRecord]:
    """Train, save the policy in `out`, return the steps; `changes` go into the config."""
    config = rl.Config.preset("tiny-agent", **{**CONFIG, **changes})
    policy = rl.Policy.load(config=config)
    samples = rl.load_samples(config.train_data)
    trainer = rl.OrealTrainer(policy, rl.graders(*GRADERS), samples, config, rollout=weather_rollout)
    for step in trainer:
        print(step)
    policy.save(out)
    print(f"the trained model is in {out}")
    return trainer.history


if __name__ == "__main__":
    main()
