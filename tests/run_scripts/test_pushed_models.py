"""What models, Trainers and commands push: complete, and usable in a process without this package."""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, load_file
from transformers import AutoConfig, Trainer, TrainingArguments

import tokenmixers
from tokenmixers import GMLPConfig, GMLPForMaskedLM
from tokenmixers.run_scripts import run_mlm
from tokenmixers.run_scripts.push_to_hub import main
from tokenmixers.run_scripts.training.trainer import ScriptTrainer
from tokenmixers.tokenization.tokenizer_training import train_unigram_tokenizer


CODE = {"configuration_gmlp.py", "modeling_gmlp.py"}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def push(*arguments: object) -> None:
    main([str(argument) for argument in arguments])


# Prints a number for each of several folders.
LOAD = """
import json, sys
import torch
from transformers import AutoModelForMaskedLM
sums = []
for folder in sys.argv[1:]:
    model = AutoModelForMaskedLM.from_pretrained(folder, trust_remote_code=True).eval()
    assert type(model).__module__.startswith("transformers_modules")
    with torch.no_grad():
        sums.append(model(torch.tensor([[3, 4, 5]])).logits.sum().item())
print(json.dumps(sums))
"""


def test_what_is_pushed_is_loaded_without_the_package(hub, online, alone, checkpoint, tmp_path, capsys):
    before = contents(checkpoint)
    push("--source", checkpoint, "--repo_id", "me/model", "--private")
    assert f"pushed: {hub[1]}/me/model/commit/" in capsys.readouterr().out
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
    push("--source", checkpoint, "--repo_id", "me/model", "--update")
    pulled = {tmp_path / "pulled" / name: name for name in (first, state.branches["me/model"]["main"])}
    for folder, commit in pulled.items():
        folder.mkdir(parents=True)
        for name, content in state.commits[commit].items():
            (folder / name).write_bytes(content)
    assert json.loads(alone(LOAD, [*pulled])) == pytest.approx([old, new], rel=1e-4)

    push("--source", checkpoint, "--repo_id", "short")  # the Hub adds the user's name
    assert "model.safetensors" in state.commits[state.branches["me/short"]["main"]]


@pytest.fixture
def own_push(hub, online, checkpoint):
    """A model that has pushed itself, as `me/model`."""
    model = GMLPForMaskedLM.from_pretrained(checkpoint).eval()
    model.push_to_hub("me/model")
    return model


def test_the_models_own_push_is_complete(hub, own_push):
    own_push.save_pretrained("elsewhere", push_to_hub=True)
    state, _ = hub
    for repo in ("me/model", "me/elsewhere"):
        files = state.commits[state.branches[repo]["main"]]
        assert {"config.json", "model.safetensors", "configuration_gmlp.py", "modeling_gmlp.py"} <= set(files)
        assert "AutoModelForTokenClassification" in json.loads(files["config.json"])["auto_map"]


def test_a_configuration_from_the_hub_is_saved_and_pushed_with_its_code(hub, online, own_push, tmp_path):
    config = AutoConfig.from_pretrained("me/model", trust_remote_code=True)
    config.save_pretrained(tmp_path / "config", push_to_hub=True, repo_id="me/config")
    assert {path.name for path in (tmp_path / "config").iterdir()} == {"config.json"} | CODE
    assert {"config.json"} | CODE <= set(hub[0].commits[hub[0].branches["me/config"]["main"]])


def train_and_push(checkpoint: Path, strategy: str, trainer_class: type[Trainer] = ScriptTrainer) -> None:
    options = {"hub_strategy": strategy, "hub_model_id": f"me/{strategy}", "hub_always_push": True}
    args = TrainingArguments(strategy, push_to_hub=True, save_steps=1, max_steps=2, use_cpu=True, **options)
    row = {"input_ids": torch.tensor([3, 4, 5]), "labels": torch.tensor([3, -100, 5])}
    trainer = trainer_class(GMLPForMaskedLM.from_pretrained(checkpoint), args, train_dataset=[row] * 4)
    trainer.train()
    trainer.push_to_hub()


def test_every_commit_of_a_trainer_with_weights_has_their_code(hub, online, checkpoint):
    train_and_push(checkpoint, "every_save")
    with_weights = [files for files in hub[0].commits.values() if "model.safetensors" in files]
    assert len(with_weights) >= 3
    assert all({"config.json"} | CODE <= set(files) for files in with_weights)


def test_the_last_commit_of_transformers_trainer_has_the_code(hub, online, checkpoint):
    train_and_push(checkpoint, "every_save", Trainer)
    assert {"model.safetensors"} | CODE <= set(hub[0].commits[hub[0].branches["me/every_save"]["main"]])


def test_a_script_pushes_its_model_and_card_and_no_logs_or_predictions(hub, online, command, monkeypatch):
    """With a checkpoint and at the end; weights in float32, also after an evaluation in half precision."""

    def write(trainer):
        Path("output/sub").mkdir(parents=True, exist_ok=True)
        Path("output/run.log").write_text("a log")
        Path("output/sub/run.log").write_text("a log")
        Path("output/predictions_test.csv").write_text("a text")

    monkeypatch.setattr(ScriptTrainer, "check_card", write)
    options = {"output_dir": "output", "push_to_hub": True, "hub_model_id": "me/model", "bf16_full_eval": True}
    options |= {"save_strategy": "steps", "save_steps": 1, "max_steps": 2, "hub_strategy": "every_save"}
    run_mlm.main(command(**options))
    state, _ = hub
    last = state.commits[state.branches["me/model"]["main"]]
    assert {tensor.dtype for tensor in load(last["model.safetensors"]).values()} == {torch.float32}
    card = last["README.md"].decode()
    assert 'model="me/model", trust_remote_code=True' in card and "perplexity" in card
    names = {name for files in state.commits.values() for name in files}
    assert not [name for name in names if name.endswith(".log") or "predictions" in name]


WITHOUT_THE_PACKAGE = """
import sys
sys.modules["tokenmixers"] = None
{code}
"""


@pytest.fixture
def guide_code(online, corpus, tmp_path):
    """`guide_code(page, word)`: the Python block of a guide with this word; the Hub has what it loads."""
    tokenizer = train_unigram_tokenizer((corpus / "train.txt").read_text().splitlines(), 60, 32)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "max_position_embeddings": 32}
    GMLPForMaskedLM(GMLPConfig(**sizes, vocab_size=len(tokenizer))).save_pretrained(tmp_path / "my-gmlp")
    tokenizer.save_pretrained(tmp_path / "my-gmlp")
    push("--source", tmp_path / "my-gmlp", "--repo_id", "me/my-gmlp")

    def of(page: str, word: str) -> str:
        text = (Path(tokenmixers.__file__).parent / page).read_text(encoding="utf-8")
        (code,) = (code for code in re.findall(r"```python\n(.+?)```", text, flags=re.DOTALL) if word in code)
        return code

    return of


@pytest.mark.slow
def test_the_code_of_the_guide_runs_without_the_package(hub, call, guide_code):
    code = guide_code("run_scripts/README.md", "push_to_hub()")
    assert "LABEL_1" in call(WITHOUT_THE_PACKAGE.format(code=code))
    assert {"me/my-gmlp", "me/my-reviews"} == set(hub[0].branches)


@pytest.fixture
def shipped_snippet(hub, online):
    """`shipped_snippet(name)`: a shipped card on the Hub, and the Python in it."""

    def push_card(name: str) -> tuple[str, str]:
        push("--source", name, "--repo_id", f"me/my-{name}")
        state, _ = hub
        card = state.commits[state.branches[f"me/my-{name}"]["main"]]["README.md"].decode()
        return card, "\n".join(re.findall(r"```python\n(.+?)```", card, flags=re.DOTALL))

    return push_card


SHIPPED = pytest.mark.parametrize("name", ["gmlp-s16-224", "amlp-base", "mlp-mixer-table3", "synthesizer-dense"])


@SHIPPED
def test_the_snippet_of_a_shipped_card_names_its_repository(name, shipped_snippet):
    _, code = shipped_snippet(name)
    assert "model_cards" not in code and f'"me/my-{name}", trust_remote_code=True' in code
