"""Train this workspace's plug-ins on this workspace's data: python job.py"""

from __future__ import annotations

import rlteach as rl
from plugins.llm_grader import search_grader
from plugins.rollout import demo_rollout

CONFIG = {"train_data": "data/search_dataset.jsonl", "dev_data": "data/search_dataset_dev_100.jsonl",
          "test_data": "data/search_dataset_test.jsonl"}
GRADERS = [(search_grader, 1.0, {})]  # (plug-in, weight, environment variables that only it sees)


def main(out: str = "runs/model", **changes: object) -> list[rl.StepRecord]:
    """Train, save the policy in `out`, return the steps; `changes` go into the config."""
    config = rl.Config.preset("tiny-agent", **{**CONFIG, **changes})
    policy = rl.Policy.load(config=config)
    samples = rl.load_samples(config.train_data)
    trainer = rl.OrealTrainer(policy, rl.graders(*GRADERS), samples, config, rollout=demo_rollout)
    for step in trainer:
        print(step)
    policy.save(out)
    print(f"the trained model is in {out}")
    return trainer.history


if __name__ == "__main__":
    main()
