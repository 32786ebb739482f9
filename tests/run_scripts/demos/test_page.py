"""The page in a real browser: Chromium, driven by Playwright. Pictures and the command are tested without it."""

import shutil
import socket
import sys
from urllib.parse import urlsplit

import pytest
import torch
from PIL import Image

from tokenmixers.run_scripts import demo
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.demos import page as demo_page
from tokenmixers.run_scripts.demos.checkpoints import TASK_NAMES
from tokenmixers.run_scripts.demos.mixing_maps import MixingMap
from tokenmixers.run_scripts.demos.pictures import draw, patch_weights, tick_labels


CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = ("--disable-gpu", "--disable-quic", "--no-first-run", "--no-sandbox", "--disable-sync")
FLAGS += ("--disable-background-networking", "--disable-component-update")
FAMILIES = {"question-answering": "AMLP", "text2text-generation": "Synthesizer", "image-classification": "AMLP"}


@pytest.fixture
def show(monkeypatch):
    """`show(checkpoint)`: the page of a checkpoint, when its button is there. It asks no other server."""
    pytest.importorskip("gradio", reason="the demo needs the extra demo")
    sync_api = pytest.importorskip("playwright.sync_api", reason="a browser is driven by playwright")
    if CHROMIUM is None:
        pytest.skip("there is no Chromium")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    opened, hosts, errors = [], set(), []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)

        def open_page(checkpoint):
            opened.append(demo_page.launch(checkpoint, server_name="127.0.0.1", block=False))
            tab = browser.new_page()
            tab.set_default_timeout(60_000)
            tab.on("request", lambda request: hosts.add(urlsplit(request.url).hostname))
            tab.on("pageerror", lambda error: errors.append(str(error)))
            tab.goto(opened[-1].local_url)
            tab.get_by_role("button", name="Run", exact=True).wait_for()
            return tab

        yield open_page
        browser.close()
    for served in opened:
        served.close()
    assert hosts <= {"127.0.0.1", "localhost", None}  # none of data in the page
    assert errors == []


def press_run(tab) -> None:
    tab.get_by_role("button", name="Run", exact=True).click()


@pytest.mark.slow
@pytest.mark.parametrize("task", TASK_NAMES)
def test_every_kind_of_checkpoint(task, demo_checkpoint, show, tmp_path):
    tab = show(demo_checkpoint(FAMILIES.get(task, "GMLP"), task))
    assert tab.title() == f"tiny-{task}: {demo_page.TASKS[task][0].lower()}"
    if task == "image-classification":
        Image.linear_gradient("L").resize((40, 40)).save(tmp_path / "picture.png")
        tab.locator("input[type=file]").set_input_files(tmp_path / "picture.png")
        tab.locator("img[src*='picture']").wait_for()
    else:
        texts = {"fill-mask": ["the gate [MASK]"], "question-answering": ["what mixes", "the gate mixes tokens"]}
        for label, text in zip(demo_page.TASKS[task][1], texts.get(task, ["the gate"]), strict=False):
            tab.get_by_label(label, exact=True).fill(text)
    press_run(tab)
    image = tab.locator("img[src^='data:image/webp']").last
    image.wait_for()
    before = image.get_attribute("src")
    layer = tab.get_by_label("number input for Layer")
    layer.fill("2")
    layer.press("Enter")
    tab.wait_for_function("old => [...document.images].every(image => image.src != old)", arg=before)


@pytest.mark.slow
def test_a_refused_input_and_a_failing_model_are_answered(demo_checkpoint, show, monkeypatch, caplog):
    checkpoint = demo_checkpoint("GMLP", "fill-mask")
    tab = show(checkpoint)
    field = tab.get_by_label("Text with a mask")
    field.fill("the gate")
    field.press("Enter")
    tab.get_by_text("The text has no mask: write [MASK] where a word is missing.").wait_for()

    def fail(*args, **kwargs):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(checkpoint.model, "forward", fail)
    field.fill("[MASK] gate")
    press_run(tab)
    tab.get_by_text("The model failed on this input: RuntimeError: out of memory").wait_for()
    assert "Traceback" in caplog.text


@pytest.mark.slow
def test_a_port_in_use_and_a_foreign_address_are_one_sentence(demo_checkpoint, monkeypatch):
    pytest.importorskip("gradio", reason="the demo needs the extra demo")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    checkpoint = demo_checkpoint("GMLP", "fill-mask")
    with socket.create_server(("127.0.0.1", 0)) as server:
        for options in (
            {"server_name": "127.0.0.1", "server_port": server.getsockname()[1]},
            {"server_name": "192.0.2.1"},  # an address for documentation (RFC 5737)
        ):
            with pytest.raises(UserError, match=r"^error: the page cannot be served at --host and --port: "):
                demo_page.launch(checkpoint, block=False, **options)


def test_without_gradio_nothing_is_loaded(monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(UserError, match=r"the demo needs gradio.*'\.\[demo\]'"):
        demo.main(["--model", "nowhere"])


def test_by_default_nobody_else_can_reach_the_page(monkeypatch):
    calls = []
    checkpoint = type("Named", (), {"name": "mine", "task": "fill-mask"})
    monkeypatch.setattr(demo, "import_gradio", lambda: None)
    monkeypatch.setattr(demo, "load_checkpoint", lambda *arguments: calls.append(arguments) or checkpoint)
    monkeypatch.setattr(demo, "launch", lambda checkpoint, **options: calls.append(options))
    demo.main(["--model", "mine"])
    options = {"server_name": "127.0.0.1", "server_port": None, "share": False, "inbrowser": False}
    assert calls == [("mine", False), options]


# --- pictures ----------------------------------------------------------------------------------------------------


def test_a_heat_map_has_the_tokens_and_the_weights():
    pytest.importorskip("matplotlib")
    tokens = ("▁the", "gate", "$x$")
    weights = torch.tensor([[[[0.5, 0.0, 0.0], [0.0, -2.0, 0.0], [0.25, 0.0, 1.0]]]])
    for signed, scale in ((True, (-2.0, 2.0)), (False, (0.0, 2.0))):
        shown = weights if signed else weights.abs()
        axis = draw(MixingMap("spatial weights", shown, signed, tokens, tokens), 0, None, 0).axes[0]
        assert [label.get_text() for label in axis.get_yticklabels()] == list(tokens)
        (image,) = axis.images
        assert image.get_clim() == scale and image.get_array().tolist() == shown[0, 0].tolist()
        assert axis.get_title() == "spatial weights, layer 1"
        assert image.get_cmap().name == ("RdBu" if signed else "Blues")  # as in plot_spatial_weights: blue is positive


def test_long_texts_have_fewer_labels_and_long_tokens_are_cut():
    places, labels = tick_labels([f"t{index}" for index in range(128)])
    assert labels[:2] == ["t0", "t3"] and places[:2] == [0, 3]
    assert tick_labels(["x" * 50])[1] == ["x" * 15 + "…"]


def test_the_weights_of_a_patch_are_those_of_its_row():
    pytest.importorskip("matplotlib")
    weights = torch.arange(2 * 49.0).view(1, 2, 7, 7)
    mixing = MixingMap("token mixing", weights, True, grid=(2, 3))
    # A class token and six patches: row 1, column 2 (from 0) is token 6.
    assert patch_weights(mixing, weights[0, 1], 6).flatten().tolist() == weights[0, 1, 6, 1:].tolist()
    assert patch_weights(mixing, weights[0, 0], 0).tolist() == [[1, 2, 3], [4, 5, 6]]
    seen, axis, _ = draw(mixing, 0, 0, 6, torch.rand(3, 8, 12)).axes
    assert [line.get_xydata().tolist() for line in axis.lines] == [[[2, 1]]]
    (frame,) = seen.patches
    assert (frame.get_xy(), frame.get_width(), frame.get_height()) == ((7.5, 3.5), 4, 4)
