"""Train on random rewards: python job.py

Whatever this does to the accuracy is what a run does without a teacher.
"""

from __future__ import annotations

import rlteach as rl
from plugins.random_reward import random_reward

CONFIG = {"train_data": "data/questions.jsonl", "dev_data": "data/dev.jsonl", "test_data": "data/dev.jsonl",
          "positive_threshold": 0.5,  # rewards from here on count as right: about half of them
          "total_steps": 10}


def main(out: str = "runs/model", **changes: object) -> list[rl.StepRecord]:
    """Train, save the policy in `out`, return the steps; `changes` go into the config."""
    config = rl.Config.preset("tiny", **{**CONFIG, **changes})
    policy = rl.Policy.load(config=config)
    judger = rl.graders((random_reward, 1.0, {}))  # (plug-in, weight, its environment variables)
    trainer = rl.OrealTrainer(policy, judger, rl.load_samples(config.train_data), config)
    for step in trainer:
        print(step)
    policy.save(out)
    print(f"the trained model is in {out}: rlteach eval {out} --data {config.test_data}")
    return trainer.history


if __name__ == "__main__":
    main()
