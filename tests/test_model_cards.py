import json
import re
import runpy
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from transformers import AutoConfig, AutoModel, AutoModelForImageClassification, AutoModelForSeq2SeqLM

import tokenmixers
from tokenmixers.modeling.layers.feed_forward import FEED_FORWARD_TYPES
from tokenmixers.run_scripts.training.model_card import CITATIONS, GLU_VARIANTS


FOLDER = Path(tokenmixers.__file__).parent / "model_cards"
METADATA = runpy.run_path(str(Path(__file__).with_name("hub_metadata.py")))
#: Configurations without weights: of the papers, and small ones to start from.
ALL_CARDS = sorted(path.parent.name for path in FOLDER.glob("*/config.json") if not path.with_name("NOTICE").is_file())
#: Size -> millions of parameters besides the embeddings.
SIZES = {"tiny": 1, "mini": 6, "small": 25}
STARTERS = [name for name in ALL_CARDS if name.rpartition("-")[2] in (*SIZES, "32", "64")]
CARDS = [name for name in ALL_CARDS if name not in STARTERS]

#: Rows of tables of a paper's results -> where tests/paper_figures.json has them: table and column.
QUOTED = {
    "log-perplexity, 65,536 steps": ("GLU, Table 1", "65,536 steps (std)"),
    "log-perplexity, 524,288 steps": ("GLU, Table 1", "524,288 steps"),
    "GLUE, average": ("GLU, Table 2", "avg"),
    "SuperGLUE, average": ("GLU, Table 3", "avg"),
    "SQuAD 1.1, EM/F1": ("GLU, Table 4", "EM/F1"),
    **{column: ("Synthesizer, Table 2", column) for column in ("En-De", "En-Fr", "LM parameters", "LM1B")},
    **{column: ("Synthesizer, C4", column) for column in ("log-perplexity", "steps/s")},
    "pretraining perplexity": ("gMLP, Table 6", "perplexity"),
    "SST-2": ("gMLP, Table 6", "SST-2"),
    "MNLI m/mm": ("gMLP, Table 6", "MNLI"),
    "SQuAD 1.1 F1": ("gMLP, Table 6", "SQuAD 1.1"),
    "SQuAD 2.0 F1": ("gMLP, Table 6", "SQuAD 2.0"),
}


def table(name: str) -> dict[str, str]:
    """The two-column table of a card."""
    text = (FOLDER / name / "README.md").read_text()
    return dict(re.findall(r"^\| (.+?) \| (.+?) \|$", text, flags=re.MULTILINE))


@pytest.mark.parametrize("name", [name for name in CARDS if not name.startswith("synthesizer") and "224" not in name])
def test_the_text_cards_of_encoders_without_attention_are_true(name):
    config, found = AutoConfig.from_pretrained(FOLDER / name), table(name)
    with torch.device("meta"):
        model = AutoModel.from_config(config)
    assert found["parameters of the encoder"] == f"{model.num_parameters():,}"
    assert found["blocks"] == str(len(model.layers))
    assert found["`hidden_size` (d_model)"] == str(config.hidden_size)
    assert found["`intermediate_size` (d_ffn)"] == str(config.intermediate_size)
    length = config.max_position_embeddings
    assert found["maximum length"] == f"{length} tokens"
    assert found[f"FLOPs of the encoder, {length} tokens"] == f"{model.forward_flops(1, length) / 1e9:.1f} B"
    if config.model_type == "mlp_mixer":
        body = model.num_parameters() - model.embed_tokens.weight.numel()
        assert found["parameters without embeddings"] == f"{body:,}"
        assert found["`token_mixing_size`"] == str(config.token_mixing_size)
        fields, defaults = config.to_dict(), tokenmixers.MLPMixerConfig().to_dict()
        assert {key for key in fields if fields[key] != defaults[key]} == {"architectures", "_name_or_path"}
        return
    numbers = model.layers[0].sgu.spatial_proj.weight.numel()
    assert found["spatial weights"] == f"Toeplitz, {numbers:,} numbers per block"
    # What the paper counts lies between the encoder alone and a vocabulary of logits for every token.
    paper = float(found["the paper's FLOPs"].removesuffix(" B")) * 1e9
    masked = 2 * 77 * config.hidden_size * config.vocab_size
    text = " ".join((FOLDER / name / "README.md").read_text().split())
    together = (model.forward_flops(1, length) + masked) / 1e9
    assert f"adds {masked / 1e9:.1f} B. Together that is {together:.1f} B." in text
    assert f"The {100 * (1 - 1e9 * together / paper):.1f} % between" in text


@pytest.mark.parametrize("name", STARTERS)
def test_the_cards_of_sizes_to_start_from_are_true(name):
    config, found, size = AutoConfig.from_pretrained(FOLDER / name), table(name), name.rpartition("-")[2]
    images = config.image_size is not None
    with torch.device("meta"):
        model = (AutoModelForImageClassification if images else AutoModel).from_config(config)
    assert found["blocks"] == str(config.num_hidden_layers)
    assert found["`hidden_size`"] == str(config.hidden_size)
    assert found["`intermediate_size`"] == str(config.intermediate_size)
    guide = (FOLDER / "README.md").read_text()
    if images:
        side = config.image_size // config.patch_size
        assert str(config.image_size) == size and found["patches"].startswith(f"{side**2} of {config.patch_size}x")
        parameters, flops = found["parameters"], f"{model.forward_flops() / 1e9:.2f} B"
        assert (parameters, found["FLOPs"]) == (f"{model.num_parameters():,}", flops)
        assert f"| [`{name}`]({name}) | images of {size} pixels |" in guide
    else:
        length = config.max_position_embeddings
        body = model.num_parameters() - model.get_input_embeddings().weight.numel()
        assert found["maximum length"] == f"{length} tokens"
        assert found["parameters of the encoder"] == f"{model.num_parameters():,}"
        parameters, flops = f"{body:,}", f"{model.forward_flops(1, length) / 1e9:.1f} B"
        assert (found["parameters without embeddings"], found[f"FLOPs of the encoder, {length} tokens"]) == (
            parameters,
            flops,
        )
        assert 0.8 < body / 1e6 / SIZES[size] < 1.25
        assert f"| [`{name}`]({name}) | {length} tokens |" in guide
    assert f"| {parameters} | {flops} |" in guide


@pytest.mark.parametrize("name", [name for name in CARDS if name.endswith("224")])
def test_the_image_cards_are_true(name):
    config, found = AutoConfig.from_pretrained(FOLDER / name), table(name)
    for suffix, pooling in (("", "cls"), (", mean-pooled", "mean")):
        changed = type(config)(**{**config.to_dict(), "classifier_pooling": pooling})
        with torch.device("meta"):
            model = AutoModelForImageClassification.from_config(changed)
        assert found[f"parameters{suffix}"] == f"{model.num_parameters():,}"
        assert found[f"FLOPs{suffix}"] == f"{model.forward_flops() / 1e9:.2f} B"
    assert f"{float(found['parameters'].replace(',', '')) / 1e6:.1f}M" == found["the paper's count"]
    assert found["blocks"] == str(config.num_hidden_layers)
    assert (
        found["survival probability"] == f"{1 - config.drop_path_rate:.2f} (`drop_path_rate={config.drop_path_rate}`)"
    )
    assert found["`hidden_size` (d_model)"] == str(config.hidden_size)


@pytest.mark.parametrize("name", ALL_CARDS)
def test_metadata(name):
    card = ModelCard.load(FOLDER / name / "README.md")
    assert METADATA["metadata_errors"](str(card)) == []
    assert card.data.license
    assert card.data.pipeline_tag
    assert card.data.tags[0] == AutoConfig.from_pretrained(FOLDER / name).model_type.replace("_", "-")
    assert card.data.library_name == "transformers"


@pytest.mark.parametrize("name", [name for name in CARDS if name.startswith("synthesizer")])
def test_the_numbers_of_the_synthesizer_cards_are_true(name):
    config, text = AutoConfig.from_pretrained(FOLDER / name), (FOLDER / name / "README.md").read_text()
    with torch.device("meta"):
        model = AutoModelForSeq2SeqLM.from_config(config)
    parameters = model.num_parameters()
    assert {f"{parameters:,}"} == set(re.findall(r"\d+,\d{3},\d{3}", text))
    lengths = re.findall(r"up to (\d+) tokens", text) + re.findall(r"N = (\d+)", text)
    assert set(lengths) == {str(config.max_position_embeddings)}
    flops, limits = re.search(r"takes ([\d.]+ B) FLOPs", text)[1], text.split("## Limits\n")[1]
    length = config.max_position_embeddings
    assert flops == f"{model.forward_flops(1, length, length) / 1e9:.1f} B"
    sides = {"input_ids": (1, length + 1), "decoder_input_ids": (1, 1)}
    inputs = {key: torch.zeros(shape, dtype=torch.long, device="meta") for key, shape in sides.items()}
    if f"at most {length} tokens" in limits:
        with pytest.raises(ValueError, match="max_position_embeddings"):
            model(**inputs)
    else:
        assert f"the length of {length} tokens: longer sequences run" in limits
        assert model(**inputs).logits.shape[:2] == (1, 1)
    ours = text.replace("\n", " ")
    heads = re.search(r"(\d+) heads of (\d+) in self-attention, (\d+) of (\d+) in cross-attention", ours)
    assert (heads is not None) == (config.cross_attention_num_heads is not None)
    if heads:
        stated = [int(number) for number in heads.groups()]
        cross = [config.cross_attention_num_heads, config.cross_attention_head_dim]
        assert stated == [config.num_attention_heads, config.head_dim, *cross]
    if "mesh" in name:
        published = int(re.search(r"published count is (\d+)M", ours)[1])
        assert abs(published * 1e6 - parameters) < 1e6  # cut or rounded there
        assert f"| {published}M |" in text
    if rank := re.search(r"of two of rank (\d+)", ours):
        assert int(rank[1]) == config.factorized_random_rank
    if factors := re.search(r"\((\d+) and (\d+) numbers", ours):
        assert tuple(int(factor) for factor in factors.groups()) == config.dense_factors
    if wider := re.search(r"feed-forward layers of (\d+) instead of (\d+)", ours):
        narrow = AutoConfig.from_pretrained(FOLDER / "synthesizer-vanilla")
        assert [int(size) for size in wider.groups()] == [config.intermediate_size, narrow.intermediate_size]
        with torch.device("meta"):
            mixed = AutoModelForSeq2SeqLM.from_config(
                AutoConfig.from_pretrained(FOLDER / "synthesizer-random-vanilla")
            )
        assert abs(parameters / mixed.num_parameters() - 1) < 0.05


@pytest.mark.parametrize("kind", FEED_FORWARD_TYPES)
def test_the_numbers_of_the_feed_forward_cards_are_true(kind):
    config = AutoConfig.from_pretrained(FOLDER / f"synthesizer-t5-base-{kind}")
    text = (FOLDER / f"synthesizer-t5-base-{kind}" / "README.md").read_text()
    shape = re.search(
        r"(\d+) \+ (\d+) layers of width (\d+), (\d+) heads of (\d+), feed-forward layers of width (\d+)", text
    )
    sizes = ("num_hidden_layers", "num_decoder_layers", "hidden_size", "num_attention_heads", "head_dim")
    assert [int(size) for size in shape.groups()] == [getattr(config, key) for key in (*sizes, "intermediate_size")]
    activation, gated = FEED_FORWARD_TYPES[kind]
    formula = re.search(r"`(\(?)(.*?)x W1?\)?( \* x V\))? W2`", text)
    assert (formula[1] == "(") == (formula[3] is not None) == gated
    written = {"max(0, ": "relu", "GELU(": "gelu", "Swish(": "silu", "sigmoid(": "sigmoid", "": "_linear"}
    assert written[formula[2]] == activation.__name__
    (models,) = re.findall(r"^\| \| (\w.+) \|$", text, flags=re.MULTILINE)
    assert models.lower() == ("relu" if kind == "relu" else f"relu | {kind}")


def test_cards_quote_the_papers():
    """Of every model, the figures that test_papers.py holds."""
    papers = json.loads(Path(__file__).with_name("paper_figures.json").read_text(encoding="utf-8"))
    figures = {
        (row[0], label): row[papers[table]["columns"].index(column) + 1]
        for label, (table, column) in QUOTED.items()
        for row in papers[table]["rows"]
    }
    quoted = 0
    for name in CARDS:
        text = (FOLDER / name / "README.md").read_text()
        for found in re.findall(r"^\| \| \w.+\n\|---.+\n(?:\|.*\n)+", text, flags=re.MULTILINE):
            models, _, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in found.splitlines())
            assert len(models) <= 3, "more columns do not fit on a phone"
            for label, *cells in (row for row in rows if row[0] in QUOTED):
                assert cells == [figures[model, label] for model in models[1:]], (name, label)
                quoted += len(cells)
    assert quoted == 15 * 5 + 11 * 4 + 8 * 2 + 5 * 5  # of the feed-forward layers, translation, C4, and gMLP


@pytest.mark.parametrize("name", ALL_CARDS)
def test_the_snippet_of_a_shipped_card_runs(name, monkeypatch):
    """On the meta device: the sizes are the real ones, the numbers are never drawn."""
    monkeypatch.chdir(FOLDER.parent)
    code = "".join(re.findall(r"```python\n(.+?)```", (FOLDER / name / "README.md").read_text(), flags=re.DOTALL))
    names = {}
    with torch.device("meta"):
        exec(compile(code, name, "exec"), names)
    config = AutoConfig.from_pretrained(FOLDER / name)
    assert type(names["model"]).__name__ == config.architectures[0]
    fields = {key: value for key, value in config.to_dict().items() if key not in ("architectures", "_name_or_path")}
    found = names["model"].config.to_dict()
    assert {key: found[key] for key in fields} == fields


@pytest.mark.parametrize("name", ALL_CARDS)
def test_the_snippet_names_the_card_itself(name):
    text = (FOLDER / name / "README.md").read_text()
    assert set(re.findall(r'from_pretrained\("model_cards/([^"]+)"', text)) == {name}


@pytest.mark.parametrize("name", ALL_CARDS)
def test_links_of_a_card_work_on_the_hub(name):
    links = re.findall(r"\]\(([^)\s]+)\)", (FOLDER / name / "README.md").read_text())
    assert [link for link in links if not link.startswith("https://") and not (FOLDER / name / link).is_file()] == []


@pytest.mark.parametrize("name", ALL_CARDS)
def test_every_card_has_flops_limits_and_a_citation(name):
    text = (FOLDER / name / "README.md").read_text()
    assert re.search(r"FLOPs.* \| [\d.]+ B \||takes [\d.]+ B FLOPs", text)  # compared with the model above
    assert len(text.split("## Limits\n")[1].split("##")[0].split()) > 10
    feed_forward = name.removeprefix("synthesizer-t5-base-") in FEED_FORWARD_TYPES
    citation = GLU_VARIANTS if feed_forward else CITATIONS[AutoConfig.from_pretrained(FOLDER / name).model_type]
    title = re.search(r"title += (.+)", citation)[1]
    assert title in text.split("## Citation\n\n```bibtex\n")[1]
