import math
from types import SimpleNamespace

import pytest
import torch

from tokenmixers import GMLPConfig, GMLPModel
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.studies.measures import MEASURES, RETRIEVAL, check_measures, measure


@pytest.fixture
def folder(tmp_path):
    """A run of 6 steps whose spatial weights are random after step 3, and Toeplitz matrices in the end."""
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 2, "vocab_size": 20}
    model = GMLPModel(GMLPConfig(**sizes, max_position_embeddings=40, spatial_weight_type="full"))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for layer in model.layers:
            layer.sgu.spatial_proj.weight.normal_(generator=generator)
        model.save_pretrained(tmp_path / "checkpoint-3")
        for layer in model.layers:
            layer.sgu.spatial_proj.weight.copy_(torch.arange(40.0)[:, None] - torch.arange(40.0))
    model.save_pretrained(tmp_path)
    return tmp_path


def test_the_measures_at_every_checkpoint(folder):
    found = measure(list(MEASURES), folder, 6)
    (first, random), (last, end) = found["toeplitzness"]
    assert (first, last) == (3, 6)
    assert end == pytest.approx(1.0)
    # Independent entries: n diagonals' means explain about 2 / (n + 1) of the variance.
    assert random == pytest.approx(2 / 41, abs=0.02)
    controls = [value for _, value in found["toeplitzness_of_random_matrices"]]
    assert controls[0] == controls[1] == pytest.approx(2 / 41, abs=0.02)


def test_retrieval_is_the_mean_over_sets(tmp_path):
    """A relevant text that is ranked second counts 1 / log2(3)."""
    library = pytest.importorskip("sentence_transformers", reason="needs the extra embeddings")
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding
    from tokenizers import Tokenizer, models

    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "c": 2}, unk_token="a"))
    vectors = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    library.SentenceTransformer(modules=[StaticEmbedding(tokenizer, vectors)]).save(str(tmp_path / "run"))
    for name, relevant in (("found", "a"), ("second", "b")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "corpus.jsonl").write_text("".join(f'{{"_id": "{word}", "text": "{word}"}}\n' for word in "abc"))
        (folder / "queries.jsonl").write_text('{"_id": "q", "text": "a"}\n')
        (folder / "qrels.tsv").write_text(f"query-id\tcorpus-id\tscore\nq\t{relevant}\t1\n")
    sets = [str(tmp_path / name) for name in ("found", "second")]
    found = measure([RETRIEVAL], tmp_path / "run", 6, sets)
    assert found == {RETRIEVAL: [[6, pytest.approx((1 + 1 / math.log2(3)) / 2)]]}


def test_unknown_measures_are_refused(folder):
    with pytest.raises(UserError, match="there is no measure 'beauty'; there are toeplitzness, "):
        check_measures(SimpleNamespace(measures=["toeplitzness", "beauty"]))
    with pytest.raises(UserError, match="embeddings: retrieval_ndcg@10 needs `measured_on`"):
        check_measures(SimpleNamespace(name="embeddings", measures=[RETRIEVAL], data={"files": {}}))
    assert measure([], folder, 6) == {}
