"""Measure tiny-judge, and write its card: data/models/tiny-judge/card.json and README.md.

    python scripts/measure_judge.py           about a minute

Held-out pairs (data/judge/pairs.jsonl), and new answers of tiny-math that RuleJudger has graded, too.
A reply counts only if it is exactly the JSON that was asked for.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from build_data import write_readme

from rlteach.config import Config
from rlteach.course.judge_pairs import PairMaker
from rlteach.data import load_samples, read_jsonl
from rlteach.judger.answers import final_answer
from rlteach.judger.rule import RuleJudger
from rlteach.judger.verdicts import VERDICTS, request
from rlteach.policy.policy import Policy
from rlteach.types import Group, Message, Sample

RUBRIC = {"en": "Judge the candidate.", "zh": "判断候选答案是否正确。"}  # only its language gets to the model
SEED = 13
MADE = ("seed", "rounds", "batch")  # facts that only the build knows
FORMS = ("box",) * 6 + ("sentence",) * 2 + ("whole",) * 2  # how an answer of tiny-math is shown
FOLDER = Path(__file__).resolve().parents[1] / "data" / "models" / "tiny-judge"
README = """# {name}

{purpose}

A Llama-architecture language model ({parameters:,} parameters: 5 layers, hidden size 128, 4 heads of which 2 for
keys and values, tied embeddings) with a byte-level tokenizer in which every digit is a token. Made from nothing by
`{made_by}` with seed {seed}: supervised steps of {batch} requests and replies, AdamW, a warm-up and a cosine from
the peak learning rate; {rounds_said}. The pairs come from `rlteach/course/judge_pairs.py`; labels follow from
how a pair is made.

It judges what it was made for: gold answers that are whole numbers, candidates of a sentence or two. The system
message is left out, except for one thing: with 正确 in it the verdict is 正确 or 错误, otherwise correct or incorrect.

## Held-out pairs

{held_out[pairs]} pairs of data/judge/pairs.jsonl, greedy. Their gold numbers are in no training pair. Accuracy {accuracy:.2%}, false positives
{false:.2%} of the wrong candidates, replies that are exactly the JSON asked for {valid:.2%} (any other counts as wrong).
The aim was 97 % and at most 2 % false positives. In an unseen template every part (lead, answer, denial, join) is one that
no lesson had; a denial in such words is what it misses most often. The held-out words were written before the second round
of training; the figures by kind of the first round had been seen by then, so they are not wholly blind.

| label | says correct | says incorrect | not valid |
|---|---|---|---|
{matrix}
| part | pairs | accuracy |
|---|---|---|
{rows}
## Agreement with RuleJudger

{rule_agreement[pairs]} new answers of tiny-math to questions of data/prompts/test.jsonl, shown as the content of the box, as a
sentence with it, or whole: {agreed:.2%} the same verdict.

| rule | says correct | says incorrect | not valid |
|---|---|---|---|
{rule_matrix}
| shown as | answers | agreement |
|---|---|---|
{forms}
Licence: {licence}.
"""


def ask(policy: Policy, requests: Sequence[tuple[str, str]]) -> list[str]:
    """Greedy replies to (request, language of the rubric)."""
    order = sorted(range(len(requests)), key=lambda i: len(requests[i][0]))
    samples = [Sample(str(i), (Message("system", RUBRIC[requests[i][1]]), Message("user", requests[i][0])), ())
               for i in order]
    answers = policy.sample(samples, [[0]] * len(samples), greedy=True)
    shown = {i: answer.response for i, (answer,) in zip(order, answers, strict=True)}
    return [shown[i] for i in range(len(requests))]


def verdict(text: str, language: str) -> str:
    """correct, incorrect, or invalid for a reply that is not exactly the JSON that was asked for."""
    try:
        found = json.loads(text)
    except ValueError:
        return "invalid"
    words = dict(zip(VERDICTS[language], ("correct", "incorrect"), strict=True))
    if not isinstance(found, dict) or list(found) != ["rationale", "judgement"]:
        return "invalid"
    right = text == json.dumps(found, ensure_ascii=False) and isinstance(found["rationale"], str)
    return words.get(found["judgement"], "invalid") if right else "invalid"


def figures(labels: Sequence[str], verdicts: Sequence[str]) -> dict[str, Any]:
    """Accuracy, false positives (share of the wrong candidates that pass), confusion matrix."""
    counts = Counter(zip(labels, verdicts, strict=True))
    wrong = sum(n for (label, _), n in counts.items() if label == "incorrect")
    right = sum(n for (label, said), n in counts.items() if label == said)
    return {
        "pairs": len(labels), "accuracy": round(right / len(labels), 4),
        "false_positive_rate": round(counts["incorrect", "correct"] / max(wrong, 1), 4),
        "confusion": {label: {said: counts[label, said] for said in ("correct", "incorrect", "invalid")}
                      for label in ("correct", "incorrect")},
    }


def measure(policy: Policy, pairs: Sequence[dict[str, Any]], errors: int = 0) -> dict[str, Any]:
    """All that the card states about the held-out pairs; prints some of the errors."""
    other = {"en": "zh", "zh": "en"}
    requests = [request(p["question"], p["gold"], p["candidate"]) for p in pairs]
    languages, labels = [p["language"] for p in pairs], [p["label"] for p in pairs]
    replies = ask(policy, list(zip(requests, languages, strict=True)))
    said = [verdict(*both) for both in zip(replies, languages, strict=True)]
    for text, answer, pair, got in zip(requests, replies, pairs, said, strict=True):
        if got != pair["label"] and (errors := errors - 1) >= 0:
            print(pair["kind"], pair["template"], text, answer)
    crossed = [other[language] for language in languages]
    verdicts = [verdict(*both) for both in zip(ask(policy, list(zip(requests, crossed, strict=True))), crossed,
                                               strict=True)]
    out = figures(labels, said)
    out["valid_json"] = round(1 - said.count("invalid") / len(said), 4)
    out["rubric_in_the_other_language"] = share(labels, verdicts, [True] * len(labels))
    unseen = ["-u" in p["template"] for p in pairs]
    out["seen_templates"] = share(labels, said, [not u for u in unseen])
    out["unseen_templates"] = share(labels, said, unseen)
    for field in ("language", "kind"):
        out[f"by_{field}"] = {value: share(labels, said, [p[field] == value for p in pairs])
                              for value in sorted({p[field] for p in pairs})}
    return out


def share(labels: Sequence[str], verdicts: Sequence[str], kept: Sequence[bool]) -> dict[str, Any]:
    right = [a == b for a, b, keep in zip(labels, verdicts, kept, strict=True) if keep]
    return {"pairs": len(right), "accuracy": round(sum(right) / len(right), 4)}


def agreement(policy: Policy, count: int = 1000) -> dict[str, Any]:
    """With RuleJudger, on new answers of tiny-math: the box alone, the box in a sentence, the whole answer."""
    samples, solver = load_samples("prompts/test.jsonl"), Policy.load("tiny-math", Config())
    keys = [[SEED * 1_000_003 + 2 * i + k for k in range(2)] for i in range(len(samples))]
    maker, used, labels, requests = PairMaker(SEED), [], [], []
    for sample, answers in zip(samples, solver.sample(samples, keys), strict=True):
        for answer, judged in zip(answers, RuleJudger().grade(Group(sample, answers)), strict=True):
            box = final_answer(answer.response)
            if judged.score is None or not box:
                continue  # such an answer never gets to a language model
            used.append(FORMS[len(used) % len(FORMS)])
            said = {"box": box, "whole": answer.response}.get(used[-1]) or maker.sentence(box)
            requests.append(request(sample.question, sample.gold, said))
            labels.append(judged.status)
    used, labels, requests = used[:count], labels[:count], requests[:count]
    verdicts = [verdict(text, "en") for text in ask(policy, [(text, "en") for text in requests])]
    out = figures(labels, verdicts)
    out["by_form"] = {form: share(labels, verdicts, [u == form for u in used]) for form in sorted(set(FORMS))}
    return out


def readme(card: dict[str, Any]) -> str:
    held_out, rule = card["held_out"], card["rule_agreement"]

    def matrix(found: dict[str, Any]) -> str:
        return "".join(f"| {label} | {row['correct']} | {row['incorrect']} | {row['invalid']} |\n"
                       for label, row in found["confusion"].items())

    parts = {**held_out["by_kind"], **{f"language {k}": v for k, v in held_out["by_language"].items()}}
    for name in ("seen_templates", "unseen_templates", "rubric_in_the_other_language"):
        parts[name.replace("_", " ")] = held_out[name]
    rows = "".join(f"| {name} | {part['pairs']} | {part['accuracy']:.1%} |\n" for name, part in parts.items())
    forms = "".join(f"| {name} | {part['pairs']} | {part['accuracy']:.1%} |\n" for name, part in rule["by_form"].items())
    said = ", then ".join(f"{steps} steps from {peak}" for steps, peak, _ in card["rounds"])
    return README.format(**card, rounds_said=said, matrix=matrix(held_out), rows=rows, forms=forms, rule_matrix=matrix(rule),
                         accuracy=held_out["accuracy"], false=held_out["false_positive_rate"],
                         valid=held_out["valid_json"], agreed=rule["accuracy"])


def main(facts: dict[str, Any] | None = None, folder: Path = FOLDER, errors: int = 0) -> None:
    """Measure the model of `folder`; facts of its making come from the build, or stay as they are."""
    card_file = folder / "card.json"
    if facts is None:
        old = json.loads(card_file.read_text(encoding="utf-8"))
        facts = {name: old[name] for name in MADE}
    policy = Policy.load(str(folder), Config(max_new_tokens=100, row_cap=256))
    pairs = [entry for _, entry in read_jsonl("judge/pairs.jsonl") if entry["split"] == "heldout"]
    held_out = measure(policy, pairs, errors)
    card = {
        "name": "tiny-judge", "purpose": "A judge: reads question, gold answers and a candidate, and writes a rationale "
        "and a verdict as JSON.", "licence": "Apache-2.0", "made_by": "scripts/build_judge.py", **facts,
        "parameters": sum(p.numel() for p in policy.model.parameters()),
        "greedy_dev": held_out["accuracy"],  # what the other models' cards have of their questions
        "held_out": held_out, "rule_agreement": agreement(policy),
    }
    card_file.write_text(json.dumps(card, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(readme(card), encoding="utf-8")
    print(held_out, card["rule_agreement"], sep="\n", flush=True)
    write_readme()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--errors", type=int, default=0, help="print so many of the wrong verdicts")
    arguments = parser.parse_args()
    main(folder=arguments.folder, errors=arguments.errors)
