"""Exports in Node and in Chromium, by Transformers.js: they give PyTorch's embeddings, and the Space's page searches.

They skip without node, chromium and a `node_modules` with @huggingface/transformers (`npm i --ignore-scripts`) in the
checkout or in TOKENMIXERS_NODE_MODULES.
"""

import functools
import gzip
import http.server
import json
import os
import re
import shutil
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

import tokenmixers
from tokenmixers.run_scripts import export, push_to_hub
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.demos.static_space import static_space_files
from tokenmixers.tokenization.tokenizer_training import train_unigram_tokenizer


NODE_MODULES = Path(os.environ.get("TOKENMIXERS_NODE_MODULES", Path(__file__).parents[3] / "node_modules"))
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
javascript = pytest.mark.skipif(
    not (NODE_MODULES / "@huggingface" / "transformers").is_dir(), reason="needs @huggingface/transformers from npm"
)
TEXTS = [
    "The cat sleeps on the warm roof.",
    "Rain falls on the quiet town all day.",
    "A train leaves the station at noon.",
    "Fresh bread smells of butter and salt, and of the early morning in which nobody else is awake.",
    "Snow.",
]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A folder with the export `out` of a sentence transformer, and its embeddings of the texts in PyTorch."""
    for package in ("onnxruntime", "onnxscript", "sentence_transformers"):
        pytest.importorskip(package)
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer

    folder = tmp_path_factory.mktemp("javascript")
    tokenizer = train_unigram_tokenizer(TEXTS, 60, 96, show_progress=False)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "max_position_embeddings": 96}
    torch.manual_seed(0)
    model = tokenmixers.GMLPModel(tokenmixers.GMLPConfig(vocab_size=len(tokenizer), **sizes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.2)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    modules = [Transformer(str(folder / "model")), Pooling(32, pooling_mode="mean"), Normalize()]
    sentences = SentenceTransformer(modules=modules, device="cpu")
    sentences.save_pretrained(str(folder / "sentences"))
    (folder / "sentences" / "NOTICE").write_text("Made by others.")
    export.main(["--model", str(folder / "sentences"), "--output_dir", str(folder / "out")])
    return folder, sentences.encode(TEXTS)


@pytest.mark.slow
@javascript
@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_blocks_of_the_guide_give_one_set_of_embeddings(exported, tmp_path):
    guide = (Path(tokenmixers.__file__).parent / "run_scripts" / "guides" / "serving.md").read_text(encoding="utf-8")
    blocks, found = re.findall(r"```javascript\n(.+?)```", guide, flags=re.DOTALL), []
    (tmp_path / "node_modules").symlink_to(NODE_MODULES)
    (tmp_path / "outputs").mkdir()
    (tmp_path / "outputs" / "embeddings-onnx").symlink_to(exported[0] / "out")
    for number, block in enumerate(blocks):
        code, shown = re.subn(r"console\.log\((.+)\);", r"console.log(JSON.stringify(\1));", block)
        assert shown == 1
        (tmp_path / f"{number}.mjs").write_text(code)
        call = ["node", f"{number}.mjs"]
        finished = subprocess.run(call, cwd=tmp_path, capture_output=True, check=True, timeout=300, text=True)
        found.append(np.array(json.loads(finished.stdout.splitlines()[-1])))
    graph, pipe = found
    assert graph.shape == (2, 32) and np.abs(graph - pipe).max() < 1e-3
    assert np.linalg.norm(pipe, axis=1) == pytest.approx(np.ones(2), abs=1e-3)


@pytest.fixture
def space(exported, tmp_path):
    """The files of the Space in a folder, and what a dry run prints."""
    folder, _ = exported
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS))
    arguments = ["--source", str(folder / "out"), "--repo_id", "me/my-search", "--space", "static"]
    arguments += ["--space_texts", str(tmp_path / "texts.txt")]
    files = push_to_hub.collect_space(push_to_hub.parse_arguments((push_to_hub.PushArguments,), arguments)[0])
    for name, content in files.items():
        target = tmp_path / "space" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.read_bytes())
    return tmp_path / "space", arguments


@pytest.mark.slow
def test_the_space_has_all_that_its_page_loads(space, capsys):
    folder, arguments = space
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} == {
        *("README.md", "index.html", "settings.json", "texts.txt", "model/config.json", "model/tokenizer.json"),
        *("model/tokenizer_config.json", "model/onnx/model_quantized.onnx", "model/NOTICE"),
    }
    head = yaml.safe_load((folder / "README.md").read_text(encoding="utf-8").split("---")[1])
    assert (head["sdk"], head["title"]) == ("static", "my-search")
    assert (folder / "texts.txt").read_text().splitlines() == TEXTS
    push_to_hub.main([*arguments, "--dry_run"])
    assert "9 files would go to the Space me/my-search; nothing was sent" in capsys.readouterr().out


#: What a visitor does, and what he sees, sent to the test.
VISIT = """
<script type="module">
  const wait = (found) => new Promise((done) => {
    const timer = setInterval(() => { const value = found(); if (value) { clearInterval(timer); done(value); } }, 50);
  });
  const get = (id) => document.getElementById(id);
  const send = (answer) => fetch("/answer", { method: "POST", body: JSON.stringify(answer) });
  addEventListener("error", (event) => send({ error: event.message }));
  await wait(() => !get("query").disabled || get("status").textContent.startsWith("Error"));
  if (get("query").disabled) await send({ error: get("status").textContent });
  get("query").value = QUERY;
  get("query").dispatchEvent(new Event("change"));
  const items = await wait(() => get("results").children.length && [...get("results").children]);
  const found = items.map((item) => item.textContent);
  await send({ status: get("status").textContent, title: document.title, found });
</script>
"""


class Handler(http.server.SimpleHTTPRequestHandler):
    """The Space's folder, the JavaScript packages beside it, and the visitor's answer."""

    def log_message(self, *_):
        """Nothing."""

    def translate_path(self, path: str) -> str:
        name = path.partition("?")[0]
        if name.startswith("/packages/"):
            return str(NODE_MODULES / name.removeprefix("/packages/"))
        return super().translate_path(path)

    def do_POST(self):
        self.server.answer = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()
        self.server.answered.set()


@pytest.mark.slow
@javascript
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
@pytest.mark.parametrize("dtype", ["q8", "fp32"])
def test_the_page_searches_in_chromium_without_a_server(dtype, space, exported, tmp_path):
    folder, _ = space
    settings = json.loads((folder / "settings.json").read_text())
    assert settings["dtype"] == "q8"
    settings |= {"dtype": dtype, "wasm": "/packages/onnxruntime-web/dist/"}
    (folder / "settings.json").write_text(json.dumps(settings))
    shutil.copy(exported[0] / "out" / "onnx" / "model.onnx", folder / "model" / "onnx")
    page, count = re.subn(
        r"https://\S+/(?=@huggingface/)(\S+)@[\d.]+/", r"/packages/\1/", (folder / "index.html").read_text()
    )
    assert count == 1
    query = "Rain falls on the town."
    (folder / "index.html").write_text(page.replace("</body>", VISIT.replace("QUERY", json.dumps(query)) + "</body>"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
    server.answered = threading.Event()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
    flags += [
        "--disable-background-networking",
        "--disable-component-update",
        f"--user-data-dir={tmp_path / 'profile'}",
    ]
    browser = subprocess.Popen(
        [CHROMIUM, *flags, f"http://127.0.0.1:{server.server_port}/index.html"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert server.answered.wait(240)
    finally:
        browser.terminate()
        browser.wait()
        server.shutdown()
        server.server_close()
    answer = server.answer
    assert "error" not in answer
    assert (answer["status"], answer["title"]) == ("5 texts", "my-search")
    # PyTorch's cosines with the query, as the page shows them.
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(exported[0] / "sentences"), device="cpu")
    cosines = exported[1] @ model.encode([query])[0]
    found = {
        text: float(score) for score, text in (re.match(r"(-?\d\.\d{3})(.+)", row).groups() for row in answer["found"])
    }
    tolerance = 1e-3 if dtype == "fp32" else 0.1
    assert found == pytest.approx(dict(zip(TEXTS, cosines.tolist(), strict=True)), abs=tolerance)
    assert list(found.values()) == sorted(found.values(), reverse=True)


@pytest.mark.parametrize(("name", "prompt"), [("query", "query: "), (None, "")])
def test_the_page_puts_the_default_prompt_before_every_text(name, prompt, tmp_path):
    (tmp_path / "onnx").mkdir()
    for file in ("modules.json", "config.json", "tokenizer.json", "tokenizer_config.json", "onnx/model.onnx"):
        (tmp_path / file).write_text("{}")
    settings = {"prompts": {"query": "query: "}, "default_prompt_name": name}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(settings))
    (tmp_path / "texts.txt").write_text("one\ntwo\n")
    files = static_space_files(tmp_path, "source", "me/search", str(tmp_path / "texts.txt"), {})
    assert json.loads(files["settings.json"])["prompt"] == prompt
    page = files["index.html"].read_text(encoding="utf-8")
    assert 'prompt = settings.prompt ?? ""' in page and ".map((text) => prompt + text)" in page


def test_what_a_static_space_needs(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "texts.txt").write_text("one\ntwo\n")
    arguments = ["--source", str(tmp_path), "--repo_id", "me/my-search", "--dry_run"]
    texts = ["--space_texts", str(tmp_path / "texts.txt")]

    def refused(*more: str) -> str:
        with pytest.raises(UserError) as error:
            push_to_hub.main([*arguments, *more])
        return str(error.value)

    assert "is no exported sentence transformer" in refused("--space", "static", *texts)
    assert "--space static and --space_texts go together" in refused("--space", "static")
    assert "--space static and --space_texts go together" in refused(*texts)
    (tmp_path / "modules.json").write_text("[]")
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "model.onnx").write_bytes(b"")
    (tmp_path / "texts.txt").write_text("\n \n")
    assert "has no texts: write one on each line" in refused("--space", "static", *texts)
    assert "nope" in refused("--space", "static", "--space_texts", str(tmp_path / "nope.txt"))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("texts.txt", "one\rtwo\n\nthree\n"),
        ("texts.csv", 'label,text\n0,"one\ntwo"\n1,three\n'),
        ("texts.jsonl", '{"text": "one two"}\n{"text": "three"}\n'),
        ("texts.txt.gz", "one two\nthree\n"),
    ],
)
def test_texts_are_read_as_by_all_commands(name, content, tmp_path):
    for file in ("onnx/model.onnx", "modules.json", "config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("{}")
    data = content.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    files = static_space_files(tmp_path, "source", "me/search", str(tmp_path / name), {})
    assert files["texts.txt"] == b"one two\nthree\n"


def test_weights_of_openvino_are_pushed(tmp_path):
    for name in ("openvino_model.bin", "openvino_model.xml", "pytorch_model.bin"):
        (tmp_path / name).write_bytes(b"0")
    names, left = push_to_hub.select_files(tmp_path)
    assert names == ["openvino_model.bin", "openvino_model.xml"]
    assert list(left) == ["pytorch_model.bin"]


def test_a_space_is_pushed_and_overwrites_nothing(hub, online, tmp_path, capsys):
    for name in ("onnx/model.onnx", "modules.json", "config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "out" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out" / name).write_text("{}")
    (tmp_path / "out" / "README.md").write_text("---\nlicense: mit\n---\n# Mine\n")
    (tmp_path / "texts.txt").write_text("one\ntwo\n")
    arguments = ["--source", str(tmp_path / "out"), "--repo_id", "me/my-search", "--space", "static"]
    arguments += ["--space_texts", str(tmp_path / "texts.txt")]
    push_to_hub.main(arguments)
    state, address = hub
    assert f"pushed: {address}/spaces/me/my-search/commit/" in capsys.readouterr().out
    files = state.commits[state.branches["spaces/me/my-search"]["main"]]
    assert {"index.html", "model/onnx/model.onnx", "README.md"} <= set(files)
    assert yaml.safe_load(files["README.md"].decode().split("---")[1])["license"] == "mit"
    with pytest.raises(UserError, match="'me/my-search' exists: give --update"):
        push_to_hub.main(arguments)
