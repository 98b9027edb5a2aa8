"""Make tiny-agent again from a seed: data/models/tiny-agent, a policy that searches and often errs.

    python scripts/build_agent.py             some minutes on one core
    python scripts/build_agent.py --measure   only measures the model that is there, and writes its card

A language model of the Llama architecture, made from nothing. It learns from demonstrations that are
all right (rlteach/course/search_demos.py), with names that are in none of the questions of data/search,
and is stopped early, while it still errs: it writes calls that are no calls, copies names wrongly, looks
for the wrong thing, answers without a search.
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

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch.nn.functional import cross_entropy
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from rlteach.config import Config
from rlteach.course import encyclopedia
from rlteach.course.encyclopedia import HAN, SURNAMES, SYLLABLES, THINGS, NameMaker
from rlteach.course.search_demos import (
    BEFORE,
    LIMITS,
    PLACES,
    SEARCHING,
    SKIES,
    SKY,
    SUBJECTS,
    WEATHER,
    demonstration,
)
from rlteach.course.searching import Episode, Search, no_pages, pass_at_k, play, shares, web
from rlteach.data import load_samples, read_jsonl
from rlteach.policy.policy import Policy
from rlteach.types import Sample

FOLDER = Path(__file__).resolve().parents[1] / "data" / "models" / "tiny-agent"
SEED = 17
BATCH = 32
PEAK, MATRIX_PEAK = 3e-3, 0.01  # learning rates: of AdamW, and of Muon for the matrices of the layers
WARMUP, HELD, LOWEST = 40, 600, 1100  # steps: the learning rates rise, are held, and reach LOW by a cosine
LOW = 0.1  # share of the peak
NOTHING, READ, NAME, FORM, DECIDE = range(5)  # kinds of tokens; see Demonstrations.row
WEIGHTS = (0.0, 0.2, 1.0, 0.02, 1.0)  # of each kind in the loss: the form of a call is learned last
FIRST, EVERY, LAST = 600, 10, 1300  # steps at which a tiny-agent may be taken
WINDOW = (0.22, 0.38)  # its one-hop pass rate at temperature 1, on training questions
MALFORMED, PASS_16 = 0.12, 0.93  # at least
OF_EACH = 0.4  # pass@16 of the questions of every relation in each language, at least: training finds nothing
# where nothing is ever right
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# Of a tool, name and arguments are told. Each message is rendered for itself, so what is written stays
# as it is when messages are added.
TEMPLATE = (
    "{% if tools %}<|im_start|>tools\n{% for tool in tools %}{{ tool.function.name }}"
    "({{ tool.function.parameters.properties | join(', ') }})\n{% endfor %}<|im_end|>{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content or '' }}"
    "{% for call in message.tool_calls or [] %}{% set f = call.function or call %}"
    "<tool_call>{{ '{\"name\": ' }}{{ f.name | tojson }}{{ ', \"arguments\": ' }}"
    "{{ f.arguments if f.arguments is string else f.arguments | tojson }}{{ '}' }}</tool_call>{% endfor %}"
    "<|im_end|>{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
FRAME = ("system\n", "user\n", "assistant\n", "tool\n", "tools\n", "(", ", ", ")\n", "<tool_call>", "</tool_call>",
         '{"name": "', '", "arguments": {"', '": "', '": ', '", "', '"}', '}', "unit", "celsius", "fahrenheit",
         "get", "_current_weather", '{"Result": {"ResultCount": ', ', "WebResults": [', '{"Title": "', '", "Snippet": "',
         '"}, ', ']}}', '{"location": "', '", "temperature": ', ', "unit": "', '", "sky": "')


def phrases() -> list[str]:
    """Every text that is one token and no name, longest first."""
    found = {*FRAME, *BEFORE, *SEARCHING, *SKY, *SUBJECTS, *PLACES, *LIMITS, *encyclopedia.pieces(), *SKIES, *SKIES.values()}
    for text in (text for both in WEATHER.values() for text in both):
        found |= set(text.replace("{", "}").split("}")[::2])
    return sorted(found - {""}, key=lambda text: (-len(text), text))


def name_parts() -> list[str]:
    """What names are made of: one token each."""
    return [*SYLLABLES, *(s.capitalize() for s in SYLLABLES), *HAN, *SURNAMES, *THINGS]


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level: 256 bytes, the parts of names, and the texts of the task as one token each.

    There are no merges: a piece that the pre-tokenizer cuts is a token if the vocabulary has it, and
    its bytes otherwise.
    """
    words = list(dict.fromkeys([*phrases(), *name_parts()]))
    cut = "|".join([*(re.escape(text) for text in phrases()),
                    f"[{encyclopedia.CONSONANTS}{encyclopedia.CONSONANTS.upper()}][{encyclopedia.VOWELS}]", r"[\s\S]"])
    split = pre_tokenizers.Split(Regex(cut), "isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    spelt = ["".join(part for part, _ in as_bytes.pre_tokenize_str(word)) for word in words]
    texts = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *(word for word in spelt if len(word) > 1)]
    tokenizer = Tokenizer(models.BPE(vocab={text: i for i, text in enumerate(texts)}, merges=[], ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, as_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=SPECIAL[0], eos_token=SPECIAL[2],
        chat_template=TEMPLATE, clean_up_tokenization_spaces=False)


def build_model(vocabulary: int, eos: int) -> LlamaForCausalLM:
    torch.manual_seed(SEED)
    model = LlamaForCausalLM(LlamaConfig(  # at so small a width the usual first weights (0.02) learn to copy late
        vocab_size=vocabulary, hidden_size=128, intermediate_size=256, num_hidden_layers=4, initializer_range=0.08,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=eos, pad_token_id=0))
    model.generation_config = GenerationConfig(eos_token_id=eos, pad_token_id=0, do_sample=False)
    return model


def corpus_names() -> set[str]:
    """Every name of data/search: no demonstration has one of them."""
    names = {line["title"] for _, line in read_jsonl("search/corpus.jsonl")}
    for file in ("search_dataset", "search_dataset_dev_100", "search_dataset_test"):
        for _, line in read_jsonl(f"search/{file}.jsonl"):
            names |= {*line["gold_answer"], *line["queries"]}
    return {name for name in names if not name[0].isdigit()}


class Demonstrations:
    """Batches of conversations: ids [N, T] and the kind of each token [N, T]."""

    def __init__(self, tokenizer: Any, seed: int) -> None:
        self.tokenizer, self.rng = tokenizer, random.Random(seed)
        self.maker = NameMaker(self.rng, avoid=corpus_names(), unique=False)
        self.start = tokenizer.convert_tokens_to_ids(SPECIAL[1])
        self.roles = {tokenizer.encode(role + "\n")[0]: role for role in ("assistant", "tool")}
        self.copied = {tokenizer.encode(part)[0] for part in (*name_parts(), *"0123456789")}
        self.ready: list[tuple[torch.Tensor, torch.Tensor]] = []

    def row(self) -> tuple[list[int], list[int]]:
        """A conversation, and what each token is: READ what a tool says, DECIDE to call or to answer,
        NAME a part of a name or the end of one, FORM the rest of what the assistant says."""
        messages, tools = demonstration(self.maker, self.rng)
        text = self.tokenizer.apply_chat_template(
            [m.as_dict() for m in messages], tools=tools or None, tokenize=False)
        ids, kinds, role, before = self.tokenizer.encode(text), [], "", 0
        for token in ids:
            if before == self.start:  # which role comes next is not the model's choice
                role = self.roles.get(token, "")
            if before == self.start or token == self.start or not role:
                kinds.append(NOTHING)
            elif role == "tool":
                kinds.append(READ)
            elif before in self.roles:
                kinds.append(DECIDE)
            else:
                kinds.append(NAME if token in self.copied or before in self.copied else FORM)
            before = token
        return ids, kinds

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows of about one length, which wastes little on padding."""
        if not self.ready:
            rows = sorted((self.row() for _ in range(BATCH * 8)), key=lambda row: len(row[0]))
            self.ready = [pad(rows[i : i + BATCH]) for i in range(0, len(rows), BATCH)]
            self.rng.shuffle(self.ready)
        return self.ready.pop()


def pad(rows: list[tuple[list[int], list[int]]]) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(len(ids) for ids, _ in rows)
    return (torch.tensor([ids + [0] * (longest - len(ids)) for ids, _ in rows]),
            torch.tensor([kinds + [NOTHING] * (longest - len(kinds)) for _, kinds in rows]))


class Supervised:
    """Demonstrations, with little weight on the form of a call: that is what the model knows least when
    it is stopped, and what training mends first."""

    def __init__(self, model: LlamaForCausalLM, tokenizer: Any) -> None:
        self.model, self.data, self.done = model, Demonstrations(tokenizer, SEED), 0
        matrices = {name: p for name, p in model.named_parameters() if p.ndim == 2 and "layers" in name}
        others = [p for name, p in model.named_parameters() if name not in matrices]
        self.optimizers = (
            (torch.optim.AdamW(others, betas=(0.9, 0.98), weight_decay=0.01), PEAK),
            (torch.optim.Muon(list(matrices.values()), momentum=0.95, weight_decay=0.0), MATRIX_PEAK))
        self.began, self.chances = time.monotonic(), torch.zeros(len(WEIGHTS))

    def share(self) -> float:
        """Of the peak learning rates: a warm-up, a plateau, a cosine, then LOW."""
        fall = min(max(self.done - HELD, 0) / (LOWEST - HELD), 1)
        return min(self.done / WARMUP, 1) * (LOW + (1 - LOW) * (1 + math.cos(math.pi * fall)) / 2)

    def step(self) -> None:
        self.done += 1
        ids, kinds = self.data.batch()
        weights = torch.tensor(WEIGHTS)[kinds]
        learn = weights[:, 1:] > 0
        states = self.model.model(input_ids=ids, use_cache=False).last_hidden_state[:, :-1][learn]
        logits, targets, weights = self.model.lm_head(states), ids[:, 1:][learn], weights[:, 1:][learn]
        losses = cross_entropy(logits, targets, reduction="none")
        loss = (losses * weights).sum() / weights.sum()
        self.model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer, peak in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = peak * self.share()
            optimizer.step()
        self.report(losses.detach(), kinds[:, 1:][learn], ids.numel())

    def report(self, losses: torch.Tensor, kinds: torch.Tensor, tokens: int) -> None:
        """Every 25 steps, the mean chance that the right token had, by kind."""
        for kind in range(1, len(WEIGHTS)):
            if (kinds == kind).any():
                chance = (-losses[kinds == kind]).exp().mean()
                self.chances[kind] += 0.1 * (chance - self.chances[kind])
        if self.done % 25 == 0:
            shown = ", ".join(f"{name} {self.chances[kind]:.3f}" for name, kind in
                              (("read", READ), ("names", NAME), ("form", FORM), ("decide", DECIDE)))
            print(f"step {self.done}: {shown}; {tokens} tokens, "
                  f"{(time.monotonic() - self.began) / self.done:.2f} s a step", flush=True)


def rollouts(policy: Policy, samples: list[Sample], k: int, search: Search = web) -> list[Episode]:
    """k of each question, at temperature 1."""
    many = [sample for sample in samples for _ in range(k)]
    return play(policy, many, [SEED * 1_000_003 + i for i in range(len(many))], search)


def figures(episodes: list[Episode], k: int) -> dict[str, float]:
    """shares() and pass@k, rounded."""
    return {key: round(value, 4) for key, value in {**shares(episodes), f"pass_at_{k}": pass_at_k(episodes)}.items()}


def least(episodes: list[Episode]) -> tuple[float, str]:
    """The lowest pass@k of all relations and languages, and which one has it."""
    of: dict[str, list[Episode]] = {}
    for episode in episodes:
        of.setdefault(f"{episode.sample.extra['relation']}, {episode.sample.extra['language']}", []).append(episode)
    return min((pass_at_k(found), name) for name, found in of.items())


def fits(policy: Policy, probe: list[Sample], step: int) -> bool:
    """Is this a policy for the lessons: errs often, is sometimes right about everything?"""
    quick = figures(rollouts(policy, probe, 2), 2)
    print(f"step {step}: {quick}", flush=True)
    if quick["pass_at_2"] < 0.45 or quick["pass_rate"] > WINDOW[1] + 0.08:
        return False  # far outside, whatever two rollouts a question are worth
    episodes = rollouts(policy, probe, 16)
    full, worst = figures(episodes, 16), least(episodes)
    print(f"step {step}: {full}; {worst}", flush=True)
    return (WINDOW[0] <= full["pass_rate"] <= WINDOW[1] and full["pass_at_16"] >= PASS_16
            and full["malformed"] >= MALFORMED and worst[0] >= OF_EACH)


def measure(policy: Policy) -> dict[str, Any]:
    """What the card states, on the questions of dev and test."""
    out: dict[str, Any] = {}
    for split, file in (("dev", "search_dataset_dev_100"), ("test", "search_dataset_test")):
        samples = load_samples(f"search/{file}.jsonl")
        for level in ("single", "two"):
            asked = [s for s in samples if s.extra["level"] == level]
            greedy = shares(play(policy, asked, [0] * len(asked), greedy=True))
            out[f"{split}_{level}"] = {
                "questions": len(asked), "greedy": round(greedy["pass_rate"], 4), 
                **figures(rollouts(policy, asked, 16), 16),
                "empty_search": figures(rollouts(policy, asked, 4, no_pages), 4)["pass_rate"]}
            print(split, level, out[f"{split}_{level}"], flush=True)
    return out


def write_card(policy: Policy, steps: int) -> None:
    measured = measure(policy)
    dev = [measured["dev_single"], measured["dev_two"]]
    greedy = sum(part["greedy"] * part["questions"] for part in dev) / sum(part["questions"] for part in dev)
    card = {
        "name": "tiny-agent", "purpose": "The untrained search policy of rlteach: it looks names up, and often errs.",
        "licence": "Apache-2.0", "made_by": "scripts/build_agent.py", "seed": SEED, "supervised_steps": steps,
        "batch": BATCH, "peak_lr": PEAK, "peak_lr_of_matrices": MATRIX_PEAK,
        "loss_weights": dict(zip(("read", "name", "form", "decide"), WEIGHTS[1:], strict=True)),
        "parameters": sum(p.numel() for p in policy.model.parameters()), 
        "greedy_dev": round(greedy, 4), "measured": measured}
    (FOLDER / "card.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    (FOLDER / "README.md").write_text(readme(card), encoding="utf-8")


def readme(card: dict[str, Any]) -> str:
    rows = "".join(
        f"| {name.replace('_', ', ')} | {m['questions']} | {m['pass_rate']:.1%} | {m['greedy']:.1%} | {m['pass_at_16']:.1%} | "
        f"{m['malformed']:.1%} | {m['malformed_of_calls']:.1%} | {m['no_search']:.1%} | {m['empty_search']:.1%} |\n"
        for name, m in card["measured"].items())
    return f"""# {card['name']}

{card['purpose']}

A Llama-architecture language model ({card['parameters']:,} parameters: 4 layers, hidden size 128, 4 heads of which 2 for keys
and values, tied embeddings) with a byte-level tokenizer in which syllables, Chinese characters of names and the fixed
texts of the task are one token each. Made from nothing by `{card['made_by']}` with seed {card['seed']}: {card['supervised_steps']} supervised
steps of {card['batch']} conversations (Muon for the matrices of the layers, AdamW for the rest). Every conversation is right
from beginning to end (`rlteach/course/search_demos.py`); names are drawn anew for each, and none of data/search is among them.
In each the tools and their arguments are called something else, so that the form of a call has to be read off the prompt; in
the loss that form has little weight. The model was stopped early on purpose: a policy to be trained has to err. The step was
chosen on training questions, by its pass rate at temperature 1.

It knows the questions of data/search and the weather, in English and Chinese. Its chat template tells it the names and the
arguments of the tools, not their descriptions.

Temperature 1, 16 rollouts a question, at most 6 answers a rollout; a malformed call (no JSON, another tool, a wrong or missing
argument) ends it. An answer is right if the announced name is exactly the gold one.

| split, level | questions | right | right, greedy | pass@16 | rollouts with a malformed call | of the calls | no search | right with an empty search tool |
|---|---|---|---|---|---|---|---|---|
{rows}
Licence: {card['licence']}.
"""


def probe_samples() -> list[Sample]:
    """One-hop questions of the training split, which choose the step: dev and test are only measured."""
    return [s for s in load_samples("search/search_dataset.jsonl") if s.extra["level"] == "single"][:140]


def main() -> None:
    tokenizer = build_tokenizer()
    model = build_model(len(tokenizer), tokenizer.eos_token_id)
    policy, run, probe = Policy(model, tokenizer, config=Config()), Supervised(model, tokenizer), probe_samples()
    while not (run.done >= FIRST and run.done % EVERY == 0 and fits(policy, probe, run.done)):
        if run.done >= LAST:
            raise SystemExit(f"no checkpoint up to step {run.done} fits the window {WINDOW}")
        run.step()
    policy.save(FOLDER)
    (FOLDER / "model.safetensors").chmod(0o644)
    write_card(policy, run.done)


if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="measure the model that is there")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the model")
    arguments = parser.parse_args()
    FOLDER = arguments.out
    if arguments.measure:
        write_card(Policy.load(str(FOLDER), Config()), json.loads((FOLDER / "card.json").read_text())["supervised_steps"])
    else:
        main()
