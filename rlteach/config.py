"""Every number of a run, in the order in which a step meets it.

`Config.preset("tiny", group_size=4)` is a named set with some fields changed. A field that does
not exist, or a value out of its bounds, is refused with the field, the rule and the value.
`Config.paper()` and `Config.released()` are the two readings of OREAL: what arXiv 2502.06781v1
says, and what the code released with it does.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from rlteach.fields import Beta, Graders, PluginName, Positive, Rate, Share, Steps, Urls
from rlteach.presets import PAPER, PRESETS, RELEASED


class ConfigError(ValueError):
    """A config that cannot be used; the message names the field, the rule and the value."""


class Config(BaseModel):
    """One run. Frozen: `config.replace(group_size=4)` makes a checked copy."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = Field("custom", description="preset this config started from")
    # models
    policy: str = Field("tiny-math", description="embedded model, local directory or hub id")
    reference: str | None = Field(None, description="model of the KL term; none: a frozen copy of the policy")
    token_reward_model: str | None = Field(
        None, description="body of the token-level reward model: a model, 'policy' (a copy), or none")
    chat_template: str | None = Field(None, description="Jinja text that replaces the tokenizer's template")
    system_prompt: str | None = Field(None, description="system message put before every question")
    stop_tokens: tuple[str, ...] = Field(("<|im_end|>",), min_length=1, description="they end an answer")
    dtype: Literal["auto", "float32", "bfloat16"] = Field("float32", description="auto: as saved")
    device: str = Field("cpu", pattern=r"^(auto|cpu|mps|cuda(:\d+)?)$", description="auto: a GPU if any")
    # data
    train_data: str = Field("prompts/train.jsonl", description="JSONL file of the questions to train on")
    dev_data: str = Field("prompts/dev.jsonl", description="questions that choose the checkpoint")
    test_data: str = Field("prompts/test.jsonl", description="questions asked once before and once after")
    difficulty_bins: tuple[tuple[Share, Share, Steps], ...] = Field(
        (), description="(low, high, repeat): a pass rate in [low, high) is drawn repeat times")
    # rollout
    rollout: PluginName | None = Field(
        None, description="package.module:function or file.py:function with @rollout; none: one answer")
    batch_size: Positive = Field(32, description="questions a step, B")
    group_size: int = Field(8, description="answers a question, G")
    temperature: float = Field(1.0, gt=0, le=5, description="of the sampling distribution")
    top_p: float = Field(1.0, gt=0, le=1, description="smallest set of tokens with this mass; 1: all")
    top_k: Steps = Field(0, description="this many most likely tokens; 0: all")
    max_new_tokens: Positive = Field(80, description="longest answer, in tokens")
    row_cap: Positive = Field(512, description="answers sampled at the same time, at most")
    # grade
    graders: Graders = Field((), description="plug-ins {plugin, weight, envs}; they replace judger")
    judger: Literal["rule", "llm", "rule_then_llm", "random"] = Field("rule", description="who judges")
    rule_mode: Literal["strict", "lenient"] = Field("strict", description="lenient: for display")
    ask_llm_when: Literal["unscorable", "not_correct"] = Field(
        "unscorable", description="under rule_then_llm: what the rule said when the model is asked, too")
    judge_url: Urls = Field((), description="OpenAI-compatible servers; none: tiny-judge, served here")
    judge_model: str | None = Field(None, description="its name there; none: the first one that is listed")
    judge_language: Literal["en", "zh"] = Field("en", description="of the judge's instructions and verdict")
    judge_sees: Literal["final", "trajectory"] = Field("final", description="what of an answer it is shown")
    judge_timeout: float = Field(60, gt=0, le=3600, description="seconds for one verdict, retries included")
    judge_in_flight: Positive = Field(32, description="requests to the judge at the same time, at most")
    judge_rate: float = Field(0, ge=0, le=1e6, description="requests to it a second, at most; 0: no limit")
    judge_max_tokens: Positive = Field(512, description="longest verdict, rationale included")
    judge_parts: Positive = Field(4, description="parts of a batch: one is sampled while another is judged")
    max_unscorable: Share = Field(0.2, description="share without a verdict above which a run waits")
    judge_wait: float = Field(300, ge=0, le=1e6, description="seconds it waits before it stops")
    positive_threshold: Share = Field(1.0, description="a member with at least this score is positive")
    control: Literal["none", "random", "shuffled", "own_samples"] = Field(
        "none", description="null experiment: coin-flip scores, scores of other answers, or imitation of "
        "every own answer")
    # select and shape
    reward_coding: Literal["plus_minus", "zero_one"] = Field("plus_minus", description="+1/-1 or 1/0")
    advantage: Literal["rloo", "grpo"] = Field("rloo", description="baseline of the group")
    selection: Literal["one_pair", "mixed", "all"] = Field("one_pair", description="members trained on")
    positive_weight: Literal["advantage", "one"] = Field("advantage", description="factor of a right answer")
    negative_shaping: Literal["rloo", "one_minus_p", "none"] = Field(
        "rloo", description="factor of a wrong answer: the group's advantage, -(1 - p), or -1")
    positive_factor: float = Field(1.0, ge=0, le=10, description="of the positive term")
    negative_factor: float = Field(0.5, ge=0, le=10, description="of the negative term (eta)")
    token_weighting: Literal["none", "threshold", "topk"] = Field("none", description="token weights")
    token_score: Literal["running_mean", "per_token"] = Field("running_mean", description="what is weighed")
    correct_threshold: float = Field(0.5, ge=0, lt=1, description="of the weights of right answers")
    incorrect_threshold: float = Field(0.5, ge=0, lt=1, description="of the weights of wrong answers")
    topk_ratio: float = Field(0.25, gt=0, le=1, description="share of tokens with a weight under topk")
    token_reward_rows: Literal["all", "kept"] = Field("all", description="what the token model learns from")
    token_reward_balance: bool = Field(True, description="right and wrong answers weigh the same there")
    kl_coefficient: float = Field(0.01, ge=0, le=10, description="of the KL term (beta)")
    kl_estimator: Literal["k1", "k2", "k3"] = Field("k3", description="per-token estimate of the KL")
    kl_target: Literal["initial", "old"] = Field("initial", description="reference, or the sampler")
    loss_norm: Literal["token_class", "sequence"] = Field("token_class", description="of each term")
    # update
    total_steps: Positive = Field(40, description="steps of the run")
    policy_lr: Rate = Field(1e-4, description="peak learning rate of the policy")
    policy_lr_end: Rate = Field(2e-5, description="its value at the end of the cosine")
    warmup_steps: Steps = Field(2, description="linear warm-up of the policy's learning rate")
    policy_freeze_steps: Steps = Field(0, description="first steps, in which only the token model learns")
    warmup_while_frozen: bool = Field(False, description="let the policy's warm-up elapse while it is frozen")
    token_reward_lr: Rate = Field(5e-4, description="peak learning rate of the token-level model")
    token_reward_lr_end: Rate = Field(1e-4, description="its value at the end of the cosine")
    token_reward_warmup_steps: Steps = Field(2, description="linear warm-up of that learning rate")
    token_reward_epochs: Positive = Field(1, description="passes of the token-level model over a batch")
    token_reward_refit: bool = Field(False, description="refit the head on all answers seen (not OREAL)")
    head_init: Literal["zero", "normal"] = Field("zero", description="the token-level model's head")
    head_lr_factor: float = Field(10.0, gt=0, le=1000, description="the head learns faster by this")
    weight_decay: float = Field(0.01, ge=0, le=1, description="of AdamW")
    adam_betas: tuple[Beta, Beta] = Field((0.9, 0.95), description="of AdamW")
    max_grad_norm: float = Field(1.0, gt=0, le=1000, description="gradient clipping")
    micro_batch: Positive = Field(64, description="rows a forward pass; changes memory, never the gradient")
    logits_chunk: Positive = Field(4096, description="tokens whose logits exist at the same time")
    # run
    seed: int = Field(0, ge=0, lt=2**63, description="of everything random")
    threads: Steps = Field(0, description="CPU threads of torch; 0: leave as it is")
    eval_interval: Steps = Field(5, description="steps between evaluations on dev; 0: none")
    eval_greedy: bool = Field(True, description="ask dev and test greedily; false: once, at the temperature")
    checkpoint_interval: float = Field(-1, ge=-1, description="-1: end, below 1: a share, else steps")
    debug: bool = Field(False, description="write ids, masks and log-probs into the trajectory files")

    @model_validator(mode="after")
    def _together(self) -> Self:
        """Rules that need more than one field, or a reason."""
        if self.group_size < 2:
            raise ValueError("group_size must be at least 2: a trajectory needs another of its "
                             f"group as baseline; got {self.group_size}")
        if self.token_weighting != "none" and self.token_reward_model is None:
            raise ValueError(f"token_weighting={self.token_weighting!r} needs a token-level reward "
                             "model: set token_reward_model='policy', or token_weighting='none'")
        if self.policy_freeze_steps and self.token_reward_model is None:
            raise ValueError("policy_freeze_steps waits for a token-level reward model, and there "
                             "is none: set token_reward_model, or policy_freeze_steps=0")
        if self.policy_freeze_steps >= self.total_steps:
            raise ValueError(f"policy_freeze_steps must be below total_steps={self.total_steps}, or the "
                             f"policy never learns; got {self.policy_freeze_steps}")
        if self.checkpoint_interval == 0 or (-1 < self.checkpoint_interval < 0):
            raise ValueError("checkpoint_interval must be -1 (at the end), a share between 0 and 1, or a "
                             f"number of steps; got {self.checkpoint_interval:g}")
        for low, high, _ in self.difficulty_bins:
            if low >= high:
                raise ValueError(f"difficulty_bins needs low below high; got [{low:g}, {high:g})")
        return self

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise ConfigError(_explain(error)) from None

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed, checked again."""
        return type(self)(**{**self.model_dump(), **changes})

    @classmethod
    def preset(cls, name: str, **changes: Any) -> Self:
        """A named config: tiny (about a minute on two CPU cores) or tiny-oreal (with the
        token-level reward model; a few minutes)."""
        if name not in PRESETS:
            raise ConfigError(f"there is no preset {name!r}: choose one of {', '.join(PRESETS)}, "
                              "or give a .json or .toml file")
        return cls(**{"name": name, **PRESETS[name], **changes})

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """The paper's reading: behaviour cloning of right answers, wrong ones shaped by 1 - p,
        weights from each token's own score, KL to the sampling policy, sums over answers."""
        return cls(**{**PRESETS["tiny-oreal"], "name": "paper", **PAPER, **changes})

    @classmethod
    def released(cls, **changes: Any) -> Self:
        """The released code's reading: both signs weighted by the RLOO advantage, weights from the
        running mean, k3 to the initial policy, token means by sign (its defaults, its warm-up)."""
        return cls(**{**PRESETS["tiny-oreal"], "name": "released", **RELEASED, **changes})

    @classmethod
    def load(cls, source: str, **changes: Any) -> Self:
        """A preset's name, or a JSON or TOML file; RUN/config.json repeats a run."""
        path = Path(source)
        if path.suffix not in (".json", ".toml"):
            return cls.preset(source, **changes)
        try:
            text = path.read_text(encoding="utf-8-sig")
            fields = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
        except OSError as error:
            what = "there is no such file" if isinstance(error, FileNotFoundError) else error.strerror
            raise ConfigError(f"{source}: {what}") from None
        except (UnicodeDecodeError, ValueError, RecursionError) as error:
            raise ConfigError(f"{source}: not a readable {path.suffix[1:].upper()} file ({error}); "
                              "save it as UTF-8 and mend the place named") from None
        if not isinstance(fields, Mapping):
            raise ConfigError(f"{source}: a config file holds one table of fields, not a "
                              f"{type(fields).__name__}")
        return cls(**{**fields, **changes})


def _explain(error: ValidationError) -> str:
    """One sentence for the first problem (and how many more there are)."""
    first, *more = error.errors()
    name = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        text = f"there is no config field {name!r}: see `rlteach.Config.model_fields` for the names"
    elif first["type"] == "value_error" and not name:
        text = first["msg"].removeprefix("Value error, ")
    else:
        rule = first["msg"].removeprefix("Value error, ")
        rule = rule.replace("Input should", "must").replace("String should", "must")
        text = f"{name} {rule[0].lower()}{rule[1:]}; got {first['input']!r}"
    return text + (f" (and {len(more)} more)" if more else "")


def data_path(name: str = "") -> Path:
    """A file or folder of data/: in a checkout that of the repository, in an installed package the
    copy inside it (rlteach/_data); the environment variable RLTEACH_DATA overrides both."""
    if override := os.environ.get("RLTEACH_DATA"):
        return Path(override) / name
    package = Path(str(files("rlteach")))
    beside = package.parent / "data"
    root = beside if (package.parent / "pyproject.toml").is_file() and beside.is_dir() else package / "_data"
    return root / name
