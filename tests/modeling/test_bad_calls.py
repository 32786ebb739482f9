"""Wrong calls of models: each is an exception with a sentence that says what was given and what is expected."""

import functools

import pytest
import torch

from tokenmixers.modeling.inputs.caches import CACHE_NAME


IDS, WORDS = torch.arange(12).view(2, 6) + 1, torch.randn(2, 6, 10)
IMAGES = torch.zeros(2, 3, 8, 8)
BACKBONES = ("GMLPModel", "AMLPModel", "MLPMixerModel", "SynthesizerModel")
DECODERS = ("GMLPForCausalLM", "AMLPForCausalLM", "SynthesizerForCausalLM")
HEADS = ("GMLPForMaskedLM", "AMLPForSequenceClassification", "SynthesizerForTokenClassification")
TEXT = (*BACKBONES, *DECODERS, *HEADS, "MLPMixerForQuestionAnswering")
IMAGE = tuple(f"{family}ForImageClassification" for family in ("GMLP", "AMLP", "MLPMixer", "Synthesizer"))
CHOICES = ("GMLPForMultipleChoice", "SynthesizerForMultipleChoice")
SEQ2SEQ = ("SynthesizerForConditionalGeneration",)
SPATIAL = ("GMLPModel", "AMLPModel", "GMLPForCausalLM")

EITHER = "Give either `{}input_ids` or `{}inputs_embeds`, and not both"
INTEGERS = "`{}` must be a tensor of int64 or int32, got {}"
FLOATS = "`{}` must be a tensor of floating point numbers, got {}"
SHAPE = r"`{}` has shape \({}\), expected \({}"


def zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(*shape, dtype=torch.long)


def states(*shape: int) -> dict:
    return {"encoder_outputs": (torch.randn(*shape),), "decoder_input_ids": IDS}


#: Classes, arguments, sentence.
TABLE = [
    (TEXT, {}, EITHER.format("", "")),
    (TEXT, {"input_ids": IDS, "inputs_embeds": WORDS}, EITHER.format("", "")),
    (TEXT, {"input_ids": zeros(2, 0)}, SHAPE.format("input_ids", "2, 0", "batch, length.* at least 1")),
    (TEXT, {"inputs_embeds": torch.zeros(2, 0, 10)}, SHAPE.format("inputs_embeds", "2, 0, 10", "batch, length")),
    (TEXT, {"input_ids": IDS.float()}, INTEGERS.format("input_ids", "torch.float32")),
    (TEXT, {"input_ids": IDS.bool()}, INTEGERS.format("input_ids", "torch.bool")),
    (TEXT, {"input_ids": IDS[0]}, SHAPE.format("input_ids", "6,", "batch, length")),
    (TEXT, {"input_ids": IDS[None]}, SHAPE.format("input_ids", "1, 2, 6", "batch, length")),
    (TEXT, {"input_ids": IDS.tolist()}, INTEGERS.format("input_ids", "a list")),
    (TEXT, {"input_ids": "a text"}, INTEGERS.format("input_ids", "a str")),
    (TEXT, {"inputs_embeds": WORDS[0]}, SHAPE.format("inputs_embeds", "6, 10", "batch, length, hidden_size=10")),
    (TEXT, {"inputs_embeds": WORDS[..., 1:]}, SHAPE.format("inputs_embeds", "2, 6, 9", "batch, length, hidden_si")),
    (TEXT, {"inputs_embeds": WORDS.long()}, FLOATS.format("inputs_embeds", "torch.int64")),
    (TEXT, {"inputs_embeds": WORDS.tolist()}, FLOATS.format("inputs_embeds", "a list")),
    (TEXT, {"input_ids": IDS + 36}, "`input_ids` must be from 0 to 36, .* 37 embeddings; got ids from 37 to 48"),
    (TEXT, {"input_ids": IDS - 2}, "`input_ids` must be from 0 to 36, .* got ids from -1 to 10"),
    (TEXT, {"input_ids": zeros(2, 12)}, "has 12 tokens, but .*`max_position_embeddings=11`. Truncate"),
    (TEXT, {"input_ids": IDS, "attention_mask": zeros(2, 5)}, SHAPE.format("attention_mask", "2, 5", "2, 6")),
    (TEXT, {"input_ids": IDS, "attention_mask": zeros(3, 6)}, SHAPE.format("attention_mask", "3, 6", "2, 6")),
    (TEXT, {"input_ids": IDS, "attention_mask": zeros(6)}, SHAPE.format("attention_mask", "6,", "2, 6")),
    (TEXT, {"input_ids": IDS, "attention_mask": zeros(2, 6, 6)}, SHAPE.format("attention_mask", "2, 6, 6", "2, 6")),
    (TEXT, {"input_ids": IDS, "attention_mask": [[1] * 6] * 2}, "`attention_mask` must be a tensor, got a list"),
    (TEXT, {"input_ids": IDS, "position_ids": zeros(2, 5)}, SHAPE.format("position_ids", "2, 5", "2, 6")),
    (TEXT, {"input_ids": IDS, "position_ids": torch.arange(6)}, SHAPE.format("position_ids", "6,", "2, 6")),
    (
        TEXT,
        {"input_ids": IDS, "position_ids": torch.arange(6)[None] + 6},
        "`position_ids` must be from 0 to 10, below `max_position_embeddings`; got positions from 6 to 11",
    ),
    (TEXT, {"input_ids": IDS, "position_ids": torch.arange(6)[None] - 3}, "; got positions from -3 to 2"),
    (
        TEXT,
        {"input_ids": IDS, "position_ids": torch.arange(6.0)[None]},
        INTEGERS.format("position_ids", "torch.float32"),
    ),
    (BACKBONES, {"pixel_values": IMAGES}, "`pixel_values` need a model with `config.image_size`, which is `None`"),
    (BACKBONES, {"input_ids": IDS, "pixel_values": IMAGES}, "`pixel_values` need a model"),
    (SPATIAL, {"input_ids": IDS, "seq_idx": zeros(2, 5)}, SHAPE.format("seq_idx", "2, 5", "2, 6")),
    (("MLPMixerModel",), {"input_ids": IDS, "seq_idx": zeros(2, 6)}, "MLP-Mixer does not support `seq_idx`"),
    (DECODERS, {"input_ids": IDS, "past_key_values": 3}, f"`{CACHE_NAME}` must be a cache .*got a int"),
    (DECODERS, {"input_ids": IDS, "past_key_values": ((WORDS,),)}, f"`{CACHE_NAME}` must be a cache .*got a tuple"),
    (DECODERS, {"input_ids": IDS, "logits_to_keep": -1}, "`logits_to_keep` must be an integer .* got -1"),
    (
        DECODERS,
        {"input_ids": IDS, "logits_to_keep": 1.5},
        "`logits_to_keep` must be an integer .* got 1.5",
    ),
    (
        ("SynthesizerModel",),
        {"input_ids": IDS, "attention_mask": zeros(2, 1, 5, 5)},
        SHAPE.format("attention_mask", "2, 1, 5, 5", "2 or 1, heads or 1, 6, 6"),
    ),
    (IMAGE, {}, "takes `pixel_values`, and no text inputs"),
    (IMAGE, {"input_ids": IDS}, "takes `pixel_values`, and no text inputs"),
    (IMAGE, {"pixel_values": IMAGES, "input_ids": IDS}, "takes `pixel_values`, and no text inputs"),
    (IMAGE, {"pixel_values": IMAGES[..., 1:]}, SHAPE.format("pixel_values", "2, 3, 8, 7", "batch, 3 channels, he.*8")),
    (IMAGE, {"pixel_values": IMAGES[:, :1]}, SHAPE.format("pixel_values", "2, 1, 8, 8", "batch, 3 channels")),
    (IMAGE, {"pixel_values": IMAGES[0]}, SHAPE.format("pixel_values", "3, 8, 8", "batch, 3 channels")),
    (IMAGE, {"pixel_values": IMAGES.permute(0, 2, 3, 1)}, SHAPE.format("pixel_values", "2, 8, 8, 3", "batch, 3 chan")),
    (IMAGE, {"pixel_values": IMAGES.byte()}, FLOATS.format("pixel_values", "torch.uint8")),
    (IMAGE, {"pixel_values": [[0.0]]}, FLOATS.format("pixel_values", "list")),
    (
        IMAGE,
        {"pixel_values": IMAGES, "attention_mask": zeros(2, 3)},
        SHAPE.format("attention_mask", "2, 3", "2, "),
    ),
    (CHOICES, {}, EITHER.format("", "")),
    (CHOICES, {"input_ids": IDS}, SHAPE.format("input_ids or inputs_embeds", "2, 6", "batch, choices, length")),
    (CHOICES, {"input_ids": IDS[0]}, SHAPE.format("input_ids or inputs_embeds", "6,", "batch, choices, length")),
    (CHOICES, {"input_ids": zeros(2, 0, 6)}, SHAPE.format("input_ids or inputs_embeds", "2, 0, 6", "batch, choices")),
    (SEQ2SEQ, {}, EITHER.format("", "")),
    (SEQ2SEQ, {"input_ids": IDS}, EITHER.format("decoder_", "decoder_")),
    (
        SEQ2SEQ,
        {"input_ids": IDS, "decoder_input_ids": IDS, "decoder_inputs_embeds": WORDS},
        EITHER.format("decoder_", "decoder_"),
    ),
    (
        SEQ2SEQ,
        {"input_ids": IDS, "decoder_input_ids": zeros(2, 0)},
        SHAPE.format("decoder_input_ids", "2, 0", "b"),
    ),
    (SEQ2SEQ, {"input_ids": IDS, "decoder_input_ids": IDS.float()}, INTEGERS.format("decoder_input_ids", "torch.fl")),
    (SEQ2SEQ, {"input_ids": IDS, "decoder_input_ids": IDS + 36}, "`decoder_input_ids` must be from 0 to 36"),
    (SEQ2SEQ, {"input_ids": IDS, "labels": IDS + 36}, "`decoder_input_ids` must be from 0 to 36"),
    (SEQ2SEQ, {"input_ids": IDS, "labels": IDS.float()}, INTEGERS.format("decoder_input_ids", "torch.float32")),
    (SEQ2SEQ, {"input_ids": IDS, "labels": IDS[0]}, SHAPE.format("decoder_input_ids", "6,", "batch, length")),
    (SEQ2SEQ, {"input_ids": IDS, "labels": zeros(2, 12)}, "has 12 tokens, but .*`max_position_embeddings=11`"),
    (
        SEQ2SEQ,
        {"input_ids": IDS, "decoder_input_ids": zeros(3, 4)},
        SHAPE.format("encoder_hidden_states", "2, 6, 10", "3, length, hidden_size"),
    ),
    (SEQ2SEQ, states(3, 6, 10), SHAPE.format("encoder_hidden_states", "3, 6, 10", "2, length")),
    (SEQ2SEQ, states(2, 6, 9), SHAPE.format("encoder_hidden_states", "2, 6, 9", "batch, length, hidden_size=10")),
    (SEQ2SEQ, states(6, 10), SHAPE.format("encoder_hidden_states", "6, 10", "batch, length, hidden_size=10")),
    (SEQ2SEQ, {**states(2, 6, 10), "attention_mask": zeros(2, 3)}, SHAPE.format("attention_mask", "2, 3", "2, 6")),
    (
        SEQ2SEQ,
        {**states(2, 6, 10), "decoder_attention_mask": zeros(2, 3)},
        SHAPE.format("attention_mask", "2, 3", ""),
    ),
    (SEQ2SEQ, {**states(2, 6, 10), "decoder_position_ids": zeros(2, 3)}, SHAPE.format("position_ids", "2, 3", "2")),
    (SEQ2SEQ, {"encoder_outputs": "x", "decoder_input_ids": IDS}, FLOATS.format("encoder_hidden_states", "a str")),
    (
        SEQ2SEQ,
        {"input_ids": IDS, "decoder_input_ids": IDS, "seq_idx": IDS},
        "Encoder-decoders do not support",
    ),
    # PyTorch's own sentences about labels.
    (HEADS[:1], {"input_ids": IDS, "labels": zeros(2, 5)}, "batch_size.*match"),
    (HEADS[:1], {"input_ids": IDS, "labels": IDS + 36}, "Target 37 is out of bounds"),
    (HEADS[:1], {"input_ids": IDS, "labels": IDS.float()}, "expected (scalar type|target dtype to be) Long"),
    (HEADS[1:2], {"input_ids": IDS, "labels": zeros(3)}, "batch_size.*match"),
    (HEADS[1:2], {"input_ids": IDS, "labels": zeros(2) + 7}, "Target 7 is out of bounds"),
    (HEADS[2:], {"input_ids": IDS, "labels": zeros(2, 6) + 7}, "Target 7 is out of bounds"),
    (IMAGE, {"pixel_values": IMAGES, "labels": zeros(2) + 9}, "Target 9 is out of bounds"),
]
CASES = [
    pytest.param(name, arguments, sentence, id=f"{name}-{index}")
    for index, (names, arguments, sentence) in enumerate(TABLE)
    for name in names
]


@pytest.fixture(scope="module")
def model_of(tiny_model):
    """`model_of(name)`: a tiny model of that class, made once."""
    return functools.cache(tiny_model)


@pytest.mark.parametrize(("name", "arguments", "sentence"), CASES)
def test_says_what_is_wrong(name, arguments, sentence, model_of):
    # Ids and labels out of range are IndexErrors, as everywhere in PyTorch.
    out_of_range = "from 0 to 36" in sentence or "Target" in sentence
    kind = IndexError if out_of_range else RuntimeError if "Long" in sentence else ValueError
    with pytest.raises(kind, match=sentence):
        model_of(name)(**arguments)


@pytest.mark.parametrize("name", ["GMLPModel", "SynthesizerModel"])
def test_segments(name, tiny_model):
    model = tiny_model(name, type_vocab_size=2)
    for segments, kind, sentence in (
        (zeros(2, 5), ValueError, SHAPE.format("token_type_ids", "2, 5", "2, 6")),
        (zeros(6), ValueError, SHAPE.format("token_type_ids", "6,", "2, 6")),
        (torch.zeros(2, 6), ValueError, INTEGERS.format("token_type_ids", "torch.float32")),
        (zeros(2, 6) + 2, IndexError, "`token_type_ids` must be from 0 to 1, .* got ids from 2 to 2"),
    ):
        with pytest.raises(kind, match=sentence):
            model(input_ids=IDS, token_type_ids=segments)
    assert model(input_ids=IDS, token_type_ids=zeros(1, 6)).last_hidden_state.shape == (2, 6, 10)


def test_what_is_right_is_not_refused(model_of):
    for name in TEXT:
        model_of(name)(input_ids=IDS.int(), attention_mask=torch.ones(2, 6), position_ids=torch.arange(6)[None])
    assert (
        model_of("SynthesizerModel")(input_ids=IDS, attention_mask=torch.ones(2, 1, 6, 6)).last_hidden_state.ndim == 3
    )
    assert model_of("GMLPForCausalLM")(input_ids=IDS, logits_to_keep=2).logits.shape == (2, 2, 37)


def test_no_value_is_read_on_a_device(model_of):
    """Checks of values would make the processor wait for a GPU; on the meta device they are not even possible."""
    model = model_of("GMLPModel").to("meta")
    outputs = model(input_ids=IDS.to("meta"), position_ids=zeros(1, 6).to("meta"))
    assert outputs.last_hidden_state.shape == (2, 6, 10)


def test_there_are_many():
    assert len(CASES) >= 200
