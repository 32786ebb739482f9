"""Students that start with some of a teacher's layers: their outputs, configurations, and what is refused."""

import pytest
import torch
from transformers import (
    AlbertConfig,
    AlbertModel,
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertModel,
    T5Config,
    T5EncoderModel,
)

from tokenmixers import GMLPConfig, GMLPModel
from tokenmixers.run_scripts.training.kept_layers import dropout_rates, keep_layers, mix_layers, narrow_feed_forwards


IDS = torch.tensor([[2, 5, 7, 9, 3], [2, 8, 3, 0, 0]])
MASK = (IDS > 0).long()


@pytest.fixture
def bert():
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32, "initializer_range": 0.5}
    return BertModel(BertConfig(vocab_size=12, num_hidden_layers=4, **sizes), add_pooling_layer=False).eval()


def by_hand(model, layers):
    """The states of a BERT after its embeddings and the given layers, one after the other."""
    states = model.embeddings(IDS)
    mask = torch.where(MASK[:, None, None] == 1, 0.0, -1e9)
    for index in layers:
        states = model.encoder.layer[index](states, mask)
        states = states[0] if isinstance(states, tuple) else states
    return states[MASK == 1]


@pytest.mark.parametrize("kept", [[0, 2, 3], [3], [3, 0], [], [0, 1, 2, 3]])
def test_states_are_those_after_the_kept_layers(bert, kept):
    student = keep_layers(bert, kept).eval()
    assert student.config.num_hidden_layers == len(kept) == len(student.encoder.layer)
    assert bert.config.num_hidden_layers == 4
    found = student(IDS, attention_mask=MASK).last_hidden_state[MASK == 1]
    torch.testing.assert_close(found, by_hand(bert, kept))
    first = student.embeddings.word_embeddings.weight
    assert first.data_ptr() != bert.embeddings.word_embeddings.weight.data_ptr()


def test_a_reloaded_student_is_the_same(bert, tmp_path):
    student = keep_layers(bert, [1, 3]).eval()
    student.save_pretrained(tmp_path)
    again, report = BertModel.from_pretrained(tmp_path, add_pooling_layer=False, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    torch.testing.assert_close(again.eval()(IDS)[0], student(IDS)[0])


def test_other_names_of_the_list_and_of_its_length():
    distilbert = DistilBertModel(DistilBertConfig(vocab_size=12, dim=16, n_layers=3, n_heads=2, hidden_dim=16))
    student = keep_layers(distilbert, [0, 2])
    assert student.config.n_layers == 2
    kept = student.transformer.layer[1].ffn.lin1.weight
    torch.testing.assert_close(kept, distilbert.transformer.layer[2].ffn.lin1.weight)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 8}
    gmlp = GMLPModel(GMLPConfig(vocab_size=12, num_hidden_layers=3, **sizes))
    torch.testing.assert_close(keep_layers(gmlp, [1]).layers[0].proj_in.weight, gmlp.layers[1].proj_in.weight)


def test_a_student_is_float32(bert):
    student = keep_layers(bert.bfloat16(), [2])
    assert {parameter.dtype for parameter in student.parameters()} == {student.config.dtype} == {torch.float32}
    assert torch.equal(student.encoder.layer[0].output.dense.weight, bert.encoder.layer[2].output.dense.weight.float())


def test_dropout_rates_are_those_of_the_encoder():
    config = BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.2, classifier_dropout=0.3)
    assert dropout_rates(config) == {"attention_probs_dropout_prob": 0.2}


def test_layers_of_t5_need_the_first():
    t5 = T5EncoderModel(T5Config(vocab_size=12, d_model=16, d_kv=8, d_ff=16, num_layers=3, num_heads=2))
    assert keep_layers(t5, [0, 2]).config.num_layers == 2
    with pytest.raises(SystemExit, match=r"--keep_layers 1 2: layer 1 of the teacher \(t5\) has other"):
        keep_layers(t5, [1, 2])


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        ([0, 4], "--keep_layers 4: the teacher has the layers 0 to 3"),
        ([-1], "--keep_layers -1: the teacher has the layers 0 to 3"),
        ([2, 0, 2], "--keep_layers 2 0 2 names a layer twice"),
    ],
)
def test_unknown_and_repeated_layers(bert, kept, message):
    with pytest.raises(SystemExit, match=message):
        keep_layers(bert, kept)


def test_layers_that_share_weights_in_groups():
    sizes = {"embedding_size": 8, "hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}
    albert = AlbertModel(AlbertConfig(vocab_size=12, num_hidden_layers=2, num_hidden_groups=2, **sizes))
    with pytest.raises(SystemExit, match=r"layers of the teacher \(albert\) share weights in groups"):
        keep_layers(albert, [1])


def test_narrow_feed_forwards_of_distilbert():
    sizes = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24}
    distilbert = DistilBertModel(DistilBertConfig(vocab_size=12, **sizes)).eval()
    for layer in distilbert.transformer.layer:
        torch.nn.init.zeros_(layer.ffn.lin2.weight[:, 5:])
    student = narrow_feed_forwards(distilbert, 5, [{"input_ids": IDS, "attention_mask": MASK}])
    assert student.config.hidden_dim == 5
    found, expected = (model(IDS, attention_mask=MASK)[0] for model in (student, distilbert))
    torch.testing.assert_close(found, expected)


def test_other_token_mixing_is_for_bert():
    sizes = {"hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 8}
    gmlp = GMLPModel(GMLPConfig(vocab_size=12, num_hidden_layers=3, **sizes))
    with pytest.raises(SystemExit, match=r"--token_mixers: Only encoders of type 'bert' .* of type 'gmlp'"):
        mix_layers(gmlp, [1], ["random_synthesizer"], [])


def test_a_teacher_without_a_list_of_layers(bert):
    bert.encoder.layer = bert.encoder.layer[:1]  # one of four
    with pytest.raises(SystemExit, match=r"the teacher \(bert\) has no list of layers, or several"):
        keep_layers(bert, [0])


def test_narrow_feed_forwards_keep_what_matters(bert):
    """Units without output weights, and units that give the same for each token, leave without a trace."""
    bert.requires_grad_(False)
    for layer in bert.encoder.layer:
        layer.output.dense.weight[:, ::4] = 0
        layer.intermediate.dense.weight[1::4] = 0
    narrow = narrow_feed_forwards(bert, 16, [{"input_ids": IDS, "attention_mask": MASK}]).eval()
    assert narrow.config.intermediate_size == 16 and bert.config.intermediate_size == 32
    kept = narrow.encoder.layer[3].intermediate.dense.weight
    torch.testing.assert_close(
        kept, bert.encoder.layer[3].intermediate.dense.weight[[n for n in range(32) if n % 4 > 1]]
    )
    found, expected = (model(IDS, attention_mask=MASK)[0][MASK == 1] for model in (narrow, bert))
    torch.testing.assert_close(found, expected)


def test_units_are_kept_by_deviation_and_output_weights(bert):
    """Of two units that vary alike the one with larger weights, and of two with like weights the one that varies."""
    bert.requires_grad_(False)
    feed_forward = bert.encoder.layer[0]
    feed_forward.intermediate.dense.weight[:] = feed_forward.intermediate.dense.weight[0]
    feed_forward.intermediate.dense.bias[:] = 0
    feed_forward.output.dense.weight[:] = 0.1
    feed_forward.output.dense.weight[:, 7] = 0.2
    feed_forward.intermediate.dense.weight[7] *= 1.01
    feed_forward.intermediate.dense.weight[9] *= 1.5
    feed_forward.output.dense.weight[:, 9] = 0.15
    batches = [{"input_ids": IDS, "attention_mask": MASK}]
    for width, units in ((1, [9]), (2, [7, 9])):
        kept = narrow_feed_forwards(bert, width, batches).encoder.layer[0].intermediate.dense.weight
        torch.testing.assert_close(kept, feed_forward.intermediate.dense.weight[units])


@pytest.mark.parametrize("width", [0, 33, "half", 1.5, True])
def test_impossible_widths(bert, width):
    with pytest.raises(SystemExit, match=rf"intermediate_size={width}: .* have 32 units: give 1 to 32"):
        narrow_feed_forwards(bert, width, [])


def test_feed_forward_layers_that_are_not_found(bert):
    sizes = {"hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 8}
    gmlp = GMLPModel(GMLPConfig(vocab_size=12, num_hidden_layers=3, **sizes))
    bert.config.hidden_size = 32  # as wide as the units
    for model in (gmlp, bert):
        kind = model.config.model_type
        with pytest.raises(SystemExit, match=rf"intermediate_size=8 .* were not found in this one \({kind}\)"):
            narrow_feed_forwards(model, 8, [])
