import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, load_file, save_file
from transformers import AutoConfig, Trainer, TrainingArguments

import tokenmixers
from tokenmixers import GMLPConfig, GMLPForMaskedLM
from tokenmixers.run_scripts import run_mlm
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.push_to_hub import collect_files, main
from tokenmixers.run_scripts.training.trainer import ScriptTrainer
from tokenmixers.tokenization.tokenizer_training import train_unigram_tokenizer


CODE = {"configuration_gmlp.py", "modeling_gmlp.py"}


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


def push(*arguments: object) -> None:
    main([str(argument) for argument in arguments])


# Fresh processes import torch and Transformers again, in five seconds or more: of them, the fast tests start one.
# In a process without this package; prints a number for each of `(repository, revision)`.
LOAD = """
import json, sys
sys.modules["tokenmixers"] = None
import torch
from transformers import AutoModelForMaskedLM
sums = []
for repo, revision in {places!r}:
    model = AutoModelForMaskedLM.from_pretrained(repo, trust_remote_code=True, revision=revision).eval()
    assert type(model).__module__.startswith("transformers_modules")
    with torch.no_grad():
        sums.append(model(torch.tensor([[3, 4, 5]])).logits.sum().item())
print(json.dumps(sums))
"""


def test_push_then_load_by_name_in_a_fresh_process(hub, online, call, checkpoint, capsys):
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
    push("--source", checkpoint, "--repo_id", "me/model", "--update", "--branch", "better")
    places = [("me/model", revision) for revision in (first, "main", "better")]
    assert json.loads(call(LOAD.format(places=places))) == pytest.approx([old, old, new], rel=1e-4)

    push("--source", checkpoint, "--repo_id", "me/model", "--update", "--create_pr")
    assert state.branches["me/model"]["main"] == first
    assert "refs/pr/1" in state.branches["me/model"]
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


@pytest.mark.slow
def test_what_a_trainer_pushes_is_complete(hub, online, call, checkpoint):
    state, _ = hub
    places = []
    for strategy in ("every_save", "end", "checkpoint", "all_checkpoints"):
        train_and_push(checkpoint, strategy)
        known = {commit for _, commit in places}
        loadable = [
            name for name, files in state.commits.items() if "model.safetensors" in files and name not in known
        ]
        assert len(loadable) >= (3 if strategy == "every_save" else 1)
        places += [(f"me/{strategy}", commit) for commit in loadable]
        places.append((f"{strategy}/checkpoint-2", "main"))  # the local folder
    assert len(json.loads(call(LOAD.format(places=places)))) == len(places)


def test_an_evaluation_in_half_precision_does_not_change_what_is_pushed(hub, online, command):
    run_mlm.main(command(output_dir="output", push_to_hub=True, hub_model_id="me/model", bf16_full_eval=True))
    state, _ = hub
    pushed = load(state.commits[state.branches["me/model"]["main"]]["model.safetensors"])
    assert {tensor.dtype for tensor in pushed.values()} == {torch.float32}


def test_logs_in_the_output_folder_are_not_pushed(hub, online, command, monkeypatch):
    """Neither with a checkpoint during training nor at the end."""

    def write(trainer):
        Path("output/sub").mkdir(parents=True, exist_ok=True)
        Path("output/run.log").write_text("a log")
        Path("output/sub/run.log").write_text("a log")

    monkeypatch.setattr(ScriptTrainer, "check_card", write)
    saving = {"save_strategy": "steps", "save_steps": 1, "max_steps": 2, "hub_strategy": "every_save"}
    run_mlm.main(command(output_dir="output", push_to_hub=True, hub_model_id="me/model", **saving))
    state, _ = hub
    files = {name for files in state.commits.values() for name in files}
    assert "model.safetensors" in files
    assert not [name for name in files if name.endswith(".log")]


@pytest.fixture
def pushed_card(hub, online, command):
    """The card that a script has pushed with its model."""
    options = {"output_dir": "output", "push_to_hub": True, "hub_model_id": "me/model"}
    run_mlm.main([*command(**options), "--language", "en", "--license", "mit"])
    state, _ = hub
    return state.commits[state.branches["me/model"]["main"]]["README.md"].decode()


def test_a_script_pushes_its_card(pushed_card):
    assert 'model="me/model", trust_remote_code=True' in pushed_card
    assert "perplexity" in pushed_card


@pytest.mark.slow
def test_the_snippet_of_a_pushed_card_runs_without_the_package(pushed_card, call):
    snippet = pushed_card.split("```python\n")[1].split("```")[0]
    assert call("import sys; sys.modules['tokenmixers'] = None\n" + snippet).strip()


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


#: Transformers' own exporter, for a checkpoint whose code comes from the repository.
EXPORT = """
from transformers.exporters.auto import AutoHfExporter
from transformers.exporters.configs import OnnxConfig

inputs = tokenizer(["The first text.", "The second one."], padding=True, return_tensors="pt")
config = OnnxConfig(dynamic=True)
exported = AutoHfExporter.from_config(config).export(model, dict(inputs), config=config)
exported.save_pretrained("outputs/sst2-onnx")
print(type(exported).from_pretrained("outputs/sst2-onnx", trust_remote_code=True)(**inputs)["logits"])
"""


@pytest.mark.slow
def test_transformers_exports_without_the_package(call, guide_code):
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    load = "".join(
        line + "\n"
        for line in guide_code("run_scripts/README.md", "push_to_hub()").splitlines()
        if re.match(r"from transformers|tokenizer = |model = ", line)
    )
    assert call(WITHOUT_THE_PACKAGE.format(code=load + EXPORT)).strip()


OWN_NAMES = ["outputs/run/gmlp", "/somewhere/gmlp/", "outputs\\\\gmlp", "gmlp", "me/gmlp", ".", "outputs/moved"]


@pytest.mark.parametrize("name", OWN_NAMES)
def test_the_card_of_a_moved_folder_names_the_repository(name, checkpoint, tmp_path, monkeypatch):
    code = 'pipeline("fill-mask", model={0})\nAutoModel.from_pretrained(\n    {0}, dtype="auto")\n'
    folder = checkpoint.rename(tmp_path / "moved")
    monkeypatch.chdir(folder)
    head = "---\nlicense: mit\nbase_model: timm/gmlp\n---\n# gmlp\n\n```python\n"
    for quoted in (f'"{name}"', f"'{name}'"):
        (folder / "README.md").write_text(head + code.format(quoted) + "```\n")
        for source in (".", str(folder)):
            card = collect_files(source, "you/mine")["README.md"].decode()
            assert card == head + code.format('"you/mine"') + "```\n"


def test_the_code_of_a_card_keeps_the_names_of_other_models(checkpoint):
    code = 'AutoModel.from_pretrained("timm/gmlp")\nload(model="outputs/teacher")\nprint("gmlp")\n'
    card = f'---\nbase_model: timm/gmlp\n---\n# gmlp\n\nIn a text model="x/gmlp" stays.\n\n```python\n{code}```\n'
    (checkpoint / "README.md").write_text(card)
    assert collect_files(str(checkpoint), "you/mine")["README.md"].decode() == card


def refused(*arguments: object) -> str:
    with pytest.raises(UserError) as error:
        push(*arguments)
    message = str(error.value)
    assert message.startswith("error: ") and "\n" not in message
    return message


def test_what_goes_wrong_is_said_in_a_sentence(hub, online, checkpoint):
    state, _ = hub
    before = contents(checkpoint)
    arguments = ("--source", checkpoint, "--repo_id", "me/model")
    online(None)
    assert re.search("there is no Hub token .*, or give --token", refused(*arguments))
    online("bad")
    assert "refused the token for 'me/model' (status 401)" in refused(*arguments)
    online("fine")
    assert "refused the token for 'me/model' (status 403)" in refused(*arguments)
    online("reader")
    assert "the Hub token of 'me' can only read" in refused(*arguments)
    assert not state.branches
    online("good")
    state.drop_uploads = True
    message = refused(*arguments)
    assert "connection to the Hub was lost" in message
    assert "run the same command with --update" in message and "Nothing changed in the local folder" in message
    assert list(state.commits[state.branches["me/model"]["main"]]) == [".gitattributes"]
    state.drop_uploads = False
    assert "'me/model' exists: give --update" in refused(*arguments)
    push(*arguments, "--update")
    assert "model.safetensors" in state.commits[state.branches["me/model"]["main"]]
    assert contents(checkpoint) == before


def test_what_shall_be_private_is_not_pushed_in_public(hub, online, checkpoint):
    state, _ = hub
    arguments = ("--source", checkpoint, "--repo_id", "me/model")
    push(*arguments)
    first = dict(state.branches["me/model"])
    assert "'me/model' is public" in refused(*arguments, "--private", "--update")
    assert state.branches["me/model"] == first
    push("--source", checkpoint, "--repo_id", "me/other", "--private", "--update")  # is made
    push("--source", checkpoint, "--repo_id", "me/other", "--private", "--update")
    assert state.private == {"me/other"}


@pytest.mark.parametrize(
    "line, complaint",
    [
        ("license: my-own", '"license" with value "my-own" is not valid'),
        ("pipeline_tag: guess", '"pipeline_tag" with value "guess" is not valid'),
        ("language: English", '"language" with value "English" is not valid'),
        ("base_model: ./local folder", '"base_model" with value "./local folder" is not valid'),
        ("datasets: [null]", '"datasets" must be a string'),
        ("model-index: [{name: mine}]", '"model-index[0].results" is required'),
        ("license: [", "YAML metadata cannot be read"),
    ],
)
def test_a_card_with_wrong_metadata_is_refused(line, complaint, hub, online, checkpoint):
    (checkpoint / "README.md").write_text(f"---\n{line}\n---\n# Mine\n")
    message = refused("--source", checkpoint, "--repo_id", "me/model")
    assert "the Hub refused the metadata at the head of README.md: " in message and complaint in message
    assert not hub[0].branches  # no empty repository stays behind


def test_a_pull_request_to_nothing(hub, online, checkpoint):
    message = refused("--source", checkpoint, "--repo_id", "me/model", "--update", "--create_pr")
    assert "the Hub has no repository 'me/model'" in message and "--update" not in message
    assert not hub[0].branches


def test_hidden_files_and_logs_stay(checkpoint):
    for name in (
        ".env",
        "sub/.env",
        "sub/.cache/token",
        "runs/today/events.out",
        "sub/notes.txt",
        "logs/a.txt",
        "sub/run.log",
    ):
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_text("secret")
    files = collect_files(str(checkpoint), "me/model")
    assert [name for name in files if "/" in name or name.startswith(".")] == ["sub/notes.txt"]


SECRETS = [
    "hf_token",
    "token.txt",
    "prod.env",
    "id_rsa",
    "ID_ED25519.pub",
    "server.PEM",
    "sub/api.key",
    "credentials.json",
]
FORMATS = ["tf_model.h5", "flax_model.msgpack", "last.ckpt", "weights.pth", "sub/weights.pt", "rust_model.ot"]
STATE = ["optimizer.pt", "optimizer.safetensors", "scheduler.pt", "rng_state.pth", "global_step5/mp_rank_00.distcp"]
KEPT = ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "sub/model.onnx"]


def test_keys_and_other_formats_stay_and_are_listed(checkpoint, capsys):
    for name in [*SECRETS, *FORMATS, *STATE, *KEPT]:
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_text("{}")
    train_unigram_tokenizer(["the gate"] * 9, 40, 32).save_pretrained(checkpoint)
    push("--source", checkpoint, "--repo_id", "me/model", "--dry_run")
    printed = capsys.readouterr().out
    for names, reason in ((SECRETS, "a key or token"), (FORMATS, "no safetensors"), (STATE[:-1], "state of training")):
        for name in names:
            assert f"stays behind  {name} ({reason})\n" in printed and f"bytes  {name}\n" not in printed
    assert "stays behind  global_step5/ (state of training)\n" in printed and "mp_rank" not in printed
    assert "stays behind  checkpoint-5/ (state of training)\n" in printed
    for name in KEPT:
        assert f"bytes  {name}\n" in printed and f"behind  {name}" not in printed
    assert "no weights" not in printed


def test_links_out_of_the_folder_are_not_followed(checkpoint, tmp_path, capsys):
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "diary.txt").write_text("secret")
    (checkpoint / "diary.txt").symlink_to(tmp_path / "private" / "diary.txt")
    (checkpoint / "private").symlink_to(tmp_path / "private")
    (checkpoint / "same.md").symlink_to("README.md")
    (checkpoint / "loop").symlink_to(".")
    files = collect_files(str(checkpoint), "me/model")
    assert {"model.safetensors", "same.md"} <= set(files)
    assert not [name for name in files if "diary" in name or "loop" in name]
    push("--source", checkpoint, "--repo_id", "me/model", "--dry_run")
    printed = capsys.readouterr().out
    assert "diary.txt (a link out of the folder)" in printed and "private/ (a link out of the folder)" in printed
    linked = tmp_path / "linked"  # a folder that is a link is what the user named
    linked.symlink_to(checkpoint)
    assert set(collect_files(str(linked), "me/model")) == set(files)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_model_of_links_is_refused(name, checkpoint, tmp_path):
    (checkpoint / name).rename(tmp_path / name)
    (checkpoint / name).symlink_to(tmp_path / name)
    assert "a link out of the folder" in refused("--source", checkpoint, "--repo_id", "me/model", "--dry_run")


@pytest.mark.parametrize("length", [0, 5, 100, -1])
def test_weights_that_are_cut_off_are_refused(length, checkpoint):
    weights = checkpoint / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:length])
    message = refused("--source", checkpoint, "--repo_id", "me/model", "--dry_run")
    assert "model.safetensors' cannot be read to their end" in message and "cut off or damaged" in message


def test_every_part_of_sharded_weights_has_to_be_there(checkpoint):
    GMLPForMaskedLM.from_pretrained(checkpoint).save_pretrained(checkpoint, max_shard_size="3KB")
    arguments = ("--source", checkpoint, "--repo_id", "me/model", "--dry_run")
    push(*arguments)
    index, first = checkpoint / "model.safetensors.index.json", sorted(checkpoint.glob("model-*.safetensors"))[0]
    content = index.read_text()
    for wrong in ("{", "[]", '{"weight_map": []}'):
        index.write_text(wrong)
        assert "index.json' cannot be read" in refused(*arguments)
    index.write_text(content)
    first.rename(checkpoint / "kept.txt")
    assert f"{first.name}, which " in (message := refused(*arguments)) and "is missing or has no tensor" in message
    save_file({"other": torch.ones(1)}, first)
    assert "is missing or has no tensor" in refused(*arguments)


def test_that_there_are_no_weights_is_said(checkpoint, capsys):
    (checkpoint / "model.safetensors").unlink()
    push("--source", checkpoint, "--repo_id", "me/model", "--dry_run")
    assert "there are no weights" in capsys.readouterr().out


def test_a_card_in_another_encoding(checkpoint):
    card = "---\nlicense: mit\n---\r\n# Modèle\n"
    (checkpoint / "README.md").write_bytes(card.encode("latin-1"))
    message = refused("--source", checkpoint, "--repo_id", "me/model", "--dry_run")
    assert "README.md' is not in UTF-8" in message and "save it in UTF-8" in message
    for encoding in ("utf-8", "utf-8-sig"):
        (checkpoint / "README.md").write_bytes(card.encode(encoding))
        assert collect_files(str(checkpoint), "me/model")["README.md"] == card.encode()


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "tf_model.h5", "flax_model.msgpack"])
def test_weights_in_another_format_alone_are_refused(name, checkpoint):
    (checkpoint / name).write_bytes(b"weights")
    assert name not in collect_files(str(checkpoint), "me/model")
    (checkpoint / "model.safetensors").unlink()
    message = refused("--source", checkpoint, "--repo_id", "me/model", "--dry_run")
    assert f"has its weights in {name} only" in message and "save it again" in message


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


@pytest.mark.slow
@SHIPPED
def test_the_snippet_of_a_shipped_card_runs_without_the_package(name, shipped_snippet, call):
    card, code = shipped_snippet(name)
    sizes = "import torch; torch.set_default_device('meta')"  # the real ones, without their memory
    code = f"{sizes}\n{code}\nprint(type(model).__module__, model.num_parameters())"
    module, parameters = call(WITHOUT_THE_PACKAGE.format(code=code)).split()
    assert module.startswith("transformers_modules.")
    assert f"{int(parameters):,}" in card or "ForMaskedLM" in code  # of those the card counts the encoder


def test_a_dry_run_lists_what_a_push_sends(hub, online, checkpoint, capsys):
    push("--source", checkpoint, "--repo_id", "me/model", "--dry_run")
    lines = re.findall(r"^ *([\d,]+) bytes  (.+)$", capsys.readouterr().out, flags=re.MULTILINE)
    listed = {name: int(size.replace(",", "")) for size, name in lines}
    push("--source", checkpoint, "--repo_id", "me/model")
    state, _ = hub
    sent = state.commits[state.branches["me/model"]["main"]]
    assert {name: len(content) for name, content in sent.items() if name != ".gitattributes"} == listed


@pytest.mark.parametrize("repo_id", ["me/my model", "me/a/b", "me/-model", "me/a--b", ""])
def test_a_name_that_the_hub_refuses(repo_id, checkpoint):
    message = refused("--source", checkpoint, "--repo_id", repo_id, "--dry_run")
    assert f"{repo_id!r} is not a name for a repository" in message


def test_unknown_sources(tmp_path):
    with pytest.raises(SystemExit, match="Shipped configurations: amlp-base"):
        main(["--source", "nothing", "--repo_id", "me/model"])
    for content, complaint in {
        '{"model_type": "bert"}': "type 'bert'",
        '{"model_type": "unheard-of"}': "type 'unheard-of'",
        '{"hidden_size": 8}': "type None",
        "[]": "type None",
        "{": "cannot be read",
        '{"model_type": "gmlp", "hidden_size": "wide"}': "cannot be read",
    }.items():
        (tmp_path / "config.json").write_text(content)
        assert complaint in refused("--source", tmp_path, "--repo_id", "me/model")
    (tmp_path / "config.json").write_bytes(b"\xff\xfe")
    assert "cannot be read" in refused("--source", tmp_path, "--repo_id", "me/model")
