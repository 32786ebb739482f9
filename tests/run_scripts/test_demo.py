import os
import subprocess
import sys

import pytest

from tokenmixers.run_scripts import demo
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.demos import page


@pytest.fixture
def without_gradio(monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)


@pytest.fixture
def any_gradio(monkeypatch):
    """What is under test here comes before Gradio is used, so the tests run without it too."""
    monkeypatch.setattr(demo, "import_gradio", lambda: None)


def refused(*arguments):
    with pytest.raises(UserError) as error:
        demo.main([*arguments])
    message = str(error.value)
    assert message.startswith("error: ") and "\n" not in message
    return message


def test_what_is_missing_is_named_before_the_model_is_loaded(without_gradio):
    message = refused("--model", "nowhere")
    assert "the demo needs gradio" in message and "'.[demo]'" in message


def test_wrong_calls(any_gradio, tmp_path):
    assert "there is no folder './nowhere'" in refused("--model", "./nowhere")
    (tmp_path / "config.json").write_text('{"model_type": "gmlp", "architectures": ["GMLPForMaskedLM"]}')
    assert "cannot be loaded" in refused("--model", str(tmp_path))
    assert "--port must be from 1 to 65535, got 70000" in refused("--model", "x", "--port", "70000")
    assert "required: --model" in refused()


def test_by_default_nobody_else_can_reach_it(any_gradio, monkeypatch):
    calls = []
    monkeypatch.setattr(demo, "load_checkpoint", lambda *arguments: calls.append(arguments) or Named())
    monkeypatch.setattr(demo, "launch", lambda checkpoint, *arguments: calls.append(arguments))
    demo.main(["--model", "mine"])
    assert calls == [("mine", False), ("127.0.0.1", None, False, False)]
    demo.main(
        ["--model", "mine", "--host", "0.0.0.0", "--port", "8000", "--share", "--inbrowser", "--trust_remote_code"]
    )
    assert calls[2:] == [("mine", True), ("0.0.0.0", 8000, True, True)]


class Named:
    name, task = "mine", "fill-mask"


def test_no_reports_on_usage(monkeypatch):
    pytest.importorskip("gradio")
    monkeypatch.delenv("GRADIO_ANALYTICS_ENABLED", raising=False)
    page.import_gradio()
    assert os.environ["GRADIO_ANALYTICS_ENABLED"] == "False"


@pytest.mark.slow
def test_a_model_that_fails_to_load_ends_the_process_with_one_sentence(tmp_path):
    pytest.importorskip("gradio")
    command = [sys.executable, "-m", "tokenmixers.run_scripts.demo", "--model", str(tmp_path)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 1 and process.stdout == ""
    assert process.stderr.startswith(f"error: '{tmp_path}' cannot be loaded") and process.stderr.count("\n") == 1
