"""Make the embedded models again from a seed: data/models/tiny-math and data/models/tiny-checker.

    python scripts/build_models.py            about ten minutes on one core

One supervised run on worked additions (rlteach/course/addition.py), saved twice:
  tiny-math     stopped early, at a high learning rate, while it still errs: the policy to be trained
  tiny-checker  the same run, taken to its end: the body of a warm-started token-level reward model
Every demonstration ends right. Some hold a slip that is noticed and mended; the wrong digit itself
carries no loss. Nothing is done to the weights, and no target is wrong. Questions of dev and test
are in no demonstration.
"""

from __future__ import annotations

import argparse
import json
import math
import random
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.functional import cross_entropy
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from rlteach.config import Config
from rlteach.course import addition
from rlteach.data import load_samples
from rlteach.judger.rule import RuleJudger
from rlteach.policy.policy import Policy
from rlteach.types import Group, Sample

ROOT = Path(__file__).resolve().parents[1] / "data" / "models"
SEED = 7
BATCH = 32
PEAK = 2e-3
WARMUP = 50
LEVEL_WEIGHTS = {2: 1, 3: 2, 4: 3}  # long numbers are harder, so they are shown more often
SLIP = 0.12  # per step of the working
LATE_SLIP = 0.3  # of tiny-checker
FIRST, EVERY, LAST = 420, 10, 800  # steps at which a tiny-math may be taken
WINDOW = (0.42, 0.53)  # its greedy accuracy on dev and 400 training questions
SAMPLED, LOWEST = 0.27, 0.10  # its accuracy at temperature 1: over all, and of the worst level
LATE = 800  # further steps of tiny-checker
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE: 256 bytes, the words of the task, three control tokens. Digits stay single."""
    tokenizer = Tokenizer(models.BPE())
    pieces = Regex(r"\d|\\boxed\{| ?[A-Za-z]+|, |[^\dA-Za-z]")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(pieces, "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    words = ["system", "user", "assistant", "tool", "What", " is", " no", "\\boxed{", ", "]
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
        special_tokens=SPECIAL)
    tokenizer.train_from_iterator(words * 10, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=SPECIAL[0], eos_token=SPECIAL[2],
        chat_template=TEMPLATE, clean_up_tokenization_spaces=False)


def build_model(vocabulary: int, eos: int) -> Qwen2ForCausalLM:
    torch.manual_seed(SEED)
    model = Qwen2ForCausalLM(Qwen2Config(
        vocab_size=vocabulary, hidden_size=128, intermediate_size=352, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=eos, pad_token_id=0))
    model.generation_config = GenerationConfig(eos_token_id=eos, pad_token_id=0, do_sample=False)
    return model


def as_llama(model: Qwen2ForCausalLM) -> LlamaForCausalLM:
    """The same function in the other architecture, bit for bit.

    For a folder of the Qwen2 family AutoTokenizer takes Qwen2's own cutting rules in place of those
    in tokenizer.json; for one of the Llama family it takes what is written there.
    """
    c = model.config
    same = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
            "num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "tie_word_embeddings",
            "bos_token_id", "eos_token_id", "pad_token_id")
    settings = {name: getattr(c, name) for name in same}
    llama = LlamaForCausalLM(LlamaConfig(**settings, attention_bias=True)).eval()
    llama.load_state_dict(model.state_dict(), strict=False)
    for layer in llama.model.layers:  # the one part that Qwen2 does not have
        torch.nn.init.zeros_(layer.self_attn.o_proj.bias)
    ids = torch.randint(0, c.vocab_size, (4, 60), generator=torch.Generator().manual_seed(SEED))
    if not torch.equal(model.eval()(ids).logits, llama(ids).logits):
        raise SystemExit("the two architectures do not give the same logits in this transformers")
    llama.generation_config = model.generation_config
    return llama


class Demonstrations:
    """Batches of worked answers: ids and the loss weight of each token."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer, self.rng = tokenizer, random.Random(SEED)
        held = [s for split in ("dev", "test") for s in load_samples(f"prompts/{split}.jsonl")]
        self.held = {tuple(sorted(addition.operands(s.question))) for s in held}
        self.cache: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        if text not in self.cache:
            self.cache[text] = self.tokenizer.encode(text, add_special_tokens=False)
        return self.cache[text]

    def operands(self) -> tuple[int, int]:
        level = self.rng.choices(list(LEVEL_WEIGHTS), list(LEVEL_WEIGHTS.values()))[0]
        while True:
            a, b = (self.rng.randrange(10 ** (level - 1), 10**level) for _ in range(2))
            if tuple(sorted((a, b))) not in self.held:
                return a, b

    def row(self, slip: float) -> tuple[list[int], list[float]]:
        a, b = self.operands()
        chat = [{"role": "user", "content": addition.question(a, b)}]
        prompt = self.tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        ids = self.tokenizer.encode(prompt, add_special_tokens=False)
        weights = [0.0] * len(ids)
        for text, learn in addition.demonstration(a, b, slip, self.rng):
            piece = self.encode(text)
            ids, weights = ids + piece, weights + [float(learn)] * len(piece)
        return [*ids, self.tokenizer.eos_token_id], [*weights, 1.0]

    def batch(self, slip: float) -> tuple[torch.Tensor, torch.Tensor]:
        rows = [self.row(slip) for _ in range(BATCH)]
        longest = max(len(ids) for ids, _ in rows)
        ids = torch.tensor([r + [0] * (longest - len(r)) for r, _ in rows])
        weights = torch.tensor([w + [0.0] * (longest - len(w)) for _, w in rows])
        return ids, weights


def accuracy(policy: Policy, samples: list[Sample], greedy: bool) -> dict[int, float]:
    """Share of right answers by level."""
    keys = [[SEED * 1_000_003 + i * 4 + k for k in range(1 if greedy else 4)] for i in range(len(samples))]
    scores: dict[int, list[float]] = {}
    for sample, answers in zip(samples, policy.sample(samples, keys, greedy=greedy), strict=True):
        judged = RuleJudger().grade(Group(sample, answers))
        scores.setdefault(sample.extra["level"], []).extend(j.score or 0.0 for j in judged)
    return {level: sum(s) / len(s) for level, s in sorted(scores.items())}


def save(policy: Policy, name: str, purpose: str, step: int, dev: list[Sample]) -> None:
    folder = ROOT / name
    policy = Policy(as_llama(policy.model), policy.tokenizer, config=policy.config)
    policy.save(folder)
    (folder / "model.safetensors").chmod(0o644)
    greedy, sampled = accuracy(policy, dev, True), accuracy(policy, dev, False)
    card = {
        "name": name, "purpose": purpose, "licence": "Apache-2.0", "made_by": "scripts/build_models.py",
        "seed": SEED, "supervised_steps": step, "batch": BATCH, "peak_lr": PEAK,
        "parameters": sum(p.numel() for p in policy.model.parameters()),
        "greedy_dev": round(mean(greedy), 4), "sampled_dev": round(mean(sampled), 4),
        "greedy_dev_by_level": greedy, "sampled_dev_by_level": sampled,
    }
    (folder / "card.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(readme(card), encoding="utf-8")
    print(f"saved {name} at step {step}: greedy {greedy}, temperature 1 {sampled}", flush=True)


def readme(card: dict[str, Any]) -> str:
    levels = "".join(
        f"| {level} digits | {card['greedy_dev_by_level'][level]:.1%} | {card['sampled_dev_by_level'][level]:.1%} |\n"
        for level in card["greedy_dev_by_level"])
    return f"""# {card['name']}

{card['purpose']}

A Llama-architecture language model ({card['parameters']:,} parameters: 4 layers, hidden size 128, 4 heads of
which 2 for keys and values, tied embeddings, biases at the attention) with a byte-level tokenizer in which every byte and every
digit is a token. Made from nothing by `{card['made_by']}` with seed {card['seed']}: {card['supervised_steps']}
supervised steps of {card['batch']} worked additions (2, 3 and 4 digits), AdamW, learning rate {card['peak_lr']} (constant after a warm-up; tiny-checker: a cosine to 0 after that).
Every demonstration ends right; in some of them a wrong digit is noticed (" no, ") and the step is
written again, and the wrong digit carries no loss. No question of dev or test was used.

Accuracy on the 200 questions of data/prompts/dev.jsonl:

| level | greedy | temperature 1 |
|---|---|---|
{levels}
Licence: {card['licence']}.
"""


class Supervised:
    """Demonstrations, AdamW and a learning rate; `steps` trains."""

    def __init__(self, model: Qwen2ForCausalLM, tokenizer: Any) -> None:
        self.model, self.data, self.done = model, Demonstrations(tokenizer), 0
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK, betas=(0.9, 0.98), weight_decay=0.01)

    def step(self, slip: float, share: float = 1.0) -> None:
        """One batch at `share` of the peak learning rate (after the warm-up)."""
        self.done += 1
        for group in self.optimizer.param_groups:
            group["lr"] = PEAK * share * min(self.done / WARMUP, 1)
        ids, weights = self.data.batch(slip)
        logits = self.model(input_ids=ids, use_cache=False).logits[:, :-1]
        losses = cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        loss = (losses * weights[:, 1:]).sum() / weights[:, 1:].sum()
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()


def early_enough(policy: Policy, probe: list[Sample], step: int) -> bool:
    """Is this a policy for the lessons: half right, every level sometimes right?"""
    greedy, sampled = accuracy(policy, probe, True), accuracy(policy, probe, False)
    print(f"step {step}: greedy {greedy}, temperature 1 {sampled}", flush=True)
    return (WINDOW[0] <= mean(greedy) <= WINDOW[1] and mean(sampled) >= SAMPLED
            and min(sampled.values()) >= LOWEST)


def mean(by_level: dict[int, float]) -> float:
    return sum(by_level.values()) / len(by_level)


def main(late: int) -> None:
    torch.set_num_threads(1)
    tokenizer = build_tokenizer()
    model = build_model(len(tokenizer), tokenizer.eos_token_id)
    policy = Policy(model, tokenizer, config=Config())
    dev, run = load_samples("prompts/dev.jsonl"), Supervised(model, tokenizer)
    probe = dev + load_samples("prompts/train.jsonl")[:400]
    while not (run.done >= FIRST and run.done % EVERY == 0 and early_enough(policy, probe, run.done)):
        if run.done >= LAST:
            raise SystemExit(f"no checkpoint up to step {LAST} fits the window {WINDOW}")
        run.step(SLIP)
    save(policy, "tiny-math", "The untrained policy of rlteach: it adds, and often errs.", run.done, dev)
    for i in range(late):
        run.step(LATE_SLIP, (1 + math.cos(math.pi * i / late)) / 2)
    if late:
        save(policy, "tiny-checker", "tiny-math trained on: the body of a warm-started token-level "
             "reward model.", run.done, dev)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--late", type=int, default=LATE, help="further steps of tiny-checker; 0: leave it out")
    parser.add_argument("--out", type=Path, default=ROOT, help="folder of the models")
    arguments = parser.parse_args()
    ROOT = arguments.out
    main(arguments.late)
