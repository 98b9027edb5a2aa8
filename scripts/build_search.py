"""Make data/search again from a seed: an encyclopaedia and questions about it.

    python scripts/build_search.py            seconds

corpus.jsonl is what web_search looks into. search_dataset.jsonl is the training split,
search_dataset_dev_100.jsonl and search_dataset_test.jsonl are the other two. No name is in two
splits, and scripts/build_agent.py keeps the names of all three out of its demonstrations.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

from rlteach.course.encyclopedia import RELATIONS, TWO_HOP, Cluster, NameMaker

FOLDER = Path(__file__).resolve().parents[1] / "data" / "search"
SEED = 2027
# split: (clusters of each language, one-hop questions, two-hop questions, file)
SPLITS = {"dev": (10, 70, 30, "search_dataset_dev_100.jsonl"), "test": (30, 300, 100, "search_dataset_test.jsonl"),
          "train": (100, 1400, 600, "search_dataset.jsonl")}


def questions(clusters: list[Cluster], relations: list[str], size: int, rng: random.Random) -> list[dict[str, object]]:
    """`size` questions in turn from both languages and all relations, none twice, without id and split."""
    turns = {(language, relation): rng.sample(range(len(clusters) // 2), len(clusters) // 2)
             for relation in relations for language in ("en", "zh")}
    of = {language: [c for c in clusters if c.language == language] for language in ("en", "zh")}
    lines: list[dict[str, object]] = []
    for round_ in range(len(clusters) // 2):
        for (language, relation), order in turns.items():
            q = of[language][order[round_]].ask(relation)
            lines.append({"question": q.text, "gold_answer": q.golds(), "pass_rate": None, "data_source": "search",
                          "level": q.level, "relation": relation, "language": language, "queries": list(q.queries)})
    if size > len(lines):
        raise SystemExit(f"{size} questions are wanted, but the clusters have {len(lines)}: raise their number")
    return lines[:size]


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    rng = random.Random(SEED)
    maker = NameMaker(rng)
    told: list[Cluster] = []
    for split, (count, single, two, file) in SPLITS.items():
        clusters = [maker.cluster(language) for _ in range(count) for language in ("en", "zh")]
        told += clusters
        lines = questions(clusters, list(RELATIONS), single, rng) + questions(clusters, list(TWO_HOP), two, rng)
        rng.shuffle(lines)
        write(file, [{"id": f"search-{split}-{i:04d}", **line, "split": split} for i, line in enumerate(lines)])
    rng.shuffle(told)
    pages = [page for cluster in told for page in cluster.pages()]
    write("corpus.jsonl", [{"id": f"page-{i:04d}", **page} for i, page in enumerate(pages)])


def write(file: str, lines: list[dict[str, object]] | list[dict[str, str]]) -> None:
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    (FOLDER / file).write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
