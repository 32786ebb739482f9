"""Checkpoints to export: small models with random weights and a tokenizer of few words."""

from pathlib import Path

import pytest
import tokenizers
import torch
from transformers import BertConfig, BertModel, CLIPImageProcessorPil, PreTrainedTokenizerFast

from tokenmixers.run_scripts import export


WORDS = ["gate", "token", "channel", "mixes", "splits", "learns", "layer", "norm", "a", "the", "if", "or", "and"]


@pytest.fixture(scope="module")
def tokenizer():
    """A word a token, with special tokens around a text as BERT's."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    table = {word: index for index, word in enumerate([*special, *WORDS, *"abcdefghijklmnopqrst"])}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(table, unk_token="[UNK]"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    backend.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), special, strict=True))
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=24, model_input_names=inputs, **names)


@pytest.fixture
def checkpoint(tiny_model, tokenizer, tmp_path):
    """`checkpoint(class_name)`: the folder of a model with random weights, and the model."""

    def build(name: str, **changes):
        folder = tmp_path / name
        torch.manual_seed(0)
        if name == "BertModel":
            sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
            model = BertModel(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=24, **sizes)).eval()
        else:
            sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 24, "hidden_size": 16, "pad_token_id": 0}
            model = tiny_model(name, **{**sizes, "intermediate_size": 32, **changes})
        model.save_pretrained(folder)
        if "Image" in name:
            size = {"height": 8, "width": 8}
            CLIPImageProcessorPil(size=size, crop_size=size).save_pretrained(folder)
        else:
            tokenizer.save_pretrained(folder)
        return folder, model

    return build


@pytest.fixture(scope="session")
def words():
    return WORDS


@pytest.fixture(scope="session")
def run():
    """`run(folder, output, *arguments, kinds=...)`: what the command returns."""

    def call(folder: Path, output: Path, *arguments: str, kinds: tuple[str, ...] = ("onnx", "onnx-fp16", "onnx-int8")):
        return export.main(["--model", str(folder), "--output_dir", str(output), "--formats", *kinds, *arguments])

    return call
