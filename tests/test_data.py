"""Questions from files: damaged ones are named with file, line and remedy; the order has no state."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from fakes import samples as numbered

import rlteach as rl
from rlteach.agent.trial import read_samples
from rlteach.agent.types import ChatCompletionSample
from rlteach.config import Config
from rlteach.data import DataError, balance, batch_of, load_samples, read_jsonl
from rlteach.judger.rule import RuleJudger
from rlteach.presets import OREAL_BINS
from rlteach.training.answers_file import grade_file
from rlteach.types import Message, Sample, Trajectory

GOOD = ('{"question": "1+1?", "gold_answer": "2"}', '{"question": "1+2?", "gold_answer": "3"}',
        '{"question": "1+3?", "gold_answer": "4"}')
BOM = b"\xef\xbb\xbf"


def lines(*texts: str) -> bytes:
    return "".join(text + "\n" for text in texts).encode()


def line(**changes: Any) -> str:
    """A good line with some keys changed; `...` removes one."""
    entry = {"question": "2+2?", "gold_answer": "4", **changes}
    return json.dumps({key: value for key, value in entry.items() if value is not ...})


USER = [{"role": "user", "content": "who?"}]


def chat(messages: Any, **more: Any) -> str:
    """A line with messages in place of a question."""
    return json.dumps({"messages": messages, **more})


# damaged files (T14): what is wrong, on which line, and what helps ---------------------------------

DAMAGED: dict[str, tuple[bytes, int, str]] = {
    "gbk": (lines(*GOOD) + '{"question": "一加一？", "gold_answer": "2"}\n'.encode("gbk"), 4,
            "save the file as UTF-8"),
    "gbk in the middle": (lines(GOOD[0]) + "二加二\n".encode("gbk") + lines(GOOD[1]), 2,
                          "save the file as UTF-8"),
    "utf-16 with mark": ("\n".join(GOOD).encode("utf-16"), 1, "save the file as UTF-8"),
    "utf-16 without mark": ("\n".join(GOOD).encode("utf-16-le"), 1, "write one object a line"),
    "latin-1": (lines(GOOD[0]) + '{"question": "½+½?", "gold_answer": "1"}'.encode("latin-1"), 2,
                "save the file as UTF-8"),
    "no question": (lines(GOOD[0], line(question=...)), 2, "'question' is missing: add it"),
    "no gold": (lines(GOOD[0], "", line(gold_answer=...)), 3, "'gold_answer' is missing: add it"),
    "null question": (lines(line(question=None)), 1, "question must be a text"),
    "number question": (lines(line(question=11)), 1, "question must be a text"),
    "empty question": (lines(line(question="")), 1, "question must be a text that is not empty"),
    "blank question": (lines(line(question=" \t")), 1, "question must be a text that is not empty"),
    "list question": (lines(line(question=["1+1?"])), 1, "question must be a text"),
    "null gold": (lines(GOOD[0], line(gold_answer=None)), 2, "gold_answer must be a text"),
    "number gold": (lines(line(gold_answer=4)), 1, "put numbers in quotes"),
    "bool gold": (lines(line(gold_answer=True)), 1, "gold_answer must be a text"),
    "empty gold": (lines(line(gold_answer="")), 1, "gold_answer must be a text"),
    "blank gold": (lines(line(gold_answer="  ")), 1, "gold_answer must be a text"),
    "no gold in the list": (lines(line(gold_answer=[])), 1, "gold_answer must be a text"),
    "number in the gold list": (lines(line(gold_answer=["4", 5])), 1, "put numbers in quotes"),
    "object gold": (lines(line(gold_answer={"a": "4"})), 1, "gold_answer must be a text"),
    "same id": (lines(line(id="a"), line(id="b", question="?"), line(id="a", question="!")), 3, "keep one"),
    "same question": (lines(line(id="a"), line(id="b")), 2, "keep one of the two lines"),
    "json array": (b"[" + ", ".join(GOOD).encode() + b"]", 1, "no list around them"),
    "json array over lines": (b"[\n" + ",\n".join(GOOD).encode() + b"\n]\n", 1, "write one object a line"),
    "trailing comma": (lines(GOOD[0] + ","), 1, "write one object a line"),
    "two on a line": (lines(GOOD[0] + " " + GOOD[1]), 1, "write one object a line"),
    "one over two lines": (lines(GOOD[0], '{"question": "x",', '"gold_answer": "1"}'), 2,
                           "write one object a line"),
    "truncated last line": (lines(*GOOD)[:-9], 3, "write one object a line"),
    "text line": (lines(GOOD[0], "and now the hard ones"), 2, "write one object a line"),
    "string line": (lines('"1+1?"'), 1, "write one object"),
    "null line": (lines(GOOD[0], "null"), 2, "write one object"),
    "python, not json": (lines("{'question': '1', 'gold_answer': '1'}"), 1, "write one object a line"),
    "nan": (lines(GOOD[0], '{"question": "1", "gold_answer": "1", "pass_rate": NaN}'), 2, "NaN is not JSON"),
    "infinity": (lines('{"question": "1", "gold_answer": "1", "weight": -Infinity}'), 1,
                 "Infinity is not JSON"),
    "rate above 1": (lines(line(pass_rate=1.01)), 1, "pass_rate must be a number from 0 to 1"),
    "rate in percent": (lines(line(pass_rate=40)), 1, "pass_rate must be a number from 0 to 1"),
    "rate below 0": (lines(line(pass_rate=-0.1)), 1, "pass_rate must be a number from 0 to 1"),
    "rate bool": (lines(line(pass_rate=True)), 1, "pass_rate must be a number from 0 to 1"),
    "rate text": (lines(line(pass_rate="0.5")), 1, "pass_rate must be a number from 0 to 1"),
    "rate 1e400": (lines('{"question": "1", "gold_answer": "1", "pass_rate": 1e400}'), 1,
                   "pass_rate must be a number from 0 to 1"),
    "n 0": (lines(GOOD[0], line(n=0)), 2, "n must be a whole number from 1; got 0"),
    "n text": (lines(line(n="4")), 1, "n must be a whole number from 1; got '4'"),
    "n bool": (lines(line(n=True)), 1, "n must be a whole number from 1"),
    "max_new_tokens": (lines(line(max_new_tokens=1.5)), 1, "max_new_tokens must be a whole number from 1"),
    "temperature 0": (lines(line(temperature=0)), 1, "temperature must be a number above 0, at most 5"),
    "temperature 6": (lines(line(temperature=6)), 1, "temperature must be a number above 0, at most 5"),
    "top_p": (lines(line(top_p=1.1)), 1, "top_p must be a number above 0, at most 1"),
    "top_k": (lines(line(top_k=-1)), 1, "top_k must be a whole number from 0"),
    "thinking": (lines(line(thinking=True)), 1, "thinking must be an object"),
    "tools": (lines(line(tools={"type": "function"})), 1, "tools must be a list of objects"),
    "tool": (lines(line(tools=["web_search"])), 1, "tools must be a list of objects"),
    "extra": (lines(line(extra=["answer"])), 1, "extra must be an object"),
    "number in extra": (lines(line(extra={"temperature": 1})), 1, "extra holds 'temperature'"),
    "question and messages": (lines(line(messages=USER)), 1, "question and messages: keep one of the two"),
    "messages text": (lines(chat("hello")), 1, "messages must be a list of messages {role, content}"),
    "no messages": (lines(chat([])), 1, "messages must be a list"),
    "message text": (lines(chat(["hello"])), 1, "messages.0.role must be one of system, developer, user"),
    "message of nobody": (lines(chat([{"role": "human", "content": "?"}])), 1, "messages.0.role must be one"),
    "message of a number": (lines(chat([{"role": "user", "content": 5}])), 1, "messages.0.content must be a"),
    "message with a picture": (lines(chat([{"role": "user", "content": [{"type": "image_url"}]}])), 1,
                               "messages.0.content must be a text"),
    "message without words": (lines(chat([{"role": "user"}])), 1, "messages.0.content is missing"),
    "blank last message": (lines(chat([{"role": "user", "content": " "}])), 1, "the last of messages must"),
    "answer last": (lines(GOOD[0], chat([*USER, {"role": "assistant", "content": "Ann"}])), 2,
                    "the last of messages must be a question of the user"),
    "reply to nobody": (lines(chat([{"role": "tool", "content": "x"}, *USER])), 1, "messages.0.tool_call_id"),
    "broken call": (lines(chat([{"role": "assistant", "tool_calls": [{"id": "a"}]}, *USER])), 1,
                    "messages.0.tool_calls: each needs function.name"),
    "messages and a wrong gold": (lines(chat(USER, gold_answer=4)), 1, "put numbers in quotes"),
    "same messages": (lines(chat(USER), GOOD[0], chat(USER)), 3, "keep one of the two lines"),
    "half a character": (lines(GOOD[0], r'{"question": "\ud83d", "gold_answer": "1"}'), 2, ""),
    "half a character in the gold": (lines(r'{"question": "1", "gold_answer": "\udc00"}'), 1, ""),
    "nested too deep": (lines(GOOD[0], '{"question": ' + "[" * 100_000), 2, "write one object a line"),
    "number too long": (lines('{"question": "1", "gold_answer": ' + "7" * 5000 + "}"), 1, ""),
}


def complaint(name: str | Path) -> str:
    with pytest.raises(DataError) as caught:
        load_samples(name)
    text = str(caught.value)
    assert "\n" not in text, "one sentence"
    return text


@pytest.mark.parametrize("case", DAMAGED)
def test_f04_a_damaged_file_names_line_and_remedy(tmp_path: Path, case: str) -> None:
    content, number, remedy = DAMAGED[case]
    file = tmp_path / "mine.jsonl"
    file.write_bytes(content)
    text = complaint(file)
    assert text.startswith(f"{file}:{number}: ")
    assert remedy in text
    assert len(text) < 1000, "a sentence, not the file again"
    assert file.read_bytes() == content, "reading changes nothing"


def test_f04_files_that_are_none(tmp_path: Path) -> None:
    assert "there is no such file" in complaint(tmp_path / "gone.jsonl")
    assert "is a directory: name a .jsonl file" in complaint(tmp_path)
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "gone.jsonl")
    assert "there is no such file" in complaint(tmp_path / "link.jsonl")
    contents = {"empty": b"", "blank": b"\n \n\r\n", "mark": BOM, "mark and line": BOM + b"\n"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
        assert complaint(tmp_path / name).startswith(f"{tmp_path / name} holds no line")


# files that look odd and are right ----------------------------------------------------------------

WHOLE: dict[str, bytes] = {
    "plain": lines(*GOOD),
    "no line end at the end": lines(*GOOD)[:-1],
    "crlf": lines(*GOOD).replace(b"\n", b"\r\n"),
    "mark": BOM + lines(*GOOD),
    "mark and crlf": BOM + lines(*GOOD).replace(b"\n", b"\r\n"),
    "mark in the middle": BOM + lines(GOOD[0]) + BOM + lines(*GOOD[1:]),
    "blank lines": b"\n\n" + lines(GOOD[0], "", "   ", *GOOD[1:]) + b"\n\t\n",
    "spaces round the objects": lines(*("  " + text + "\t" for text in GOOD)),
}


@pytest.mark.parametrize("case", WHOLE)
def test_f01_every_line_arrives(tmp_path: Path, case: str) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_bytes(WHOLE[case])
    found = load_samples(file)
    assert [s.question for s in found] == ["1+1?", "1+2?", "1+3?"]
    assert [s.gold for s in found] == [("2",), ("3",), ("4",)]
    (tmp_path / "link.jsonl").symlink_to(file)
    assert load_samples(tmp_path / "link.jsonl") == found


@pytest.mark.parametrize("sign", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1e"])
def test_f04_only_a_line_feed_ends_a_line(tmp_path: Path, sign: str) -> None:
    """str.splitlines would cut a text at these, and JSON allows most of them inside a string."""
    file = tmp_path / "mine.jsonl"
    entry = {"question": f"one{sign}question", "gold_answer": "2"}
    file.write_text(json.dumps(entry, ensure_ascii=sign < " ") + "\n" + GOOD[1] + "\n", encoding="utf-8")
    assert [s.question for s in load_samples(file)] == [f"one{sign}question", "1+2?"]


def test_f04_a_long_line_is_read(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_text(line(question="1+" * 5_000_000 + "1?") + "\n", encoding="utf-8")
    assert len(load_samples(file)[0].question) == 10_000_002


def test_f02_the_locale_decides_nothing(tmp_path: Path) -> None:
    """On a Chinese or a C locale, `open` without an encoding reads something else."""
    file = tmp_path / "题目.jsonl"
    file.write_text('{"question": "一加一？", "gold_answer": "2"}\n', encoding="utf-8")
    code = ("import sys; from rlteach.data import load_samples; "
            "print(ascii(load_samples(sys.argv[1])[0].question))")
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0",
           "PYTHONIOENCODING": "gbk"}
    done = subprocess.run([sys.executable, "-c", code, file], env=env, capture_output=True, check=True,
                          text=True)
    assert done.stdout.strip() == ascii("一加一？")


def test_schema(tmp_path: Path) -> None:
    """A row of OREAL-RL-Prompts, and what else may stand there."""
    file = tmp_path / "mine.jsonl"
    file.write_bytes(lines(
        line(),
        line(question="a?", id="x7", pass_rate=0.25, data_source="addition", level=3, note=[1, 2]),
        line(question="b?", gold_answer=["1/2", "0.5"], pass_rate=1),
        line(question="c?", pass_rate=None, id=12)))
    plain, rich, many, null = load_samples(file)
    assert plain == Sample("0", (Message("user", "2+2?"),), ("4",), extra={"answer": "4"})
    assert plain.pass_rate is None
    assert (rich.id, rich.pass_rate, rich.data_source) == ("x7", 0.25, "addition")
    assert rich.extra == {"answer": "4", "level": 3, "note": [1, 2]}
    assert many.gold == ("1/2", "0.5")
    assert (many.pass_rate, null.pass_rate, null.id) == (1, None, "12")
    assert len({s.id for s in (plain, rich, many, null)}) == 4


def test_messages_tools_and_what_a_sample_asks_for_itself(tmp_path: Path) -> None:
    """A line as the Ark SDK's data sets have it, and what a plug-in sees of it."""
    tool = {"type": "function", "function": {"name": "web_search", "parameters": {}}}
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"Query": "Ann"}'}}
    parts = [{"type": "text", "text": "be "}, {"type": "text", "text": "short"}]
    history = [
        {"role": "developer", "content": parts},
        *USER, {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "found"}, {"role": "user", "content": "and where?"}]
    file = tmp_path / "mine.jsonl"
    file.write_bytes(lines(
        chat(history, tools=[tool], n=3, max_new_tokens=7, temperature=0.5, top_p=0.9, top_k=None,
             thinking={"type": "enabled"}, extra={"answer": "Rome", "prompt_id": 7}, level="two"),
        chat(USER), chat(USER, tools=[tool], extra={"answer": 42}),
        chat([{"role": "user", "content": "which?"}], gold_answer=["a", "b"], id="x"),
        line(tools=[tool], n=2, extra={"note": 1})))
    whole, bare, number, many, plain = load_samples(file)
    assert whole.messages == (
        Message("system", "be short"), Message("user", "who?"),
        Message("assistant", "", ({**call, "function": {"name": "look", "arguments": {"Query": "Ann"}}},)),
        Message("tool", "found", (), "c1"), Message("user", "and where?"))
    assert (whole.question, whole.gold, whole.tools) == ("and where?", ("Rome",), (tool,))
    view = ChatCompletionSample.of(whole)
    assert (view.n, view.max_new_tokens, view.temperature, view.top_p, view.top_k) == (3, 7, 0.5, 0.9, None)
    assert view.thinking == {"type": "enabled"}
    assert view.extra == {"answer": "Rome", "prompt_id": 7, "level": "two"}
    assert view.tools == [tool]
    assert view.messages[2].tool_calls[0].function.arguments == '{"Query": "Ann"}'
    assert (bare.gold, bare.extra, bare.id) == ((), {}, "1")
    assert (number.gold, number.extra) == ((), {"answer": 42})
    assert (many.gold, many.extra["answer"]) == (("a", "b"), ["a", "b"])
    assert (plain.tools, plain.extra) == ((tool,), {"answer": "4", "n": 2, "note": 1})
    assert [s.model_dump() for s in read_samples(file)] == [
        ChatCompletionSample.of(s).model_dump() for s in (whole, bare, number, many, plain)]


def test_a_question_without_gold_is_nobody_s_to_judge_by_rule(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_bytes(lines(chat(USER)))
    [sample] = load_samples(file)
    answer = Trajectory((*sample.messages, Message("assistant", r"\boxed{4}")), (), (), (), 0, "stop")
    assert RuleJudger().judge(sample, answer).status == "unscorable"


def test_a_last_line_that_was_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_bytes(lines(*GOOD)[:-9])
    assert [entry["question"] for _, entry in read_jsonl(file, cut_off=True)] == ["1+1?", "1+2?"]
    file.write_bytes(lines(GOOD[0], GOOD[1][:-9], GOOD[2]))
    with pytest.raises(DataError, match=r"mine\.jsonl:2: not a JSON object"):
        read_jsonl(file, cut_off=True)


def test_an_id_that_is_null_is_no_id(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_bytes(lines(line(id=None), line(id=None, question="a?")))
    assert [s.id for s in load_samples(file)] == ["0", "1"]


def test_a_name_under_data_and_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "prompts").mkdir()
    (tmp_path / "prompts" / "mine.jsonl").write_bytes(lines(GOOD[0]))
    monkeypatch.setenv("RLTEACH_DATA", str(tmp_path))
    assert len(rl.load_samples("prompts/mine.jsonl")) == 1
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.jsonl").write_bytes(lines(*GOOD))
    assert len(rl.load_samples("mine.jsonl")) == 3


def test_read_jsonl_says_where_each_object_stood(tmp_path: Path) -> None:
    file = tmp_path / "mine.jsonl"
    file.write_bytes(b"\n" + lines(GOOD[0], "", GOOD[1]))
    assert read_jsonl(file) == [(f"{file}:2", json.loads(GOOD[0])), (f"{file}:4", json.loads(GOOD[1]))]


# answers to grade ---------------------------------------------------------------------------------


def test_answers_file(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_bytes(lines(
        line(response=r"so \boxed{4}"), line(response=r"\boxed{5}"), line(response="4"),
        line(response=r"\boxed{4}", gold_answer="see solution")))
    rows = grade_file(file)
    assert [(row["verdict"], row["score"]) for row in rows] == [
        ("correct", 1.0), ("incorrect", 0.0), ("incorrect", 0.0), ("unscorable", None)]
    assert all(set(row) == {"verdict", "score", "source", "reason"} for row in rows)
    assert all(row["source"] == "rule" and row["reason"] for row in rows)


@pytest.mark.parametrize("response", [..., None, 4, ["4"]], ids=str)
def test_answers_file_without_an_answer(tmp_path: Path, response: object) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_bytes(lines(line(response="4"), line(response=response)))
    with pytest.raises(DataError, match=r"answers\.jsonl:2: response must be a text"):
        grade_file(file)


# difficulty balance -------------------------------------------------------------------------------


def rated(*rates: float | None) -> list[Sample]:
    return [Sample(f"q{i}", (Message("user", f"{i}?"),), ("1",), pass_rate=rate)
            for i, rate in enumerate(rates)]


def test_balance_takes_each_question_as_often_as_oreal_does() -> None:
    rates = (0.0, 0.199, 0.2, 0.399, 0.4, 0.599, 0.6, 0.799, 0.8, 0.95, 1.0)
    found = Counter(s.id for s in balance(rated(*rates), OREAL_BINS))
    assert [found[f"q{i}"] for i in range(len(rates))] == [6, 6, 4, 4, 4, 4, 2, 2, 0, 0, 0]


def test_balance_without_bins_takes_every_question_once() -> None:
    given = rated(None, 0.5, 1.0)
    assert balance(given, ()) == given


def test_balance_says_what_it_lacks() -> None:
    with pytest.raises(DataError, match=r"'q1' has no pass_rate.*difficulty_bins=\[\]"):
        balance(rated(0.5, None), OREAL_BINS)
    with pytest.raises(DataError, match="difficulty_bins leaves no question"):
        balance(rated(0.8, 1.0), OREAL_BINS)
    with pytest.raises(DataError, match="difficulty_bins leaves no question"):
        balance(rated(0.3), [(0.0, 0.5, 0)])


def test_s22_balance_shares_no_changing_object() -> None:
    """In the released code repeated rows are one dict that __getitem__ changes; ours are frozen."""
    first = balance(rated(0.1), OREAL_BINS)[0]
    with pytest.raises(AttributeError):
        first.pass_rate = 0.9


# the order of questions ---------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "batch"), [(7, 3), (6, 3), (5, 1), (4, 9), (1, 2)])
def test_e05_each_epoch_is_a_permutation(size: int, batch: int) -> None:
    """Over epoch borders, and with a batch that is longer than an epoch."""
    given, config = rated(*[0.5] * size), Config(batch_size=batch, seed=3)
    steps = -(-3 * size // batch)
    drawn = [s.id for step in range(steps) for s in batch_of(given, config, step)]
    assert len(drawn) == steps * batch
    epochs = [drawn[at : at + size] for at in range(0, 3 * size, size)]
    for epoch in epochs:
        assert sorted(epoch) == sorted(s.id for s in given)
    if size > 4:
        assert len(set(map(tuple, epochs))) == 3, "each epoch has its own order"


def test_e05_the_order_does_not_depend_on_what_was_asked_before() -> None:
    given, config = rated(*[0.5] * 50), Config(batch_size=8)
    forward = [batch_of(given, config, step) for step in range(20)]
    assert [batch_of(given, config, step) for step in reversed(range(20))] == forward[::-1]
    assert batch_of(given, config, 13) == forward[13]


def test_e05_another_seed_is_another_order() -> None:
    given = numbered(40)
    orders = {tuple(s.id for s in batch_of(given, Config(batch_size=40, seed=seed), 0)) for seed in range(5)}
    assert len(orders) == 5
