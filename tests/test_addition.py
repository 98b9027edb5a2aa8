"""The task of the embedded models: the working is exact, so every demonstration ends right."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from fakes import question as asked

from rlteach.course import addition
from rlteach.course.addition import demonstration, first_wrong, steps
from rlteach.judger.answers import final_answer
from rlteach.judger.rule import RuleJudger
from rlteach.policy.policy import Policy
from rlteach.types import Message, Sample, Trajectory


def pairs(count: int, seed: int = 0) -> Iterator[tuple[int, int]]:
    """Numbers of one to five digits, of equal and of unequal length, with zeros and long carries."""
    yield from [(0, 0), (9, 1), (99, 1), (1, 99), (999, 999), (1000, 7), (90909, 9191), (5, 55555)]
    rng = random.Random(seed)
    for _ in range(count):
        yield rng.randrange(10 ** rng.randint(1, 5)), rng.randrange(10 ** rng.randint(1, 5))


def right(a: int, b: int) -> str:
    return ", ".join(steps(a, b))


def judged(a: int, b: int, text: str) -> str:
    sample = Sample("s", (Message("user", addition.question(a, b)),), (str(a + b),))
    answer = Trajectory((*sample.messages, Message("assistant", text)), (), (), (), 0, "stop")
    return RuleJudger().judge(sample, answer).status


def test_question_and_operands() -> None:
    assert addition.question(478, 391) == "What is 478 + 391?"
    for a, b in pairs(200):
        assert addition.operands(addition.question(a, b)) == (a, b)


def test_steps_are_column_addition() -> None:
    """Every step is a true equation, the carry is that of the step before, the digits give the sum."""
    for a, b in pairs(500):
        *working, box = steps(a, b)
        assert box == f"\\boxed{{{a + b}}}"
        assert len(working) == max(len(str(a)), len(str(b)))
        carry, digits = 0, ""
        for place, step in enumerate(working):
            left, total = step.split("=")
            terms = [int(term) for term in left.split("+")]
            assert terms[:2] == [a // 10**place % 10, b // 10**place % 10]
            assert terms[2:] == ([1] if carry else [])
            assert sum(terms) == int(total)
            carry, digits = int(total) // 10, str(int(total) % 10) + digits
        assert int(f"{carry}{digits}") == a + b


def test_the_working_is_judged_right_and_has_no_wrong_character() -> None:
    for a, b in pairs(300):
        assert judged(a, b, right(a, b)) == "correct"
        assert first_wrong(a, b, right(a, b)) is None


@pytest.mark.parametrize("slip", [0.0, 0.12, 0.3, 1.0])
def test_every_demonstration_ends_right(slip: float) -> None:
    rng = random.Random(1)
    slips = 0
    for a, b in pairs(400, seed=2):
        pieces = demonstration(a, b, slip, rng)
        text = "".join(piece for piece, _ in pieces)
        assert final_answer(text) == str(a + b)
        assert text.count("\\boxed{") - text.count(addition.MENDED + ", \\boxed{") == 1
        assert judged(a, b, text) == "correct"
        assert first_wrong(a, b, text) is None, text
        slips += text.count(addition.MENDED)
        if not slip:
            assert text == right(a, b)
    assert (slips == 0) == (slip == 0)


def test_a_slip_is_one_wrong_digit_that_carries_no_loss() -> None:
    """What is learned is to notice, never to slip: no target is wrong."""
    rng = random.Random(3)
    for a, b in pairs(400, seed=4):
        pieces = demonstration(a, b, 0.5, rng)
        true = steps(a, b)
        done = 0
        for i, (piece, learn) in enumerate(pieces):
            if not learn:
                before, after = pieces[i - 1], pieces[i + 1]
                begun = before[0].removeprefix(", ")
                assert len(piece) == 1
                assert piece.isdigit()
                assert true[done].startswith(begun), "right up to the slip"
                assert true[done][len(begun)].isdigit()
                assert true[done][len(begun)] != piece, "and then one digit wrong"
                assert before[1]
                assert after == (addition.MENDED, True)
                assert pieces[i + 2] == (", " + true[done], True), "the step is written again, in full"
            elif piece.removeprefix(", ") == true[done] and (i + 1 == len(pieces) or pieces[i + 1][1]):
                done += 1
        assert done == len(true)
        kept = "".join(piece for piece, learn in pieces if learn)
        assert kept.replace(addition.MENDED, "").count("\\boxed{") >= 1


def test_the_share_of_slips_is_what_was_asked_for() -> None:
    rng = random.Random(5)
    total = slipped = 0
    for a, b in pairs(2000, seed=6):
        total += len(steps(a, b))
        slipped += sum(not learn for _, learn in demonstration(a, b, 0.12, rng))
    assert abs(slipped / total - 0.12) < 0.012  # 3 standard deviations of about 9,000 steps


def test_a_demonstration_repeats_itself() -> None:
    assert demonstration(478, 391, 0.5, random.Random(7)) == demonstration(478, 391, 0.5, random.Random(7))


def test_first_wrong_finds_a_planted_digit() -> None:
    rng = random.Random(8)
    for a, b in pairs(400, seed=9):
        text = right(a, b)
        at = rng.choice([i for i, c in enumerate(text) if c.isdigit()])
        other = rng.choice([d for d in "0123456789" if d != text[at]])
        assert first_wrong(a, b, text[:at] + other + text[at + 1 :]) == at


def test_first_wrong_after_a_mended_slip() -> None:
    """A slip that was noticed is no mistake; one further on is."""
    rng = random.Random(10)
    for a, b in pairs(300, seed=11):
        text = "".join(piece for piece, _ in demonstration(a, b, 0.6, rng))
        begin = text.rindex("\\boxed{") + len("\\boxed{")
        other = "1" if text[begin] != "1" else "2"
        assert first_wrong(a, b, text[:begin] + other + text[begin + 1 :]) == begin


def test_first_wrong_of_an_answer_that_ends_too_early() -> None:
    for a, b in pairs(100, seed=12):
        text = right(a, b)
        for end in range(len(text)):
            found = first_wrong(a, b, text[:end])
            assert found is not None
            assert found == end or (text[:end].endswith(",") and found >= end - 2), (text[:end], found)


@pytest.mark.parametrize(("answer", "at"), [
    ("", 0), ("9", 0), ("\\boxed{869}", 0), ("8+1=9 no", 8), ("8+1=9 no, 8+1=9", 15),
    ("8+1=9, 7+9=15, 4+3+1=8, \\boxed{859}", 12), ("8+1=9, 7+9=16, 4+3=8, \\boxed{869}", 18),
    ("8+1=9, 7+9=16, 4+3+1=8, \\boxed{8690}", 34), ("8+1=9, 7+9=16, 4+3+1=8, \\boxed{869} or so", 35),
    ("8+1=99, 7+9=16, 4+3+1=8, \\boxed{869}", 5), ("What is 478 + 391?", 0),
])
def test_first_wrong_of_any_text(answer: str, at: int) -> None:
    """478 + 391: 8+1=9, 7+9=16, 4+3+1=8, \\boxed{869}"""
    assert first_wrong(478, 391, answer) == at


def test_first_wrong_takes_any_text() -> None:
    rng = random.Random(13)
    for _ in range(2000):
        text = "".join(rng.choices(["8+1=9", ", ", " no", "\\boxed{", "869", "}", "7", "+", "=", "\n", "三"],
                                   k=rng.randrange(12)))
        found = first_wrong(478, 391, text)
        assert found is None or 0 <= found <= len(text)


# in the tokens of the embedded model --------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny_math() -> Policy:
    return Policy.load("tiny-math")


def test_pieces_are_encoded_as_the_whole_text_is(tiny_math: Policy) -> None:
    """Else the model learns one spelling, and whoever encodes its answer sees another (C08)."""
    rng = random.Random(14)

    def encode(text: str) -> list[int]:
        return tiny_math.tokenizer.encode(text, add_special_tokens=False)

    for a, b in pairs(150, seed=15):
        pieces = [piece for piece, _ in demonstration(a, b, 0.4, rng)]
        assert [i for piece in pieces for i in encode(piece)] == encode("".join(pieces))


def test_every_digit_and_every_mark_of_the_task_is_one_token(tiny_math: Policy) -> None:
    tok = tiny_math.tokenizer
    ids = tok.encode("8+1=9, 7+9=15 no, 7+9=16, \\boxed{869}", add_special_tokens=False)
    assert [tok.decode([i]) for i in ids] == [
        *"8+1=9", ", ", *"7+9=15", " no", ", ", *"7+9=16", ", ", "\\boxed{", *"869}"]


def test_what_the_model_says_is_encoded_as_it_was_sampled(tiny_math: Policy) -> None:
    """Then a character of the answer has a token: what first_wrong counts can be laid on token scores."""
    samples = [asked(addition.question(a, b)) for a, b in ((12, 7), (47, 58), (478, 391), (9, 9))]
    answers = tiny_math.sample(samples, [[0, 1, 2, 3]] * 4)
    for answer in (t for group in answers for t in group if t.finish_reason == "stop"):
        sampled = [i for i, acted in zip(answer.token_ids, answer.action_mask, strict=True) if acted][:-1]
        assert tiny_math.tokenizer.encode(answer.response, add_special_tokens=False) == sampled
