"""Units of measure: which words after a number are one, and how large it is.

A unit is (dimension, factor): cm is ("length", 1/100). A word that is not in the table is no unit.
What is only counted (5 个, 5 people) has dimension "count", which is compared with nothing.
"""

from __future__ import annotations

import re
from fractions import Fraction

Unit = tuple[str, Fraction]

# dimension, factor: spellings (a plural s is added where the word has three letters or more)
_TABLE = """
length 1: meter metre meters 米 公尺
length 1/1000: mm millimeter millimetre 毫米
length 1/100: cm centimeter centimetre 厘米 公分
length 1/10: dm decimeter decimetre 分米
length 1000: km kilometer kilometre 千米 公里
length 127/5000: inch inches in 英寸
length 381/1250: ft foot feet 英尺
length 1143/1250: yd yard 码
length 201168/125: mi mile 英里
mass 1: gram 克
mass 1/1000: mg milligram 毫克
mass 1000: kg kilogram 千克 公斤
mass 500: 斤
mass 1000000: tonne 吨
mass 45359237/100000: lb lbs pound 磅
mass 45359237/1600000: oz ounce 盎司
time 1: sec second 秒 秒钟
time 60: min minute 分钟
time 3600: hr hour 小时 时
time 86400: day 天 日
time 604800: week 周 星期
month 1: month 个月 月
month 12: yr year years-old 年 岁
volume 1: liter litre 升
volume 1/1000: ml mL milliliter millilitre 毫升
volume 473176473/125000000: gallon 加仑
dollar 1: dollar usd USD 美元
dollar 1/100: cent ¢ 美分
yuan 1: yuan ¥ rmb RMB 元 块 块钱 人民币
yuan 1/10: 角 毛
euro 1: euro € 欧元
angle 1: degree ^\\circ 度
temperature-c 1: ^\\circC celsius 摄氏度
temperature-f 1: ^\\circF fahrenheit
count 1: 个 件 支 本 张 只 条 颗 台 辆 枚 份 位 名 人 次 种 棵 头 把 盒 袋 瓶
count 1: 箱 间 座 朵 页 层 题 道 圈 步 个单位 单位
count 1: unit person people student child children item piece object way point
"""
_SUPERLATIVE = {"square": 2, "sq": 2, "sq.": 2, "cubic": 3, "cu": 3}
_CHINESE_POWER = {"平方": 2, "立方": 3}
_SCALES = {"hundred": 10**2, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12,
           "dozen": 12, "万": 10**4, "亿": 10**8, "百": 10**2, "千": 10**3, "百万": 10**6, "千万": 10**7}
_POWER = re.compile(r"(.+?)\s*\^\s*(?:\{\s*([23])\s*\}|([23]))$")
_PER = re.compile(r"\s*(?:/| per |每)\s*")


def _build() -> dict[str, Unit]:
    out: dict[str, Unit] = {}
    for line in _TABLE.strip().splitlines():
        head, _, words = line.partition(": ")
        dimension, factor = head.split()
        for word in words.split():
            out[word.replace("-", " ")] = (dimension, Fraction(factor))
            if word.isascii() and word.isalpha() and len(word) >= 3:
                out[word + "s"] = (dimension, Fraction(factor))
    return out


_UNITS = _build()

LETTERS: dict[str, Unit] = {
    "m": ("length", Fraction(1)), "g": ("mass", Fraction(1)), "s": ("time", Fraction(1)),
    "h": ("time", Fraction(3600)), "L": ("volume", Fraction(1))}  # where a context says that they are units


def read_scale(text: str) -> tuple[int, str]:
    """A scale word at the beginning, and what is left of the text.

    >>> read_scale("million dollars"), read_scale("万元"), read_scale("cm")
    ((1000000, 'dollars'), (10000, '元'), (1, 'cm'))
    """
    for word in sorted(_SCALES, key=len, reverse=True):
        if text.startswith(word):
            rest = text[len(word):]
            if not (word.isascii() and rest[:1].isalpha() and rest[:1].isascii()):
                return _SCALES[word], rest.strip()
    return 1, text


def read_unit(text: str) -> Unit | None:
    """The unit that a text names, or None.

    >>> read_unit("cm^2") == read_unit("square centimeters") == ("length^2", Fraction(1, 10000))
    True
    >>> read_unit("km/h") == ("length/time", Fraction(5, 18)), read_unit("candles")
    (True, None)
    """
    text = text.strip().rstrip(".")
    if not text or len(text) > 60:
        return None
    over, *under = _PER.split(text, maxsplit=1)
    unit = _one(over)
    if unit is None or not under:
        return unit
    below = _one(under[0]) or LETTERS.get(under[0])
    return None if below is None else (f"{unit[0]}/{below[0]}", unit[1] / below[1])


def _one(text: str) -> Unit | None:
    text, power = text.strip(), 1
    if match := _POWER.fullmatch(text):
        text, power = match[1].strip(), int(match[2] or match[3])
    first, _, rest = text.partition(" ")
    if first.lower() in _SUPERLATIVE and rest:
        text, power = rest, power * _SUPERLATIVE[first.lower()]
    elif text[:2] in _CHINESE_POWER:
        text, power = text[2:], _CHINESE_POWER[text[:2]]
    found = _UNITS.get(text) or _UNITS.get(text.lower())
    if found is None:
        return None
    return found if power == 1 else (f"{found[0]}^{power}", found[1] ** power)
