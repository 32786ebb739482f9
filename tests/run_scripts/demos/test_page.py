"""The page in a real browser: Chromium, driven by Playwright."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from tokenmixers.run_scripts.demos import page as demo_page
from tokenmixers.run_scripts.demos.checkpoints import TASK_NAMES
from tokenmixers.run_scripts.demos.space import space_files


pytest.importorskip("gradio", reason="the demo needs the extra demo")
sync_api = pytest.importorskip("playwright.sync_api", reason="a browser is driven by playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium"),
]

FLAGS = ("--disable-gpu", "--disable-quic", "--no-first-run", "--no-sandbox", "--disable-sync")
FLAGS += ("--disable-background-networking", "--disable-component-update")
SECONDS = 60_000  # milliseconds that a busy machine may take


@pytest.fixture(scope="module")
def chromium():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def show(chromium, monkeypatch):
    """`show(checkpoint, width)`: the page of a checkpoint, when its button is there. It asks no other server."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    opened, hosts, errors = [], set(), []

    def open_page(checkpoint, width: int = 1280, height: int = 900):
        served = demo_page.launch(checkpoint, host="127.0.0.1", block=False)
        opened.append(served)
        return visit(served.local_url, width, height)

    def visit(address: str, width: int = 1280, height: int = 900):
        context = chromium.new_context(viewport={"width": width, "height": height})
        context.set_default_timeout(SECONDS)
        tab = context.new_page()
        opened.append(context)
        tab.on("request", lambda request: hosts.add(re.sub(r"^\w+:(//)?([^/:]*).*", r"\2", request.url, flags=re.S)))
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.goto(address)
        tab.get_by_role("button", name="Run", exact=True).wait_for()
        return tab

    open_page.visit = visit
    yield open_page
    for thing in reversed(opened):
        thing.close()
    assert {host for host in hosts if host not in ("127.0.0.1", "localhost")} <= {"", "image/svg+xml;utf8,", "image"}
    assert errors == []


def run(tab) -> None:
    """Press the button; the text that is there at the start has more letters than these models take."""
    tab.get_by_role("button", name="Run", exact=True).click()
    tab.locator("#picture img").wait_for()


def says(tab, message: str) -> None:
    """Wait for a message in place of an answer."""
    sync_api.expect(tab.get_by_label("Message")).to_have_value(re.compile(re.escape(message)), timeout=SECONDS)


def save(tab, name: str) -> None:
    """A screenshot, where the environment names a folder for them."""
    folder = os.environ.get("TOKENMIXERS_SCREENSHOTS")
    if folder:
        tab.wait_for_timeout(300)  # animations
        tab.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


@pytest.fixture
def picture_file(tmp_path):
    Image.linear_gradient("L").resize((40, 40)).save(tmp_path / "picture.png")
    return tmp_path / "picture.png"


def fill_in(tab, task: str, picture_file: Path) -> None:
    if task == "image-classification":
        tab.locator("input[type=file]").set_input_files(picture_file)
        tab.locator("img[src*='picture']").wait_for()
    elif task == "question-answering":
        tab.get_by_label("Question", exact=True).fill("what mixes")
        tab.get_by_label("Text with the answer").fill("the gate mixes tokens")
    else:
        tab.get_by_role("textbox").first.fill("the gate [MASK]" if task == "fill-mask" else "the gate")


FAMILIES = {
    "fill-mask": "GMLP",
    "text-classification": "MLPMixer",
    "token-classification": "GMLP",
    "question-answering": "AMLP",
    "text-generation": "GMLP",
    "text2text-generation": "Synthesizer",
    "image-classification": "MLPMixer",
}


@pytest.mark.parametrize("task", [task.name for task in TASK_NAMES])
def test_every_kind_of_checkpoint(task, demo_checkpoint, show, picture_file):
    checkpoint = demo_checkpoint(FAMILIES[task], task)
    tab = show(checkpoint)
    assert tab.title() == f"tiny-{task}: {demo_page.TASKS[task].title.lower()}"
    fill_in(tab, task, picture_file)
    run(tab)
    tab.locator("#answers, #text").first.wait_for()
    image = tab.locator("#picture img")
    assert image.evaluate("image => image.naturalWidth > 100 && image.complete")
    before = image.get_attribute("alt")
    assert "layer 1" in before
    layer = tab.get_by_label("number input for Layer")
    layer.fill("2")
    layer.press("Enter")
    tab.locator("#picture img[alt*='layer 2']").wait_for()
    save(tab, task)


def test_the_other_kinds_of_maps_and_heads(demo_checkpoint, show, picture_file):
    tab = show(demo_checkpoint("Synthesizer", "text2text-generation"))
    fill_in(tab, "text2text-generation", picture_file)
    run(tab)
    tab.get_by_label("What mixes tokens").click()
    tab.get_by_role("option", name="cross-attention").click()
    tab.locator("#picture img[alt*='cross-attention, layer 1, mean of 2 heads']").wait_for()
    head = tab.get_by_label("number input for Head")
    head.fill("2")
    head.press("Enter")
    tab.locator("#picture img[alt*='cross-attention, layer 1, head 2']").wait_for()
    assert tab.get_by_label("What mixes tokens").input_value() == "cross-attention" and head.input_value() == "2"
    save(tab, "cross-attention")


def test_patches_are_chosen_by_row_and_column(demo_checkpoint, show, picture_file):
    tab = show(demo_checkpoint("AMLP", "image-classification", classifier_pooling="cls"))
    fill_in(tab, "image-classification", picture_file)
    run(tab)
    row = tab.get_by_label("number input for Row of the patch")
    row.fill("2")
    row.press("Enter")
    tab.locator("#picture img[alt*='the patch in row 2, column 1']").wait_for()
    tab.get_by_label("The class token instead of a patch").check()
    tab.locator("#picture img[alt*='weights to the class token from 2 x 2 patches']").wait_for()


def focused(tab) -> str:
    """What has the focus, and that it can be seen."""
    return tab.evaluate("""() => {
        const element = document.activeElement, style = getComputedStyle(element);
        const seen = parseFloat(style.outlineWidth) >= 2 && style.outlineStyle !== "none" ? "" : " (no outline)";
        const label = element.getAttribute("aria-label") || element.labels?.[0]?.innerText || element.innerText;
        return `${element.tagName.toLowerCase()} ${(label || "no label").trim().split("\\n")[0]}${seen}`;
    }""")


def test_the_keyboard_is_enough(demo_checkpoint, show):
    tab = show(demo_checkpoint("AMLP", "fill-mask"))
    order = []
    for _ in range(2):
        tab.keyboard.press("Tab")
        order.append(focused(tab))
    assert order == ["textarea Text with a mask", "button Run"]
    tab.keyboard.press("Shift+Tab")
    tab.keyboard.press("Control+A")
    tab.keyboard.type("the [MASK]")
    tab.keyboard.press("Enter")
    tab.locator("#picture img[alt*='spatial weights, layer 1']").wait_for()
    assert "Fillings" in tab.locator("#answers").inner_text()
    seen = [focused(tab)]
    while "What mixes tokens" not in seen[-1]:  # past the button and the answers
        tab.keyboard.press("Tab")
        seen.append(focused(tab))
        assert len(seen) < 40, seen
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("Enter")
    tab.locator("#picture img[alt*='tiny attention, layer 1']").wait_for()
    for _ in range(3):  # the layer as a number, its reset, the layer as a slider
        tab.keyboard.press("Tab")
        seen.append(focused(tab))
    tab.keyboard.press("ArrowRight")
    tab.locator("#picture img[alt*='tiny attention, layer 2']").wait_for()
    save(tab, "keyboard")
    assert not [name for name in seen if "no outline" in name or "no label" in name], seen


def test_every_control_has_a_label(demo_checkpoint, show, picture_file):
    for task, family in (("image-classification", "AMLP"), ("text2text-generation", "Synthesizer")):
        tab = show(demo_checkpoint(family, task))
        fill_in(tab, task, picture_file)
        run(tab)
        unnamed = tab.evaluate("""() => [...document.querySelectorAll("input, textarea, select, button")]
            .filter(each => each.offsetParent !== null && !each.getAttribute("aria-label")
                && !each.labels?.[0]?.innerText.trim() && !each.innerText.trim() && !each.title)
            .map(each => each.outerHTML.slice(0, 200))""")
        assert unnamed == []
        assert [image for image in tab.locator("img").all() if image.get_attribute("alt") is None] == []


@pytest.mark.parametrize("task", ["fill-mask", "question-answering", "image-classification", "text2text-generation"])
def test_a_small_screen(task, demo_checkpoint, show, picture_file):
    tab = show(demo_checkpoint("Synthesizer", task), width=360, height=740)
    fill_in(tab, task, picture_file)
    run(tab)
    save(tab, f"small-{task}")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360
    cut = tab.evaluate("""() => [...document.querySelectorAll("input, textarea, button, table, img, label, h1, p")]
        .filter(each => each.offsetParent !== null && each.getBoundingClientRect().width > 1)
        .filter(each => { const box = each.getBoundingClientRect(); return box.right > 361 || box.left < -1; })
        .map(each => each.outerHTML.slice(0, 200))""")
    assert cut == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Text with a mask is empty: write something."),
        ("the gate", "The text has no mask: write [MASK] where a word is missing."),
        ("[MASK] " * 60, "tokens, and the model takes at most 24: shorten it."),
    ],
)
def test_inputs_that_do_not_fit_are_answered(text, message, demo_checkpoint, show):
    tab = show(demo_checkpoint("GMLP", "fill-mask"))
    run_first = tab.get_by_label("Text with a mask")
    run_first.fill("[MASK]")
    run(tab)
    run_first.fill(text)
    run_first.press("Enter")
    says(tab, message)
    save(tab, f"message-{message.split()[-2]}")
    assert tab.locator("#picture img").count() == 0 and not tab.locator("#answers").is_visible()
    run_first.fill("[MASK] gate")
    run(tab)
    assert tab.locator("#answers").is_visible() and not tab.get_by_label("Message").is_visible()


def test_a_missing_image_and_a_failing_model_are_said(demo_checkpoint, show, picture_file, monkeypatch, caplog):
    checkpoint = demo_checkpoint("GMLP", "image-classification")
    tab = show(checkpoint)
    tab.get_by_role("button", name="Run", exact=True).click()
    says(tab, "Image is empty: choose one.")
    fill_in(tab, "image-classification", picture_file)

    def fail(*args, **kwargs):
        raise RuntimeError("<b>out of memory</b>")

    monkeypatch.setattr(checkpoint.model, "forward", fail)
    tab.get_by_role("button", name="Run", exact=True).click()
    says(tab, "The model failed on this input: RuntimeError: <b>out of memory</b>")
    assert "out of memory" in caplog.text and "Traceback" in caplog.text


def test_the_written_app_runs(demo_checkpoint, show, tmp_path):
    """What the Hub would start, in a process of its own; the model is a folder of the name that it has on the Hub."""
    checkpoint = demo_checkpoint("GMLP", "fill-mask")
    checkpoint.model.save_pretrained(tmp_path / "me" / "model")
    checkpoint.processor.save_pretrained(tmp_path / "me" / "model")
    names = [path.name for path in (tmp_path / "me" / "model").iterdir()]
    for name, content in space_files(checkpoint.model.config, names, "me/model").items():
        (tmp_path / name).write_bytes(content)
    process = subprocess.Popen([sys.executable, "app.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True, bufsize=1)
    try:
        address = next(match[0] for line in process.stdout if (match := re.search(r"http://\S+", line)))
        tab = show.visit(address)
        tab.get_by_role("textbox").fill("the [MASK]")
        run(tab)
        assert tab.title() == "model: fill in missing words"
    finally:
        process.terminate()
        process.wait()
