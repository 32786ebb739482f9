import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import tokenmixers
from tokenmixers import GMLPConfig, GMLPForMaskedLM
from tokenmixers.run_scripts.push_to_hub import main
from tokenmixers.tokenization.tokenizer_training import train_unigram_tokenizer


STAND_IN = runpy.run_path(str(Path(__file__).with_name("hub_stand_in.py")))


@pytest.fixture
def hub():
    """`(state, address)` of a Hub on loopback."""
    state, server = STAND_IN["start"]()
    yield state, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture
def call(hub, tmp_path):
    """`call(code, token="good")`: run Python in a fresh process with a cold cache that knows this Hub alone."""

    def run(code: str, token: str | None = "good", fails: bool = False) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        environment |= {
            "HF_ENDPOINT": hub[1],
            "HF_HOME": str(tmp_path / f"cache-{len(list(tmp_path.glob('cache-*')))}"),
            "HF_HUB_DISABLE_XET": "1",
            "NO_PROXY": "127.0.0.1",
        }
        if token is not None:
            environment["HF_TOKEN"] = token
        process = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert (process.returncode != 0) == fails, process.stderr
        return process.stderr if fails else process.stdout

    return run


@pytest.fixture
def checkpoint(tiny_config, randomise, tmp_path):
    """A checkpoint as training leaves it."""
    folder = tmp_path / "trained"
    randomise(GMLPForMaskedLM(tiny_config())).save_pretrained(folder)
    (folder / "README.md").write_text(f'---\nlicense: apache-2.0\n---\n# Mine\nload("{folder}")\n')
    (folder / "training_args.bin").write_bytes(b"a pickle")
    (folder / "checkpoint-5").mkdir()
    (folder / "checkpoint-5" / "model.safetensors").write_bytes(b"an older one")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def push(*arguments: object) -> str:
    return f"from tokenmixers.run_scripts.push_to_hub import main\nmain({[str(a) for a in arguments]!r})"


# In a process without this package.
LOAD = """
import sys
sys.modules["tokenmixers"] = None
import torch
from transformers import AutoModelForMaskedLM
model = AutoModelForMaskedLM.from_pretrained("me/model", trust_remote_code=True, revision={revision!r}).eval()
with torch.no_grad():
    print(type(model).__module__.split(".")[0], model(torch.tensor([[3, 4, 5]])).logits.sum().item())
"""


def test_push_then_load_by_name_in_a_fresh_process(hub, call, checkpoint):
    before = contents(checkpoint)
    assert "pushed" in call(push("--source", checkpoint, "--repo_id", "me/model", "--private"))
    assert contents(checkpoint) == before
    state, _ = hub
    first = state.branches["me/model"]["main"]
    assert state.private == {"me/model"}
    assert {"config.json", "model.safetensors", "README.md", "modeling_gmlp.py"} <= set(state.commits[first])
    assert 'load("me/model")' in state.commits[first]["README.md"].decode()
    assert not {"training_args.bin", "checkpoint-5/model.safetensors"} & set(state.commits[first])

    tensors = load_file(checkpoint / "model.safetensors")
    with torch.no_grad():
        model = GMLPForMaskedLM.from_pretrained(checkpoint)
        old = model.eval()(torch.tensor([[3, 4, 5]])).logits.sum().item()
        model.model.norm.weight.mul_(2)
        new = model(torch.tensor([[3, 4, 5]])).logits.sum().item()
    model.save_pretrained(checkpoint)
    assert not torch.equal(
        load_file(checkpoint / "model.safetensors")["model.norm.weight"], tensors["model.norm.weight"]
    )
    call(push("--source", checkpoint, "--repo_id", "me/model", "--update", "--branch", "better"))

    for revision, expected in ((first, old), ("main", old), ("better", new)):
        package, value = call(LOAD.format(revision=revision)).split()
        assert package == "transformers_modules" and float(value) == pytest.approx(expected, rel=1e-4)
    assert "pushed" in call(push("--source", checkpoint, "--repo_id", "me/model", "--update", "--create_pr"))
    assert state.branches["me/model"]["main"] == first
    assert "refs/pr/1" in state.branches["me/model"]


def test_the_models_own_push_is_complete(hub, call, checkpoint):
    code = f"from tokenmixers import GMLPForMaskedLM; GMLPForMaskedLM.from_pretrained({str(checkpoint)!r})"
    call(f"{code}.push_to_hub('me/model')")
    call(f"{code}.save_pretrained('elsewhere', push_to_hub=True)")
    state, _ = hub
    for repo in ("me/model", "me/elsewhere"):
        files = state.commits[state.branches[repo]["main"]]
        assert {"config.json", "model.safetensors", "modeling_gmlp.py", "self_contained.py"} <= set(files)
        assert "AutoModelForTokenClassification" in json.loads(files["config.json"])["auto_map"]
    assert call(LOAD.format(revision="main")).startswith("transformers_modules")


TRAIN = """
import torch
import tokenmixers
from tokenmixers import GMLPConfig, GMLPForMaskedLM
from transformers import Trainer, TrainingArguments
model = GMLPForMaskedLM.from_pretrained({checkpoint!r})
row = {{"input_ids": torch.tensor([3, 4, 5]), "labels": torch.tensor([3, -100, 5])}}
args = TrainingArguments(
    "output", push_to_hub=True, hub_model_id="me/model", hub_strategy={strategy!r}, hub_always_push=True, save_steps=1,
    max_steps=2, use_cpu=True,
)
trainer = Trainer(model, args, train_dataset=[row] * 4)
trainer.train()
trainer.push_to_hub()
"""


@pytest.mark.parametrize("strategy", ["every_save", "end"])
def test_what_a_trainer_pushes_is_complete(strategy, hub, call, checkpoint):
    call(TRAIN.format(checkpoint=str(checkpoint), strategy=strategy))
    state, _ = hub
    loadable = [commit for commit, files in state.commits.items() if "model.safetensors" in files]
    assert len(loadable) >= (3 if strategy == "every_save" else 1)
    for commit in {loadable[0], loadable[-1]}:
        assert call(LOAD.format(revision=commit)).startswith("transformers_modules")


def test_a_script_pushes_its_card(hub, call, tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(["the gate mixes tokens and channels"] * 40))
    arguments = {
        "train_file": "text.txt",
        "config_name": "gmlp-base",
        "config_overrides": "hidden_size=16,intermediate_size=32,num_hidden_layers=1,max_position_embeddings=16",
        "train_tokenizer": 30,
        "output_dir": "output",
        "do_train": True,
        "do_eval": True,
        "max_steps": 2,
        "use_cpu": True,
        "push_to_hub": True,
        "hub_model_id": "me/model",
    }
    line = [part for name, value in arguments.items() for part in (f"--{name}", str(value))]
    call(f"from tokenmixers.run_scripts.run_mlm import main; main({line})")
    state, _ = hub
    files = state.commits[state.branches["me/model"]["main"]]
    card = files["README.md"].decode()
    assert 'model="me/model", trust_remote_code=True' in card
    assert "perplexity" in card
    snippet = card.split("```python\n")[1].split("```")[0]
    assert call("import sys; sys.modules['tokenmixers'] = None\n" + snippet).strip()


def test_the_code_of_the_readme_runs_without_the_package(hub, call, corpus, tmp_path):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("transformers.exporters.runners")
    tokenizer = train_unigram_tokenizer((corpus / "train.txt").read_text().splitlines(), 60, 32)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "max_position_embeddings": 32}
    GMLPForMaskedLM(GMLPConfig(**sizes, vocab_size=len(tokenizer))).save_pretrained(tmp_path / "my-gmlp")
    tokenizer.save_pretrained(tmp_path / "my-gmlp")
    call(push("--source", tmp_path / "my-gmlp", "--repo_id", "me/my-gmlp"))
    text = (Path(tokenmixers.__file__).parent / "README.md").read_text()
    sections = text.split("## Load, finetune and push without this package")[1].split("## Answer questions")[0]
    code = "\n".join(re.findall(r"```python\n(.+?)```", sections, flags=re.DOTALL))
    assert "push_to_hub()" in code and "OnnxConfig" in code
    printed = call("import sys; sys.modules['tokenmixers'] = None\n" + code)
    assert "LABEL_1" in printed
    assert {"me/my-gmlp", "me/my-reviews"} == set(hub[0].branches)


def test_what_goes_wrong_is_said_in_a_sentence(hub, call, checkpoint):
    before = contents(checkpoint)
    arguments = ("--source", checkpoint, "--repo_id", "me/model")
    assert "there is no Hub token" in call(push(*arguments), token=None, fails=True)
    for token, status in (("bad", 401), ("reader", 403)):
        message = call(push(*arguments), token=token, fails=True)
        assert f"refused the token for 'me/model' (status {status})" in message and "Traceback" not in message
    state, _ = hub
    assert not state.branches
    state.drop_uploads = True
    at_once = "import time; time.sleep = lambda seconds: None\n"  # no waiting between the client's attempts
    message = call(at_once + push(*arguments), fails=True)
    assert "connection to the Hub was lost" in message and "Traceback" not in message
    assert list(state.commits[state.branches["me/model"]["main"]]) == [".gitattributes"]
    state.drop_uploads = False
    message = call(push(*arguments), fails=True)
    assert "'me/model' exists: give --update" in message and "Traceback" not in message
    call(push(*arguments, "--update"))
    assert "model.safetensors" in state.commits[state.branches["me/model"]["main"]]
    assert contents(checkpoint) == before


def test_dry_run_lists_and_sends_nothing(checkpoint, capsys):
    main(["--source", str(checkpoint), "--repo_id", "me/model", "--dry_run"])
    printed = capsys.readouterr().out
    assert "nothing was sent" in printed and "training_args.bin" not in printed
    size = (checkpoint / "model.safetensors").stat().st_size
    assert f"{size:,} bytes  model.safetensors" in printed


def test_a_shipped_card(capsys):
    main(["--source", "amlp-base", "--repo_id", "me/amlp-base", "--dry_run"])
    printed = capsys.readouterr().out
    for name in ("README.md", "config.json", "modeling_amlp.py", "modeling_gmlp.py"):
        assert f"  {name}\n" in printed


def test_unknown_sources(tmp_path):
    with pytest.raises(SystemExit, match="Shipped model cards: amlp-base"):
        main(["--source", "nothing", "--repo_id", "me/model"])
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(SystemExit, match="type 'bert'"):
        main(["--source", str(tmp_path), "--repo_id", "me/model"])
