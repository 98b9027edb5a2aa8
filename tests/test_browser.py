"""A person's hands on rl.view and rl.widgets.Lab: JupyterLab in a browser, buttons pressed, pictures seen.

Needs a chromium (Debian: apt-get install chromium; or RLTEACH_CHROMIUM=path of one). With
RLTEACH_SCREENSHOTS=1 the pictures of docs/ are taken again.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from fakes import two_digit_data

sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright here: pip install playwright")

ROOT = Path(__file__).resolve().parents[1]
CHROMIUM = os.environ.get("RLTEACH_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
SCREENSHOTS = bool(os.environ.get("RLTEACH_SCREENSHOTS"))
GUARD = 240  # seconds after which something has hung
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
         "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"]
OUTPUT = ".jp-OutputArea-output"

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium here: install one, or set RLTEACH_CHROMIUM to its path")

STEPS = 60 if SCREENSHOTS else 500
SETUP = """import torch
torch.set_num_threads(1)
import rlteach as rl
config = rl.Config.preset("tiny", batch_size=8, group_size=8, total_steps={steps}, threads=1)
policy = rl.Policy.load("tiny-math", config)
samples = rl.load_samples(config.train_data)
trainer = rl.OrealTrainer(policy, rl.RuleJudger(), samples, config)"""


def eventually(condition: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + GUARD
    while not (found := condition()):
        assert time.monotonic() < end, f"waited too long for {what}"
        time.sleep(0.2)
    return found


@pytest.fixture(scope="module")
def jupyter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A JupyterLab on an empty folder, with settings of its own: (folder, address)."""
    home = tmp_path_factory.mktemp("jupyter")
    folder = home / "notebooks"
    folder.mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = {**os.environ, **{f"JUPYTER_{name}_DIR": str(home / name.lower()) for name in (
        "CONFIG", "DATA", "RUNTIME")}, "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"), "PYTHONPATH": str(ROOT),
        "IPYTHONDIR": str(home / "ipython"), "OMP_NUM_THREADS": "1"}
    quiet = home / "settings" / "@jupyterlab" / "apputils-extension"
    quiet.mkdir(parents=True)
    (quiet / "notification.jupyterlab-settings").write_text('{"fetchNews": "false"}')  # it asks on the screen
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}",
               "--IdentityProvider.token=", "--ServerApp.disable_check_xsrf=True", "--allow-root",
               "--LabApp.news_url=", f"--ServerApp.root_dir={folder}"]
    with (home / "log.txt").open("w") as log:
        server = subprocess.Popen(command, env=env, cwd=folder, stdout=log, stderr=log)
    try:
        eventually(lambda: server.poll() is not None or reachable(port), "JupyterLab")
        assert server.poll() is None, (home / "log.txt").read_text()[-2000:]
        yield folder, f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(30)


def reachable(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


class Page:
    """One notebook in the browser."""

    def __init__(self, browser: Any, jupyter: tuple[Path, str], name: str, cells: list[str]) -> None:
        folder, address = jupyter
        self.path, self.address = folder / f"{name}.ipynb", address
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in cells])
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
        nbformat.write(notebook, self.path)
        self.page = browser.new_page(viewport={"width": 1250, "height": 1100})
        self.page.set_default_timeout(GUARD * 1000)
        self.open()

    def open(self) -> None:
        self.page.goto(f"{self.address}/lab/tree/{self.path.name}?reset")
        self.page.wait_for_selector(".jp-Notebook .jp-Cell")

    def run_all(self) -> None:
        self.page.wait_for_selector('.jp-Notebook-ExecutionIndicator[data-status="idle"]', state="attached")
        self.page.click(".jp-Notebook .jp-Cell >> nth=0")
        self.page.click('li.lm-MenuBar-item:has-text("Run")')
        self.page.click('li.lm-Menu-item:has-text("Run All Cells")')

    def press(self, name: str) -> None:
        self.page.click(f'{OUTPUT} button:has-text("{name}")')

    def button(self, name: str) -> Any:
        return self.page.locator(f'{OUTPUT} button:has-text("{name}")')

    def picture(self) -> str:
        """The address of the picture that is shown, which is the picture: data:image/png;base64,..."""
        return self.page.locator(f"{OUTPUT} img").get_attribute("src")

    def text(self) -> str:
        return "\n".join(self.page.locator(OUTPUT).all_inner_texts())

    def save(self) -> nbformat.NotebookNode:
        """The file, as soon as it holds the picture that is shown."""
        picture = self.picture().partition(",")[2].strip()
        self.page.click(".jp-Notebook .jp-Cell >> nth=0")
        self.page.keyboard.press("Control+s")
        eventually(lambda: picture in self.path.read_text().replace("\\n", ""), "the notebook to be saved")
        return eventually(self._read, "the whole file")

    def _read(self) -> nbformat.NotebookNode | None:
        try:
            return nbformat.read(self.path, as_version=4)
        except nbformat.reader.NotJSONError:
            return None

    def shoot(self, name: str) -> None:
        """A picture of the notebook for docs/, when it was asked for."""
        if SCREENSHOTS:
            self.page.locator(".jp-NotebookPanel").screenshot(path=ROOT / "docs" / name)

    def __enter__(self) -> Page:
        return self

    def __exit__(self, *_: object) -> None:
        self.page.close()


def test_pause_step_resume_stop_and_the_picture_that_stays(browser: Any, jupyter: tuple[Path, str]) -> None:
    cells = [SETUP.format(steps=STEPS), "run = trainer.start()\nrl.view(run)", "6 * 7"]
    with Page(browser, jupyter, "view", cells) as lab:
        lab.run_all()
        eventually(lambda: steps_in(lab.text()) >= (25 if SCREENSHOTS else 4), "some steps")
        assert "42" in lab.text(), "the next cell ran meanwhile"
        first = lab.picture()
        eventually(lambda: lab.picture() != first, "a new picture")
        lab.shoot("live-view.png")
        lab.press("Pause")
        eventually(lambda: "paused after step" in lab.text(), "the pause")
        assert lab.button("Pause").is_disabled()
        before = steps_in(lab.text())
        lab.press("Step")
        eventually(lambda: "paused after" in lab.text() and steps_in(lab.text()) > before, "one more step")
        lab.press("Resume")
        eventually(lambda: "running" in lab.text() and steps_in(lab.text()) > before + 1, "further steps")
        lab.press("Stop")
        eventually(lambda: lab.button("Stop").count() == 0, "the buttons to go")
        last = lab.picture()
        saved = lab.save()
        shown = [o.data for o in saved.cells[1].outputs]
        assert [sorted(data) for data in shown] == [["text/plain"], ["image/png", "text/plain"]]
        assert shown[1]["image/png"].strip() == last.partition(",")[2].strip()
        lab.open()
        eventually(lambda: lab.page.locator(f"{OUTPUT} img").count() == 1, "the notebook opened again")
        assert lab.picture() == last
        assert "Error" not in lab.text()


def steps_in(text: str) -> int:
    """running, step 7 of 500 -> 7"""
    found = [line.partition("step ")[2].split()[0] for line in text.splitlines() if f" of {STEPS}" in line]
    return int(found[0]) if found else 0


def test_a_slider_is_moved_and_two_settings_are_compared(
    browser: Any, jupyter: tuple[Path, str], tmp_path: Path
) -> None:
    data = {**two_digit_data(tmp_path, dev=20, test=1), "difficulty_bins": (), "threads": 1} \
        if not SCREENSHOTS else {"threads": 1}
    fields = {**data, "total_steps": 12 if SCREENSHOTS else 3, "batch_size": 8, "group_size": 8}
    cells = ["import rlteach as rl", f"lab = rl.widgets.Lab('tiny', **{fields!r})\nlab"]
    with Page(browser, jupyter, "lab", cells) as lab:
        lab.run_all()
        lab.page.wait_for_selector(f'{OUTPUT} button:has-text("Run")')
        eventually(lambda: lab.page.locator(f"{OUTPUT} img").count() == 1, "the empty picture")
        empty = lab.picture()
        lab.press("Run")
        eventually(lambda: lab.picture() != empty, "the first curves")
        eventually(lambda: lab.text().count("dev ") == 1, "the first accuracy")
        first = lab.picture()
        slider = lab.page.locator(f'{OUTPUT} .widget-hslider:has-text("group_size") .noUi-handle')
        slider.press("ArrowRight")
        eventually(lambda: "group_size=9" in lab.text(), "the slider's value in the Python line")
        lab.press("Run")
        eventually(lambda: lab.picture() != first, "a picture with two settings")
        eventually(lambda: lab.text().count("dev ") == 2, "the second accuracy")
        lab.press("Compare")
        lab.page.wait_for_selector(f'{OUTPUT} th:has-text("group_size")')
        lab.page.locator(f'{OUTPUT} select').nth(3).select_option("topk")
        eventually(lambda: "set token_reward_model='policy'" in lab.text(), "the refusal")
        lab.shoot("lab.png")
        lab.press("Clear")
        eventually(lambda: lab.picture() == empty, "the empty picture again")
