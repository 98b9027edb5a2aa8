"""A search engine for lessons: `web_search(Query, Count)` over a small encyclopaedia, on SQLite.

The answers have the form of a cloud's web search, {"Result": {"ResultCount", "WebResults": [{"Title",
"Snippet"}]}}, so that a plug-in written for one works with the other. Nothing here leaves the machine.
The index is SQLite's FTS5 with the trigram tokenizer: it finds any part of a word, in Chinese, too.
"""

from __future__ import annotations

import sqlite3
import threading
from functools import lru_cache
from pathlib import Path
from typing import Any

from rlteach.config import data_path
from rlteach.data import DataError, read_jsonl

CORPUS = "search/corpus.jsonl"
LONGEST_QUERY = 100  # characters; what is longer is cut, as the cloud's tool does
MOST_RESULTS = 50
SNIPPET = 120  # characters

SEARCH_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "web_search",
        "description": "Searches the encyclopaedia for a name. 在百科中搜索一个名称。",
        "parameters": {
            "type": "object",
            "properties": {
                "Query": {"type": "string", "minLength": 1,
                          "description": "what to look for, 1 to 100 characters (the rest is cut off)"},
                "Count": {"type": "integer", "minimum": 1, "maximum": MOST_RESULTS, "default": 10,
                          "description": "how many results"},
            },
            "required": ["Query"],
            "additionalProperties": False,
        },
    },
}


class SearchError(ValueError):
    """A corpus or a query that cannot be used; the message names the file or the field, and the remedy."""


class SearchIndex:
    """Pages {"title", "text"} of a JSONL file, indexed in memory at first use.

    Raises:
        SearchError: the file is missing or damaged, or this SQLite has no trigram tokenizer (3.34).
    """

    def __init__(self, corpus: str | Path = CORPUS) -> None:
        pages = read_pages(corpus)
        self._lock = threading.Lock()  # plug-ins may be plain functions, which run on threads
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        try:
            self._database.execute("CREATE VIRTUAL TABLE pages USING fts5(title, text, tokenize='trigram')")
        except sqlite3.OperationalError as error:
            raise SearchError(f"SQLite {sqlite3.sqlite_version} has no FTS5 with trigrams ({error}): use a "
                              "Python with SQLite 3.34 or later") from None
        self._database.executemany("INSERT INTO pages VALUES (?, ?)", pages)
        self._database.commit()

    def search(self, query: str, count: int = 10) -> dict[str, Any]:
        """At most `count` pages that hold one of the words of `query` (all of them first, titles before
        texts): {"Result": {"ResultCount": n, "WebResults": [{"Title", "Snippet"}, ...]}}.

        Raises:
            SearchError: the query is no text or empty, or count is no whole number from 1.
        """
        words = check(query, count)
        found: dict[int, tuple[str, str]] = {}
        for wanted in dict.fromkeys((" ".join(words), *words)):
            for row, title, text in self._pages(wanted, count):
                found.setdefault(row, (title, cut(text, wanted)))
        results = [{"Title": title, "Snippet": text} for title, text in list(found.values())[:count]]
        return {"Result": {"ResultCount": len(results), "WebResults": results}}

    def _pages(self, wanted: str, count: int) -> list[tuple[int, str, str]]:
        """(row, title, text) of pages with `wanted` in them: those with that very title, in the order of
        the file, then the others by relevance."""
        order = "ORDER BY CASE WHEN lower(title) = lower(?) THEN -1e9 ELSE {} END, rowid LIMIT ?"
        if len(wanted) >= 3:
            where = "pages MATCH ? " + order.format("bm25(pages, 10.0, 1.0)")
            values: tuple[Any, ...] = ('"' + wanted.replace('"', '""') + '"', wanted, count)
        else:  # shorter than a trigram: no index helps, and the corpus is small
            where = "instr(lower(title || ' ' || text), lower(?)) " + order.format("length(title)")
            values = (wanted, wanted, count)
        with self._lock:
            return self._database.execute(f"SELECT rowid, title, text FROM pages WHERE {where}",
                                          values).fetchall()


async def web_search(Query: str, Count: int = 10) -> dict[str, Any]:  # noqa: N803
    """Search the encyclopaedia that ships with rlteach (RLTEACH_DATA names another data folder).

    Returns what SearchIndex.search returns; a query that finds nothing gives an empty list, no error.

    Raises:
        SearchError: see SearchIndex and SearchIndex.search.
    """
    return index_of(str(data_path(CORPUS))).search(Query, Count)


@lru_cache(maxsize=4)
def index_of(corpus: str) -> SearchIndex:
    """The index of a file, built once in a process."""
    return SearchIndex(corpus)


def check(query: Any, count: Any) -> list[str]:
    """The words of a query, each at most once. Raises SearchError for arguments of the wrong kind."""
    if not isinstance(query, str) or not query.strip():
        raise SearchError(f"Query must be a text that is not empty; got {query!r}")
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MOST_RESULTS:
        raise SearchError(f"Count must be a whole number from 1 to {MOST_RESULTS}; got {count!r}")
    text = query.strip()[:LONGEST_QUERY].replace("\0", " ")
    return list(dict.fromkeys(text.encode("utf-8", "replace").decode().split())) or ["?"]


def cut(text: str, wanted: str) -> str:
    """At most SNIPPET characters of a page, around the place where `wanted` stands."""
    if len(text) <= SNIPPET:
        return text
    at = max(text.lower().find(wanted.lower()), 0)
    begin = min(max(at - SNIPPET // 4, 0), len(text) - SNIPPET)
    return text[begin : begin + SNIPPET]


def read_pages(corpus: str | Path) -> list[tuple[str, str]]:
    """(title, text) of every line; SearchError names file and line of what is wrong."""
    path = Path(corpus) if Path(corpus).exists() else data_path(str(corpus))
    if not path.is_file():
        raise SearchError(f"the search corpus {path} cannot be read (there is no such file): "
                          "make it with scripts/build_search.py, or name another file")
    pages = []
    try:
        for at, entry in read_jsonl(path, "page"):
            if not all(isinstance(entry.get(name), str) for name in ("title", "text")):
                raise SearchError(f'{at}: no page: write one object {{"title": text, "text": text}} a line')
            pages.append((entry["title"], entry["text"]))
    except DataError as error:
        raise SearchError(str(error)) from None
    return pages
