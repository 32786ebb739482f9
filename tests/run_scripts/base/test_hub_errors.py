"""What the training scripts and the pushing script say when the Hub does not take a model."""

import logging
import re
import shlex
import socket
import time
from pathlib import Path

import datasets
import huggingface_hub
import pytest
from huggingface_hub import ModelCard
from transformers import AutoModelForMaskedLM, BertConfig, BertForMaskedLM

from tokenmixers import GMLPForMaskedLM
from tokenmixers.run_scripts import push_to_hub, run_mlm
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.base.hub_errors import explain
from tokenmixers.run_scripts.data.loading import load_named
from tokenmixers.run_scripts.training import trainer
from tokenmixers.run_scripts.training.trainer import ScriptTrainer


@pytest.fixture
def train(command, online):
    """`train(**changes)`: train a tiny model and push it; what the script ends with, if it fails."""

    def run(**changes) -> str:
        options = {"output_dir": "run", "push_to_hub": True, "hub_model_id": "me/model", **changes}
        with pytest.raises(UserError) as error:
            run_mlm.main(command(**options))
        message = str(error.value)
        assert message.startswith("error: ") and "\n" not in message
        return message

    return run


@pytest.mark.parametrize(
    "token, name, complaint",
    [
        (None, "me/model", "there is no Hub token to push 'me/model' with: .*, or give --hub_token"),
        ("reader", "me/model", "the Hub token of 'me' can only read, not write to 'me/model'"),
        ("good", "me/my model", "'me/my model' is not a name for a repository"),
    ],
)
def test_a_script_that_could_not_push_does_not_train(token, name, complaint, train, hub, online, tmp_path):
    online(token)
    assert re.search(complaint, train(hub_model_id=name))
    assert not hub[0].branches
    assert not list((tmp_path / "run").glob("*.safetensors"))


def test_without_a_network_a_script_does_not_train(train, hub, monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    message = train()
    assert "HF_HUB_OFFLINE is set" in message and "Nothing was trained" in message


def run_command(message: str) -> None:
    """The command of this package in a message."""
    line = shlex.split(re.search(r"`(tokenmixers push_to_hub .*?)`", message)[1])
    push_to_hub.main(line[2:])


def test_a_connection_lost_at_the_end_leaves_a_complete_model_and_the_command_to_push_it(train, hub):
    state, _ = hub
    state.drop_uploads = True
    message = train()
    assert "the connection to the Hub was lost" in message and "The trained model is complete in 'run'" in message
    assert AutoModelForMaskedLM.from_pretrained("run").num_parameters()
    assert {"eval_results.json", "history.png", "README.md"} <= {path.name for path in Path("run").iterdir()}
    assert list(state.commits[state.branches["me/model"]["main"]]) == [".gitattributes"]
    state.drop_uploads = False
    run_command(message)
    assert {"model.safetensors", "README.md"} <= set(state.commits[state.branches["me/model"]["main"]])


def test_another_familys_model_is_pushed_by_hf_upload(train, hub, tmp_path):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    BertForMaskedLM(BertConfig(vocab_size=60, max_position_embeddings=32, **sizes)).save_pretrained(tmp_path / "bert")
    hub[0].drop_uploads = True
    message = train(config_name=tmp_path / "bert", config_overrides=None)
    assert "push it with `hf upload me/model run . --exclude 'checkpoint-*/*' --exclude '_*/*'`" in message


def test_a_push_that_fails_during_training_does_not_end_it(hub, online, command, monkeypatch, caplog):
    state, _ = hub
    state.drop_uploads = True
    last = ScriptTrainer.push_to_hub

    def with_a_connection_again(self):
        self._finish_current_push()
        state.drop_uploads = False
        return last(self)

    monkeypatch.setattr(ScriptTrainer, "push_to_hub", with_a_connection_again)
    options = {"push_to_hub": True, "hub_model_id": "me/model", "hub_strategy": "every_save", "hub_always_push": True}
    with caplog.at_level(logging.WARNING, "tokenmixers.run_scripts.training.trainer"):
        run_mlm.main(command(**options, output_dir="run", save_steps=2, max_steps=4))
    said = [record.getMessage() for record in caplog.records if "was not pushed" in record.getMessage()]
    assert [re.search(r"step (\d)", line)[1] for line in said] == ["2", "4"]
    assert all("training goes on: the connection to the Hub was lost" in line for line in said), said
    assert "model.safetensors" in state.commits[state.branches["me/model"]["main"]]


def test_a_card_that_would_be_refused_ends_a_run_before_it_trains(train, tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "training_card", lambda *_: ModelCard("---\nlicense: my-own\n---\n"))
    message = train()
    assert "the Hub refused the metadata at the head of README.md" in message
    assert '"license" with value "my-own" is not valid' in message
    assert not list((tmp_path / "run").glob("*.safetensors"))


@pytest.mark.parametrize(
    "error, said",
    [
        (PermissionError("Unauthorized"), "the Hub refused the token for 'me/model'"),
        (ConnectionError("reset by peer"), "connection to the Hub was lost (reset by peer)"),
        (OSError("I/O error of the storage"), "the Hub did not take 'me/model' (I/O error of the storage)"),
        (RuntimeError("upload task\nfailed"), "the Hub did not take 'me/model' (upload task failed)"),
    ],
)
def test_what_hf_xet_raises(error, said, online, tiny_config, tmp_path, monkeypatch):
    GMLPForMaskedLM(tiny_config()).save_pretrained(tmp_path / "model")

    def fail(**options):
        raise error

    monkeypatch.setattr("huggingface_hub._commit_api._upload_lfs_files", fail)
    with pytest.raises(UserError) as ended:
        push_to_hub.main(["--source", str(tmp_path / "model"), "--repo_id", "me/model"])
    assert said in str(ended.value) and "\n" not in str(ended.value)


def test_errors_of_others_are_none_of_the_hubs():
    for error in (OSError(28, "No space left on device"), RuntimeError("shapes"), ValueError("value")):
        try:
            raise error
        except Exception as caught:
            assert explain(caught, "me/model") is None


def test_without_a_network_the_hub_is_not_asked_again_and_again(monkeypatch, tmp_path):
    """Nothing is cached; with the attempts of `datasets` this takes half a minute."""

    def unknown(*args, **kwargs):
        raise socket.gaierror(-2, "Name or service not known")

    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    for module in (huggingface_hub.constants, datasets.config):
        monkeypatch.setattr(module, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("asked again"))
    with pytest.raises(UserError, match="the data set 'me/a-set-that-nobody-has' cannot be loaded"):
        load_named("me/a-set-that-nobody-has", None, "train")
    assert not huggingface_hub.constants.HF_HUB_OFFLINE and not datasets.config.HF_HUB_OFFLINE
