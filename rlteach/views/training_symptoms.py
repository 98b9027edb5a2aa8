"""Causes that show in the update: what moved, how far, and whether anybody but the reward is happier.

Each function looks at a case and returns a finding or None.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rlteach.views.case import FIRST, LAST, Case, Finding
from rlteach.views.symptoms import pct

RATIO = 1e-3  # fp32 gives 1e-5 in 50 steps of the tiny preset; a forgotten temperature gives 0.1 and more
RATIO_HALF = 0.3  # bfloat16 has 3 digits, and a log-probability of -20 loses 0.1 of its own
NOTHING = 1e-12  # what fp32 leaves of a KL of 0
VISIBLE_LR = 1e-6  # sum of learning rates above which AdamW's steps show in fp32: KL 6e-8 after 5e-7
STILL, STILL_LONG = 1e-6, 1e-4  # nats a token; the tiny preset is at 0.1 after 2 updates
UPDATES, UPDATES_LONG = 3, 20  # after the warm-up
PEAK, FALLEN = 0.15, 0.25  # a share of right answers worth losing; what is left of it after a collapse
FAR = 0.5  # nats a token: the tiny preset's median is 0.14, with single steps at 2 while the reward rises
RISE = 0.1  # of the reward, to be called one
FLAT_HELDOUT, FALL_HELDOUT = 0.02, 0.1  # 100 held-out questions have a standard error of 0.05
GAP = 0.15  # between the reward and what a trusted judger says


def updates(case: Case) -> list[int]:
    """The steps in which the policy was updated."""
    return [s for s, m in case.metrics.items() if m.get("grad_norm/policy") is not None]


def reference_is_policy(case: Case) -> Finding | None:
    """The KL term compares the policy with itself."""
    remedy = "leave reference=None (a frozen copy is made), or give policy.frozen_copy()"
    if case.shared:
        return Finding("reference_is_policy", "the reference is the policy itself: the KL term is always 0",
                       case.shared, remedy)
    spent, seen = 0.0, []
    for metrics in case.metrics.values():
        kl = metrics.get("kl/reference")
        if kl is not None and spent >= VISIBLE_LR:
            seen.append(kl)
        if metrics.get("grad_norm/policy"):
            spent += metrics.get("lr/policy") or 0.0
    if len(seen) < 2 or max(seen) > NOTHING or case.unmoved:  # unmoved: two models, and both stand still
        return None
    return Finding("reference_is_policy", "the reference moves with the policy: the KL term is always 0",
                   f"KL exactly 0 in {len(seen)} steps that followed an update", remedy)


def ratio_off(case: Case) -> Finding | None:
    """Before an update, sampled and trained probabilities have to be the same."""
    limit = RATIO if case.config.dtype == "float32" else RATIO_HALF
    off = [(s, v) for s, v in case.column("ratio/max_deviation") if v > limit]
    if not off and not case.rescored > limit:
        return None
    seen = [f"|ratio - 1| up to {max(v for _, v in off):.2g} in {len(off)} steps, first in step {off[0][0]}"
            ] if off else []
    if case.rescored > limit:
        seen.append(f"answers sampled just now: up to {case.rescored:.2g}")
    return Finding("ratio_off", "what is trained is not what was sampled: scored again, the sampled tokens "
                   "have other probabilities", f"{'; '.join(seen)} (should be below {limit:g})",
                   "look for a mask or labels that are shifted, a temperature or top_p that only one side "
                   "knows, or tokens that were made from text again")


def frozen(case: Case) -> Finding | None:
    """The policy was not updated: not yet, or never."""
    c, done = case.config, (case.steps or [0])[-1]
    if 0 < done <= c.policy_freeze_steps:
        return Finding("frozen", "the policy rests: in the first steps only the token-level reward model "
                       "learns", f"step {done} of policy_freeze_steps={c.policy_freeze_steps}",
                       "go on, or set policy_freeze_steps lower", fault=bool(case.ended))
    taken = updates(case)
    if taken and case.unmoved:
        return Finding("frozen", "the policy has not moved: its weights are those it began with",
                       f"{len(taken)} updates, and {case.unmoved}",
                       "see that the parameters that are trained are the policy's own, and require gradients")
    norms = [case.metrics[s]["grad_norm/policy"] for s in taken]
    if len(norms) >= 2 and max(norms) == 0:
        return Finding("frozen", "no answer moves the policy: every gradient is exactly 0",
                       f"gradient norm 0 in {len(norms)} updates", "look at the advantages, weights and "
                       "factors of this step's answers: something multiplies all of them by 0")
    late = [s for s in case.steps[-LAST:] if s > c.policy_freeze_steps]
    if len(late) >= 2 and not set(late) & set(taken):
        return Finding("frozen", "the policy is not updated: no answer was kept to train on",
                       f"no update in {len(late)} steps",
                       "rl.trajectories(...) says why each answer was not kept")
    return None


def learning_rate_too_high(case: Case) -> Finding | None:
    """The policy was better before it was trained."""
    rates = case.column("pass_rate")
    if len(rates) < 2 or not updates(case) or any(o.honest - o.reward > GAP for o in case.honest[-1:]):
        return None  # the last: the answers are better than the reward says
    (at, peak), now = max(rates[:-1], key=lambda x: x[1]), rates[max(-2, 1 - len(rates)):]
    share = sum(v for _, v in now) / len(now)
    groups = sum(case.facts[s].groups for s, _ in now if s in case.facts)
    noise = math.sqrt(max(peak * (1 - peak), 0.01) / max(groups, 1))  # answers of a group are alike
    far = [v for _, v in case.column("kl/reference")[-LAST:]]
    collapsed = peak >= PEAK and share <= FALLEN * peak and peak - share >= 2 * noise and at < now[0][0]
    began = [v for _, v in rates[:FIRST]]
    worse = len(rates) > FIRST + 2 and sum(began) / len(began) - share >= 3 * noise and (
        far and sum(far) / len(far) > FAR)
    if not collapsed and not worse:
        return None
    seen = [f"right answers {pct(peak)} in step {at}, {pct(share)} {_steps(now)}"]
    kl, entropy = case.column("kl/reference"), case.column("entropy")
    if kl and (most := max(v for _, v in kl)) > NOTHING:
        seen.append(f"KL to the reference up to {most:.2g}")
    if len(entropy) > 1:
        seen.append(f"entropy {entropy[0][1]:.2g} -> {entropy[-1][1]:.2g}")
    return Finding("learning_rate_too_high", "the updates are too large: the policy forgets what it could do",
                   "; ".join(seen), f"lower policy_lr (it is {case.config.policy_lr:g}) by 3 to 10 times and "
                   "begin from the untrained policy; but first try the judger on a right answer: one that "
                   "broke on the way looks the same")


def learning_rate_too_low(case: Case) -> Finding | None:
    """Updates are taken, and nothing moves."""
    taken, kl = updates(case), case.column("kl/reference")
    before = [s for s in taken if kl and s < kl[-1][0]][case.config.warmup_steps:]
    limit = STILL_LONG if len(before) >= UPDATES_LONG else STILL
    if len(before) < UPDATES or max(v for _, v in kl[-2:]) > limit or rise(case)[0] > 2 * rise(case)[1]:
        return None
    moved = "" if case.moved is None else f"; the weights moved by {case.moved:.1g} of their size"
    seen = f"KL to the reference {kl[-1][1]:.1g} after {len(taken)} updates"
    return Finding("learning_rate_too_low", "the updates are too small: the policy is still the one it was",
                   f"{seen}, reward {_reward(case)}{moved}",
                   f"raise policy_lr (it is {case.config.policy_lr:g}) by 10 times")


def reward_hacking(case: Case) -> Finding | None:
    """The reward rises, and what it stands for does not."""
    remedy = "read the answers with the highest reward, and mend the judger: what it accepts will be learned"
    sentence = "the judger is pleased, but the answers are not better: the reward is being played"
    for o in reversed(case.honest):
        if o.reward - o.honest > max(GAP, 3 * o.error):
            earlier = "" if o is case.honest[0] else (
                f" (in {case.honest[0].steps}: {case.honest[0].reward:.2f} and {case.honest[0].honest:.2f})")
            seen = f"reward {o.reward:.2f}, trusted judger {o.honest:.2f} on {o.answers} answers of {o.steps}"
            return Finding("reward_hacking", sentence, seen + earlier, remedy)
    points = sorted(case.heldout.items())
    risen, noise = rise(case)
    if len(points) < 2 or risen < max(RISE, 2 * noise):
        return None
    change, last = points[-1][1] - points[0][1], points[-1][1]
    behind = last < case.mean("reward/mean", case.windows()[1]) - RISE
    if not (change <= -FALL_HELDOUT or (change <= FLAT_HELDOUT and behind)):
        return None
    return Finding("reward_hacking", sentence, f"reward {_reward(case)}, held-out accuracy "
                   f"{pct(points[0][1])} (step {points[0][0]}) -> {pct(last)} (step {points[-1][0]})", remedy)


def rise(case: Case) -> tuple[float, float]:
    """Mean reward of the last steps minus that of the first, and the standard error of the difference.

    The answers of a group are alike, so a group counts as one: its variance is at most 1/4.
    """
    early, late = case.windows()
    if not late:
        return 0.0, math.inf
    groups = [sum(case.facts[s].groups for s in part) for part in (early, late)]
    noise = math.sqrt(sum(0.25 / max(n, 1) for n in groups))
    return case.mean("reward/mean", late) - case.mean("reward/mean", early), noise


def _reward(case: Case) -> str:
    early, late = case.windows()
    return f"{case.mean('reward/mean', early):.2f} -> {case.mean('reward/mean', late):.2f}"


def _steps(found: Sequence[tuple[int, float]]) -> str:
    first, last = found[0][0], found[-1][0]
    return f"in step {first}" if first == last else f"in steps {first} and {last}"


SYMPTOMS = (reference_is_policy, ratio_off, frozen, learning_rate_too_high, learning_rate_too_low,
            reward_hacking)
