"""Make data/prompts again from a seed, and measure its pass rates.

    python scripts/build_data.py              writes train, dev and test (pass_rate null)
    python scripts/build_data.py --measure    fills pass_rate: 16 answers of tiny-math each

Dev and test come first, so that scripts/build_models.py can keep their questions out of the
demonstrations. No question, and no mirror image (a + b, b + a), is in two splits.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
from collections import Counter
from pathlib import Path

from rlteach.course import addition

ROOT = Path(__file__).resolve().parents[1] / "data" / "prompts"
SEED = 2026
LEVELS = (2, 3, 4)
SIZES = {"dev": 200, "test": 1000, "train": 4200}
SAMPLES = 16
README = """# data

Everything here is made by scripts of this repository, from seeds; nothing was downloaded. Licence: Apache-2.0.
`make models` makes it all again (on another machine or another torch the weights can differ in the last bits).

* prompts/: questions by scripts/build_data.py, seed {seed}: additions of two numbers of 2, 3 or 4 digits (`level`), a third
  of each. {train} train, {dev} dev, {test} test; no question and no mirror image (a + b, b + a) is in two splits. Schema of
  OREAL-RL-Prompts (question, gold_answer, pass_rate) plus id, data_source, level. `pass_rate` is the share of right
  answers among {samples} of models/tiny-math at temperature 1.
* judge/: {pairs} candidates with their labels by scripts/build_judge.py, half of them correct; split `heldout` has other
  gold numbers than `train`, and templates whose name holds `-u` are in it only. A label follows from how its pair was made.
* search/: a fictional encyclopaedia in English and Chinese and questions about it (one and two hops), by scripts/build_search.py,
  seed 2027; no name is in two splits.
* models/: by scripts/build_models.py and scripts/build_judge.py; each folder has its own card (README.md, card.json).

| file | SHA-256 |
|---|---|
{rows}"""


def build() -> None:
    rng = random.Random(SEED)
    taken: set[tuple[int, ...]] = set()
    ROOT.mkdir(parents=True, exist_ok=True)
    for split, size in SIZES.items():
        lines = []
        for i in range(size):
            level = LEVELS[i % len(LEVELS)]
            while True:
                a, b = (rng.randrange(10 ** (level - 1), 10**level) for _ in range(2))
                if (key := tuple(sorted((a, b)))) not in taken:
                    break
            taken.add(key)
            lines.append({"id": f"add-{split}-{i:04d}", "question": addition.question(a, b),
                          "gold_answer": str(a + b), "pass_rate": None, "data_source": "addition",
                          "level": level})
        write(split, lines)


def measure() -> None:
    """Pass rate of the embedded model at temperature 1, as OREAL's data has it."""
    from rlteach.config import Config
    from rlteach.data import load_samples
    from rlteach.judger.rule import RuleJudger
    from rlteach.policy.policy import Policy
    from rlteach.types import Group

    policy, judger = Policy.load("tiny-math", Config()), RuleJudger()
    for split in SIZES:
        path = ROOT / f"{split}.jsonl"
        samples = load_samples(path)
        keys = [[SEED * 1_000_003 + i * SAMPLES + k for k in range(SAMPLES)] for i in range(len(samples))]
        rates = {}
        for sample, answers in zip(samples, policy.sample(samples, keys), strict=True):
            scores = [j.score for j in judger.grade(Group(sample, answers)) if j.score is not None]
            rates[sample.id] = round(sum(scores) / len(scores), 4)
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        write(split, [{**line, "pass_rate": rates[line["id"]]} for line in lines])
        bins = Counter(min(int(r * 5), 4) for r in rates.values())
        print(split, "pass rates by fifths:", [bins[i] for i in range(5)])
    write_readme()


def write_readme() -> None:
    """Provenance and hashes of everything under data/."""
    root = ROOT.parent
    files = sorted(p for p in root.rglob("*") if p.is_file() and p.name != "README.md")
    rows = "".join(f"| {p.relative_to(root).as_posix()} | {hashlib.sha256(p.read_bytes()).hexdigest()} |\n"
                   for p in files)
    pairs = sum(p.read_text(encoding="utf-8").count("\n") for p in root.glob("judge/*.jsonl"))
    text = README.format(seed=SEED, rows=rows, samples=SAMPLES, pairs=pairs, **SIZES)
    (root / "README.md").write_text(text, encoding="utf-8")


def write(split: str, lines: list[dict[str, object]]) -> None:
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (ROOT / f"{split}.jsonl").write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="fill pass_rate with the embedded model")
    (measure if parser.parse_args().measure else build)()
