"""Causes that show in the answers and their scores: who judged, what was cut off, which groups say something.

Each function looks at a case and returns a finding or None. Shares are of the last steps.
"""

from __future__ import annotations

from rlteach.judger.failures import NO_VERDICT
from rlteach.training.judging import JudgeAwayError
from rlteach.views.case import LAST, Case, Finding
from rlteach.views.facts import LARGER, Facts

ENOUGH_GROUPS = 6  # if half of all groups had contrast, six without it in a row were seen once in 64 times
AWAY = 0.1  # single requests fail and are asked again; one answer in ten is an outage
UNSCORABLE = 0.2  # config.max_unscorable's default: the share that a run puts up with
FEW = 0.5  # half of the groups without a baseline is half of the batch unused
LOST = 0.3  # cut off or without an answer: the embedded models lose under 1 %, and a third is no accident
OF_WRONG = 0.5  # and it has to explain most of the wrong answers
CUT_RIGHT = 0.1  # of those cut off: a judger that takes half answers is not troubled by the cut
BY_CHANCE = 5  # right ones that whole answers let expect: below that, none is no sign (1 in 150 at 5)
FLAT = 0.9  # one group in ten with contrast leaves 3 of 32, and a gradient that is mostly noise
FLAT_SMALL = 0.7  # groups that a larger G would give contrast; of the tiny preset, 2 in 10 have none
SILENT = 3  # steps, as in training/metrics.warn_if_flat
SAME = 0.8  # a trained model agrees with itself, so this counts only where it is wrong, too
SAME_WRONG = 0.1
TWINS, PAIRS = 3, 20  # groups and pairs of equal answers below which chance could decide
CONTRADICTED = 0.2  # a fair coin gives half of the pairs two scores; a good model judge 1 in 20
IMPOSSIBLE = 1e-3  # the chance, by the pass rates, that every group has one and the same score
COINS = 0.5


def pct(share: float) -> str:
    """12 %"""
    return f"{100 * share:.0f} %"


def over(case: Case, wanted: int = LAST) -> str:
    """"in the last 5 steps", or how many there are."""
    n = len(case.steps)
    which = "" if n <= wanted else "last "
    return f"in the {which}{min(n, wanted)} steps" if n != 1 else "in the first step"


def failed(case: Case) -> Finding | None:
    """The run ended with an error."""
    if case.error is None or isinstance(case.error, JudgeAwayError):
        return None
    words = " ".join(str(case.error).split())[:300]
    return Finding("failed", f"the run stopped with an error after step {(case.steps or [0])[-1]}",
                   f"{type(case.error).__name__}: {words}", "do what the error says, then trainer.start() "
                   "again: it goes on from the last step that was finished")


def judge_down(case: Case) -> Finding | None:
    """Answers stayed without a score because nobody answered the judge's requests."""
    f, why = case.last(), waits(case)
    if NO_VERDICT in why or (not why and f.away < max(AWAY * f.answers, 1)):
        return None
    seen = f"{pct(f.away / max(f.answers, 1))} of the answers {over(case)}" if f.away else "the run waits"
    because = " ".join((why or f.away_because or "judge unavailable").split())[:200]
    return Finding("judge_down", "the judge cannot be reached, so answers get no score", f"{seen}: {because}",
                   "start the judge again, or set judge_url and RLTEACH_JUDGE_KEY; the run goes on with "
                   "trainer.start() or --resume")


def waits(case: Case) -> str:
    """Why the run waits for its judge, or why it stopped waiting; empty when it does neither."""
    return case.waiting or (str(case.error) if isinstance(case.error, JudgeAwayError) else "")


def unscorable(case: Case) -> Finding | None:
    """Answers that the judge was given and could not score."""
    f, why = case.last(), waits(case)
    lost = f.unscorable - f.away
    stands = NO_VERDICT in why
    if not stands and (not lost or (lost < UNSCORABLE * f.answers and f.few < FEW * f.groups)):
        return None
    seen = "the run waits" if not lost else (
        f"{pct(lost / f.answers)} of the answers, {f.few} of {f.groups} groups with fewer than two scores "
        f"{over(case)}")
    because = " ".join((why or f.unscorable_because).split())[:200]
    return Finding(
        "unscorable", "too many answers cannot be scored, and they are left out of training",
        f"{seen}{': ' * bool(because)}{because}",
        "read the reason: a gold answer that cannot be read belongs out of the data, a judge without a "
        "verdict needs more judge_max_tokens or another model")


def random_reward(case: Case) -> Finding | None:
    """The score does not depend on the answer."""
    c, f = case.config, case.last()
    remedy = "take a judger that looks at the answer: rl.RuleJudger(), or control='none'"
    if c.control != "none":
        what = {"own_samples": "every own answer is imitated, right or wrong",
                "random": "a coin gives the scores"}.get(c.control, "answers get the scores of other answers")
        return Finding("random_reward", f"the reward teaches nothing: {what}",
                       f"config.control={c.control!r}, a null experiment", "set control='none' to train")
    if f.coins > COINS * max(f.answers, 1):
        return Finding("random_reward", "the reward does not depend on the answer: a coin gives the scores",
                       f"{f.coins} of {f.answers} scores {over(case)} come from a coin", remedy)
    if f.twins < TWINS or f.pairs < PAIRS or f.contradicted < CONTRADICTED * f.pairs:
        return None
    return Finding(
        "random_reward", "the reward does not depend on the answer: equal answers to one question get "
        "different scores", f"{f.contradicted} of {f.pairs} pairs of equal answers {over(case)}", remedy)


def truncated(case: Case) -> Finding | None:
    """Answers that were cut off, and are wrong because of it."""
    f = case.last()
    cut_wrong = f.cut - f.cut_right
    rate = f.whole_right / f.whole if f.whole else 0.0
    if f.cut < max(LOST * f.answers, 1) or cut_wrong < OF_WRONG * f.wrong or f.cut_right > CUT_RIGHT * f.cut:
        return None
    if rate > CUT_RIGHT and rate * f.cut < BY_CHANCE:
        return None
    return Finding("truncated", "answers are cut off before they end, and count as wrong",
                   f"{pct(f.cut / f.answers)} of the answers {over(case)} reached max_new_tokens="
                   f"{case.config.max_new_tokens}; {f.cut_right} of them are right",
                   "raise max_new_tokens; if answers have no end of their own, see whether stop_tokens and "
                   "the chat template fit the model")


def no_answer(case: Case) -> Finding | None:
    """Answers in which the judger finds nothing to judge."""
    f = case.last()
    if f.no_answer < max(LOST * f.answers, 1) or f.no_answer < OF_WRONG * f.wrong:
        return None
    return Finding("no_answer", "the judger finds no final answer in most of the answers",
                   f"{pct(f.no_answer / f.answers)} of the answers {over(case)}: no closed \\boxed{{...}}, "
                   "no \"the answer is\"",
                   "read some with rl.trajectories(...): ask for \\boxed{...} in system_prompt, or take a "
                   "judger that reads the form the model writes")


def constant_reward(case: Case) -> Finding | None:
    """One score for everything, where the questions' pass rates or a trusted judger say otherwise."""
    f, start = case.last(), case.first()
    if len(f.scores) != 1 or f.scored < 2 * max(f.size, 2):
        return None
    (score,) = f.scores
    odds = (f.expected / f.groups) ** f.groups if f.known == f.groups else 1.0
    apart = [o for o in case.honest[-1:] if abs(o.honest - o.reward) > max(0.1, 3 * o.error)]
    if apart:
        why = f"the trusted judger gives {apart[-1].honest:.2f} on average"
    elif f.scores != start.scores:  # it could tell them apart once
        return None
    elif 0 < score < 1:
        why = "between wrong (0) and right (1)"
    elif odds < IMPOSSIBLE and f.groups >= ENOUGH_GROUPS:
        why = f"by the questions' pass rates, {pct(f.expected / f.groups)} of the groups have one score only"
    else:
        return None
    return Finding("constant_reward", "the judger gives every answer the same score, so no answer is better "
                   "than another", f"score {score:g} for all {f.scored} answers {over(case)}; {why}",
                   "try the judger on one right and one wrong answer: it has to tell them apart")


def entropy_collapse(case: Case) -> Finding | None:
    """Every group is one answer G times, also where it is wrong."""
    f, c = case.last(), case.config
    if f.groups < ENOUGH_GROUPS or f.same < SAME * f.groups or f.same_wrong < SAME_WRONG * f.groups:
        return None
    hint = f"raise temperature (it is {c.temperature:g}): nothing can be learned from G equal answers"
    if c.temperature >= 0.7 and c.top_p == 1 and c.top_k == 0:
        hint = ("go back to an earlier checkpoint, with a lower policy_lr or a higher kl_coefficient; new "
                "questions do not help a model that is certain")
    return Finding("entropy_collapse", "all answers of a group are the same, also where they are wrong",
                   f"{f.same} of {f.groups} groups {over(case)}, {f.same_wrong} of them wrong", hint)


def all_right(case: Case) -> Finding | None:
    """Nothing to learn from, since the beginning."""
    f, start, late = case.last(), case.first(), case.recent(SILENT)
    silent = is_silent(case) and late.all_right > late.all_wrong
    if not silent and not (_mostly(f.all_right, f) and _mostly(start.all_right, start)):
        return None
    remedy = "take harder questions (difficulty_bins leaves out those with a high pass rate)"
    if start.right < FLAT * start.scored:  # it was learned
        return Finding("all_right", "nothing is left to learn here: every group has right answers only",
                       contrast(case, f.all_right, f), f"{remedy}, or stop", fault=False)
    return Finding("all_right", "the questions are too easy: almost every group has right answers only",
                   contrast(case, f.all_right, f), f"{remedy}, and try the judger on a wrong answer")


def all_wrong(case: Case) -> Finding | None:
    """Nothing to imitate."""
    f, late = case.last(), case.recent(SILENT)
    if not _mostly(f.all_wrong, f) and not (is_silent(case) and late.all_wrong >= max(late.all_right, 1)):
        return None
    return Finding("all_wrong", "the questions are too hard: almost every group has wrong answers only",
                   contrast(case, f.all_wrong, f),
                   "take easier questions or larger groups, or a model that is sometimes right; and try the "
                   "judger on a right answer")


def group_too_small(case: Case) -> Finding | None:
    """Few groups have contrast, and more answers a question would give it to them."""
    f, start = case.last(), case.first()
    if f.groups < ENOUGH_GROUPS or min(f.flat / f.groups, start.flat / max(start.groups, 1)) < FLAT_SMALL:
        return None
    if f.expected_larger > 0.6 * f.flat or f.expected < FLAT_SMALL * f.groups:
        return None
    return Finding("group_too_small", "the groups are too small to hold right and wrong answers",
                   f"{contrast(case, f.flat, f)}, and {pct(f.expected_larger / f.groups)} with "
                   f"{LARGER * f.size} answers", f"raise group_size (it is {case.config.group_size})")


def is_silent(case: Case) -> bool:
    """Had the last steps no group with right and wrong answers? training/metrics.py warns of that, too."""
    late = case.recent(SILENT)
    return len(case.steps) >= SILENT and late.flat + late.few == late.groups > 0


def _mostly(count: int, f: Facts) -> bool:
    return f.groups >= ENOUGH_GROUPS and count >= FLAT * f.groups


def contrast(case: Case, count: int, f: Facts) -> str:
    """How many groups say nothing, and how many were to be expected."""
    basis = "their pass rates" if 2 * f.known >= f.groups else "the measured share of right answers"
    return (f"{count} of {f.groups} groups {over(case)} ({pct(count / f.groups)}); with {f.size} answers "
            f"each, {basis} let expect {pct(f.expected / f.groups)} without contrast")


SYMPTOMS = (failed, judge_down, unscorable, random_reward, truncated, no_answer, constant_reward,
            entropy_collapse, all_right, all_wrong, group_too_small)
