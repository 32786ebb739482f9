import pytest
import torch
from PIL import Image
from transformers import BertConfig, BertModel

from tokenmixers import (
    AMLPConfig,
    AMLPForMaskedLM,
    GMLPForImageClassification,
    GMLPForMaskedLM,
    train_unigram_tokenizer,
)
from tokenmixers.run_scripts import plot_spatial_weights


pytest.importorskip("matplotlib")


def is_png(file):
    return file.read_bytes().startswith(b"\x89PNG") and file.stat().st_size > 5000


def test_matrices_are_those_of_the_layers(tiny_config, randomise, spatial_matrix):
    model = randomise(GMLPForMaskedLM(tiny_config()))
    matrices = plot_spatial_weights.spatial_matrices(model)
    assert len(matrices) == 2
    for matrix, layer in zip(matrices, model.model.layers, strict=True):
        torch.testing.assert_close(matrix, spatial_matrix(layer.sgu.spatial_proj, list(range(11))).detach())


def test_draws_text_filters(tmp_path, tiny_config, randomise):
    randomise(GMLPForMaskedLM(tiny_config())).save_pretrained(tmp_path / "model")
    plot_spatial_weights.main(["--model", str(tmp_path / "model"), "--output_dir", str(tmp_path / "pictures")])
    assert is_png(tmp_path / "pictures" / "spatial_filters.png")
    assert is_png(tmp_path / "pictures" / "toeplitzness.png")


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_draws_image_filters(tmp_path, tiny_config, randomise, pooling):
    config = tiny_config(image_size=[48, 32], spatial_weight_type="full", classifier_pooling=pooling)
    randomise(GMLPForImageClassification(config)).save_pretrained(tmp_path / "model")
    plot_spatial_weights.main(["--model", str(tmp_path / "model"), "--output_dir", str(tmp_path / "pictures")])
    assert is_png(tmp_path / "pictures" / "spatial_filters.png")


def test_all_patches_are_drawn_for_as_many_columns(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(plot_spatial_weights, "_save", lambda figure, file: drawn.append(figure))
    plot_spatial_weights.draw_image_filters([torch.randn(6, 6)], (3, 2), tmp_path / "a.png", columns=9)
    titles = [axis.get_title() for axis in drawn[0].axes]
    assert titles == [f"patch ({row}, {column})" for row in range(3) for column in range(2)]


def test_pictures_are_not_wider_than_a_page(tmp_path):
    plot_spatial_weights.draw_text_filters([torch.randn(9, 9)] * 8, tmp_path / "filters.png", columns=8)
    tokens = [f"token{number}" for number in range(30)]
    plot_spatial_weights.draw_attention([torch.rand(30, 30)] * 3, tokens, tmp_path / "attention.png", columns=3)
    assert 900 < Image.open(tmp_path / "filters.png").width <= 1000
    width, height = Image.open(tmp_path / "attention.png").size  # one map in a row, or the tokens would be illegible
    assert width <= 1000 and height > 2 * width


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_draws_attention(tmp_path, dtype):
    tokenizer = train_unigram_tokenizer(["the gate mixes tokens"] * 9, 40, model_max_length=16, show_progress=False)
    tokenizer.save_pretrained(tmp_path / "model")
    sizes = {"hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2, "max_position_embeddings": 16}
    config = AMLPConfig(vocab_size=len(tokenizer), attention_size=4, **sizes)
    model = AMLPForMaskedLM(config).to(dtype)
    model.save_pretrained(tmp_path / "model")
    arguments = ["--model", str(tmp_path / "model"), "--output_dir", str(tmp_path / "pictures")]
    plot_spatial_weights.main([*arguments, "--text", "the gate", "--text_pair", "tokens"])
    assert Image.open(tmp_path / "pictures" / "attention.png").width > 100
    maps, tokens = plot_spatial_weights.attention_maps(model.model, tokenizer, "the gate", "tokens")
    assert len(maps) == 2
    assert all(weights.shape == (len(tokens), len(tokens)) for weights in maps)
    torch.testing.assert_close(maps[0].sum(-1), torch.ones(len(tokens)), rtol=0, atol=torch.finfo(dtype).eps)


def test_refuses_what_it_cannot_draw(tmp_path, tiny_config):
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "num_hidden_layers": 1}
    BertModel(BertConfig(vocab_size=20, **sizes)).save_pretrained(tmp_path / "bert")
    arguments = ["--model", str(tmp_path / "bert"), "--output_dir", str(tmp_path / "pictures")]
    with pytest.raises(SystemExit, match="no spatial gating units"):
        plot_spatial_weights.main(arguments)
    with pytest.raises(SystemExit, match="--text_pair is the second sentence of a pair: give the first as --text"):
        plot_spatial_weights.main([*arguments, "--text_pair", "a"])


def test_nothing_is_drawn_without_the_attention_maps_asked_for(tmp_path, tiny_config):
    GMLPForMaskedLM(tiny_config()).save_pretrained(tmp_path / "model")
    tokenizer, call = tmp_path / "model" / "tokenizer.json", ["--model", str(tmp_path / "model"), "--text", "a"]
    tokenizer.write_text("{")
    with pytest.raises(SystemExit, match=r"error: .*no tokenizer can be loaded from .*model"):
        plot_spatial_weights.main([*call, "--output_dir", str(tmp_path / "pictures")])
    train_unigram_tokenizer(["a b"] * 9, 20, 16, show_progress=False).save_pretrained(tmp_path / "model")
    with pytest.raises(SystemExit, match="--text: GMLPModel has no attention to draw"):
        plot_spatial_weights.main([*call, "--output_dir", str(tmp_path / "pictures")])
    assert not (tmp_path / "pictures").exists()
