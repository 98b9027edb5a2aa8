"""A fictional encyclopaedia of companies, people and products, and questions about it.

Names are drawn from syllables (English) or characters (Chinese): whoever answers has to look them
up. A `Cluster` is one company with its founder and its product; five facts tell all of it, and each
fact is a page of its own. One-hop questions need one page, two-hop questions a second one that only
the first one names.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

CONSONANTS, VOWELS = "bdfghjklmnprstvz", "aiou"
SYLLABLES = [c + v for c in CONSONANTS for v in VOWELS]
HAN = ("栗岚芷砚珩霁翊榕槿棠萤鲸鹭隼麓汀溪屿岫皓澈沐昀晗琅璟琢瓷墨笙弦筝苔蕨荻菱菡蔚杉柚桐楠椿榆橙陶砾"
       "霜露雾虹霞沙潮湾泽峦峰崖")
SURNAMES = "陈李王张刘杨黄赵吴周徐孙马朱胡林"
THINGS = "灯茶琴笔伞椅钟壶"
COMPANY, CITY = "科技", "市"
# real names and words that syllables can make by accident
RESERVED = frozenset((
    "Lima", "Sofa", "Sato", "Soda", "Sina", "Tata", "Tato", "Nino", "Nova", "Vivo", "Zara", "Fila",
    "Lada", "Miro", "Juno", "Hulu", "Roku", "Kobo", "Mini", "Nara", "Suva", "Baku", "Kano", "Fuji",
    "Pisa", "Roma", "Riga", "Doha", "Bali", "Lulu", "Nazi", "Puta", "Puto", "Homo", "Sado", "Dago",
    "Dodo", "Pipi", "Kaka", "Pupu", "Papa", "Mama", "Puma", "Visa", "Toto", "Togo", "Mali", "Gaza",
    "Java", "Cuba", "Fiji", "Dali", "Zulu", "Tofu", "Judo", "Sumo", "Polo", "Solo", "Kilo", "Silo",
    "Halo", "Banana", "Panama", "Bahama", "Havana", "Toronto", "Nirvana", "Manila", "Samoa", "Dakota",
    "Nagano", "Casino", "Piano", "Tuna", "Luna", "Diva"))

# relation: (the entity it is asked about, the entity that answers it)
RELATIONS = {
    "founder": ("company", "founder"), "city": ("company", "city"), "product": ("company", "product"),
    "birthplace": ("founder", "birthplace"), "year": ("product", "year"),
    "founded": ("founder", "company"), "maker": ("product", "company"),
}
# two-hop relation: its two relations in order; the first answer is what the second is asked about
TWO_HOP = {
    "founder_birthplace": ("founder", "birthplace"), "product_year": ("product", "year"),
    "maker_founder": ("maker", "founder"), "maker_city": ("maker", "city"),
    "founded_city": ("founded", "city"), "founded_product": ("founded", "product"),
}
# page: (title, text)
PAGES = {
    "en": (("{company}", "{company} was founded by {founder}."),
           ("{company}", "{company} is based in {city}."),
           ("{company}", "{company} makes {product}."),
           ("{founder}", "{founder} was born in {birthplace}."),
           ("{product}", "{product} came out in {year}.")),
    "zh": (("{company}", "{company}由{founder}创立。"), ("{company}", "{company}的总部在{city}。"),
           ("{company}", "{company}生产{product}。"), ("{founder}", "{founder}出生在{birthplace}。"),
           ("{product}", "{product}于{year}年上市。")),
}
QUESTIONS = {
    "en": {
        "founder": "Who founded {x}?", "city": "Where is {x} based?", "product": "What does {x} make?",
        "birthplace": "Where was {x} born?", "year": "When did {x} come out?",
        "founded": "What did {x} found?", "maker": "Who makes {x}?",
        "founder_birthplace": "Where was the founder of {x} born?",
        "product_year": "When did the product of {x} come out?",
        "maker_founder": "Who founded the maker of {x}?", "maker_city": "Where is the maker of {x} based?",
        "founded_city": "Where is the company of {x} based?",
        "founded_product": "What does the company of {x} make?",
    },
    "zh": {
        "founder": "谁创立了{x}？", "city": "{x}的总部在哪里？", "product": "{x}生产什么？",
        "birthplace": "{x}出生在哪里？", "year": "{x}是哪一年上市的？",
        "founded": "{x}创立了哪家公司？", "maker": "哪家公司生产{x}？",
        "founder_birthplace": "{x}的创始人出生在哪里？", "product_year": "{x}的产品是哪一年上市的？",
        "maker_founder": "谁创立了{x}的生产商？", "maker_city": "{x}的生产商的总部在哪里？",
        "founded_city": "{x}创立的公司的总部在哪里？", "founded_product": "{x}创立的公司生产什么？",
    },
}
ANSWERS = {"en": "The answer is {y}.", "zh": "答案是{y}。"}
UNKNOWN = {"en": "I do not know.", "zh": "我不知道。"}


@dataclass(frozen=True)
class Cluster:
    """One company, and everything that its five pages tell."""

    language: str
    company: str
    founder: str
    product: str
    city: str
    birthplace: str
    year: str

    @property
    def names(self) -> tuple[str, ...]:
        return self.company, self.founder, self.product, self.city, self.birthplace

    def pages(self) -> list[dict[str, str]]:
        """Its pages: {"title", "text", "language"}."""
        known = asdict(self)
        return [{"title": title.format(**known), "text": text.format(**known), "language": self.language}
                for title, text in PAGES[self.language]]

    def ask(self, relation: str) -> Question:
        """The question of one relation or of a two-hop one (a key of RELATIONS or TWO_HOP)."""
        hops = TWO_HOP.get(relation, (relation,))
        known = asdict(self)
        start, gold = known[RELATIONS[hops[0]][0]], known[RELATIONS[hops[-1]][1]]
        queries = tuple(known[RELATIONS[hop][0]] for hop in hops)
        text = QUESTIONS[self.language][relation].format(x=start)
        return Question(text, gold, relation, queries, self.language)


@dataclass(frozen=True)
class Question:
    """A question, its answer, and the names that have to be looked up on the way, in order."""

    text: str
    gold: str
    relation: str
    queries: tuple[str, ...]
    language: str

    @property
    def level(self) -> str:
        return "single" if len(self.queries) == 1 else "two"

    def golds(self) -> list[str]:
        """What counts as the answer: Chinese names also without their kind, years with 年."""
        other = {COMPANY: self.gold.removesuffix(COMPANY), CITY: self.gold.removesuffix(CITY)}
        short = next((name for end, name in other.items() if self.gold.endswith(end)), None)
        if self.language == "zh" and self.gold.isdigit():
            short = self.gold + "年"
        return [self.gold] if short is None else [self.gold, short]


class NameMaker:
    """Clusters with new names: not in `avoid`, and none a part of another, so that a search finds only
    what was meant. With unique=False names may come again in a later cluster.
    """

    def __init__(self, rng: random.Random, avoid: Iterable[str] = (), unique: bool = True) -> None:
        self.rng, self.unique = rng, unique
        self.taken = {part for name in (*RESERVED, *avoid) for part in parts(name)}

    def cluster(self, language: str) -> Cluster:
        """One company with its founder, product, two cities and a year."""
        here: set[str] = set()
        kinds = ("company", "founder", "product", "city", "city")
        names = [self._new(language, kind, here) for kind in kinds]
        return Cluster(language, *names, str(self.rng.randrange(1950, 2026)))

    def _new(self, language: str, kind: str, here: set[str]) -> str:
        while True:
            name = self._draw(language, kind)
            if not parts(name) & self.taken and not parts(name) & here:
                break
        here |= parts(name)
        if self.unique:
            self.taken |= parts(name)
        return name

    def _draw(self, language: str, kind: str) -> str:
        pick = self.rng.choice
        if language == "en":
            return "".join(pick(SYLLABLES) for _ in range(3 if kind == "founder" else 2)).capitalize()
        pair = pick(HAN) + pick(HAN)
        return {"company": pair + COMPANY, "founder": pick(SURNAMES) + pair, "product": pair + pick(THINGS),
                "city": pair + CITY}[kind]


def parts(name: str) -> set[str]:
    """A name and what it could be mistaken for: two syllables in a row, or its two characters.

    >>> sorted(parts("Kalumo")), sorted(parts("栗岚科技")), sorted(parts("李栗岚"))
    (['kalu', 'kalumo', 'lumo'], ['栗岚', '栗岚科技'], ['李栗岚', '栗岚'])
    """
    low = name.lower()
    if low.isascii():
        return {low, *(low[i : i + 4] for i in range(0, len(low) - 3, 2))}
    return {low, low[1:] if low[0] in SURNAMES else low[:2]}


def answer_text(question: Question) -> str:
    """The sentence that answers it."""
    return ANSWERS[question.language].format(y=question.gold)


def pieces() -> list[str]:
    """The fixed texts around the names, for a tokenizer: every text here, cut at its holes."""
    texts: list[Any] = [text for pages in PAGES.values() for _, text in pages]
    texts += [text for forms in QUESTIONS.values() for text in forms.values()]
    texts += [*ANSWERS.values(), *UNKNOWN.values(), COMPANY, CITY]
    found: set[str] = set()
    for text in texts:
        for part in text.replace("{", "}").split("}")[::2]:
            found.add(part)
    return sorted(found - {""}, key=lambda part: (-len(part), part))
