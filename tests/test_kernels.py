"""Real kernels, driven as a front end drives them: interrupted, killed, of an older ipykernel, run twice."""

from __future__ import annotations

import base64
import configparser
import os
import random
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from kernels import GUARD, ROOT, START, Kernel, kernel
from nbclient import NotebookClient

from rlteach.training.interrupts import GIVING_UP, HEARD
from rlteach.views.browse import PROBABILITIES

pytestmark = pytest.mark.gate
LESSONS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
TRAINER = """
class Noted(rl.OrealTrainer):
    begun = []  # when a step began

    def draw(self):
        self.begun.append(time.time())
        return super().draw()


def make(total=1000, **changes):
    config = rl.Config.preset("tiny", batch_size=8, group_size=8, total_steps=total, threads=1, **changes)
    policy = rl.Policy.load("tiny-math", config)
    return Noted(policy, rl.RuleJudger(), rl.load_samples(config.train_data), config)


trainer = make()"""


# interrupted -----------------------------------------------------------------------------------------

CELLS = {"view": "_ = rl.view(trainer, wait=True)", "fit": "_ = trainer.fit()",
         "loop": "for step in trainer:\n    pass"}
# The first view imports matplotlib and widgets; an interrupt then is IPython's to answer.
WARM = dict.fromkeys(CELLS, "") | {"view": """
few = trainer.config.replace(total_steps=1)
_ = rl.view(rl.OrealTrainer(
    rl.Policy.load("tiny-math", few), rl.RuleJudger(), trainer.samples, few), wait=True)"""}
MOMENTS = {"view": 7, "fit": 7, "loop": 6}
THREADS = "[t.name for t in threading.enumerate() if t.name.startswith('rlteach')]"


def heard(message: dict[str, Any], cell: str) -> str | None:
    """Who shows that the interrupt has arrived: training, or IPython when that has not begun."""
    content = message["content"]
    words = content.get("text", "") + content.get("ename", "") \
        if message["parent_header"].get("msg_id") == cell else ""
    if message["msg_type"] == "comm_msg":
        words = str(content["data"].get("state", {}).get("value", ""))
    if HEARD in words or "stopping when step" in words:
        return "training"
    return "IPython" if "KeyboardInterrupt" in words else None


@pytest.mark.parametrize("how", CELLS)
def test_a_training_cell_is_interrupted_at_random_moments(
    how: str, tmp_path: Path, record_property: Any
) -> None:
    """It says so, ends after the step, and training goes on to the weights of an undisturbed run."""
    dice, slowest = random.Random(f"moments of {how}"), {"training": 0.0, "IPython": 0.0}
    with kernel(tmp_path) as k:
        k.run(START + TRAINER)
        k.run(WARM[how])
        k.run("for _ in range(2):\n    trainer.step()")
        length = k.value("(time.time() - Noted.begun[0]) / 2")  # seconds a step
        for _ in range(MOMENTS[how]):
            before = k.value("len(Noted.begun)")
            cell = k.begin(CELLS[how])
            k.eventually(lambda cell=cell: k.of(cell, "execute_input"), "the cell to begin")
            assert k.ended(cell) is None
            k.read(dice.uniform(0, 2.5) * length)
            pressed = k.interrupt()
            ended = k.wait(cell)
            after = [(at, m) for at, m in k.of(None) if at >= pressed]
            answer, who = next(((at, who) for at, m in after if (who := heard(m, cell))), (0, None))
            assert who, [(round(at - pressed, 3), m["msg_type"], m["content"]) for at, m in after]
            slowest[who] = max(slowest[who], answer - pressed)
            assert answer <= ended
            begun, steps, versions = k.value("[Noted.begun, [r.index for r in trainer.history],"
                                             " [trainer.step_index, trainer.policy.version]]")
            assert steps == list(range(1, len(steps) + 1))
            assert versions == [len(steps)] * 2
            k.eventually(lambda: k.value(THREADS) == [], "the thread to end")
            assert len(begun) == len(steps), "each step that began is in the history, once"
            assert not [at for at in begun[before:] if at > answer + 0.05], "no step began afterwards"
        k.run("again = make()\nwhile again.step_index < trainer.step_index:\n    again.step()")
        assert k.value("[r.metrics['reward/mean'] for r in again.history] =="
                       " [r.metrics['reward/mean'] for r in trainer.history]")
        assert k.value("all(torch.equal(a, b) for a, b in zip(again.policy.model.parameters(),"
                       " trainer.policy.model.parameters()))")
    record_property("slowest_answer_seconds", slowest)
    print(f"\n{how}: a step takes {length:.2f} s, the slowest answers took {slowest}")  # noqa: T201
    assert slowest["training"] > 0, "no moment fell into training"
    assert max(slowest.values()) < GUARD / 10


def test_a_second_interrupt_gives_the_step_up(tmp_path: Path) -> None:
    """A step of many answers, interrupted while it samples: nothing of it is left."""
    with kernel(tmp_path) as k:
        k.run(START + TRAINER.replace("batch_size=8, group_size=8", "batch_size=64, group_size=64"))
        for code in CELLS.values():
            begun = k.value("len(Noted.begun)")
            cell = k.begin(code)
            k.eventually(lambda cell=cell: k.of(cell, "execute_input"), "the cell to begin")
            k.read(2)
            k.interrupt()
            k.eventually(lambda cell=cell: HEARD in k.text(cell, "stderr"), "the first answer")
            k.interrupt()
            k.wait(cell)
            assert GIVING_UP in k.text(cell, "stderr")
            assert k.value("len(Noted.begun)") == begun + 1
            assert k.value("[trainer.step_index, len(trainer.history), trainer.policy.version]") == [0, 0, 0]
            assert k.value(THREADS) == []


# killed ----------------------------------------------------------------------------------------------

JUDGED = """
server = rl.serve("tiny-judge")
judge = rl.RuleThenLLM(rl.RuleJudger(), rl.LLMJudger(server.url, api_key=server.api_key, timeout=600))
trainer.judger = judge
run = trainer.start()"""
WORKERS = """
from rlteach.judger.verifier import shared_verifier
assert shared_verifier().check(r"\\sqrt{8}", r"2\\sqrt{2}").verdict
run = trainer.start()"""
TOOLS = """
from rlteach.training.experiment import build_trainer
from rlteach.training.judges import Judges
config = rl.Config.preset("tiny-agent", total_steps=1000, batch_size=4, group_size=4)
trainer = build_trainer(config, Judges(config).rewards)
run = trainer.start()"""


@pytest.mark.parametrize(("code", "ports", "processes"), [
    (JUDGED, 1, 0), (WORKERS, 0, 1), (TOOLS, 0, 0)], ids=["judge", "workers", "tools"])
def test_a_killed_kernel_leaves_no_process_and_no_port(
    code: str, ports: int, processes: int, tmp_path: Path
) -> None:
    with kernel(tmp_path) as k:
        k.run(START + TRAINER)
        k.run(code)
        k.eventually(lambda: k.value("trainer.step_index") >= 1, "the first step")
        assert k.value("run.state") == "running"
        process = psutil.Process(k.pid)
        children = process.children(recursive=True)
        opened = {c.laddr.port for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN}
        opened -= set(k.manager.ports)
        assert len(children) >= processes
        assert len(opened) >= ports, "its own server listens"
        os.kill(k.pid, signal.SIGKILL)
        k.manager.provisioner.process.wait()
        k.eventually(lambda: not [c for c in children if is_alive(c)], "its children to end")
        k.eventually(lambda: not [p for p in opened if reachable(p)], "its ports to close")


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def reachable(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


# lessons, twice in one kernel ------------------------------------------------------------------------


def sanitized(text: str) -> str:
    rules = configparser.ConfigParser(interpolation=None)
    rules.read(ROOT / "tests" / "nbval.cfg")
    for name in rules.sections():
        text = re.sub(rules[name]["regex"], rules[name]["replace"], text)
    return text


def words(cell: nbformat.NotebookNode) -> list[str]:
    """What nbval compares of a cell: texts, without what differs from run to run."""
    if {"nbval-ignore-output", "nbval-skip"} & set(cell.metadata.get("tags", [])):
        return []
    printed = "".join(o.text for o in cell.outputs if o.get("name") == "stdout")
    shown = [text for o in cell.outputs for kind, text in o.get("data", {}).items()
             if kind.startswith("text/")]
    return [sanitized(text) for text in (printed, *shown)]


@pytest.mark.parametrize("path", LESSONS, ids=[path.stem for path in LESSONS])
def test_a_lesson_runs_twice_in_one_kernel(path: Path) -> None:
    """All cells again, without a restart: the same outputs, wherever they are compared."""
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=600, kernel_name="python3", store_widget_state=False,
                            extra_arguments=["--log-level=ERROR"], coalesce_streams=True,
                            resources={"metadata": {"path": str(path.parent)}})
    passes = []
    with client.setup_kernel():
        for _ in range(2):
            for at, cell in enumerate(notebook.cells):
                client.execute_cell(cell, at)
            cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
            assert not [o for cell in cells for o in cell.outputs if o.get("name") == "stderr"]
            passes.append([(cell.source, words(cell)) for cell in cells])
    for first, second in zip(*passes, strict=True):
        assert first == second


# this ipykernel and the last one before it -------------------------------------------------------------


@pytest.fixture(scope="module")
def ipykernel_6(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which `import ipykernel` finds version 6."""
    folder = tmp_path_factory.mktemp("ipykernel6")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--no-deps", "--quiet",
         "--target", str(folder), "ipykernel<7", "nest-asyncio"], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"ipykernel 6 cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
    return {"PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}


@pytest.fixture(params=["6", "7"])
def each_kernel(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kernel]:
    env = request.getfixturevalue("ipykernel_6") if request.param == "6" else {}
    with kernel(tmp_path, env) as k:
        k.run(START + TRAINER)
        version = k.run("import ipykernel; print(ipykernel.__version__)").strip()
        if request.param == "7" and not version.startswith("7."):
            pytest.skip(f"this environment has ipykernel {version}")
        assert version.startswith(request.param)
        yield k
        assert k.text(None, "stderr") == ""
        assert not [line for line in k.log.read_text().splitlines()
                    if "Traceback" in line or "Error" in line or "Warning" in line]


def frames(k: Kernel) -> list[str]:
    """Every picture that was shown, the first one and those that replaced it."""
    return [m["content"]["data"]["image/png"].replace("\n", "") for _, m in k.of(None)
            if m["msg_type"] in ("display_data", "update_display_data")
            and "image/png" in m["content"]["data"]]


def test_the_live_view(each_kernel: Kernel) -> None:
    k = each_kernel
    k.run("run = trainer.start()\nview = rl.view(run)")
    k.eventually(lambda: k.said("running, step"), "the state line")
    k.eventually(lambda: len(frames(k)) >= 3, "frames, while no cell runs")
    assert len(set(frames(k))) == len(frames(k))
    k.click("Pause")
    k.eventually(lambda: k.said("paused after step"), "the pause")
    done = k.value("trainer.step_index")
    k.click("Step")
    k.eventually(lambda: k.said(f"paused after step {done + 1} of"), "one step")
    k.click("Resume")
    k.eventually(lambda: k.said("running, step"), "the run to go on")
    k.click("Stop")
    k.eventually(lambda: not k.widgets(), "the widgets to be closed")
    assert k.value("run.state") == "stopped"
    assert frames(k)[-1] == k.run("import base64; print(base64.b64encode(view.png).decode())").strip()
    last = [m["content"]["data"] for _, m in k.of(None, "update_display_data")]
    assert last[-1] == {"text/plain": ""}, "the place of the buttons is empty"
    assert k.value(THREADS) == []


def test_the_laboratory(each_kernel: Kernel, tmp_path: Path) -> None:
    k = each_kernel
    k.run(f"from pathlib import Path\nfrom fakes import two_digit_data\n"
          f"data = two_digit_data(Path({str(tmp_path)!r}), dev=10, test=1)\n"
          "lab = rl.widgets.Lab('tiny', **data, difficulty_bins=(), batch_size=4, group_size=4,"
          " total_steps=3, threads=1)")
    k.run("lab")
    (empty,) = frames(k)
    k.turn("group_size", value=5)
    k.eventually(lambda: k.said("group_size=5"), "the slider's value in the Python line")
    k.click("Run")
    k.eventually(lambda: k.said("dev "), "the accuracy")
    assert len(frames(k)) >= 2
    assert frames(k)[-1] != empty
    assert k.value("[lab.results['state'][1], lab.trials.all[0].config.group_size]") == ["finished", 5]
    assert frames(k)[-1] == k.run("import base64; print(base64.b64encode(lab.png).decode())").strip()
    assert k.value(THREADS) == []


def test_browse(each_kernel: Kernel) -> None:
    k = each_kernel
    k.run("trainer.step(), trainer.step()")
    k.run("box = rl.browse(trainer)\nbox")
    question = k.value("[g.sample.question for g in trainer.history[0].groups]")
    k.eventually(lambda: k.said(question[0]) or k.widget(description="question"), "the widget")
    k.turn("step", index=0)
    k.turn("question", index=3)
    k.eventually(lambda: k.said(question[3]), "the fourth question")
    view = next(comm for comm, has in k.widgets().items() if PROBABILITIES in has.get("_options_labels", ()))
    k.send(view, method="update", state={"index": 2}, buffer_paths=[])
    pictured = "[len(w.value) for w in box.children if type(w).__name__ == 'Image']"
    k.eventually(lambda: k.value(pictured)[0] > 1000, "the picture of the probabilities")


# nbconvert -------------------------------------------------------------------------------------------


def test_nbconvert_keeps_the_finished_picture(tmp_path: Path) -> None:
    """The file holds the picture of the whole run and no dead button; so does the page made of it."""
    cells = [START + TRAINER.replace("trainer = make()", "trainer = make(total=4)"),
             "run = trainer.start()\nview = rl.view(run)", "_ = run.wait()",
             "_ = rl.view(make(2), wait=True)", "import base64\nprint(base64.b64encode(view.png).decode())"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
    nbformat.write(notebook, tmp_path / "small.ipynb")
    for form, name in (("notebook", "done.ipynb"), ("html", "done.html")):
        done = subprocess.run(
            [sys.executable, "-m", "nbconvert", "--to", form, "--execute", "small.ipynb", "--output", name],
            cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
        assert done.returncode == 0, done.stderr[-2000:]
        assert "Traceback" not in done.stderr
    found = nbformat.read(tmp_path / "done.ipynb", as_version=4)
    _, shown, waited, blocked, last = (cell.outputs for cell in found.cells)
    assert waited == []
    for outputs in (shown, blocked):
        assert [sorted(o.data) for o in outputs] == [["text/plain"], ["image/png", "text/plain"]]
    picture = shown[1].data["image/png"].replace("\n", "")
    assert picture == last[0].text.strip()
    assert base64.b64decode(picture).startswith(b"\x89PNG")
    page = (tmp_path / "done.html").read_text(encoding="utf-8")
    assert len(re.findall(r'<img[^>]* src="data:image/png;base64,', page)) == 2
