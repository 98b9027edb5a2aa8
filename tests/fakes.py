"""Small stand-ins for tests, made by hand and in memory: no file, no network, no mock library.

    tokenizer()      256 bytes and three control tokens
    tiny_policy()    a random Qwen2 of a few thousand weights: a real transformer
    TableModel       a "model" whose logits are simply a table of numbers: logits[row, position, token]
    trajectory(), group(), ragged_rows()     the nouns of the loop, filled with chosen numbers
    two_digit_data() the one exception: files of questions for runs of the embedded model
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from rlteach.config import Config, data_path
from rlteach.policy.policy import Policy
from rlteach.training.batch import Rows, collate
from rlteach.training.trainer import OrealTrainer
from rlteach.training.update import Learner
from rlteach.types import Group, Judgement, Message, Sample, Trajectory

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
EARLY_STOPS = (SPECIAL[2], *"abcdefghijklmnopqrstuvwxyzABCDEFGHIJ")  # one token in seven ends an answer


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    """One token a byte, pad <|endoftext|> = 0, no merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *alphabet])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(list(SPECIAL))
    return PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token=SPECIAL[0], eos_token=SPECIAL[2], chat_template=TEMPLATE,
        clean_up_tokenization_spaces=False)


def tiny_model(seed: int = 0, *, hidden: int = 16, layers: int = 2, spread: float = 0.3) -> Qwen2ForCausalLM:
    """A random Qwen2 with grouped-query attention; `spread` is the size of its weights."""
    torch.manual_seed(seed)
    return Qwen2ForCausalLM(Qwen2Config(
        vocab_size=len(tokenizer()), hidden_size=hidden, intermediate_size=2 * hidden,
        num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
        tie_word_embeddings=True, initializer_range=spread, bos_token_id=None, eos_token_id=2,
        pad_token_id=0))


def tiny_policy(config: Config | None = None, seed: int = 0, **size: Any) -> Policy:
    return Policy(tiny_model(seed, **size), tokenizer(), config=config)


class TableModel(nn.Module):
    """Its logits are `table[first token of the row, position]`: no network between a number and the loss.

    So the gradient of `table` is the gradient with respect to each single logit. Position 0 is
    always a prompt token here, and names the row of the table.
    """

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.table = nn.Parameter(table.clone())  # [R, T, V]

    device = torch.device("cpu")

    @property
    def base_model(self) -> Callable[..., Any]:
        return self._hidden

    def _hidden(self, input_ids: Tensor, **_: Any) -> Any:
        return SimpleNamespace(last_hidden_state=self.table[input_ids[:, 0], : input_ids.shape[1]])

    def get_output_embeddings(self) -> Callable[[Tensor], Tensor]:
        return lambda hidden: hidden


class TableTokenModel(nn.Module):
    """A token-level reward model whose w is `table[first token of the row, position]`."""

    def __init__(self, table: Tensor) -> None:
        super().__init__()
        self.table = nn.Parameter(table.clone())  # [R, T]

    def forward(self, rows: Any) -> Tensor:
        return self.table[rows.token_ids[:, 0], : rows.token_ids.shape[1]] * rows.action_mask

    def groups(self, lr: float, head_factor: float) -> list[dict[str, Any]]:
        return [{"params": [self.table], "lr": lr}, {"params": [], "lr": lr * head_factor}]


def samples(count: int) -> list[Sample]:
    """Questions of different length."""
    return [question(f"{10**i}+{i}=?", name=f"s{i}") for i in range(count)]


def question(text: str = "1+1=?", *, name: str = "s0") -> Sample:
    return Sample(name, (Message("user", text),), ("2",))


def two_digit_data(folder: Path, *, dev: int, test: int) -> dict[str, str]:
    """Two-digit questions of each split as files in `folder`, 40 to train on: {"train_data": path, ...}."""
    out = {}
    for split, count in (("train", 40), ("dev", dev), ("test", test)):
        lines = data_path(f"prompts/{split}.jsonl").read_text(encoding="utf-8").splitlines()
        chosen = [line for line in lines if json.loads(line)["level"] == 2][:count]
        (folder / f"{split}.jsonl").write_text("\n".join(chosen) + "\n", encoding="utf-8")
        out[f"{split}_data"] = str(folder / f"{split}.jsonl")
    return out


def trajectory(
    prompt: Sequence[int], answer: Sequence[int], *, logprobs: Sequence[float] | None = None,
    forced: Sequence[int] = (), support: Sequence[Sequence[int]] | None = None, version: int = 0,
) -> Trajectory:
    """Prompt, then answer; `forced` are places in the answer that a tool wrote, not the policy."""
    p, r = len(prompt), len(answer)
    return Trajectory(
        messages=(Message("user", "?"), Message("assistant", "!")),
        token_ids=(*prompt, *answer),
        action_mask=(False,) * p + tuple(i not in forced for i in range(r)),
        logprobs=(0.0,) * p + tuple(logprobs if logprobs is not None else (0.0,) * r),
        policy_version=version, finish_reason="stop",
        usage={"prompt_tokens": p, "completion_tokens": r},
        support=None if support is None else tuple(tuple(s) for s in support),
    )


def judgement(score: float | None) -> Judgement:
    status = "unscorable" if score is None else "correct" if score >= 1 else "incorrect"
    return Judgement(score, status, "by hand")


def group(trajectories: Sequence[Trajectory], scores: Sequence[float | None], *, name: str = "s0") -> Group:
    return Group(question(name=name), tuple(trajectories), tuple(judgement(s) for s in scores))


def random_answers(count: int, seed: int, *, longest: int = 9) -> list[Trajectory]:
    """Ragged trajectories of any token ids, control tokens and the padding id among them."""
    rng = random.Random(seed)
    size = len(tokenizer())

    def ids(most: int) -> list[int]:
        any_id = [0, 2, *(rng.randrange(size) for _ in range(8))]
        return rng.choices(any_id, k=rng.randint(1, most))

    return [trajectory(ids(6), ids(longest)) for _ in range(count)]


def ragged_rows(count: int, seed: int, *, longest: int = 9) -> Rows:
    """Rows as `shape` makes them: random advantages and weights, right and wrong in turn; the
    reference is a random number, so that no term is zero by accident."""
    rng = random.Random(seed)
    right = [i % 2 == 0 for i in range(count)]
    members = [(t, r, rng.uniform(0.2, 2) * (1 if r else -1), 0.5)
               for t, r in zip(random_answers(count, seed, longest=longest), right, strict=True)]
    rows = collate(members)
    noise = torch.Generator().manual_seed(seed)
    shape = rows.action_mask.shape
    return rows.with_(
        coefficient=rows.advantages,
        weights=torch.rand(shape, generator=noise) * rows.action_mask,
        reference=(-5 * torch.rand(shape, generator=noise)) * rows.action_mask,
    )


def pad_right(rows: Rows, extra: int, token: int) -> Rows:
    """The same rows with `extra` columns of padding, and `token` in every padded place."""
    columns = {}
    for name in ("token_ids", "attention_mask", "action_mask", "sampled_logprobs", "weights", "reference"):
        value = getattr(rows, name)
        columns[name] = torch.cat([value, value.new_zeros(len(value), extra)], 1)
    columns["token_ids"] = torch.where(columns["attention_mask"] == 1, columns["token_ids"], token)
    return rows.with_(**columns)


def policy_update(policy: Policy, rows: Rows, config: Config) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Metrics and gradients of one update on a copy of the policy (clipping out of the way)."""
    fresh = Policy(copy.deepcopy(policy.model), policy.tokenizer, config=config)
    metrics = Learner(fresh, None, config.replace(max_grad_norm=1000)).update_policy(rows, 0)
    return metrics, {n: p.grad.clone() for n, p in fresh.model.named_parameters() if p.grad is not None}


def state(model: nn.Module) -> dict[str, Tensor]:
    """A copy of the weights as they are now."""
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Equal bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def small_config(**changes: Any) -> Config:
    """A run of a few milliseconds a step."""
    fields = {"batch_size": 3, "group_size": 4, "max_new_tokens": 5, "total_steps": 20, "warmup_steps": 0,
              "stop_tokens": EARLY_STOPS}
    return Config(**{**fields, **changes})


def small_trainer(config: Config, judge: Callable[..., Any], *, seed: int = 0, **parts: Any) -> OrealTrainer:
    return OrealTrainer(tiny_policy(config, seed), judge, samples(4), config, **parts)


def even_first(_: Sample, answer: Trajectory) -> float:
    """A toy rule: right when the first sampled token has an even id (about one in two)."""
    return float(first_token(answer) % 2 == 0)


def first_token(answer: Trajectory) -> int:
    return answer.token_ids[answer.action_mask.index(True)]
