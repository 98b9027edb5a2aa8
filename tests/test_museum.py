"""The bug museum: what is planted is taken away again, and shows what its label says."""

from __future__ import annotations

import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

import rlteach as rl
from rlteach.course import museum
from rlteach.course.planting import planted
from rlteach.oreal import advantage, losses
from rlteach.policy.policy import Policy, _Scorer

ROOT = Path(__file__).resolve().parents[1]
FRONT = ROOT / "rlteach" / "__init__.py"
BUGS = museum.catalogue()
SHOWN = {name: b for name, b in BUGS.items() if b.curve}
PLAIN = [name for name, b in SHOWN.items() if not b.curve.settings and not b.curve.judger
         and b.curve.metric != "dev/accuracy"]
SLOW = [name for name in SHOWN if name not in PLAIN]
BLOG = {f"B{i}" for i in range(1, 19)} | {f"O{i}" for i in range(1, 12)}
each_bug = pytest.mark.parametrize("name", BUGS)


def held() -> dict[tuple[str, str, str], Any]:
    """Everything that the library's modules, and classes that live there, hold."""
    out = {}
    for place, module in list(sys.modules.items()):
        if not place.startswith("rlteach"):
            continue
        for name, value in vars(module).items():
            out[place, "", name] = value
            if isinstance(value, type) and value.__module__ == place:
                out |= {(place, name, n): v for n, v in vars(value).items()}
            if isinstance(value, dict) and not name.startswith("__"):
                out |= {(place, name, str(k)): v for k, v in value.items()}
    return out


def changed(before: dict[Any, Any], after: dict[Any, Any]) -> list[Any]:
    return [key for key, value in after.items() if before.get(key, value) is not value] + sorted(
        before.keys() - after.keys())


@each_bug
def test_a_bug_is_there_inside_and_gone_outside(name: str) -> None:
    before = held()
    with museum.bug(name):
        inside = changed(before, held())
    assert inside, "nothing was replaced"
    assert not [key for key in inside if key[0].startswith("rlteach.course.bugs") and key[1]]
    assert changed(before, held()) == []


def test_gone_after_an_error_and_nested() -> None:
    before = held()
    with pytest.raises(ZeroDivisionError), museum.bug("double_shift"), museum.bug("kl_pushes_away"):
        raise ZeroDivisionError
    assert changed(before, held()) == []
    with museum.bug("warmup_never_ends"):
        outer = held()
        with museum.bug("first_rate_is_zero"), museum.bug("warmup_never_ends"):
            assert changed(outer, held())
        assert changed(outer, held()) == []
    assert changed(before, held()) == []


def test_a_plant_that_fails_half_way_is_taken_back() -> None:
    before = held()

    def plant(patch: Any) -> None:
        patch.replace(losses, "kl_term", lambda *_: 0)
        patch.replace(losses, "no such name", None)

    with pytest.raises(AttributeError), planted(plant):
        raise AssertionError("it was entered")
    assert changed(before, held()) == []


def test_a_name_that_a_notebook_imported_meets_the_bug_too(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = types.ModuleType("cell")
    cell.coded = advantage.code_rewards
    monkeypatch.setitem(sys.modules, "cell", cell)
    healthy = cell.coded([True, None], "plus_minus")
    with museum.bug("rejected_in_the_baseline"):
        assert cell.coded([True, None], "plus_minus") != healthy
        late = advantage.code_rewards
        cell.late = late
    assert cell.coded is cell.late is advantage.code_rewards
    assert cell.coded([True, None], "plus_minus") == healthy


@each_bug
def test_the_invariant_holds_without_it_and_not_with_it(name: str) -> None:
    BUGS[name].invariant()
    with museum.bug(name), pytest.raises(AssertionError, match=r"\w+ \w+"):
        BUGS[name].invariant()


def test_one_invariant_catches_its_bug_and_lets_others_pass() -> None:
    """It says which: under a grader's fault the learning rate is what it was."""
    with museum.bug("percent_both_ways"):
        BUGS["warmup_never_ends"].invariant()
        BUGS["integers_nearly_equal"].invariant()


@pytest.fixture(scope="module")
def healthy() -> dict[str, Any]:
    return {}


def first_step_apart(name: str, healthy: dict[str, Any]) -> int | None:
    curve = SHOWN[name].curve
    key = repr((curve.settings, curve.judger, curve.metric == "dev/accuracy"))
    if key not in healthy:
        healthy[key] = museum.run(name)
    with museum.bug(name):
        ill = museum.run(name, steps=curve.within)
    assert len(ill) == curve.within
    pairs = zip(healthy[key][curve.metric], ill[curve.metric], strict=False)
    return next((step for step, (h, i) in enumerate(pairs, 1) if curve.apart(h, i)), None)


@pytest.mark.parametrize("name", PLAIN)
def test_the_curve_shows_it(name: str, healthy: dict[str, Any]) -> None:
    assert first_step_apart(name, healthy) == SHOWN[name].curve.within


@pytest.mark.gate
@pytest.mark.parametrize("name", SLOW)
def test_the_curve_shows_it_in_a_run_of_its_own(name: str, healthy: dict[str, Any]) -> None:
    assert first_step_apart(name, healthy) == SHOWN[name].curve.within


def test_a_healthy_run_shows_nothing() -> None:
    """Another seed is no bug: no label fits it."""
    one, other = museum.run(PLAIN[0]), museum.run(PLAIN[0], seed=1)
    for name in PLAIN:
        curve = SHOWN[name].curve
        found = [curve.apart(h, i) for h, i in zip(one[curve.metric], other[curve.metric], strict=True)]
        assert not any(found[:curve.within]), name


def test_how_many_there_are() -> None:
    of_the_sources = [b for b in SHOWN.values() if BLOG & set(b.rows)]
    assert len(of_the_sources) >= 12
    assert len(BUGS) - len(SHOWN) >= 8
    shown = {row for b in SHOWN.values() for row in b.rows} & BLOG
    assert len(shown) >= 12
    for b in BUGS.values():
        assert b.plant.__name__ == b.name
        assert all(re.fullmatch(r"B\d+|O\d+|S[1-3]\.\d+|[CDE]\d\d", row) for row in b.rows), b.rows
        assert len(b.explanation) == 2
        assert all(line.endswith(".") and "\n" not in line for line in b.explanation)
        assert (b.invariant.__doc__ or "").strip().endswith(".")


def test_no_other_line_knows_of_the_museum() -> None:
    own = {ROOT / "rlteach" / "course" / name for name in ("museum.py", "planting.py", "short_run.py")}
    for path in (ROOT / "rlteach").rglob("*.py"):
        if path in own or path.parent.name in ("bugs", "exercises") or path == FRONT:
            continue
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"course(\.| import )(museum|planting|bugs|short_run)|\bmuseum\b", text), path


def test_a_wrong_name_lists_the_right_ones() -> None:
    for wrong in ("double_shft", "", None, True, ["double_shift"]):
        with pytest.raises(ValueError, match=r"^there is no bug .*: there are .*double_shift") as caught:
            museum.bug(wrong)
        assert "\n" not in str(caught.value)
        assert all(name in str(caught.value) for name in BUGS)
    with pytest.raises(ValueError, match="did you mean 'double_shift'"):
        museum.explain("double_shft")
    for wrong in (0, -1, len(BUGS) + 1):
        with pytest.raises(ValueError, match=f"there is no mystery {wrong}: they go from 1 to {len(BUGS)}"):
            museum.mystery(wrong)


def test_mysteries(capsys: pytest.CaptureFixture[str]) -> None:
    """Each bug is one of them; its number says nothing; a guess gives nothing away."""
    order = [museum._named(n).name for n in range(1, len(BUGS) + 1)]
    assert sorted(order) == sorted(BUGS)
    assert order not in (sorted(BUGS), list(BUGS))
    third, other = order[2], order[3]
    with museum.mystery(3), pytest.raises(AssertionError):
        BUGS[third].invariant()
    rl.museum.guess(3, third)
    rl.museum.guess(3, other)
    with pytest.raises(ValueError, match="there is no bug"):
        rl.museum.guess(3, "no such bug")
    right, wrong = capsys.readouterr().out.splitlines()
    assert right == "mystery 3: right"
    assert wrong.startswith(f"mystery 3: not yet: {other} is not it")
    assert third not in wrong
    rl.museum.invariant(3)
    assert capsys.readouterr().out == "holds\n"


def test_a_guess_in_the_same_metric_is_warm(capsys: pytest.CaptureFixture[str]) -> None:
    number = next(n for n in range(1, len(BUGS) + 1) if museum._named(n).name == "judge_never_asked")
    rl.museum.guess(number, "stop_word_demanded")
    assert capsys.readouterr().out.endswith("stop_word_demanded is not it, but it shows in the same metric\n")


def test_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    rl.museum.explain("double_shift")
    rl.museum.invariant("warmup_never_ends")
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "double_shift (B4, S2.27, C06)"
    assert len(shown) == 4
    assert shown[3] == "holds: The learning rate reaches policy_lr within the run."


def test_the_catalogue_as_a_table() -> None:
    frame = rl.museum.bugs()
    assert list(frame.index) == list(BUGS)
    assert list(frame.columns) == ["row", "kind", "shown by", "within"]
    assert frame.loc["reference_is_the_policy"].tolist() == [
        "B3, S2.29, C18", "curve", "kl/reference stays 0", 2]
    assert set(frame["kind"]) == {"curve", "invariant"}
    assert (frame["within"].isna() == (frame["kind"] == "invariant")).all()


def test_the_behind_glass_exhibit_runs_nothing_else(tmp_path: Path) -> None:
    """O8: under the fault, too, no text of a model is evaluated but the canary."""
    target = tmp_path / "canary"
    with museum.bug("answer_evaluated"):
        for text in (f"open({str(target)!r}, 'w')", "__import__('os').getppid()", "2**3"):
            rl.RuleJudger().grade_text(("8",), text)
    assert not target.exists()


def lines_of_the_page() -> dict[str, list[str]]:
    text = (ROOT / "docs" / "museum.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in text.splitlines()
            if re.match(r"\| `\w+` \|", line)]
    return {row[0].strip("` "): row[1:] for row in rows}


def measured() -> dict[str, dict[str, Any]]:
    path = ROOT / "benchmarks" / "results" / "museum.json"
    return {row["name"]: row for row in json.loads(path.read_text(encoding="utf-8"))["rows"]}


def test_page_measurement_and_labels_agree() -> None:
    page, found = lines_of_the_page(), measured()
    assert list(page) == list(found) == list(BUGS)
    for name, b in BUGS.items():
        where, what, shows, within = page[name]
        assert where == ", ".join(b.rows)
        assert what == b.explanation[0].replace("|", "\\|")
        assert shows == (f"`{b.curve.metric}` {b.curve.says}" if b.curve else b.shown_by)
        assert within == (str(b.curve.within) if b.curve else "invariant")
        assert found[name]["invariant_noticed"] is True
        if b.curve:
            assert max(found[name]["first_step"]) == b.curve.within
            assert len(found[name]["first_step"]) >= 3


def test_the_library_is_whole() -> None:
    """Last in this file: nothing stayed behind."""
    assert Policy.logprobs.__qualname__ == "_Scorer.logprobs"
    assert _Scorer._chunk.__module__ == "rlteach.policy.policy"
    assert losses.kl_term.__module__ == "rlteach.oreal.losses"
