"""What ships with rlteach: small, whole, made as its cards say, and loadable without rlteach."""

import hashlib
import json
import re
from collections import Counter
from pathlib import Path
from statistics import correlation

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlteach.config import data_path
from rlteach.course.addition import operands
from rlteach.data import load_samples, read_jsonl
from rlteach.judger.rule import RuleJudger
from rlteach.policy.policy import Policy
from rlteach.policy.registry import embedded_models
from rlteach.presets import OREAL_BINS
from rlteach.training.evaluate import evaluate

MODELS = ("tiny-math", "tiny-checker", "tiny-judge")
MARK = {"tiny-judge": "en"}  # its template writes a language in place of the role (test_tiny_judge.py)
SPLITS = {"train": 4000, "dev": 200, "test": 1000}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_small_and_loads_in_plain_transformers(name: str) -> None:
    folder = embedded_models()[name]
    assert sum(f.stat().st_size for f in folder.iterdir()) <= 4_000_000
    assert (folder / "model.safetensors").is_file()
    assert not list(folder.glob("*.bin"))
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert model.config.num_key_value_heads < model.config.num_attention_heads, "grouped-query attention"
    chat = [{"role": "user", "content": "What is 1 + 2?"}]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    mark = MARK.get(name, "user")
    assert text == f"<|im_start|>{mark}\nWhat is 1 + 2?<|im_end|>\n<|im_start|>assistant\n"
    assert len(tokenizer.encode("".join(map(chr, range(32, 127))))) <= 95
    for foreign in ("你好，世界", "\x00\x7f\u2028", "🙂"):
        assert tokenizer.decode(tokenizer.encode(foreign)) == foreign


@pytest.mark.parametrize("name", MODELS)
def test_a_model_s_tokenizer_is_loaded_as_it_was_saved(name: str) -> None:
    """AutoTokenizer has classes of its own for some architectures, which cut and normalise text otherwise."""
    folder = embedded_models()[name]
    stored = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    loaded = json.loads(tokenizer.backend_tokenizer.to_str())
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder", "model", "added_tokens"):
        assert loaded[part] == stored[part], part
    assert tokenizer.unk_token is None, "every byte has a token"
    assert tokenizer.decode(tokenizer.encode("e\u0301 = \u00e9")) == "e\u0301 = \u00e9", "nothing is changed"


@pytest.mark.parametrize("name", MODELS)
def test_nothing_of_a_model_can_run_code(name: str) -> None:
    folder = embedded_models()[name]
    assert {path.suffix for path in folder.iterdir()} <= {".safetensors", ".json", ".jinja", ".md"}
    for path in folder.glob("*.json"):
        assert "auto_map" not in json.loads(path.read_text(encoding="utf-8")), "no remote code"
    for wanted in ("README.md", "card.json"):
        assert "Apache-2.0" in (folder / wanted).read_text(encoding="utf-8")


def test_the_card_says_what_is_measured() -> None:
    card = json.loads((embedded_models()["tiny-math"] / "card.json").read_text(encoding="utf-8"))
    found = evaluate(Policy.load("tiny-math"), RuleJudger(), load_samples("prompts/dev.jsonl"))
    assert 0.25 <= found.accuracy <= 0.55
    assert found.accuracy == pytest.approx(card["greedy_dev"], abs=0.03)
    assert min(card["sampled_dev_by_level"].values()) > 0, "every level is sometimes right"


def test_the_splits_share_no_question_and_no_mirror_image() -> None:
    seen: dict[tuple[int, ...], str] = {}
    for split, least in SPLITS.items():
        samples = load_samples(f"prompts/{split}.jsonl")
        assert len(samples) >= least
        assert len({s.extra["level"] for s in samples}) >= 3
        for sample in samples:
            a, b = operands(sample.question)
            assert sample.gold == (str(a + b),)
            key = tuple(sorted((a, b)))
            assert key not in seen, f"{sample.id} is also in {seen.get(key)}"
            seen[key] = split


def test_the_lines_have_the_schema() -> None:
    wanted = {"id", "question", "gold_answer", "pass_rate", "data_source", "level"}
    assert all(set(line) == wanted for split in SPLITS for _, line in read_jsonl(f"prompts/{split}.jsonl"))


def test_the_measured_pass_rates_fill_the_bins_of_oreal() -> None:
    rates = [s.pass_rate for s in load_samples("prompts/train.jsonl")]
    assert all(rate is not None for rate in rates)
    counts = Counter(next((i for i, (low, high, _) in enumerate(OREAL_BINS) if low <= r < high), None)
                     for r in rates)
    assert all(counts[i] >= 100 for i in range(len(OREAL_BINS))), counts


def test_the_pass_rates_are_those_of_the_model_that_ships() -> None:
    """Eight new answers to each of 90 questions: on average what was measured with sixteen."""
    samples = load_samples("prompts/dev.jsonl")[:90]
    found = evaluate(Policy.load("tiny-math"), RuleJudger(), samples, greedy=False, k=8, seed=1)
    stated = [s.pass_rate for s in samples]
    assert found.accuracy == pytest.approx(sum(stated) / len(stated), abs=0.06)
    scores = [sum(score or 0 for score in g.scores) / 8 for g in found.groups]
    assert correlation(stated, scores) > 0.4, "hard questions are hard again"


def test_the_readme_of_the_data_has_the_hashes() -> None:
    root = data_path()
    stated = dict(re.findall(r"^\| (\S+) \| ([0-9a-f]{64}) \|$", (root / "README.md").read_text(), re.M))
    files = {p.relative_to(root).as_posix(): p for p in root.rglob("*")
             if p.is_file() and p.name != "README.md"}
    assert set(stated) == set(files)
    for name, path in files.items():
        assert hashlib.sha256(Path(path).read_bytes()).hexdigest() == stated[name], name
