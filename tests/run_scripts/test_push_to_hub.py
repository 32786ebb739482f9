"""The command push_to_hub: what it sends, what stays behind, what it refuses."""

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tokenmixers import GMLPForMaskedLM
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.push_to_hub import collect_files, main
from tokenmixers.tokenization.tokenizer_training import train_unigram_tokenizer


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def push(*arguments: object) -> None:
    main([str(argument) for argument in arguments])


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


OTHERS = ["notes.md", "sub/texts.csv", "mine.py"]
PREDICTIONS = ["predictions_test.csv", "nbest_predictions_validation.json"]


def test_keys_and_other_formats_stay_and_are_listed(checkpoint, capsys):
    for name in [*SECRETS, *FORMATS, *STATE, *KEPT, *OTHERS, *PREDICTIONS]:
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        (checkpoint / name).write_text("{}")
    train_unigram_tokenizer(["the gate"] * 9, 40, 32).save_pretrained(checkpoint)
    push("--source", checkpoint, "--repo_id", "me/model", "--dry_run")
    printed = capsys.readouterr().out
    reasons = {"a key or token": SECRETS, "no safetensors": FORMATS, "state of training": STATE[:-1]}
    for reason, names in {**reasons, "predictions": PREDICTIONS}.items():
        for name in names:
            assert f"stays behind  {name} ({reason})\n" in printed and f"bytes  {name}\n" not in printed
    assert "stays behind  global_step5/ (state of training)\n" in printed and "mp_rank" not in printed
    assert "stays behind  checkpoint-5/ (state of training)\n" in printed
    for name in OTHERS:
        assert f"bytes  {name}  <- no file of a model: may others read it?\n" in printed
    assert printed.count("<-") == len(OTHERS)
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
    with pytest.raises(SystemExit, match="Shipped configurations: aft-minilm, aft-minilm-small"):
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
