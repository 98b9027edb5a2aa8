"""The named sets of numbers: Config.preset("tiny") and the two readings of OREAL."""

from __future__ import annotations

from typing import Any

OREAL_BINS = ((0.0, 0.2, 6), (0.2, 0.4, 4), (0.4, 0.6, 4), (0.6, 0.8, 2))

TINY: dict[str, Any] = {
    "difficulty_bins": OREAL_BINS, "group_size": 16, "policy_lr": 4e-4, "total_steps": 50}
SEARCH = "rlteach.templates.search.plugins"  # the plug-ins of `rlteach init --template search`
TINY_AGENT: dict[str, Any] = {
    "policy": "tiny-agent", "train_data": "search/search_dataset.jsonl",
    "dev_data": "search/search_dataset_dev_100.jsonl", "test_data": "search/search_dataset_test.jsonl",
    "rollout": f"{SEARCH}.rollout:demo_rollout", "eval_greedy": False,
    # no judge but the one that a run is given: OPENAI_BASE_URL of the shell is meant for something else
    "graders": ({"plugin": f"{SEARCH}.llm_grader:search_grader", "envs": {"OPENAI_BASE_URL": ""}},),
    "group_size": 8, "max_new_tokens": 48, "selection": "mixed", "policy_lr": 1e-3, "total_steps": 30,
    "threads": 1}  # the other core is for the plug-ins
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": TINY,
    "tiny-oreal": {
        **TINY, "token_reward_model": "tiny-checker", "token_weighting": "threshold", "policy_lr": 3e-4,
        "negative_factor": 0.1, "token_reward_lr": 5e-5, "token_reward_lr_end": 2e-5,
        "head_lr_factor": 1.0, "token_reward_refit": True, "policy_freeze_steps": 28, "total_steps": 68},
    "tiny-agent": TINY_AGENT,
}
OWN_BODY: dict[str, Any] = {  # what both readings share: the token-level model starts as the policy
    "token_reward_model": "policy", "head_lr_factor": 1.0, "token_reward_rows": "kept",
    "token_reward_balance": False, "token_reward_refit": False, "negative_factor": 0.5}
PAPER: dict[str, Any] = {
    **OWN_BODY, "positive_weight": "one", "negative_shaping": "one_minus_p", "token_score": "per_token",
    "kl_target": "old", "loss_norm": "sequence",
}
RELEASED: dict[str, Any] = {
    **OWN_BODY, "positive_weight": "advantage", "negative_shaping": "rloo", "token_score": "running_mean",
    "kl_target": "initial", "kl_estimator": "k3", "loss_norm": "token_class", "head_init": "normal",
    "warmup_while_frozen": True,
}
