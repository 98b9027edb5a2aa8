"""The symbolic check runs in processes that can be ended: nothing hangs, nothing is invented.

broken_checks.py beside this file is what the workers of most tests run instead of math-verify.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from rlteach.judger.rule import RuleJudger
from rlteach.judger.verifier import Verifier, VerifierError, close_shared_verifier, shared_verifier
from rlteach.training.answers_file import grade_file

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
BROKEN = {"target": "broken_checks:check", "path": [str(HERE)]}
HANG = 60  # seconds after which a test has hung; not a measure of anything
needs_limits = pytest.mark.skipif(sys.platform == "win32", reason="no such limits here")


@pytest.fixture
def broken() -> Iterator[Verifier]:
    with Verifier(timeout=1.0, **BROKEN) as verifier:
        yield verifier


def children() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)
            if child.status() != psutil.STATUS_ZOMBIE}


def workers(verifier: Verifier) -> list[int]:
    return [worker.process.pid for worker in (*verifier._idle, *verifier._busy)]


# what can go wrong --------------------------------------------------------------------------------


@pytest.mark.parametrize(("answer", "cause"), [
    ("raise", "error: ZeroDivisionError in the symbolic check: in the comparer"),  # A20 (a)
    ("stop", "error: Stop in the symbolic check: not an Exception"),  # A20 (b)
    ("exit", "error: SystemExit in the symbolic check"),
    ("die", "crash: the worker process"), ("sleep", "timeout: the symbolic check took longer than 1 s"),
    ("power", "timeout: the symbolic check took longer than 1 s"),  # A17
])
def test_a17_a20_a_check_that_fails_gives_no_verdict_and_says_why(
        broken: Verifier, answer: str, cause: str) -> None:
    began = time.monotonic()
    outcome = broken.check("gold", answer)
    assert outcome.verdict is None
    assert outcome.reason.startswith(cause)
    assert broken.failures == {cause.partition(":")[0]: 1}, "counted by cause"
    assert broken.check("same", "same").verdict is True, "and the next check works"
    assert broken.check("same", "other").verdict is False
    assert time.monotonic() - began < HANG


@needs_limits
def test_a18_memory_is_limited(broken: Verifier) -> None:
    outcome = broken.check("gold", "memory")
    assert (outcome.verdict, outcome.reason.partition(":")[0]) == (None, "memory")
    assert broken.check("same", "same").verdict is True


@needs_limits
def test_a21_a_worker_writes_no_file(broken: Verifier, tmp_path: Path) -> None:
    outcome = broken.check(str(tmp_path / "canary"), "write")
    assert outcome.verdict is None
    assert not (tmp_path / "canary").exists() or (tmp_path / "canary").stat().st_size == 0


def test_a_library_that_prints_disturbs_nothing(broken: Verifier) -> None:
    assert broken.check("gold", "print").verdict is False
    assert broken.check("same", "same").verdict is True


def test_a20_in_the_judger_a_failure_is_unscorable(broken: Verifier) -> None:
    judger = RuleJudger(verifier=broken)
    for gold, answer in (("x+1", "1+y"), (r"\sqrt{2}", r"\sqrt{3}")):
        broken._forget()
        assert judger.grade_text((gold,), answer).status == "incorrect", "gold == answer is False there"
    slow = Verifier(timeout=0.5, target="time:sleep")
    with slow:  # sleep(gold, answer, lenient) is a TypeError in the worker
        found = RuleJudger(verifier=slow).grade_text((r"\sqrt{8}",), r"2\sqrt{2}")
    assert (found.score, found.status) == (None, "unscorable")
    assert found.reason.startswith("error: TypeError in the symbolic check")


def test_the_next_answer_is_never_that_of_the_one_before(broken: Verifier) -> None:
    """A reply that comes after its time limit goes to nobody."""
    broken.timeout = 0.3
    for i in range(3):
        assert broken.check("a", "nap").verdict is None, "it answers True, after half a second"
        assert broken.check(str(i), "other").verdict is False
        assert broken.check(str(i), str(i)).verdict is True


# processes ----------------------------------------------------------------------------------------


def test_processes_start_with_the_first_check_and_end_with_close() -> None:
    before = children()
    verifier = Verifier(**BROKEN)
    judger = RuleJudger(verifier=verifier)
    assert judger.grade_text(("1/2",), "0.5").status == "correct"
    assert children() == before, "the exact core needs no process"
    assert verifier.check("a", "a").verdict is True
    started = children() - before
    assert 1 <= len(started) <= 2
    verifier.close()
    assert children() == before
    assert verifier.check("a", "a").verdict is True, "closed is not forbidden: it starts again"
    verifier.close()
    verifier.close()
    assert children() == before


def test_a_worker_is_replaced_after_its_jobs() -> None:
    with Verifier(workers=1, jobs_per_worker=3, **BROKEN) as verifier:
        verdicts = [verifier.check(str(k), "calls").verdict for k in (1, 2, 3, 1, 2, 3, 1)]
        assert verdicts == [True] * 7, "each process counts its own calls"


def test_a_worker_ends_with_its_parent(tmp_path: Path) -> None:
    """Also when the parent is killed, and so runs no handler at exit."""
    code = f"""
        import os, sys
        from rlteach.judger.verifier import Verifier
        verifier = Verifier(target="broken_checks:check", path=[{str(HERE)!r}])
        verifier.check("a", "a")
        print(*[w.process.pid for w in (*verifier._idle, *verifier._busy)], flush=True)
        os.kill(os.getpid(), 9) if sys.argv[1] == "kill" else None
    """
    for how in ("kill", "leave"):
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(code), how], cwd=ROOT, text=True,
                              capture_output=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
        pids = [int(pid) for pid in done.stdout.split()]
        assert pids, done.stderr
        deadline = time.monotonic() + HANG
        while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
                  for pid in pids):
            assert time.monotonic() < deadline, f"{how}: a worker is left"
            time.sleep(0.05)


def test_grading_a_file_leaves_no_process(tmp_path: Path) -> None:
    file = tmp_path / "answers.jsonl"
    file.write_text(r'{"question": "q", "gold_answer": "\\sqrt{8}", "response": "\\boxed{2\\sqrt{2}}"}',
                    encoding="utf-8")
    close_shared_verifier()
    before = children()
    assert [line["verdict"] for line in grade_file(file)] == ["correct"]
    assert children() == before


# who may call it ----------------------------------------------------------------------------------


def grade_in_threads(judger: RuleJudger) -> list[str]:
    pairs = [((rf"\sqrt{{{8 * k * k}}}",), rf"{2 * k + k % 2}\sqrt{{2}}") for k in range(1, 25)]
    with ThreadPoolExecutor(8) as pool:
        return [found.status for found in pool.map(lambda pair: judger.grade_text(*pair), pairs)]


def test_a19_from_threads_event_loops_and_callbacks() -> None:
    """No signal is used, so there is no main thread to be in."""
    wanted = ["incorrect" if k % 2 else "correct" for k in range(1, 25)]
    verifier = shared_verifier()
    judger, before = RuleJudger(), dict(verifier.failures)
    assert grade_in_threads(judger) == wanted

    async def task() -> list[str]:
        return [judger.grade_text((r"\sqrt{8}",), a).status for a in (r"2\sqrt{2}", r"3\sqrt{2}")]

    async def tasks() -> list[list[str]]:
        return [await task(), *await asyncio.gather(asyncio.to_thread(asyncio.run, task()), task())]

    assert asyncio.run(tasks()) == [["correct", "incorrect"]] * 3
    said: list[str] = []
    timer = threading.Timer(0, lambda: said.extend(grade_in_threads(judger)))
    timer.start()
    timer.join(HANG)
    assert said == wanted
    assert verifier is shared_verifier()
    assert verifier.failures == before


def test_h04_from_a_notebook_whose_main_cannot_be_imported_again(tmp_path: Path) -> None:
    """And from a script without a __main__ guard, which a spawned process would run again."""
    code = r"""
        from rlteach.judger.function import FunctionJudger
        from rlteach.judger.rule import RuleJudger
        print("ran")
        judger = RuleJudger()
        def mine(sample, trajectory):  # defined in a cell: it is never pickled
            return judger.grade_text(sample.gold, trajectory.response).score
        from rlteach.types import Group, Message, Sample, Trajectory
        sample = Sample("q", (Message("user", "?"),), (r"\sqrt{8}",))
        t = Trajectory((*sample.messages, Message("assistant", r"2\sqrt 2")), (), (), (), 0, "stop")
        print(FunctionJudger(mine).grade(Group(sample, (t,)))[0].score)
    """
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(code), encoding="utf-8")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    for command, text in (([str(script)], None), (["-"], textwrap.dedent(code))):
        done = subprocess.run([sys.executable, *command], input=text, capture_output=True, text=True, env=env,
                              cwd=tmp_path, check=False)
        assert (done.stdout, done.stderr) == ("ran\n1.0\n", "")


def test_a_file_of_the_student_s_does_not_stand_in_for_a_library(tmp_path: Path) -> None:
    (tmp_path / "sympy.py").write_text("raise SystemExit('the wrong sympy')")
    code = ("from rlteach.judger.rule import RuleJudger\n"
            "print(RuleJudger().grade_text(('2i',), '(1+i)^2').status)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path,
                          env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert (done.stdout, done.stderr) == ("correct\n", "")


def test_an_interrupt_during_a_check_is_the_caller_s(
        broken: Verifier, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker was in the middle of a job; its reply must not be taken for the next one's."""
    broken.check("a", "a")
    worker = broken._idle[-1]

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(worker), "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            broken.check("a", "sleep")
    assert broken.check("a", "a").verdict is True
    assert broken.check("a", "b").verdict is False
    assert len(workers(broken)) <= 2


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_does_not_share_its_parent_s_processes(broken: Verifier) -> None:
    broken.check("a", "a")
    mine = set(workers(broken))
    code = f"""
        import os, sys, warnings
        warnings.simplefilter("ignore")
        from rlteach.judger.verifier import Verifier
        v = Verifier(target="broken_checks:check", path=[{str(HERE)!r}])
        v.check("a", "a")
        pid = os.fork()
        verdicts = [v.check(str(i), str(i)).verdict for i in range(20)]
        verdicts += [v.check(str(i), "x").verdict for i in range(20)]
        if pid == 0:
            v.close()
            os._exit(0 if verdicts == [True] * 20 + [False] * 20 else 1)
        print(verdicts == [True] * 20 + [False] * 20, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert (done.stdout, done.stderr) == ("True 0\n", "")
    assert set(workers(broken)) == mine


# the parser ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("files", "cause"), [
    ({"latex2sympy2_extended/__init__.py": "raise ImportError('not for this antlr')"}, "not for this antlr"),
    ({"math_verify.py": "raise ModuleNotFoundError('no math_verify')"}, "no math_verify"),
    ({"antlr4/__init__.py": ""}, "ImportError"),
])
def test_a22_a_parser_that_does_not_fit_is_one_clear_line(
        tmp_path: Path, files: dict[str, str], cause: str) -> None:
    """Never a wrong verdict: the released code graded 1/2 and 0.5 as different, without a word."""
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    with Verifier(path=[str(tmp_path)]) as verifier:
        judger = RuleJudger(verifier=verifier)
        assert judger.grade_text(("0.5",), r"\frac12").status == "correct", "numbers need no parser"
        for _ in range(2):
            with pytest.raises(VerifierError, match="needs math-verify, which does not work here") as found:
                judger.grade_text((r"\sqrt{8}",), r"2\sqrt{2}")
            assert cause in str(found.value)
            assert "pip install 'math-verify" in str(found.value)
            assert "\n" not in str(found.value)


def test_a22_a_parser_that_reads_nonsense_is_found_at_start(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text(
        "import rlteach.judger.symbolic as s\ns.latex2sympy = lambda *a, **k: None\n"
        "check, self_test = s.check, s.self_test\n", encoding="utf-8")
    with Verifier(target="odd:check", path=[str(tmp_path)]) as verifier, \
            pytest.raises(VerifierError, match="does not read"):
        verifier.check("1", "2")


# the real one -------------------------------------------------------------------------------------


TOO_MUCH = (
    r"\frac{5^{5^{5^{5^{5}}}}-5}{16}", "5^5^5^5^5-5/16", "5^{5^{5^{5^5}}} - 5/16", "9**9**9",
    "123456^{7654321}", "1000000!", "10^{10^{16}}", r"\log\log 10^{10^{10^{10}}}",
    r"\log(\log(5^{5^{5^{5}}}))", "(((9^{9})^{9})^{9})^{9}", r"\sqrt{2}^{10^{10}}", r"x^{9999999999}",
    r"(x+1)^{100000}", r"\binom{1000000}{500000}", "((100!)!)!", "170!!", r"\pi^{\pi^{\pi^{\pi^{20}}}}",
    "e^{e^{e^{e^{e^{9}}}}}", r"\frac{1}{3}^{\frac{10^{15}}{7}}", "2^{3^{4^{5^{6}}}}", r"\sin(10^{10^{10}})",
    r"\tan^{100000}(10^{4000})", "(" * 400 + "1" + ")" * 400, r"\sqrt{" * 90 + "2" + "}" * 90,
    r"\frac{1}{" * 90 + "2" + "}" * 90, "1+" * 400 + "1", r"\sqrt{1+" * 25 + "2" + "}" * 25, "x" * 900,
    r"\cos(" * 25 + "1" + ")" * 25, "2^{2^{2^{2^{2}}}}", "(x+y+z+w)^{400}-(w+z+y+x)^{400}")


@pytest.mark.parametrize("answer", TOO_MUCH)
def test_a17_a18_towers_and_nests_end_in_time(answer: str) -> None:
    """Refused, worked out, or ended: never correct, never a hang, and the next answer is graded."""
    judger = RuleJudger(verifier=shared_verifier())
    for gold in ("3", r"\sqrt{2}", "x+1"):
        began = time.monotonic()
        found = judger.grade_text((gold,), answer)
        assert found.status != "correct", answer
        assert time.monotonic() - began < HANG
    assert judger.grade_text((r"\sqrt{8}",), r"2\sqrt{2}").status == "correct"


@pytest.mark.parametrize("answer", [r"\frac{5^{5^{5^{5^{5}}}}-5}{16}", "123456^{7654321}", "1000000!",
                                    "10^{10^{16}}", r"\log(\log(5^{5^{5^{5}}}))"])
def test_a17_a18_what_is_too_large_is_unscorable(answer: str) -> None:
    for gold in ("3", r"\sqrt{2}"):
        assert RuleJudger().grade_text((gold,), answer).status == "unscorable"


def test_the_same_verdict_every_time() -> None:
    """In any order, after many others, in a fresh process and in an old one."""
    pairs = [((r"\sqrt{8}",), r"2\sqrt{2}"), (("x^2-1",), "(x-1)(x+1)"), ((r"\pi",), "3.14"),
             ((r"\frac{\pi}{2}",), r"0.5\pi"), (("2x+4y=3",), "y=3/4-x/2"), (("e^x",), "x^e")]
    with Verifier(jobs_per_worker=10) as verifier:
        judger = RuleJudger(verifier=verifier)
        first = [judger.grade_text(*pair) for pair in pairs]
        for _ in range(2):
            assert [judger.grade_text(*pair) for pair in reversed(pairs)] == first[::-1]
    assert "".join(found.status[0] for found in first) == "ccicci", "c(orrect), i(ncorrect)"
