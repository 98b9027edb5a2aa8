"""A run in the background: it pauses, steps, stops and fails at a step's boundary, and goes on from there."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pandas as pd
import pytest
import torch
from fakes import even_first, same, small_config, small_trainer, state

from rlteach.training import interrupts
from rlteach.training.run import Run
from rlteach.training.trainer import OrealTrainer
from rlteach.types import Sample, Trajectory

STEPS = 6


def trainer_of(judge: Callable[..., Any] = even_first, **changes: Any) -> OrealTrainer:
    return small_trainer(small_config(**{"total_steps": STEPS, "threads": 1, **changes}), judge)


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, torch.Tensor]:
    """The weights at the end of a run that nobody touched: a plain loop in this thread."""
    trainer = trainer_of()
    before = state(trainer.policy.model)
    for _ in trainer:
        pass
    assert not same(before, state(trainer.policy.model)), "there is something to compare"
    return state(trainer.policy.model)


def eventually(condition: Callable[[], object], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.005)


class Gate:
    """A judger that waits, from a certain step on, until it is opened; so a step can be held half-way."""

    def __init__(self, from_step: int = 1) -> None:
        self.calls, self.first = 0, (from_step - 1) * 12  # a step asks for 3 x 4 answers
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, sample: Sample, answer: Trajectory) -> float:
        self.calls += 1
        if self.calls > self.first:
            self.reached.set()
            assert self.opened.wait(20), "nobody opened the gate"
        return even_first(sample, answer)


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Opened at the end in any case, so that no thread is left waiting."""
    gate = Gate(from_step=3)
    yield gate
    gate.opened.set()


# start, wait, history -----------------------------------------------------------------------------


def test_a_run_is_the_loop_in_another_thread(undisturbed: dict[str, torch.Tensor]) -> None:
    trainer = trainer_of()
    run = trainer.start()
    assert isinstance(run, Run)
    assert run.wait() is run
    assert run.state == "finished"
    assert same(state(trainer.policy.model), undisturbed)
    assert [r.index for r in trainer.history] == list(range(1, STEPS + 1))


def test_start_returns_at_once_and_wait_can_give_up(gate: Gate) -> None:
    run = trainer_of(gate).start()
    gate.reached.wait(20)
    began = time.monotonic()
    assert run.wait(timeout=0.05) is run
    assert time.monotonic() - began < 10
    assert run.state == "running"
    assert repr(run) == f"Run(running, step 2 of {STEPS})"
    gate.opened.set()
    run.wait()
    assert repr(run) == f"Run(finished, step {STEPS} of {STEPS})"


def test_the_history_is_a_table_that_grows(gate: Gate) -> None:
    run = trainer_of(gate).start()
    gate.reached.wait(20)
    assert list(run.history.index) == [1, 2]
    gate.opened.set()
    history = run.wait().history
    assert isinstance(history, pd.DataFrame)
    assert history.index.name == "step"
    assert list(history.index) == list(range(1, STEPS + 1))
    assert history["reward/mean"].between(0, 1).all()
    assert all(kind.kind in "if" for kind in history.dtypes), "numbers; what was not measured is NaN"


def test_the_history_of_a_run_that_has_done_nothing() -> None:
    gate = Gate(from_step=1)
    run = trainer_of(gate).start()
    try:
        assert len(run.history) == 0
    finally:
        gate.opened.set()
        run.wait()


# pause, step, resume, stop ------------------------------------------------------------------------


def test_pause_step_and_resume(undisturbed: dict[str, torch.Tensor], gate: Gate) -> None:
    trainer = trainer_of(gate)
    run = trainer.start()
    gate.reached.wait(20)
    run.pause()
    gate.opened.set()
    eventually(lambda: run.state == "paused" and trainer.step_index == 3)
    time.sleep(0.1)
    assert trainer.step_index == 3, "the step under way was the last one"
    assert run.history.index[-1] == 3
    for wanted in (4, 5):
        assert run.step(wait=True) is run
        assert (run.state, trainer.step_index) == ("paused", wanted)
    run.resume()
    run.wait()
    assert run.state == "finished"
    assert same(state(trainer.policy.model), undisturbed)


def test_the_state_says_when_a_step_is_still_under_way(gate: Gate) -> None:
    trainer = trainer_of(gate)
    run = trainer.start()
    gate.reached.wait(20)
    assert run.state == "running"
    run.pause()
    assert run.state == "pausing"
    gate.opened.set()
    assert run.pause(wait=True) is run
    assert (run.state, trainer.step_index) == ("paused", 3)
    gate.opened.clear()
    gate.reached.clear()
    run.step()
    assert run.state == "pausing", "due"
    gate.reached.wait(20)
    assert run.state == "pausing", "under way"
    run.stop()
    assert run.state == "stopping"
    gate.opened.set()
    run.wait(20)
    assert (run.state, trainer.step_index) == ("stopped", 4)


@pytest.mark.parametrize("how", ["step", "pause"])
def test_waiting_for_a_step_raises_what_went_wrong_in_it(how: str) -> None:
    def broken(*_: object) -> float:
        time.sleep(0.1)
        raise ZeroDivisionError("a bug of the learner's")

    run = trainer_of(broken).start()
    with pytest.raises(ZeroDivisionError, match="a bug of the learner's"):
        getattr(run, how)(wait=True)
    assert run.state == "failed"
    finished = trainer_of().start().wait()
    assert getattr(finished, how)(wait=True).state == "finished", "there is no further step to wait for"


def test_who_waits_for_a_step_is_not_left_waiting_when_another_resumes(gate: Gate) -> None:
    trainer = trainer_of(gate)
    run = trainer.start()
    gate.reached.wait(20)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(run.step, wait=True)
        eventually(lambda: run.state == "pausing")
        run.resume()
        waiting.result(20)
        gate.opened.set()
    assert run.wait(20).state == "finished"


def test_stop_then_start_goes_on(undisturbed: dict[str, torch.Tensor], gate: Gate) -> None:
    trainer = trainer_of(gate)
    run = trainer.start()
    gate.reached.wait(20)
    run.stop()
    gate.opened.set()
    run.wait()
    assert (run.state, trainer.step_index) == ("stopped", 3)
    again = trainer.start()
    again.wait()
    assert again.state == "finished"
    assert [r.index for r in trainer.history] == list(range(1, STEPS + 1))
    assert same(state(trainer.policy.model), undisturbed)


def test_a_paused_run_can_be_stopped(gate: Gate) -> None:
    trainer = trainer_of(gate)
    run = trainer.start()
    gate.reached.wait(20)
    run.pause()
    gate.opened.set()
    eventually(lambda: run.state == "paused" and trainer.step_index == 3)
    run.stop()
    run.wait(20)
    assert (run.state, trainer.step_index) == ("stopped", 3)


def test_a_loop_that_was_left_goes_on(undisturbed: dict[str, torch.Tensor]) -> None:
    trainer = trainer_of()
    for record in trainer:
        if record.index == 2:
            break
    assert [record.index for record in trainer] == [3, 4, 5, 6]
    assert list(trainer) == []
    assert same(state(trainer.policy.model), undisturbed)


def test_h04_the_cell_that_starts_a_run_may_be_run_twice(gate: Gate) -> None:
    """Two threads stepping one trainer would mix two runs into one set of weights."""
    trainer = trainer_of(gate)
    first = trainer.start()
    gate.reached.wait(20)
    second = trainer.start()
    gate.opened.set()
    for run in (first, second):
        run.wait()
    assert [r.index for r in trainer.history] == list(range(1, STEPS + 1))
    assert gate.calls == STEPS * 12, "each answer was judged once"


# errors -------------------------------------------------------------------------------------------


def test_a_mistake_in_the_judger_comes_out_of_wait(undisturbed: dict[str, torch.Tensor]) -> None:
    class Broken:
        calls = 0

        def __call__(self, sample: Sample, answer: Trajectory) -> float:
            self.calls += 1
            if self.calls == 2 * 12 + 5:  # in the third step
                raise ZeroDivisionError("a bug of the learner's")
            return even_first(sample, answer)

    trainer = trainer_of(Broken())
    run = trainer.start()
    for _ in range(2):  # not lost by asking once
        with pytest.raises(ZeroDivisionError, match="a bug of the learner's"):
            run.wait()
    assert run.state == "failed"
    assert isinstance(run.error, ZeroDivisionError)
    assert trainer.step_index == len(trainer.history) == 2
    trainer.start().wait()  # the judger works again
    assert same(state(trainer.policy.model), undisturbed)


def test_a_mistake_in_the_judger_comes_out_of_fit() -> None:
    def broken(*_: object) -> float:
        raise ZeroDivisionError("a bug of the learner's")

    trainer = trainer_of(broken)
    before = state(trainer.policy.model)
    with pytest.raises(ZeroDivisionError, match="a bug of the learner's"):
        trainer.fit()
    assert trainer.step_index == 0
    assert same(before, state(trainer.policy.model))


@pytest.mark.parametrize("count", [0, 3, 5])
def test_a_judger_that_forgets_an_answer(count: int) -> None:
    class Short:
        def grade(self, group: Any) -> tuple[Any, ...]:
            return (None,) * count

    with pytest.raises(ValueError, match=f"gave {count} judgements for the 4 answers of 's"):
        trainer_of(Short()).fit()


# interrupts (promise 6) ---------------------------------------------------------------------------


def interrupt() -> None:
    """What Ctrl-C and the stop button of a notebook do."""
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)


def while_waiting(wait: Callable[[], object], work: Callable[[], None]) -> object:
    """`work` in another thread, a moment after `wait` has begun in this one."""
    ready = threading.Event()

    def later() -> None:
        ready.wait()
        time.sleep(0.3)
        work()

    helper = threading.Thread(target=later, daemon=True)
    helper.start()
    try:
        ready.set()
        found = wait()
        helper.join()
    except KeyboardInterrupt:
        pytest.fail("an interrupt came out of the wait: the run was not waited for")
    return found


def test_an_interrupt_stops_after_the_step(undisturbed: dict[str, torch.Tensor], gate: Gate,
                                           capsys: pytest.CaptureFixture[str]) -> None:
    trainer = trainer_of(gate)
    run = trainer.start()

    def press_once() -> None:
        gate.reached.wait(20)
        interrupt()
        eventually(lambda: interrupts.HEARD in capsys.readouterr().err)  # said while the step goes on
        assert (run.state, trainer.step_index) == ("stopping", 2)
        gate.opened.set()

    assert while_waiting(run.wait, press_once) is run
    assert run.state == "stopped"
    assert trainer.step_index == trainer.policy.version == len(trainer.history) == 3
    trainer.fit()
    assert same(state(trainer.policy.model), undisturbed)


def test_a_second_interrupt_gives_up_the_step(undisturbed: dict[str, torch.Tensor], gate: Gate) -> None:
    trainer = trainer_of(gate)
    run = trainer.start()
    gate.reached.wait(20)
    boundary = state(trainer.policy.model)

    def press_twice() -> None:
        interrupt()
        eventually(lambda: run._stopping)
        interrupt()
        eventually(lambda: run._abandoning)
        gate.opened.set()

    while_waiting(run.wait, press_twice)
    assert run.state == "stopped"
    assert trainer.step_index == trainer.policy.version == len(trainer.history) == 2
    assert same(boundary, state(trainer.policy.model)), "as after step 2, bit for bit"
    trainer.fit()
    assert same(state(trainer.policy.model), undisturbed)


def test_a_third_interrupt_lets_the_caller_go(gate: Gate, capsys: pytest.CaptureFixture[str]) -> None:
    """A stage that never ends must not hold the cell for ever."""
    run = trainer_of(gate).start()
    gate.reached.wait(20)

    def press_thrice() -> None:
        for sentence in (interrupts.HEARD, interrupts.GIVING_UP, ""):
            interrupt()
            eventually(lambda sentence=sentence: sentence in capsys.readouterr().err)

    helper = threading.Timer(0.3, press_thrice)
    helper.start()
    with pytest.raises(KeyboardInterrupt):
        run.wait()
    helper.join()
    assert run.state == "stopping"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    gate.opened.set()
    assert run.wait().state == "stopped"
    assert run.trainer.step_index == 2


def test_an_interrupt_before_anything_can_be_stopped_is_not_lost(capsys: pytest.CaptureFixture[str]) -> None:
    trainer = trainer_of()

    def begin() -> Run:
        signal.raise_signal(signal.SIGINT)
        return trainer.start()

    with interrupts.interrupts_stop(begin) as run:
        run.wait()
    assert capsys.readouterr().err == f"{interrupts.HEARD}\n"
    assert (run.state, len(trainer.history) < STEPS) == ("stopped", True)


def test_fit_blocks_and_can_be_interrupted(undisturbed: dict[str, torch.Tensor], gate: Gate) -> None:
    trainer = trainer_of(gate)

    def press_once() -> None:
        gate.reached.wait(20)
        interrupt()
        time.sleep(0.5)
        gate.opened.set()

    assert while_waiting(trainer.fit, press_once) is trainer
    assert 3 <= trainer.step_index == len(trainer.history) < STEPS
    assert trainer.fit().step_index == STEPS
    assert same(state(trainer.policy.model), undisturbed)


def at_stage(trainer: OrealTrainer, stage: str, work: Callable[[], None]) -> None:
    """`work` once, at the end of this stage of the third step."""
    real = getattr(trainer, stage)

    def wrapped(*words: Any) -> Any:
        out = real(*words)
        if trainer.step_index == 2:
            setattr(trainer, stage, real)
            work()
        return out

    setattr(trainer, stage, wrapped)


@pytest.mark.parametrize("stage", ["draw", "rollout", "grade", "select", "shape"])
def test_an_interrupted_loop_ends_after_the_step(undisturbed: dict[str, torch.Tensor], stage: str,
                                                 capsys: pytest.CaptureFixture[str]) -> None:
    trainer = trainer_of()
    at_stage(trainer, stage, lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        for _ in trainer:
            pass
    assert capsys.readouterr().err == f"{interrupts.HEARD}\n"
    assert trainer.step_index == trainer.policy.version == len(trainer.history) == 3
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert [record.index for record in trainer] == [4, 5, 6]
    assert same(state(trainer.policy.model), undisturbed)


def test_a_second_interrupt_gives_up_the_loop_s_step(undisturbed: dict[str, torch.Tensor],
                                                     capsys: pytest.CaptureFixture[str]) -> None:
    trainer = trainer_of()
    at_stage(trainer, "grade", lambda: [signal.raise_signal(signal.SIGINT) for _ in range(2)])
    with pytest.raises(KeyboardInterrupt):
        for _ in trainer:
            pass
    assert capsys.readouterr().err == f"{interrupts.HEARD}\n{interrupts.GIVING_UP}\n"
    assert trainer.step_index == trainer.policy.version == len(trainer.history) == 2
    assert [record.index for record in trainer] == [3, 4, 5, 6]
    assert same(state(trainer.policy.model), undisturbed)


@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("by_hand", [False, True])
def test_no_interrupt_cuts_an_update_in_two(undisturbed: dict[str, torch.Tensor], by_hand: bool, times: int,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the optimiser's step and the line that counts it, in a loop or in a cell of one stage."""
    trainer = trainer_of()
    optimizer, due = trainer.learner.optimizer, [True]
    real = optimizer.step

    def pressed(*words: Any, **named: Any) -> Any:
        out = real(*words, **named)
        if due and trainer.step_index == 2:
            due.clear()
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
        return out

    monkeypatch.setattr(optimizer, "step", pressed)
    with pytest.raises(KeyboardInterrupt):
        _ = [trainer.step() for _ in range(STEPS)] if by_hand else list(trainer)
    assert trainer.step_index == trainer.policy.version == len(trainer.history) == 3
    trainer.fit()
    assert same(state(trainer.policy.model), undisturbed)


# where it works -----------------------------------------------------------------------------------


def test_h02_inside_a_running_event_loop(undisturbed: dict[str, torch.Tensor]) -> None:
    """A notebook runs one already."""

    async def cell() -> tuple[OrealTrainer, OrealTrainer]:
        one, other = trainer_of(), trainer_of()
        run = one.start()
        while run.state == "running":
            await asyncio.sleep(0.01)  # the loop stays alive meanwhile
        return one, other.fit()

    for trainer in asyncio.run(cell()):
        assert trainer.step_index == STEPS
        assert same(state(trainer.policy.model), undisturbed)


def test_h02_in_a_thread(undisturbed: dict[str, torch.Tensor]) -> None:
    with ThreadPoolExecutor(1) as pool:
        trainer = pool.submit(lambda: trainer_of().fit()).result()
    assert same(state(trainer.policy.model), undisturbed)


@pytest.mark.parametrize("how", ["loop", "run"])
def test_the_number_of_threads_is_the_config_s(how: str) -> None:
    """A thread has its own setting in torch, so both ways are looked at."""
    seen: set[int] = set()

    def note(sample: Sample, answer: Trajectory) -> float:
        seen.add(torch.get_num_threads())
        return even_first(sample, answer)

    before = torch.get_num_threads()
    try:
        trainer = trainer_of(note, threads=2, total_steps=2)
        list(trainer) if how == "loop" else trainer.start().wait()
    finally:
        torch.set_num_threads(before)
    assert seen == {2}


def test_a_run_leaves_no_thread_behind() -> None:
    before = threading.active_count()
    for _ in range(3):
        trainer_of(total_steps=1).fit()
    eventually(lambda: threading.active_count() <= before)
