"""The judgers that a config names; a model judge that nobody serves is served here."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from rlteach.config import Config
from rlteach.judger.compose import RandomJudger, RuleThenLLM
from rlteach.judger.rule import RuleJudger
from rlteach.types import Judger

if TYPE_CHECKING:
    from rlteach.judger.llm import LLMJudger

EMBEDDED = "tiny-judge"


class Judges:
    """`rewards` judges what is trained on, `examiner` what is asked of dev and test.

    The examiner is the rule; where a model judges, that is asked about what the rule leaves open.

    Raises:
        JudgeError: the judge cannot be reached, or accepts nonsense.
    """

    def __init__(self, config: Config) -> None:
        self._open, self.llm = ExitStack(), None
        rule = RuleJudger(config.rule_mode)
        self.rewards: Judger = rule if config.judger == "rule" else RandomJudger(config.seed)
        self.examiner: Judger = rule
        self.versions = {"grader": rule.version}  # of what gave the verdicts, for summary.json
        if config.judger in ("llm", "rule_then_llm"):
            self.llm = self._model_judge(config)
            self.examiner = RuleThenLLM(rule, self.llm)
            self.versions |= {"judge": str(self.llm.model), "judge_prompt": self.llm.prompt_id}
            self.rewards = self.llm if config.judger == "llm" else RuleThenLLM(
                rule, self.llm, config.ask_llm_when)

    def _model_judge(self, config: Config) -> LLMJudger:
        from rlteach.judger.llm import LLMJudger  # the client's library takes a second to load

        urls, key = config.judge_url, None
        if not urls:
            from rlteach.serving import serve

            server = self._open.enter_context(serve(EMBEDDED))
            urls, key = (server.url,), server.api_key
        llm = self._open.enter_context(LLMJudger(
            list(urls), model=config.judge_model, api_key=key, language=config.judge_language,
            sees=config.judge_sees, timeout=config.judge_timeout, in_flight=config.judge_in_flight,
            rate=config.judge_rate or None, max_tokens=config.judge_max_tokens))
        llm.probe()
        llm.self_test()
        return llm

    def keep_in(self, folder: Path) -> None:
        """From now on a model's verdicts are kept there: a resumed run is given the same ones."""
        if self.llm is not None:
            self.llm.keep(cache=folder / "judge_cache.sqlite", log=folder / "judge.jsonl")

    def close(self) -> None:
        self._open.close()
