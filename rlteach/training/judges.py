"""The judgers that a config names; a model judge that nobody serves is served here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from rlteach.config import Config
from rlteach.judger.compose import RandomJudger, RuleThenLLM, WeightedSum
from rlteach.judger.hosts import JudgeError, base_urls
from rlteach.judger.rule import RuleJudger
from rlteach.training import plugins
from rlteach.types import Judger

if TYPE_CHECKING:
    from rlteach.judger.llm import LLMJudger

EMBEDDED = "tiny-judge"


class Judges:
    """`rewards` judges what is trained on, `examiner` what is asked of dev and test.

    config.graders are both, if there are any. Else the examiner is the rule; where a model judges, that
    is asked about what the rule leaves open.

    Raises:
        JudgeError: the judge cannot be reached, or accepts nonsense.
        ConfigError: a grader cannot be loaded.
    """

    def __init__(self, config: Config) -> None:
        self.llm: LLMJudger | None = None
        self.rewards: Judger
        self.examiner: Judger
        self.versions: dict[str, str] = {}  # of what gave the verdicts, for summary.json
        with ExitStack() as self._open:
            if config.graders:
                self._take_plugins(config)
            else:
                self._take_own(config)
            self._open = self._open.pop_all()  # it went well: they stay open

    def _take_own(self, config: Config) -> None:
        rule = RuleJudger(config.rule_mode)
        self.rewards = rule if config.judger == "rule" else RandomJudger(config.seed)
        self.examiner = rule
        self.versions = {"grader": rule.version}
        if config.judger in ("llm", "rule_then_llm"):
            self.llm = self._model_judge(config)
            self.examiner = RuleThenLLM(rule, self.llm)
            self.versions |= {"judge": str(self.llm.model), "judge_prompt": self.llm.prompt_id}
            self.rewards = self.llm if config.judger == "llm" else RuleThenLLM(
                rule, self.llm, config.ask_llm_when)

    def _take_plugins(self, config: Config) -> None:
        from rlteach.agent.graders import PluginJudger

        found = [plugins.of_config(f"graders.{i}", grader.plugin, "group_grader", "single_grader")
                 for i, grader in enumerate(config.graders)]
        judge = self._judge_envs(config)

        def judger(phase: str) -> Judger:
            parts = [(PluginJudger(function, with_judge(grader.envs, judge), phase=phase), grader.weight)
                     for function, grader in zip(found, config.graders, strict=True)]
            return parts[0][0] if len(parts) == 1 else WeightedSum(parts)

        self.rewards, self.examiner = judger("train"), judger("test")
        self.versions = {"grader": ", ".join(grader.plugin for grader in config.graders)}

    def _judge_envs(self, config: Config) -> dict[str, str]:
        """What an AsyncOpenAI() without arguments reads, when the config asks for a model judge."""
        if not config.judge_url and config.judger not in ("llm", "rule_then_llm"):
            return {}
        urls, key = self._served(config)
        with self._asked(config, urls, key) as llm:
            if (cause := llm.alive()) is not None:
                raise JudgeError(f"the judge cannot be reached: {cause}")
        key = key or os.environ.get("RLTEACH_JUDGE_KEY") or "none"
        return {"OPENAI_BASE_URL": base_urls(urls)[0], "OPENAI_API_KEY": key}

    def _model_judge(self, config: Config) -> LLMJudger:
        llm = self._open.enter_context(self._asked(config, *self._served(config)))
        llm.probe()
        llm.self_test()
        return llm

    def _served(self, config: Config) -> tuple[list[str], str | None]:
        """Addresses of the judge, and its key (None: the environment's)."""
        if config.judge_url:
            return list(config.judge_url), None
        from rlteach.serving import serve

        server = self._open.enter_context(serve(EMBEDDED))
        return [server.url], server.api_key

    def _asked(self, config: Config, urls: list[str], key: str | None) -> LLMJudger:
        from rlteach.judger.llm import LLMJudger  # the client's library takes a second to load

        return LLMJudger(
            urls, model=config.judge_model, api_key=key, language=config.judge_language,
            sees=config.judge_sees, timeout=config.judge_timeout, in_flight=config.judge_in_flight,
            rate=config.judge_rate or None, max_tokens=config.judge_max_tokens)

    def keep_in(self, folder: Path) -> None:
        """From now on a model's verdicts are kept there: a resumed run is given the same ones."""
        if self.llm is not None:
            self.llm.keep(cache=folder / "judge_cache.sqlite", log=folder / "judge.jsonl")

    def close(self) -> None:
        """Stop what was served or asked here; may be called again."""
        self._open.close()


def with_judge(envs: Mapping[str, str], judge: Mapping[str, str]) -> dict[str, str]:
    """A grader's variables; the run's judge stands where they name none (or an empty one)."""
    return {**envs, **{name: value for name, value in judge.items() if not envs.get(name)}}
