"""The search tool: what it finds, the form of its answers, its errors; and the data it stands on."""

from __future__ import annotations

import asyncio
import inspect
import json
import random
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import rlteach.agent.search as search_module
from rlteach.agent.search import CORPUS, SEARCH_TOOL, SearchError, SearchIndex, index_of, web_search
from rlteach.config import data_path
from rlteach.course.encyclopedia import QUESTIONS, RELATIONS, TWO_HOP, NameMaker
from rlteach.data import load_samples, read_jsonl

SPLITS = {"train": "search_dataset", "dev": "search_dataset_dev_100", "test": "search_dataset_test"}
PAGES = (("Vuka", "Vuka makes lamps."), ("Lamps", "A lamp gives light; Vuka and Dozi make some."),
         ("景栗科技", "景栗科技由李文创立。"), ("Dozi", "Dozi says \"hello\" 100%_ of the time."),
         ("Vukaro", "Vukaro is a town."))


def lines(split: str) -> list[dict[str, Any]]:
    return [line for _, line in read_jsonl(f"search/{SPLITS[split]}.jsonl")]


def write(path: Path, pages: tuple[tuple[str, str], ...] = PAGES) -> Path:
    text = "".join(json.dumps({"title": title, "text": text}) + "\n" for title, text in pages)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture
def index(tmp_path: Path) -> SearchIndex:
    return SearchIndex(write(tmp_path / "pages.jsonl"))


def titles(found: dict[str, Any]) -> list[str]:
    return [page["Title"] for page in found["Result"]["WebResults"]]


# what is found -------------------------------------------------------------------------------------

def test_a_page_of_that_title_comes_first(index: SearchIndex) -> None:
    assert titles(index.search("Vuka")) == ["Vuka", "Vukaro", "Lamps"]
    assert titles(index.search("Vukaro")) == ["Vukaro"]
    assert titles(index.search("vuka", 1)) == ["Vuka"], "small letters find capital ones"


@pytest.mark.parametrize("query", ["景栗科技", "景栗", "栗", "李文"])
def test_chinese_is_found_at_any_length(index: SearchIndex, query: str) -> None:
    assert titles(index.search(query)) == ["景栗科技"]


def test_several_words_find_the_pages_of_each(index: SearchIndex) -> None:
    assert set(titles(index.search("Dozi 景栗"))) == {"Dozi", "Lamps", "景栗科技"}
    assert titles(index.search("Vuka makes"))[0] == "Vuka", "all words together come before each alone"


@pytest.mark.parametrize("query", ['"', '" OR "', 'title:Vuka"', "Vuka*", "NEAR(Vuka", "' OR 1=1 --", "a\0b",
                                   "\ud800x", "%", "_", "?", "()", "^", "-", "zzz"])
def test_no_sign_in_a_query_is_a_command(index: SearchIndex, query: str) -> None:
    found = index.search(query)
    for page in found["Result"]["WebResults"]:
        words = query.replace("\0", " ").split()
        assert any(word.lower() in (page["Title"] + " " + page["Snippet"]).lower() for word in words)
    assert json.loads(json.dumps(found)) == found


def test_nothing_found_is_an_answer_and_no_error(index: SearchIndex) -> None:
    assert index.search("Nobody") == {"Result": {"ResultCount": 0, "WebResults": []}}


def test_a_long_query_is_cut_as_the_tool_says(index: SearchIndex) -> None:
    assert titles(index.search(" " * 500 + "Vukaro" + " " * 5 + "q" * 10_000)) == ["Vukaro"]
    assert titles(index.search("q" * 100 + " Vukaro")) == [], "character 101 is not looked for"


def test_snippets_are_short_and_show_what_was_found(tmp_path: Path) -> None:
    long = "x" * 5000 + " needle " + "y" * 5000
    found = SearchIndex(write(tmp_path / "long.jsonl", (("Hay", long),))).search("needle")
    snippet = found["Result"]["WebResults"][0]["Snippet"]
    assert "needle" in snippet
    assert len(snippet) <= 120


# the form ------------------------------------------------------------------------------------------

def test_the_answer_has_the_form_of_the_cloud_s_tool() -> None:
    found = asyncio.run(web_search("Vuka"))
    assert set(found) == {"Result"}
    assert set(found["Result"]) == {"ResultCount", "WebResults"}
    assert found["Result"], "the document's plug-in retries when Result is empty: not finding is no error"
    assert inspect.iscoroutinefunction(web_search)
    signature = inspect.signature(web_search)
    assert list(signature.parameters) == ["Query", "Count"]
    assert signature.parameters["Count"].default == 10


def test_the_spec_is_an_openai_function_whose_schema_is_what_the_function_takes() -> None:
    function = SEARCH_TOOL["function"]
    schema = function["parameters"]
    jsonschema.Draft202012Validator.check_schema(schema)
    assert SEARCH_TOOL["type"] == "function"
    assert function["name"] == web_search.__name__
    assert list(schema["properties"]) == list(inspect.signature(web_search).parameters)
    assert schema["required"] == ["Query"]
    assert schema["properties"]["Count"]["default"] == 10


BAD = ({"Query": ""}, {"Query": 5}, {"Query": None}, {"Query": ["Vuka"]}, {"Query": "Vuka", "Count": 0},
       {"Query": "Vuka", "Count": "3"}, {"Query": "Vuka", "Count": 2.5}, {"Query": "Vuka", "Count": 51},
       {"Query": "Vuka", "Count": True}, {"Query": "Vuka", "Count": None})


@pytest.mark.parametrize("arguments", BAD, ids=str)
def test_wrong_arguments_break_the_schema_and_are_named(arguments: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(arguments, SEARCH_TOOL["function"]["parameters"])
    field = "Count" if "Count" in arguments else "Query"
    with pytest.raises(SearchError, match=f"^{field} must be"):
        asyncio.run(web_search(**arguments))


def test_an_argument_that_the_function_lacks_breaks_the_schema() -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"Query": "x", "location": "y"}, SEARCH_TOOL["function"]["parameters"])


# files ---------------------------------------------------------------------------------------------

def test_a_missing_corpus_is_named_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLTEACH_DATA", str(tmp_path))
    with pytest.raises(SearchError, match=r"corpus\.jsonl cannot be read .*build_search"):
        asyncio.run(web_search("Vuka"))


@pytest.mark.parametrize(("content", "said"), [
    (b"", "holds no page"), (b"\n\n", "holds no page"), (b'{"title": "a"}\n', ":1: no page"),
    (b'{"title": "a", "text": "b"}\n[]\n', ":2: no page"), (b'{"title": "a", "text": 5}\n', ":1: no page"),
    (b'{"title": "a", "text": "\\ud800"}\n', ":1: no page"), (b"{\n", ":1: no page"),
    ('{"title": "二加二"}'.encode("gbk"), "not UTF-8"), (b"[" * 100_000 + b"\n", ":1: no page"),
])
def test_a_damaged_corpus_is_named_with_its_line(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "pages.jsonl"
    path.write_bytes(content)
    with pytest.raises(SearchError, match=said) as error:
        SearchIndex(path)
    assert str(path) in str(error.value)


def test_the_index_is_built_once_and_serves_many_threads() -> None:
    index_of.cache_clear()
    wanted = [line["title"] for _, line in read_jsonl(CORPUS)][:200]
    wrong: list[str] = []

    def look(names: list[str]) -> None:
        wrong.extend(name for name in names if titles(asyncio.run(web_search(name, 1))) != [name])

    threads = [threading.Thread(target=look, args=(wanted[i::8],)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert index_of.cache_info().currsize == 1


def test_searching_needs_no_model_library() -> None:
    code = ("import sys, asyncio; from rlteach.agent.search import web_search; asyncio.run(web_search('x')); "
            "print(*sorted({'torch', 'transformers', 'openai', 'mcp'} & set(sys.modules)))")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


# the data ------------------------------------------------------------------------------------------

def test_the_splits_have_their_sizes_and_both_languages_and_levels() -> None:
    assert len(lines("dev")) == 100
    for split in SPLITS:
        counts = Counter((line["language"], line["level"]) for line in lines(split))
        assert set(counts) == {(language, level) for language in ("en", "zh") for level in ("single", "two")}
        assert min(counts.values()) >= 15
        assert {line["split"] for line in lines(split)} == {split}
        assert {line["relation"] for line in lines(split)} == {*RELATIONS, *TWO_HOP}
        assert len(load_samples(f"search/{SPLITS[split]}.jsonl")) == len(lines(split)), "the loader takes all"


def test_no_name_is_in_two_splits() -> None:
    names = {split: {name for line in lines(split) for name in (*line["queries"], *line["gold_answer"])
                     if not name[0].isdigit()} for split in SPLITS}
    assert min(map(len, names.values())) >= 80
    assert not names["train"] & names["dev"]
    assert not names["train"] & names["test"]
    assert not names["dev"] & names["test"]


@pytest.mark.parametrize("split", SPLITS)
def test_every_question_is_answered_by_looking_up_its_names_in_order(split: str) -> None:
    """From the question alone: each name to look up stands in the question, or on a page found before."""
    for line in lines(split):
        seen = line["question"]
        for query in line["queries"]:
            assert query in seen, line["id"]
            seen = " ".join(page["Snippet"] for page in index_of(str(data_path(CORPUS))).search(
                query, 3)["Result"]["WebResults"])
        assert line["gold_answer"][0] in seen, line["id"]
        assert line["gold_answer"][0] not in line["question"]


def test_a_two_hop_question_is_not_answered_by_one_search() -> None:
    for line in lines("dev"):
        if line["level"] == "two":
            first = index_of(str(data_path(CORPUS))).search(line["queries"][0], 50)
            assert line["gold_answer"][0] not in json.dumps(first, ensure_ascii=False), line["id"]


def test_one_name_is_never_a_part_of_another() -> None:
    """A search for a name finds only what was meant."""
    for split in ("dev", "test"):
        for line in lines(split):
            for query in line["queries"]:
                found = index_of(str(data_path(CORPUS))).search(query, 50)
                assert len(titles(found)) <= 3, query
                assert query in titles(found)


def test_the_data_are_made_by_the_script_from_its_seed(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[1]
    code = (f"import sys; sys.path.insert(0, {str(root / 'scripts')!r}); import build_search, pathlib; "
            f"build_search.FOLDER = pathlib.Path({str(tmp_path)!r}); build_search.main()")
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert made == {path.name: path.read_bytes() for path in data_path("search").iterdir()}
    assert set(made) == {"corpus.jsonl", *(f"{name}.jsonl" for name in SPLITS.values())}


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_names_of_a_cluster_differ_and_avoid_what_they_shall(language: str) -> None:
    first = NameMaker(random.Random(1)).cluster(language)
    again = NameMaker(random.Random(1), avoid=first.names)
    names = [name for _ in range(60) for name in again.cluster(language).names]
    assert len(set(names)) == len(names)
    assert not set(first.names) & set(names)
    assert set(QUESTIONS[language]) == {*RELATIONS, *TWO_HOP}


def test_an_sqlite_without_trigrams_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "pages.jsonl")

    class Old:
        def execute(self, *_: object) -> None:
            raise search_module.sqlite3.OperationalError("no such tokenizer: trigram")

    monkeypatch.setattr(search_module.sqlite3, "connect", lambda *_, **__: Old())
    with pytest.raises(SearchError, match=r"no FTS5 with trigrams .*3\.34"):
        SearchIndex(path)
