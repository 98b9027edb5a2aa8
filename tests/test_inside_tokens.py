"""Looking inside: tokens as text, the token-level reward model and the probabilities over them."""

from __future__ import annotations

import math
from typing import Any

import oracle_oreal as oracle
import pytest
import torch
from fakes import (
    SPECIAL,
    even_first,
    group,
    small_config,
    small_trainer,
    tokenizer,
    trajectory,
)
from matplotlib import colormaps
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import rlteach as rl
from rlteach.course.addition import first_wrong_of
from rlteach.oreal.losses import kl_term
from rlteach.policy.token_reward_model import TokenRewardModel
from rlteach.training.batch import collate
from rlteach.types import Message, Trajectory
from rlteach.views import glyphs
from rlteach.views.inside import ViewError
from rlteach.views.painting import MOST, WIDTH, Panel, layout, text_panels
from rlteach.views.plots import png
from rlteach.views.tokens import characters_reached, first_wrong_place, pieces, spellings

WITH_MODEL = {"token_reward_model": "policy", "token_weighting": "threshold", "head_init": "normal"}


def trainer_with_model(**changes: Any) -> rl.OrealTrainer:
    return small_trainer(small_config(**{**WITH_MODEL, **changes}), even_first)


def answered(question: str, text: str, *, stop: bool = True) -> Trajectory:
    """A trajectory of the byte tokenizer: the question, and an answer that `stop` ends."""
    ids = tokenizer().encode(text) + [2] * stop
    made = trajectory(tokenizer().encode(question), ids)
    return Trajectory((Message("user", question), Message("assistant", text)), made.token_ids,
                      made.action_mask, made.logprobs, 0, "stop" if stop else "length")


# tokens as text -----------------------------------------------------------------------------------


def test_tokens_as_a_person_reads_them() -> None:
    ids = [*tokenizer().encode("a \n\t\\{好<|im_start|>"), 2, 9999]
    assert pieces(tokenizer(), ids) == [
        "a", "␣", "↵", "⇥", "\\", "{", "\\xe5", "\\xa5", "\\xbd", SPECIAL[1], SPECIAL[2], "<id 9999>"]


def test_whole_tokens_of_the_embedded_model() -> None:
    core = rl.Policy.load("tiny-math").tokenizer
    ids = core.encode(" no, \\boxed{1}\n好<|im_end|>")
    assert "".join(pieces(core, ids)) == "␣no,␣\\boxed{1}↵\\xe5\\xa5\\xbd<|im_end|>"


@pytest.mark.parametrize("text", ["", "1+1=2, 好 no\n", "e\u0301 \U0001f600 ñ", "a" * 300, "\x00\x7f"])
def test_the_spellings_of_tokens_are_the_text(text: str) -> None:
    core = rl.Policy.load("tiny-math").tokenizer
    for some in (tokenizer(), core):
        assert b"".join(spellings(some, some.encode(text))).decode() == text


def test_every_single_token_is_what_the_tokenizer_decodes() -> None:
    core = rl.Policy.load("tiny-math").tokenizer
    for i in range(len(core)):
        (spelled,) = spellings(core, [i])
        text = spelled if isinstance(spelled, str) else spelled.decode("utf-8", "replace")
        assert text == core.decode([i], skip_special_tokens=False)


def test_sentencepiece_tokens() -> None:
    class Pieces:
        all_special_ids = (0,)

        def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
            return [["<s>", "▁no", "<0xE5>", "好"][i] for i in ids]

    assert pieces(Pieces(), [0, 1, 2, 3]) == ["<s>", "␣no", "\\xe5", "好"]


@pytest.mark.parametrize("text", ["abc", "a好b", "好", "é\U0001f600z"])
def test_characters_begin_with_their_first_byte(text: str) -> None:
    data = text.encode()
    wanted = [next(n for n in range(len(text) + 1) if len(text[:n].encode()) >= end)
              for end in range(1, len(data) + 1)]
    assert characters_reached([bytes([b]) for b in data]) == wanted


# where an answer goes wrong -----------------------------------------------------------------------


def place_of(made: Trajectory) -> int | None:
    at = first_wrong_place(tokenizer(), made, first_wrong_of)
    return None if at is None else at - made.action_mask.index(True)


@pytest.mark.parametrize(("text", "place"), [
    (r"8+1=9, 7+9=16, 4+3+1=8, \boxed{869}", None),
    (r"8+1=9, 7+9=15 no, 7+9=16, 4+3+1=8, \boxed{869}", None),
    (r"8+1=9, 7+9=15, 4+3+1=8, \boxed{859}", 12),
    (r"8+1=好", 4),
    (r"8+1=9", 5),  # it stopped: the token that ended it is wrong
    ("", 0),
])
def test_the_first_wrong_token_of_an_addition(text: str, place: int | None) -> None:
    assert place_of(answered("What is 478 + 391?", text)) == place


def test_a_place_behind_an_answer_that_was_cut_off_marks_nothing() -> None:
    assert place_of(answered("What is 478 + 391?", "8+1=9", stop=False)) is None


def test_places_count_characters_and_not_bytes() -> None:
    made = answered("?", "好b好c")
    begin = made.action_mask.index(True)
    places = [first_wrong_place(tokenizer(), made, i) - begin for i in range(5)]
    assert places == [0, 3, 4, 7, 8]
    assert first_wrong_place(tokenizer(), made, None) is None


def many_turns() -> Trajectory:
    """Sampled `ab`, a tool's `cd`, sampled `ef` and the stop token."""
    made = trajectory([5], [*tokenizer().encode("abcdef"), 2], forced=[2, 3])
    said = (("user", "?"), ("assistant", "ab"), ("tool", "cd"), ("assistant", "ef"))
    turns = tuple(Message(role, text) for role, text in said)
    return Trajectory(turns, made.token_ids, made.action_mask, made.logprobs, 0, "stop")


def test_the_response_is_the_last_turn() -> None:
    assert [first_wrong_place(tokenizer(), many_turns(), i) for i in range(3)] == [5, 6, 7]


@pytest.mark.parametrize("wrong", [-1, 4])
def test_a_place_outside_the_response(wrong: int) -> None:
    with pytest.raises(ValueError, match=f"a place in a response of 3 characters; got {wrong}"):
        first_wrong_place(tokenizer(), answered("?", "abc"), wrong)


def test_a_question_of_another_kind() -> None:
    with pytest.raises(ValueError, match=r"like 'What is 1 \+ 2\?' has a known working; got 'Who\?'"):
        first_wrong_of(answered("Who?", "abc"))


def test_a_response_that_is_not_what_was_sampled() -> None:
    made = answered("?", "abc")
    other = Trajectory((made.messages[0], Message("assistant", "xyz")), made.token_ids, made.action_mask,
                       made.logprobs, 0, "stop")
    with pytest.raises(ValueError, match="give no first_wrong"):
        first_wrong_place(tokenizer(), other, 1)


# the token-level reward model ---------------------------------------------------------------------


def slow_scores(model: TokenRewardModel, made: Trajectory) -> list[float]:
    """w of each sampled token: one answer alone, no batch."""
    with torch.no_grad():
        states = model.body(input_ids=torch.tensor([made.token_ids])).last_hidden_state[0]
        w = (states * model.head.weight[0]).sum(-1).tolist()
    return [w[t] for t, sampled in enumerate(made.action_mask) if sampled]


@pytest.mark.parametrize("changes", [
    {}, {"token_score": "per_token"}, {"token_weighting": "topk", "topk_ratio": 0.5},
    {"correct_threshold": 0.4, "incorrect_threshold": 0.1}, {"token_weighting": "none"}])
def test_the_table_is_the_definition(changes: dict[str, Any]) -> None:
    trainer = trainer_with_model(**changes)
    trainer.step()
    compared = 0
    for some in trainer.history[0].groups:
        for i, made in enumerate(some.trajectories):
            found = rl.token_table(trainer, some, member=i)
            w = slow_scores(trainer.token_reward_model, made)
            assert list(found) == ["position", "token", "score", "running_mean", "weight", "first_wrong"]
            assert found["score"].tolist() == pytest.approx(w, abs=1e-5)
            means = [math.fsum(w[: t + 1]) / (t + 1) for t in range(len(w))]
            assert found["running_mean"].tolist() == pytest.approx(means, abs=1e-5)
            weights = oracle.token_weights(w, some.scores[i] >= 1, trainer.config.model_dump())
            assert found["weight"].tolist() == pytest.approx(weights, abs=1e-4)
            ids = [made.token_ids[at] for at in found["position"]]
            assert found["token"].tolist() == pieces(tokenizer(), ids)
            assert not found["first_wrong"].any()
            compared += len(w)
    assert compared > 20


def test_the_weights_are_those_that_the_step_trains_with() -> None:
    trainer = trainer_with_model()
    trainer.step()
    batch = trainer.shape(trainer.select(trainer.grade(trainer.rollout(trainer.draw()))))
    kept = [(g, i) for g in batch.groups for i in g.kept]
    assert kept
    for row, (some, i) in enumerate(kept):
        shown = rl.token_table(trainer, some, member=i)
        weights = batch.policy_rows.weights[row][batch.policy_rows.action_mask[row]]
        assert shown["weight"].tolist() == pytest.approx(weights.tolist(), abs=1e-5)


def test_a_model_alone_needs_to_be_told_the_rest() -> None:
    trainer = trainer_with_model()
    made = answered("What is 1 + 2?", "1+2=4")
    whole = rl.token_table(trainer, made, positive=False, first_wrong=4)
    alone = rl.token_table(trainer.token_reward_model, made, positive=False, first_wrong=first_wrong_of,
                           config=trainer.config, tokenizer=tokenizer())
    assert alone.equals(whole)
    assert whole["token"][whole["first_wrong"]].tolist() == ["4"]
    right = rl.token_table(trainer, made, positive=True)
    believed = torch.sigmoid(torch.tensor(whole["running_mean"]))
    assert right["weight"].tolist() == pytest.approx((2 * believed - 1).clamp(min=0).tolist(), abs=1e-6)
    assert whole["weight"].tolist() == pytest.approx((1 - 2 * believed).clamp(min=0).tolist(), abs=1e-6)


@pytest.mark.parametrize(("call", "sentence"), [
    (lambda t, a: rl.token_table(t, a), "say positive=True or positive=False"),
    (lambda t, a: rl.token_table(t, group([a], [None])), "say positive=True or positive=False"),
    (lambda t, a: rl.token_table(t, group([a], [1.0]), member=1), "this group has members 0 to 0; got 1"),
    (lambda t, a: rl.token_table(t.token_reward_model, a, positive=True), "give both"),
    (lambda _, a: rl.token_heatmap(small_trainer(small_config(), even_first), a, positive=True),
     "this trainer has no token-level reward model"),
    (lambda t, a: rl.token_probabilities(t.token_reward_model, a), "probabilities need a trainer"),
    (lambda t, a: rl.token_probabilities(t, group([a], [1.0]), member=2), "members 0 to 0; got 2"),
    (lambda t, _: rl.Snapshots(t, []), "there is no answer to look at"),
    (lambda t, a: rl.Snapshots(t, group([a], [None])), "there is no answer to look at"),
    (lambda _, a: rl.Snapshots(small_trainer(small_config(), even_first), [(a, True)]),
     "snapshots need a trainer with a token-level reward model"),
    (lambda t, a: rl.Snapshots(t, [(a, True)]).show(), "no snapshot was taken after step 0: there are none"),
    (lambda t, a: rl.Snapshots(t, [(a, True)]).scores(1), "there are answers 0 to 0; got 1"),
])
def test_what_is_missing_is_said(call: Any, sentence: str) -> None:
    with pytest.raises(ViewError, match=sentence):
        call(trainer_with_model(), answered("?", "abc"))


# snapshots ----------------------------------------------------------------------------------------


def test_snapshots_keep_what_the_model_said_then() -> None:
    trainer = trainer_with_model(token_reward_lr=1e-2)
    trainer.step()
    some = trainer.history[0].groups[0]
    watch = rl.Snapshots(trainer, some)
    assert [t for t, _ in watch.answers] == list(some.trajectories)
    said = {}
    for _ in range(2):
        watch.take()
        said[trainer.step_index] = rl.token_table(trainer, some, member=1)
        trainer.step()
    assert watch.steps == [1, 2]
    for step, table in said.items():
        assert watch.table(step, 1).equals(table)
        assert watch.scores(1)[step].tolist() == table["score"].tolist()
        assert watch.scores(1).index.tolist() == table["position"].tolist()
    assert not watch.table(1, 1)["score"].equals(watch.table(2, 1)["score"])
    with pytest.raises(ViewError, match=r"after step 3: there are \[1, 2\]"):
        watch.heatmap(3)


def test_the_slider_shows_the_pictures() -> None:
    trainer = trainer_with_model(token_reward_lr=1e-2)
    answers = [(answered("?", "abc"), True), (answered("?", "好"), False)]
    watch = rl.Snapshots(trainer, answers, first_wrong=0)
    watch.take()
    trainer.step()
    watch.take()
    controls, image = watch.show().children
    step, answer = controls.children
    assert (step.options, answer.options) == ((0, 1), (("right: abc", 0), ("wrong: 好", 1)))
    for step.value, answer.value in ((1, 0), (0, 1), (1, 1)):
        assert image.value == png(watch.heatmap(step.value, answer.value))


# probabilities ------------------------------------------------------------------------------------


def test_probabilities_are_those_of_the_sampler() -> None:
    trainer = small_trainer(small_config(temperature=0.7), even_first)
    some = trainer.rollout(trainer.draw())[0]
    found = rl.token_probabilities(trainer, some)
    wanted = [math.exp(p) for t in some.trajectories
              for p, sampled in zip(t.logprobs, t.action_mask, strict=True) if sampled]
    for name in ("p_sampled", "p_policy", "p_reference"):  # nothing is trained yet: all three are equal
        assert found[name].tolist() == pytest.approx(wanted, abs=1e-5)
    assert found["log_ratio"].abs().max() < 1e-5
    assert found["member"].value_counts().to_dict() == {
        i: sum(t.action_mask) for i, t in enumerate(some.trajectories)}
    only = rl.token_probabilities(trainer, some, member=2)
    assert only.equals(found[found["member"] == 2].reset_index(drop=True))


def slow_probabilities(scorer: Any, made: Trajectory, temperature: float) -> list[float]:
    """softmax over the whole vocabulary at the position before each sampled token."""
    with torch.no_grad():
        logits = scorer.model(input_ids=torch.tensor([made.token_ids])).logits[0].double() / temperature
    return [float(logits[t - 1].softmax(-1)[made.token_ids[t]])
            for t, sampled in enumerate(made.action_mask) if sampled]


@pytest.mark.parametrize("changes", [{}, {"temperature": 1.5, "top_k": 3}])
def test_policy_and_reference_after_training(changes: dict[str, Any]) -> None:
    trainer = small_trainer(small_config(policy_lr=1e-2, **changes), even_first)
    for _ in range(3):
        trainer.step()
    made = trainer.history[0].groups[0].trajectories[0]
    found = rl.token_probabilities(trainer, made)
    policy, reference = (slow_probabilities(scorer, made, trainer.config.temperature)
                         for scorer in (trainer.policy, trainer.reference))
    assert found["p_policy"].tolist() == pytest.approx(policy, abs=1e-5)
    assert found["p_reference"].tolist() == pytest.approx(reference, abs=1e-5)
    assert max(abs(p - r) for p, r in zip(policy, reference, strict=True)) > 1e-3
    ratios = [math.log(p / r) for p, r in zip(policy, reference, strict=True)]
    assert found["log_ratio"].tolist() == pytest.approx(ratios, abs=1e-4)
    k3 = [r / p - 1 - math.log(r / p) for p, r in zip(policy, reference, strict=True)]
    assert found["kl_k3"].tolist() == pytest.approx(k3, abs=1e-4)
    rows = collate([(made, True, 0.0, 0.0)])
    full, other = (scorer.logprobs(rows, trainer.config.temperature).full.detach()
                   for scorer in (trainer.policy, trainer.reference))
    assert found["kl_k3"].sum() == pytest.approx(
        float(kl_term(full, other, rows.action_mask, "k3")), abs=1e-5)
    if changes:  # the sampler drew from three ids, so it wrote down more than the whole vocabulary gives
        assert (found["p_sampled"] > found["p_reference"]).all()


def test_what_a_tool_wrote_has_no_probability() -> None:
    trainer = trainer_with_model()
    found = rl.token_probabilities(trainer, many_turns())
    assert found["position"].tolist() == [1, 2, 5, 6, 7]
    assert found["token"].tolist() == ["a", "b", "e", "f", SPECIAL[2]]
    figure = rl.probability_heatmap(trainer, many_turns())
    for ax in blocks(figure):
        assert [t.get_text() for t in ax.texts] == ["a", "b", "c", "d", "e", "f", SPECIAL[2]]
        assert [t.get_text() for t in ax.texts if t.get_color() == "grey"] == ["c", "d"]
        assert len(ax.patches) == 5


# pictures -----------------------------------------------------------------------------------------


def blocks(figure: Figure) -> list[Any]:
    """The axes that hold text."""
    return [ax for ax in figure.axes if ax.texts]


def colours(ax: Any) -> list[str]:
    return [to_hex(p.get_facecolor()) for p in ax.patches if isinstance(p, Rectangle) and p.get_fill()]


def test_the_heatmap_has_the_colours_of_the_table() -> None:
    trainer = trainer_with_model()
    made = answered("What is 1 + 2?", r"1+2=4, $\boxed{3}$")
    figure = rl.token_heatmap(trainer, made, positive=False, first_wrong=first_wrong_of)
    table = rl.token_table(trainer, made, positive=False)
    assert type(figure).__mro__[1] is Figure
    above, below = blocks(figure)
    good = torch.sigmoid(torch.tensor(table["running_mean"])).tolist()
    assert colours(above) == [to_hex(colormaps["RdBu"](g)) for g in good]
    assert colours(below) == [to_hex(colormaps["Oranges"](w)) for w in table["weight"]]
    (frame,) = [p for p in above.patches if not p.get_fill()]
    assert frame.get_xy() == (4, 0)
    assert figure.texts[1].get_text() == "black frame: the first wrong token"
    mean = sum(table["score"]) / len(table)
    assert f"{1 / (1 + math.exp(-mean)):.1%} right" in figure.texts[0].get_text()
    assert not any(text.get_parse_math() for ax in blocks(figure) for text in ax.texts)
    assert png(figure).startswith(b"\x89PNG")
    plain = rl.token_heatmap(trainer, made, positive=True)
    assert all(p.get_fill() for ax in blocks(plain) for p in ax.patches)
    assert len(plain.texts) == 1


def test_the_probabilities_have_the_colours_of_the_table() -> None:
    trainer = small_trainer(small_config(policy_lr=1e-2), even_first)
    trainer.step()
    some = trainer.history[0].groups[0]
    table = rl.token_probabilities(trainer, some, member=1)
    policy, reference, ratio = blocks(rl.probability_heatmap(trainer, some, member=1))
    assert colours(policy) == [to_hex(colormaps["Blues"](p)) for p in table["p_policy"]]
    assert colours(reference) == [to_hex(colormaps["Blues"](p)) for p in table["p_reference"]]
    far = max(0.1, table["log_ratio"].abs().max())
    assert colours(ratio) == [to_hex(colormaps["PRGn"]((r / far + 1) / 2)) for r in table["log_ratio"]]


def test_lines_are_full_and_no_cell_covers_another() -> None:
    texts = ["ab"] * 60 + ["c↵", "好"] * 3 + ["x" * WIDTH, "y"]
    cells = layout(texts)
    taken = set()
    for (line, column, width), text in zip(cells, texts, strict=True):
        assert width == glyphs.columns(text)
        assert column + width <= WIDTH
        for c in range(column, column + width):
            assert (line, c) not in taken
            taken.add((line, c))
    assert cells[WIDTH // 2] == (1, 0, 2)
    starts = [cell[0] for cell, text in zip(cells, texts, strict=True) if text == "好"]
    assert starts == [2, 3, 4]


def panel(count: int) -> Panel:
    return Panel("p", [0.5] * count, "Blues", 0, 1)


def test_long_answers_are_cut_and_it_is_said() -> None:
    figure = text_panels(["a"] * (MOST + 5), [panel(MOST + 5)], framed=MOST + 1)
    assert len(blocks(figure)[0].texts) == MOST
    assert [t.get_text() for t in figure.texts] == [f"the first {MOST} of {MOST + 5} tokens"]
    whole = text_panels(["z" * (WIDTH + 1)], [panel(1)])
    assert blocks(whole)[0].texts[0].get_text().endswith("z…")
    assert png(text_panels([], [panel(0)], title="empty"))


@pytest.fixture
def bundled(monkeypatch: pytest.MonkeyPatch) -> dict[str, frozenset[str]]:
    """As on a system with the bundled fonts only; a test may add to what they know."""
    known = {name: glyphs._characters()[name] for name in glyphs.BUNDLED}
    monkeypatch.setattr(glyphs, "_characters", lambda: known)
    return known


@pytest.mark.usefixtures("bundled")
def test_without_a_font_chinese_is_named_and_it_is_said_once() -> None:
    figure = text_panels(["a", "你好", "\N{OPEN BOX}", "你"], [panel(4), panel(4)], title="好")
    for ax in blocks(figure):
        assert [t.get_text() for t in ax.texts] == ["a", "U+4F60U+597D", "\N{OPEN BOX}", "U+4F60"]
    assert [t.get_text() for t in figure.texts] == ["U+597D", glyphs.MISSING]
    assert png(figure)  # a glyph that is missing would be a warning, and so an error here


def test_a_font_with_chinese_is_found_and_drawn_with(bundled: dict[str, frozenset[str]]) -> None:
    bundled["Some CJK"] = frozenset("你好")
    assert glyphs.drawable("你a") == ("你a", False)
    assert glyphs.drawable("你们") == ("你U+4EEC", True)
    text = blocks(text_panels(["你"], [panel(1)]))[0].texts[0]
    assert text.get_text() == "你"
    assert text.get_fontfamily() == ["DejaVu Sans Mono", "DejaVu Sans", "Some CJK"]


def test_titles_and_notes_are_inside_the_figure() -> None:
    trainer = trainer_with_model()
    made = answered("What is 1 + 2?", "1+2=4")
    for figure in (rl.token_heatmap(trainer, made, positive=False, first_wrong=4),
                   rl.probability_heatmap(trainer, made)):
        figure.draw_without_rendering()
        whole = figure.bbox
        titles = [ax._left_title for ax in blocks(figure)]
        for text in (*figure.texts, *titles):
            box = text.get_window_extent()
            assert whole.x0 <= box.x0
            assert box.x1 <= whole.x1, text.get_text()
            assert whole.y0 <= box.y0, text.get_text()
            assert box.y1 <= whole.y1, text.get_text()


def test_signs_for_spaces_have_glyphs_everywhere() -> None:
    assert glyphs.drawable("␣↵⇥…·")[1] is False
