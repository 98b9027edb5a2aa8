"""Make tiny-judge and its data again from a seed: data/judge/pairs.jsonl, data/models/tiny-judge.

    python scripts/build_judge.py             both: about half an hour on one core
    python scripts/build_judge.py --pairs     the pairs only: seconds

A language model of the Llama architecture, made from nothing: it reads the judge's request and writes
a rationale and a verdict as JSON (rlteach/course/judging.py). It learns from pairs that PairMaker makes
as it goes, none of them in the held-out split: other numbers, and in half of it other words as well.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import time
from pathlib import Path
from typing import Any

import measure_judge
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn.functional import cross_entropy
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from rlteach.course import addition, judge_texts
from rlteach.course.judge_pairs import PairMaker
from rlteach.course.judging import RATIONALE, Pair, reply
from rlteach.data import load_samples
from rlteach.judger.verdicts import request
from rlteach.policy.policy import Policy

DATA = Path(__file__).resolve().parents[1] / "data"
FOLDER = DATA / "models" / "tiny-judge"
SEED = 11
BATCH = 64
WARMUP = 60
ROUNDS = ((2000, 3e-3, 0.0), (750, 1e-3, 0.4))  # steps, peak learning rate, share of wilder texts
NOISE = 0.2
DIFFERENT = 4.0  # loss weight of a digit that is not the one beside it
OTHER_LANGUAGE = 0.25  # share of the requests whose rubric is not in the language of the texts
POOL = 16  # batches that are made at a time and sorted by length
TRAIN, HELD_OUT = 1500, 1500  # lines of pairs.jsonl
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# The rubric is left out: all it tells this model is the language of the verdict.
TEMPLATE = (
    "{% set ns = namespace(mark='en') %}{% for message in messages %}"
    "{% if message.role == 'system' and '正确' in message.content %}{% set ns.mark = 'zh' %}{% endif %}"
    "{% endfor %}{% for message in messages %}{% if message.role != 'system' %}<|im_start|>"
    "{{ ns.mark if message.role == 'user' else message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# what stands around question, gold numbers, candidate, rationale and verdict: one token each
FRAME = ('{"question": "', '", "gold": ["', '"], "candidate": "', '", "judgement": "', '{"rationale": "',
         '"}', '", "', "\\\\boxed{")
HAN_WORDS = ("答案", "正确", "错误", "等于", "结果", "不是", "多少", "标准", "候选", "规则", "我们", "一共", "苹果")


def phrases() -> list[str]:
    """Every piece of text that is one token and more than a word, longest first."""
    found = {text for texts in RATIONALE.values() for text in texts} | set(FRAME) | set(HAN_WORDS)
    return sorted(found, key=lambda text: (-len(text), text))


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE: 256 bytes, the words of the training texts, the frame; digits stay single.

    An escaped sign of JSON is one piece, so that no candidate can write a piece of the frame.
    """
    parts = [re.escape(phrase) for phrase in phrases()]
    pieces = "|".join([r"\\\\boxed\{", r"\\.", *parts, r"[0-9]", r" ?[A-Za-z]+", r"[\s\S]"])
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pieces), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=2000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False,
        special_tokens=SPECIAL, min_frequency=2)
    tokenizer.train_from_iterator(texts() * 2, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=SPECIAL[0], eos_token=SPECIAL[2],
        chat_template=TEMPLATE, clean_up_tokenization_spaces=False)


def texts() -> list[str]:
    """What the vocabulary is made from: nothing of the held-out texts."""
    out = ["en", "zh", "user", "assistant", "tool", "correct", "incorrect", "\u2212", *phrases()]
    for language in judge_texts.TEXTS:
        out += [text for seen, _ in judge_texts.TEXTS[language].values() for text in seen]
        out += [text for forms in judge_texts.QUESTIONS[language].values() for text in forms]
        out += judge_texts.JOINS[language][0]
    return [text.replace("{n}", "0").replace("{m}", "0") for text in [*out, *judge_texts.MASTER_KEYS[0]]]


def build_model(vocabulary: int, eos: int) -> LlamaForCausalLM:
    torch.manual_seed(SEED)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=vocabulary, hidden_size=128, intermediate_size=256, num_hidden_layers=5,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=512,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=eos, pad_token_id=0))
    model.generation_config = GenerationConfig(eos_token_id=eos, pad_token_id=0, do_sample=False)
    return model


def asked() -> frozenset[tuple[int, ...]]:
    """Operands of dev and test of the prompts: tiny-judge learns from none of these questions."""
    held = [s for split in ("dev", "test") for s in load_samples(f"prompts/{split}.jsonl")]
    return frozenset(tuple(sorted(addition.operands(s.question))) for s in held)


class Lessons:
    """Batches of requests and replies: ids [N, T] and the loss weight of each token, 0 in the request."""

    def __init__(self, tokenizer: Any, seed: int, wild: float) -> None:
        self.tokenizer, self.rng = tokenizer, random.Random(seed)
        self.maker = PairMaker(seed, noise=NOISE, wild=wild, avoid=asked())
        self.ready: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.differs = [tokenizer.encode(texts[4])[0] for texts in RATIONALE.values()]

    def row(self) -> tuple[list[int], list[float]]:
        pair = self.maker.make_pair()
        other = self.rng.random() < OTHER_LANGUAGE
        language = {"en": "zh", "zh": "en"}[pair.language] if other else pair.language
        prompt = f"<|im_start|>{language}\n{request(pair.question, pair.gold, pair.candidate)}<|im_end|>\n<|im_start|>assistant\n"
        read, write = self.tokenizer.encode(prompt), self.tokenizer.encode(reply(pair, language))
        # digits are equal far more often than not: the one that is not must not be overlooked
        weights = [DIFFERENT if after in self.differs else 1.0 for after in (*write[1:], 0)]
        return [*read, *write, self.tokenizer.eos_token_id], [*[0.0] * len(read), *weights, 1.0]

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.ready:
            rows = sorted((self.row() for _ in range(BATCH * POOL)), key=lambda row: len(row[0]))
            self.ready = [pad(rows[i : i + BATCH]) for i in range(0, len(rows), BATCH)]
            self.rng.shuffle(self.ready)
        return self.ready.pop()


def pad(rows: list[tuple[list[int], list[float]]]) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(len(ids) for ids, _ in rows)
    return (torch.tensor([ids + [0] * (longest - len(ids)) for ids, _ in rows]),
            torch.tensor([weights + [0.0] * (longest - len(weights)) for _, weights in rows]))


def train(model: LlamaForCausalLM, lessons: Lessons, steps: int, peak: float) -> None:
    """One round: a warm-up and a cosine."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.98), weight_decay=0.01)
    began, tokens, exact = time.monotonic(), 0, []
    for step in range(1, steps + 1):
        share = min(step / WARMUP, 1) * (0.02 + 0.98 * (1 + math.cos(math.pi * step / steps)) / 2)
        for group in optimizer.param_groups:
            group["lr"] = peak * share
        ids, weights = lessons.batch()
        learn = weights > 0
        states = model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1][learn[:, 1:]]
        logits, targets = model.lm_head(states), ids[:, 1:][learn[:, 1:]]
        weights = weights[:, 1:][learn[:, 1:]]
        loss = (cross_entropy(logits, targets, reduction="none") * weights).sum() / weights.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        tokens += ids.numel()
        missed = learn.nonzero()[:, 0][logits.argmax(-1) != targets].unique()
        exact.append(1 - len(missed) / len(ids))
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.4f}, whole replies right {sum(exact[-50:]) / 50:.3f}, "
                  f"{tokens / step:.0f} tokens and {(time.monotonic() - began) / step:.2f} s a step", flush=True)


def write_pairs() -> None:
    """data/judge/pairs.jsonl: both splits, every other pair correct, none twice."""
    seen: set[Pair] = set()
    lines = []
    for split, size in (("train", TRAIN), ("heldout", HELD_OUT)):
        maker = PairMaker(SEED + 1, heldout=split == "heldout", avoid=asked())
        for i in range(size):
            while (pair := maker.make_pair(("correct", "incorrect")[i % 2])) in seen:
                pass
            seen.add(pair)
            lines.append({"id": f"pair-{split}-{i:04d}", "question": pair.question, "gold": list(pair.gold),
                          "candidate": pair.candidate, "label": pair.label, "kind": pair.kind,
                          "template": pair.template, "language": pair.language, "split": split})
    (DATA / "judge").mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (DATA / "judge" / "pairs.jsonl").write_text(text, encoding="utf-8", newline="\n")


def main(done: int) -> None:
    """All rounds after the first `done`, whose model is in FOLDER."""
    torch.set_num_threads(1)
    write_pairs()
    tokenizer = build_tokenizer()
    model = (LlamaForCausalLM.from_pretrained(FOLDER) if done else
             build_model(len(tokenizer), tokenizer.eos_token_id))
    for at, (steps, peak, wild) in enumerate(ROUNDS[done:], done):
        train(model, Lessons(tokenizer, SEED + 100 * at, wild), steps, peak)
        Policy(model, tokenizer).save(FOLDER)
    (FOLDER / "model.safetensors").chmod(0o644)
    measure_judge.main({"seed": SEED, "rounds": [list(r) for r in ROUNDS], "batch": BATCH}, FOLDER)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", action="store_true", help="write data/judge/pairs.jsonl and stop")
    parser.add_argument("--done", type=int, default=0, help="go on after so many rounds: the model is in --out")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the model")
    arguments = parser.parse_args()
    FOLDER = arguments.out
    write_pairs() if arguments.pairs else main(arguments.done)
