from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from transformers import BertConfig, BertModel

from tokenmixers.run_scripts.base.arguments import ModelArguments
from tokenmixers.run_scripts.training import run as training_run


def test_leaving_the_processes_does_not_free_their_group(monkeypatch):
    """Freeing it may wait for ever, see `leave_processes`."""
    kept: list = []
    monkeypatch.setattr(training_run, "_KEPT_PROCESS_GROUPS", kept)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    group = dist.group.WORLD
    training_run.leave_processes()
    assert not dist.is_initialized()
    assert kept == [group]
    training_run.leave_processes()  # as in a single process
    assert kept == [group]


def test_a_run_that_only_evaluates_asks_for_no_training_texts(monkeypatch):
    given = []
    monkeypatch.setattr(training_run, "fitting_tokenizer", lambda *arguments: given.append(arguments[3]))

    class TextsTask(training_run.Task):
        def texts(self, run):
            return run.data["train"]

    for size, expected in ((None, ()), (60, ["a text"])):
        model_args = ModelArguments(config_name="gmlp-base", train_tokenizer=size)
        data = {} if size is None else {"train": ["a text"]}
        run = SimpleNamespace(model_args=model_args, config=None, data_args=None, args=None, data=data)
        TextsTask().load_tokenizer(run, None)
        assert given.pop() == expected


@pytest.mark.parametrize(
    ("bf16", "device", "lengths", "expected"),
    [
        (True, "cpu", [256], "eager"),
        (True, "cpu", [], "eager"),
        (True, "cpu", [64, 257], "sdpa"),
        (False, "cpu", [128], "sdpa"),
        (True, "cuda", [128], "sdpa"),
        (True, "cpu", 256, "eager"),  # of a model for sentence embeddings, which knows its length
        (True, "cpu", 512, "sdpa"),
    ],
)
def test_berts_train_with_the_attention_that_is_faster(bf16, device, lengths, expected):
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "num_hidden_layers": 1}
    model = BertModel(BertConfig(vocab_size=20, **sizes))
    given, lengths = (
        (model, lengths)
        if isinstance(lengths, list)
        else (SimpleNamespace(transformers_model=model, max_seq_length=lengths), [])
    )
    training_run._choose_attention(given, SimpleNamespace(bf16=bf16, device=torch.device(device)), lengths)
    assert model.config._attn_implementation == expected
    assert "attn_implementation" not in model.config.to_diff_dict()


@pytest.mark.parametrize("name", ["AMLPModel", "HybridBertModel", "SynthesizerModel"])
def test_our_models_keep_their_attention(name, tiny_model):
    model = tiny_model(name)
    before = model.config._attn_implementation
    assert before != "eager"
    training_run._choose_attention(model, SimpleNamespace(bf16=True, device=torch.device("cpu")), [128])
    assert model.config._attn_implementation == before
