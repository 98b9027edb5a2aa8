"""Every number of a run: named, described, bounded, and refused with a sentence that helps."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from pydantic import ValidationError

import rlteach as rl
from rlteach.config import Config, ConfigError, data_path
from rlteach.presets import OREAL_BINS, PRESETS

FIELDS = Config.model_fields
SCHEMA = Config.model_json_schema()["properties"]
NUMBERS = {name: field.annotation for name, field in FIELDS.items() if field.annotation in (int, float)}
FLOATS = [name for name, kind in NUMBERS.items() if kind is float]
CHOICES = {name: get_args(field.annotation) for name, field in FIELDS.items()
           if "Literal" in str(get_origin(field.annotation))}
# the fields in which the two readings of OREAL differ (ARCHITECTURE.md, section 5)
READINGS = {"positive_weight", "negative_shaping", "token_score", "kl_target", "loss_norm", "head_init",
            "warmup_while_frozen"}


def refused(**fields: Any) -> str:
    """The sentence with which these fields are refused."""
    with pytest.raises(ConfigError) as caught:
        Config(**fields)
    text = str(caught.value)
    assert "\n" not in text, "one line"
    assert "pydantic" not in text, "our words, not the library's"
    return text


# each field ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FIELDS)
def test_every_field_has_a_description_and_a_default(name: str) -> None:
    assert FIELDS[name].description, f"{name}: say what it is"
    assert not FIELDS[name].is_required(), f"{name}: a config without arguments has to work"
    assert getattr(Config(), name) == FIELDS[name].default


@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_has_a_lower_bound(name: str) -> None:
    text = refused(**{name: -1000 if NUMBERS[name] is int else -1000.5})
    assert text.startswith(f"{name} must be")
    assert "-1000" in text, "the value that was refused"


@pytest.mark.parametrize("name", [n for n in FLOATS if n != "checkpoint_interval"])
def test_every_real_number_has_an_upper_bound(name: str) -> None:
    assert refused(**{name: 1e9}).startswith(f"{name} must be less than")


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
def test_nan_and_infinity_are_no_numbers_of_a_run(name: str, value: float) -> None:
    assert refused(**{name: value}).startswith(f"{name} must be")


def test_nan_does_not_hide_in_a_table_of_numbers() -> None:
    assert refused(adam_betas=(0.9, math.nan)).startswith("adam_betas.1 must be")
    assert refused(difficulty_bins=[(0.0, math.nan, 1)]).startswith("difficulty_bins.0.1 must be")


@pytest.mark.parametrize("name", CHOICES)
def test_a_choice_names_what_can_be_chosen(name: str) -> None:
    text = refused(**{name: "perhaps"})
    assert text.startswith(f"{name} must be")
    for choice in CHOICES[name]:
        assert f"'{choice}'" in text
        changes = {"token_reward_model": "policy"} if name == "token_weighting" else {}
        assert getattr(Config(**{name: choice, **changes}), name) == choice
    assert "'perhaps'" in text


def test_choices_are_those_of_the_design() -> None:
    wanted = {
        "advantage": "rloo grpo", "selection": "one_pair mixed all", "positive_weight": "advantage one",
        "negative_shaping": "rloo one_minus_p none", "token_weighting": "none threshold topk",
        "token_score": "running_mean per_token", "token_reward_rows": "all kept",
        "head_init": "zero normal", "kl_estimator": "k1 k2 k3", "kl_target": "initial old",
        "loss_norm": "token_class sequence", "control": "none random shuffled own_samples",
    }
    for name, choices in wanted.items():
        assert set(CHOICES[name]) == set(choices.split()), name


@pytest.mark.parametrize(("name", "value"), [
    ("group_size", 1), ("batch_size", 0), ("temperature", 0), ("temperature", 5.01), ("top_p", 0),
    ("top_p", 1.01), ("top_k", -1), ("max_new_tokens", 0), ("row_cap", 0), ("positive_threshold", 1.5),
    ("correct_threshold", 1), ("incorrect_threshold", 1), ("topk_ratio", 0), ("kl_coefficient", -0.01),
    ("total_steps", 0), ("policy_lr", 0), ("token_reward_epochs", 0), ("micro_batch", 0),
    ("logits_chunk", 0), ("seed", -1), ("max_grad_norm", 0), ("weight_decay", 1.5),
])
def test_just_out_of_bounds(name: str, value: float) -> None:
    text = refused(**{name: value})
    assert text.startswith(name)
    assert text.endswith(f"got {value}")


@pytest.mark.parametrize(("name", "value"), [
    ("group_size", 2.5), ("group_size", "eight"), ("temperature", "hot"), ("temperature", None),
    ("policy", 7), ("policy", None), ("debug", "perhaps"), ("stop_tokens", "<|im_end|>"),
    ("stop_tokens", []), ("device", "gpu"), ("difficulty_bins", 3), ("difficulty_bins", [[0, 1]]),
    ("adam_betas", [0.9]),
])
def test_a_value_of_another_kind_is_refused_by_the_field_s_name(name: str, value: object) -> None:
    text = refused(**{name: value})
    assert re.match(rf"{name}[. ]", text), text
    assert "got " in text


def test_d01_a_group_of_one_has_no_baseline() -> None:
    """S15 and B7 of the seeds: RLOO with one answer divides by zero."""
    assert refused(group_size=1) == ("group_size must be at least 2: a trajectory needs another of its "
                                     "group as baseline; got 1")


def test_an_unknown_field_is_refused() -> None:
    text = refused(groupsize=4)
    assert "there is no config field 'groupsize'" in text


def test_further_problems_are_counted() -> None:
    assert refused(batch_size=0, temperature=-1, top_p=2).endswith("(and 2 more)")


# rules over several fields ------------------------------------------------------------------------


@pytest.mark.parametrize(("fields", "named"), [
    ({"token_weighting": "threshold"}, "token_reward_model"),
    ({"token_weighting": "topk"}, "token_reward_model"),
    ({"policy_freeze_steps": 3}, "token_reward_model"),
    ({"policy_freeze_steps": 4, "total_steps": 4, "token_reward_model": "policy"}, "total_steps"),
    ({"checkpoint_interval": 0}, "checkpoint_interval"),
    ({"checkpoint_interval": -0.5}, "checkpoint_interval"),
    ({"difficulty_bins": [(0.4, 0.4, 2)]}, "difficulty_bins"),
    ({"difficulty_bins": [(0.5, 0.2, 2)]}, "difficulty_bins"),
])
def test_rules_over_several_fields(fields: dict[str, Any], named: str) -> None:
    assert named in refused(**fields)


@pytest.mark.parametrize("fields", [
    {"token_weighting": "threshold", "token_reward_model": "policy"},
    {"policy_freeze_steps": 3, "total_steps": 4, "token_reward_model": "policy"},
    {"checkpoint_interval": -1}, {"checkpoint_interval": 0.5}, {"checkpoint_interval": 2},
])
def test_what_the_rules_allow(fields: dict[str, Any]) -> None:
    config = Config(**fields)
    assert {name: getattr(config, name) for name in fields} == fields


def test_a_beta_of_one_never_forgets() -> None:
    """torch refuses it: better here, with the field's name, than at the first step."""
    assert refused(adam_betas=(0.9, 1.0)).startswith("adam_betas.1 must be")


def test_a_seed_fits_where_seeds_go() -> None:
    """torch.manual_seed takes 64 bits; the first step is too late to hear of it."""
    assert refused(seed=10**30).startswith("seed must be")
    assert Config(seed=2**63 - 1).seed == 2**63 - 1


# copies, presets, readings ------------------------------------------------------------------------


def test_replace_checks_again_and_leaves_the_original() -> None:
    config = Config()
    assert config.replace(group_size=4).group_size == 4
    assert config.group_size == 8
    with pytest.raises(ConfigError, match="group_size must be at least 2"):
        config.replace(group_size=1)
    with pytest.raises(ConfigError, match="no config field"):
        config.replace(groups=4)
    with pytest.raises(ConfigError, match="token_reward_model"):
        Config.preset("tiny-oreal").replace(token_reward_model=None)


def test_a_config_is_frozen() -> None:
    config = Config()
    with pytest.raises(ValidationError, match="frozen"):
        config.seed = 3
    assert config.seed == 0
    assert hash(config.replace(seed=1)) != hash(config)


def test_presets() -> None:
    assert set(PRESETS) == {"tiny", "tiny-oreal", "tiny-agent"}
    tiny, oreal = Config.preset("tiny"), Config.preset("tiny-oreal")
    assert (tiny.name, oreal.name) == ("tiny", "tiny-oreal")
    assert tiny.token_reward_model is None
    assert tiny.token_weighting == "none"
    assert oreal.token_reward_model is not None
    assert oreal.token_weighting != "none"
    assert oreal.policy_freeze_steps > 0, "weights of a model that has learned nothing are noise"
    for config in (tiny, oreal):
        assert (config.top_p, config.top_k, config.temperature) == (1.0, 0, 1.0)
        assert config.control == "none"
    assert Config.preset("tiny", group_size=4).group_size == 4
    with pytest.raises(ConfigError, match="no preset 'huge': choose one of tiny, tiny-oreal"):
        Config.preset("huge")


def test_difficulty_balance_is_that_of_oreal() -> None:
    assert OREAL_BINS == ((0.0, 0.2, 6), (0.2, 0.4, 4), (0.4, 0.6, 4), (0.6, 0.8, 2))
    assert Config.preset("tiny").difficulty_bins == OREAL_BINS


def test_the_two_readings_differ_where_the_design_says() -> None:
    paper, released = Config.paper(), Config.released()
    differ = {name for name in FIELDS if getattr(paper, name) != getattr(released, name)} - {"name"}
    assert differ == READINGS
    assert (paper.positive_weight, released.positive_weight) == ("one", "advantage")
    assert (paper.negative_shaping, released.negative_shaping) == ("one_minus_p", "rloo")
    assert (paper.token_score, released.token_score) == ("per_token", "running_mean")
    assert (paper.kl_target, released.kl_target) == ("old", "initial")
    assert (paper.loss_norm, released.loss_norm) == ("sequence", "token_class")
    assert (paper.head_init, released.head_init) == ("zero", "normal")
    assert (paper.warmup_while_frozen, released.warmup_while_frozen) == (False, True)
    assert Config.paper(group_size=4).group_size == 4
    with pytest.raises(ConfigError, match="group_size"):
        Config.released(group_size=1)


# files --------------------------------------------------------------------------------------------


def test_a_run_s_config_file_repeats_the_run(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    strange = Config.released(system_prompt="算术 \\boxed{}", stop_tokens=["<|im_end|>", "。"])
    for config in (Config.preset("tiny", seed=7), Config.paper(), strange):
        file.write_text(json.dumps(config.model_dump()), encoding="utf-8")
        assert Config.load(str(file)) == config
        assert Config.load(str(file), seed=9) == config.replace(seed=9)


def test_a_toml_file_is_a_config_too(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('group_size = 4  # four answers\nadvantage = "grpo"\n'
                    "difficulty_bins = [[0.0, 0.5, 2], [0.5, 1.0, 1]]\n", encoding="utf-8")
    config = Config.load(str(file))
    assert (config.group_size, config.advantage) == (4, "grpo")
    assert config.difficulty_bins == ((0.0, 0.5, 2), (0.5, 1.0, 1))


@pytest.mark.parametrize(("file", "content"), [("a.json", b'{"seed": 3}'), ("a.toml", b"seed = 3\n")])
def test_f01_a_byte_order_mark_does_no_harm(tmp_path: Path, file: str, content: bytes) -> None:
    (tmp_path / file).write_bytes(b"\xef\xbb\xbf" + content)
    assert Config.load(str(tmp_path / file)).seed == 3


@pytest.mark.parametrize(("file", "content"), [
    ("broken.json", b'{"seed": 3'),
    ("broken.toml", b"seed 3"),
    ("empty.json", b""),
    ("list.json", b"[1, 2]"),
    ("number.json", b"3"),
    ("gbk.json", '{"system_prompt": "你是老师"}'.encode("gbk")),
    ("gbk.toml", 'system_prompt = "你是老师"'.encode("gbk")),
    ("utf16.json", '{"seed": 3}'.encode("utf-16")),
    ("nan.json", b'{"temperature": NaN}'),
    ("typo.json", b'{"sead": 3}'),
    ("nested.json", b"[" * 100_000),
])
def test_f02_a_config_file_that_cannot_be_read(tmp_path: Path, file: str, content: bytes) -> None:
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        Config.load(str(tmp_path / file))
    text = str(caught.value)
    assert "\n" not in text
    if not file.startswith(("nan", "typo")):
        assert file in text
    if file.startswith(("gbk", "utf16")):
        assert "save it as UTF-8" in text


def test_a_config_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no such file"):
        Config.load(str(tmp_path / "none.json"))
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(ConfigError, match=r"folder\.json"):
        Config.load(str(tmp_path / "folder.json"))


# where data lies ----------------------------------------------------------------------------------


def test_data_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLTEACH_DATA", raising=False)
    assert data_path("prompts/train.jsonl").is_file()
    assert data_path() / "prompts" == data_path("prompts")
    monkeypatch.setenv("RLTEACH_DATA", str(tmp_path))
    assert data_path("prompts/train.jsonl") == tmp_path / "prompts" / "train.jsonl"
    assert rl.data_path() == tmp_path
    assert rl.embedded_models() == {}
