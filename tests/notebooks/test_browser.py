"""A notebook as people use it: JupyterLab in a browser, where moving a widget changes the picture."""

import contextlib
import json
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from notebooks import render

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install -e '.[test]'")
pytest.importorskip("jupyterlab", reason="needs the packages of notebooks: pip install -e '.[notebooks]'")

pytestmark = pytest.mark.slow

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE = 180  # seconds, for the server and for cells: other tests run beside this one
PICTURE = ".jp-OutputArea-output img"


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[str]:
    """The address of a JupyterLab in a folder with copies of the notebooks, as it saves what it runs."""
    folder = tmp_path / "work"
    folder.mkdir()
    for name in render.NAMES:
        shutil.copy(render.HERE / f"{name}.ipynb", folder)
    kinds = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTERLAB_SETTINGS_DIR")
    own = {kind: str(tmp_path / kind.lower()) for kind in (*kinds, "JUPYTERLAB_WORKSPACES_DIR", "IPYTHONDIR")}
    quiet = Path(
        own["JUPYTERLAB_SETTINGS_DIR"], "@jupyterlab", "apputils-extension", "notification.jupyterlab-settings"
    )
    quiet.parent.mkdir(parents=True)
    quiet.write_text('{"fetchNews": "false", "checkForUpdates": false}')  # nor is it asked for
    options = [
        "--no-browser",
        "--allow-root",
        f"--ServerApp.root_dir={folder}",
        "--ServerApp.ip=127.0.0.1",
        "--ServerApp.port=0",  # any that is free
        "--IdentityProvider.token=",
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]
    log = tmp_path / "log"
    with log.open("w") as file:
        command = [sys.executable, "-m", "jupyterlab", *options]
        environment = {**render.environment(), **own}
        server = subprocess.Popen(command, cwd=folder, env=environment, stdout=file, stderr=subprocess.STDOUT)
        try:
            yield _address(server, Path(own["JUPYTER_RUNTIME_DIR"]), log)
        finally:
            server.terminate()  # kernels end with it
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _address(server: subprocess.Popen[bytes], runtime: Path, log: Path) -> str:
    """The address that the server writes to a file, once it answers there."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if server.poll() is not None:
            pytest.fail(f"JupyterLab ended with {server.returncode}:\n{log.read_text()[-2000:]}")
        # While the file is being written, it is not whole; while the server starts, it does not answer.
        with contextlib.suppress(OSError, StopIteration, json.JSONDecodeError):
            document = json.loads(next(runtime.glob("jpserver-*.json")).read_text("utf-8"))
            address = f"http://127.0.0.1:{document['port']}"
            with urllib.request.urlopen(f"{address}/api/status", timeout=5):
                return address
        time.sleep(0.2)
    pytest.fail(f"JupyterLab did not answer in {PATIENCE} s:\n{log.read_text()[-2000:]}")


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
def test_moving_a_widget_changes_the_picture(lab: str) -> None:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM)  # with --no-sandbox, which root needs
        try:
            page = browser.new_page(viewport={"width": 1400, "height": 1200})
            page.set_default_timeout(1000 * PATIENCE)
            first, second = _pictures(page, lab)
        finally:
            browser.close()
    assert first.startswith("data:image/png;base64,")
    assert second.startswith("data:image/png;base64,")
    assert first != second


def _pictures(page: Any, lab: str) -> tuple[str, str]:
    """The pictures after all cells have run, and after moving the slider of bits by one."""
    page.goto(f"{lab}/lab/tree/error_curves.ipynb?reset")
    page.locator(".jp-Notebook h1").wait_for()
    page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]").wait_for()
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    picture = page.locator(PICTURE)
    picture.wait_for()
    first = picture.get_attribute("src")
    bits = page.locator(".widget-hslider .noUi-handle")
    bits.focus()
    bits.press("ArrowRight")
    page.wait_for_function(
        "([css, before]) => { const img = document.querySelector(css); return img && img.src !== before }",
        arg=[PICTURE, first],
    )
    assert page.locator(".widget-hslider .widget-readout").inner_text() == "4"
    return first, picture.get_attribute("src")
