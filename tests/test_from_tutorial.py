"""docs/from-tutorial.md: what it names exists, both languages say the same, and what it calls measured is:
each such fault of the tutorial's script is made here, in our own words, and measured.
"""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes import tiny_model, tokenizer
from torch.nn.functional import cross_entropy, kl_div

from rlteach import cli
from rlteach.config import Config, ConfigError
from rlteach.oreal.advantage import rloo
from rlteach.presets import PRESETS
from rlteach.training.update import schedule

ROOT = Path(__file__).resolve().parents[1]
ENGLISH, CHINESE = PAGES = [
    (ROOT / "docs" / f"from-tutorial{end}").read_text(encoding="utf-8") for end in (".md", ".zh.md")]
BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")
PLACE = re.compile(r"((?:rlteach|tests|docs|scripts|notebooks)/[\w/.-]+\.\w+)(?::([\w.]+))?")
ROW = re.compile(r"\bB(\d+)\b")


def prose(text: str) -> str:
    return BLOCK.sub("", text)


def rows_of(text: str) -> list[int]:
    """Numbers of rows, in the order in which they stand."""
    return [int(number) for number in ROW.findall(text)]


def stages(text: str) -> list[str]:
    """From one "### " heading to the next; the tables of names come after them."""
    before = re.split(r"^## (?:Names|名称)", prose(text), flags=re.MULTILINE)[0]
    return re.split(r"^### ", before, flags=re.MULTILINE)[1:]


def tables(text: str) -> list[str]:
    return [line for line in prose(text).splitlines() if line.startswith("|") and "---" not in line]


def names(line: str, column: int) -> list[str]:
    """The code in a cell of a table's line; columns count from 1."""
    return CODE.findall(line.split("|")[column])


def test_each_place_exists() -> None:
    places = [PLACE.fullmatch(code) for code in CODE.findall(prose(ENGLISH))]
    found = [place for place in places if place]
    assert len(found) > 40
    for place in found:
        path, name = ROOT / place[1], place[2]
        assert path.is_file(), f"{place[1]} does not exist"
        if name and place[1].startswith("rlteach/"):
            thing: Any = importlib.import_module(place[1].removesuffix(".py").replace("/", "."))
            for part in name.split("."):
                assert hasattr(thing, part), f"{place[0]}: there is no {part}"
                thing = getattr(thing, part)
        elif name:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            assert name in {n.name for n in tree.body if isinstance(n, ast.FunctionDef)}, place[0]


def test_each_fault_has_a_stage() -> None:
    assert set(rows_of(" ".join(stages(ENGLISH)))) == set(range(1, 19))


def test_what_is_called_measured_has_a_test_here() -> None:
    """`B4, measured: tests/...:test_b4_...`, and no test of a row that the page does not name."""
    said = re.findall(r"`tests/test_from_tutorial\.py:(test_b(\d+)_\w+)`", ENGLISH)
    assert {name for name, _ in said} == {name for name in globals() if re.match(r"test_b\d", name)}
    for name, number in said:
        at = ENGLISH.index(name)
        line = ENGLISH[ENGLISH.rindex("- **How we know", 0, at):at]
        assert "measured" in line[line.rindex(f"B{number}"):], name


def test_each_stage_says_four_things() -> None:
    words = ("Does", "Was meant to", "How we know", "Ours"), ("做了什么", "本来要", "怎么知道", "这里")
    for text, said in zip(PAGES, words, strict=True):
        for stage in stages(text):
            assert tuple(re.findall(r"^- \*\*(.+?)[:：]\*\*", stage, re.MULTILINE)) == said, stage[:40]


def test_both_languages_have_the_same_rows_and_names() -> None:
    assert BLOCK.findall(CHINESE) == BLOCK.findall(ENGLISH)
    english, chinese = stages(ENGLISH), stages(CHINESE)
    assert len(english) == len(chinese) == 14
    for one, other in zip(english, chinese, strict=True):
        assert rows_of(one) == rows_of(other), one[:40]
        assert Counter(CODE.findall(one)) == Counter(CODE.findall(other)), one[:40]
    assert list(map(CODE.findall, tables(ENGLISH))) == list(map(CODE.findall, tables(CHINESE)))
    assert Counter(CODE.findall(prose(ENGLISH))) == Counter(CODE.findall(prose(CHINESE)))
    assert Counter(rows_of(ENGLISH)) == Counter(rows_of(CHINESE))
    numbers = [Counter(re.findall(r"\d+(?:[.,]\d+)* %", prose(text))) for text in PAGES]
    assert numbers[0] == numbers[1] != Counter()


def test_figures_are_those_of_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for figure in re.findall(r"\d+\.\d %", prose(ENGLISH)):
        assert figure in readme, figure


def test_fields_exist_and_every_setting_of_theirs_has_a_line() -> None:
    lines = tables(ENGLISH)[[line.startswith("| there |") for line in tables(ENGLISH)].index(True) + 1:]
    fields = lines[: [line.startswith("| file or class") for line in lines].index(True)]
    ours = {name for line in fields for name in names(line, 2)}
    assert ours <= set(Config.model_fields), ours - set(Config.model_fields)
    theirs = [name for line in fields for name in names(line, 1)]
    assert len(theirs) == len(set(theirs)) > 40
    assert set(re.findall(r"`(\w+)`", " ".join(line.split("|")[3] for line in fields))) <= {
        *Config.model_fields, *(word for field in Config.model_fields.values()
                                for word in re.findall(r"'(\w+)'", str(field.annotation)))}


def test_commands_exist() -> None:
    commands = {info.name or info.callback.__name__ for info in cli.app.registered_commands}
    lines = [code for code in CODE.findall(prose(ENGLISH)) if code.startswith("rlteach ")]
    assert len(lines) >= 7
    for line in lines:
        words = line.split()
        assert words[1] in commands, line
        if words[1] == "train" and not words[2].startswith("-"):
            assert words[2] in PRESETS or words[2].endswith(".toml"), line
    for field in re.findall(r"--set (\w+)=", ENGLISH):
        assert field in Config.model_fields, field


def toml() -> dict[str, Any]:
    (text,) = re.findall(r"```toml\n(.*?)```", ENGLISH, re.DOTALL)
    return tomllib.loads(text)


def test_the_config_file_is_one_and_has_the_tutorials_numbers(tmp_path: Path) -> None:
    (text,) = re.findall(r"```toml\n(.*?)```", ENGLISH, re.DOTALL)
    (tmp_path / "oreal.toml").write_text(text, encoding="utf-8")
    config = Config.load(str(tmp_path / "oreal.toml"))
    theirs = {
        "max_new_tokens": 1024, "top_k": 0, "top_p": 0.9, "temperature": 0.8, "row_cap": 8, "micro_batch": 1,
        "warmup_steps": 10, "total_steps": 90, "policy_freeze_steps": 10, "policy_lr": 5e-7,
        "policy_lr_end": 1e-7, "token_reward_lr": 1e-6, "token_reward_lr_end": 4e-7, "weight_decay": 0.01,
        "max_grad_norm": 1, "correct_threshold": 0.5, "incorrect_threshold": 0.5, "positive_factor": 1.0,
        "negative_factor": 0.5, "kl_coefficient": 0.01, "checkpoint_interval": 10, "seed": 0,
        "difficulty_bins": ((0.0, 0.2, 6), (0.2, 0.4, 4), (0.4, 0.6, 4), (0.6, 0.8, 2))}
    assert {name: getattr(config, name) for name in theirs} == theirs
    assert (config.advantage, config.selection, config.token_weighting) == ("rloo", "one_pair", "threshold")


# what is called measured ---------------------------------------------------------------------------


def next_token_loss(logits: torch.Tensor, ids: torch.Tensor, ahead: int, start: int) -> torch.Tensor:
    """Mean of -log p(token t + ahead) read at t, over the tokens from `start` on. [T, V], [T]"""
    return cross_entropy(logits[start - ahead : len(ids) - ahead], ids[start:])


def test_b4_labels_shifted_twice() -> None:
    """Labels that already belong to the next position, handed to a model that shifts by itself."""
    model = tiny_model().eval()
    ids = torch.randint(3, 200, (12,), generator=torch.Generator().manual_seed(0))
    prompt = 5
    labels = torch.full_like(ids, -100)
    labels[prompt - 1 : -1] = ids[prompt:]  # shifted once, by hand
    with torch.no_grad():
        found = model(ids[None], labels=labels[None])
        logits = found.logits[0]
    assert found.loss.item() == pytest.approx(next_token_loss(logits, ids, 2, prompt).item(), abs=1e-5)
    assert abs(found.loss.item() - next_token_loss(logits, ids, 1, prompt).item()) > 1e-3


def test_b5_generate_gives_the_prompt_back() -> None:
    prompt = torch.tensor([[5, 6, 7]])
    given = tiny_model().generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=4, do_sample=False)
    assert given[0, :3].tolist() == prompt[0].tolist()
    row = torch.cat([prompt[0], given[0]])  # what the script trains on
    assert row[:6].tolist() == [5, 6, 7, 5, 6, 7]


def pull(model: torch.nn.Module, reference: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    """KL(reference || model) over every position and word, divided by rows only."""
    with torch.no_grad():
        target = reference(ids).logits.softmax(-1)
    return kl_div(model(ids).logits.log_softmax(-1), target, reduction="batchmean")


def test_b3_a_reference_that_is_the_policy() -> None:
    model, ids = tiny_model().eval(), torch.arange(3, 15)[None]
    loss = pull(model, model, ids)
    loss.backward()
    assert loss.item() == pytest.approx(0, abs=1e-5)
    assert max(float(p.grad.abs().max()) for p in model.parameters() if p.grad is not None) < 1e-5
    other = pull(tiny_model(), tiny_model(seed=1), ids)
    assert other.item() > 0.1, "two models would have had a distance"


def test_b8_a_kl_that_grows_with_the_padding() -> None:
    """The same question and answer, with nothing behind them and with padding: another pull."""
    model, reference, ids = tiny_model().eval(), tiny_model(seed=1).eval(), torch.arange(3, 15)[None]
    padded = torch.cat([ids, torch.zeros(1, 24, dtype=torch.long)], dim=1)
    assert pull(model, reference, padded).item() > 2 * pull(model, reference, ids).item()


def test_b7_a_group_of_one_has_no_baseline() -> None:
    rewards = torch.tensor([1.0])
    others = (rewards.sum() - rewards) / (len(rewards) - 1)
    assert (rewards - others).isnan().all()
    with pytest.raises(ValueError, match="at least two members"):
        rloo([1.0])
    with pytest.raises(ConfigError, match="group_size must be at least 2"):
        Config(**{**toml(), "group_size": 1})


def rates(total: int, warmup: int = 10, peak: float = 5e-7, end: float = 1e-7) -> list[float]:
    """The rate of each step under torch's own two schedulers on one optimiser, changed over at `warmup`."""
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=peak)
    rise = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: min(n / warmup, 1))
    fall = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=total - warmup, eta_min=end)
    out = []
    for step in range(total):
        optimizer.step()
        (rise if step <= warmup else fall).step()
        out.append(optimizer.param_groups[0]["lr"])
    return out


def test_b14_a_short_run_never_gets_to_its_rate() -> None:
    short, whole = rates(5), rates(90)
    assert max(short) == pytest.approx(2.5e-7)
    assert whole[9] == whole[10] == pytest.approx(5e-7), "steps 1 to 11 belong to the warm-up"
    assert whole[11] < whole[10]
    ours = [schedule(step, 3, 5, 5e-7, 1e-7) for step in range(5)]
    assert max(ours) == pytest.approx(5e-7)
    assert ours[-1] == pytest.approx(1e-7)
    assert ours[0] > 0


def test_b12_the_size_of_the_copies() -> None:
    words = 151_936  # Qwen2.5
    assert round(2048 * words * torch.finfo(torch.float32).bits // 8 / 1e9, 1) == 1.2
    assert "1.2 GB" in ENGLISH
    assert len(tokenizer()) < words / 500, "our models have small vocabularies, so lessons do not show it"
