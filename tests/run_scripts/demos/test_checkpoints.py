import json
import re
from types import SimpleNamespace

import pytest
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

from tokenmixers import GMLPConfig, GMLPModel, TimmImageProcessorPil
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.demos.checkpoints import TASK_NAMES, Checkpoint, find_task, load_checkpoint


@pytest.fixture
def saved(demo_checkpoint, tmp_path):
    """`saved(family, task)`: the folder of a checkpoint."""

    def save(family: str, task: str):
        checkpoint = demo_checkpoint(family, task)
        checkpoint.model.save_pretrained(tmp_path / task)
        checkpoint.processor.save_pretrained(tmp_path / task)
        return tmp_path / task

    return save


@pytest.mark.parametrize("task", [task.name for task in TASK_NAMES])
def test_a_folder_is_loaded_for_its_task(task, saved):
    loaded = load_checkpoint(str(saved("Synthesizer", task)))
    assert (loaded.task, loaded.title) == (task, task)
    assert not loaded.model.training and loaded.model.config._attn_implementation == "eager"
    assert type(loaded.model).__module__.startswith("tokenmixers.")  # no code of the checkpoint


def test_converted_image_models_need_no_code_of_the_checkpoint(saved):
    folder = saved("GMLP", "image-classification")
    TimmImageProcessorPil(size={"height": 8, "width": 8}, crop_size={"height": 8, "width": 8}).save_pretrained(folder)
    assert type(load_checkpoint(str(folder)).processor) is TimmImageProcessorPil


@pytest.mark.parametrize(("model", "task"), [(BertForMaskedLM, "fill-mask"), (GPT2LMHeadModel, "text-generation")])
def test_the_class_that_saved_it_tells_the_task(model, task):
    config = {BertForMaskedLM: BertConfig, GPT2LMHeadModel: GPT2Config}[model](architectures=[model.__name__])
    assert find_task(config, "mine").name == task


@pytest.mark.parametrize(
    ("positions", "tokens", "expected"),
    [(24, 10**30, 24), (512, 24, 24), (24, 512, 24), (10**7, 24, 24), (10**6, 10**30, 10**6), (None, 10**7, None)],
)
def test_implausible_lengths_are_no_limits(positions, tokens, expected):
    """Tokenizers without a limit report 10**30, and some are saved with another number that means none."""
    model = SimpleNamespace(config=SimpleNamespace(max_position_embeddings=positions))
    checkpoint = Checkpoint("mine", "fill-mask", model, SimpleNamespace(model_max_length=tokens))
    assert checkpoint.max_length == expected


@pytest.mark.parametrize("architectures", [["GMLPForMultipleChoice"], [GMLPModel.__name__], None])
def test_other_tasks_are_refused(architectures):
    with pytest.raises(UserError, match=r"^error: the demo cannot show 'mine', which .*ForMaskedLM, \.\.\.ForSeq"):
        find_task(GMLPConfig(architectures=architectures), "mine")


def refused(name, **options):
    with pytest.raises(UserError) as error:
        load_checkpoint(str(name), **options)
    message = str(error.value)
    assert message.startswith("error: ") and "\n" not in message
    return message


def test_what_cannot_be_loaded_is_one_sentence(saved, tmp_path):
    folder = saved("GMLP", "fill-mask")
    assert refused("./nowhere").startswith("error: there is no folder './nowhere': give")
    assert refused("nowhere/at/all").startswith("error: there is no folder 'nowhere/at/all'")
    assert "'nowhere' cannot be loaded" in refused("nowhere")
    (tmp_path / "empty").mkdir()
    assert "empty' cannot be loaded" in refused(tmp_path / "empty")
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) // 2])
    assert "fill-mask' cannot be loaded" in refused(folder)
    weights.unlink()
    message = refused(folder)
    assert "fill-mask' cannot be loaded" in message and "no file named" in message
    weights.write_bytes(content)
    for file in folder.glob("*token*"):
        file.unlink()
    assert "fill-mask' cannot be loaded" in refused(folder)


def test_a_tokenizer_without_a_mask_is_refused(saved, demo_tokenizer):
    folder = saved("GMLP", "fill-mask")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.mask_token = None
    tokenizer.save_pretrained(folder)
    assert "has no mask token" in refused(folder)


FOREIGN = """
import torch
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import MaskedLMOutput


class OddConfig(PreTrainedConfig):
    model_type = "odd"


class OddForMaskedLM(PreTrainedModel):
    config_class = OddConfig

    def __init__(self, config):
        super().__init__(config)
        self.embed = torch.nn.Embedding(config.vocab_size, config.vocab_size)
        self.post_init()

    def forward(self, input_ids, **kwargs):
        return MaskedLMOutput(logits=self.embed(input_ids))
"""


def test_code_of_a_checkpoint_runs_only_if_allowed(demo_tokenizer, tmp_path, monkeypatch):
    import torch
    from safetensors.torch import save_file

    tokenizer = demo_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    size = len(tokenizer)
    save_file({"embed.weight": torch.eye(size)}, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "odd.py").write_text(FOREIGN)
    names = {"AutoConfig": "odd.OddConfig", "AutoModelForMaskedLM": "odd.OddForMaskedLM"}
    fields = {"model_type": "odd", "vocab_size": size, "architectures": ["OddForMaskedLM"], "auto_map": names}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    assert re.search("contains custom code.*trust_remote_code=True", refused(tmp_path))
    assert type(load_checkpoint(str(tmp_path), trust_remote_code=True).model).__name__ == "OddForMaskedLM"
