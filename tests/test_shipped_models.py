"""The models in the box: complete folders for the Hub, whose embeddings and scores stay what they were."""

import importlib.util
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from safetensors import safe_open
from safetensors.numpy import load_file
from transformers import AutoConfig, AutoModel, AutoTokenizer

import tokenmixers
from tokenmixers.configuration.checkpoint_code import checkpoint_code
from tokenmixers.run_scripts.push_to_hub import collect_files


MODELS = tokenmixers.shipped_models()
FOLDER = Path(tokenmixers.__file__).parent / "model_cards"
#: Sentences, and each model's embeddings of them in half precision.
SENTENCES = json.loads(Path(__file__).with_name("shipped_sentences.json").read_text(encoding="utf-8"))
PINNED = Path(__file__).with_name("shipped_embeddings.safetensors")
library = pytest.mark.skipif(
    importlib.util.find_spec("sentence_transformers") is None, reason="needs sentence-transformers (extra embeddings)"
)


def embed(folder: str, sentences: list[str]) -> np.ndarray:
    """Mean pooling and normalisation as sentence-transformers does them, without that library."""
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(sentences, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        states = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
    mask = batch["attention_mask"][..., None]
    return torch.nn.functional.normalize((states * mask).sum(1)).numpy()


def cosines(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    one, other = (array / np.linalg.norm(array, axis=1, keepdims=True) for array in (one, other))
    return (one * other).sum(1)


@pytest.mark.parametrize("name", MODELS)
def test_folder_is_complete_and_small(name):
    folder = Path(tokenmixers.shipped_model(name))
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} - {"__pycache__"}
    kind = AutoConfig.from_pretrained(folder).model_type
    code = {f"configuration_{kind}.py", f"modeling_{kind}.py"}
    expected = {"README.md", "NOTICE", "config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    expected |= {"modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"}
    assert {file for file in files if "/" not in file} == expected | code
    assert "1_Pooling/config.json" in files
    assert (folder / "model.safetensors").stat().st_size <= 37e6
    with safe_open(folder / "model.safetensors", "pt") as weights:
        assert {weights.get_slice(key).get_dtype() for key in weights.keys()} == {"BF16"}  # noqa: SIM118
    assert AutoModel.from_pretrained(folder).dtype == torch.float32  # older processors emulate bfloat16
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    assert tokenizer["padding"] is tokenizer["truncation"] is None


def test_weights_of_all_are_at_most_100_megabytes():
    """A wheel with them, in which they take a fifth less, is within the 100 MB that a package index accepts."""
    sizes = [(FOLDER / name / "model.safetensors").stat().st_size for name in MODELS]
    assert sizes and sum(sizes) <= 100e6


@pytest.mark.parametrize("name", MODELS)
def test_code_is_what_a_save_writes(name):
    folder = Path(tokenmixers.shipped_model(name))
    config = AutoConfig.from_pretrained(folder)
    AutoModel.from_config(config)  # a checkpoint's code depends on the class
    for file, source in checkpoint_code(config).items():
        assert (folder / file).read_text(encoding="utf-8") == source, f"save the model again: {file} is not up to date"


@pytest.mark.parametrize("name", MODELS)
def test_embeddings_stay(name):
    found, pinned = embed(tokenmixers.shipped_model(name), SENTENCES), load_file(PINNED)[name].astype(np.float32)
    assert cosines(found, pinned).min() > 0.999
    similarities = found @ found.T
    for one, other in ((0, 1), (3, 4), (7, 8)):  # what is about the same thing is the most similar
        assert similarities[one].argsort()[-2] == other


TOKENIZERS = """
import sys
from transformers import AutoTokenizer
for folder in sys.argv[1:]:
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    assert tokenizer("a text").input_ids[0] == tokenizer.cls_token_id, folder
"""


def test_tokenizers_need_neither_the_package_nor_trust(alone):
    alone(TOKENIZERS, map(tokenmixers.shipped_model, MODELS))


@pytest.mark.parametrize("name", MODELS)
def test_card(name):
    card = ModelCard.load(FOLDER / name / "README.md")
    assert card.data.base_model == "sentence-transformers/all-MiniLM-L6-v2"
    assert (card.data.license, card.data.library_name) == ("apache-2.0", "sentence-transformers")
    assert card.data.pipeline_tag == "sentence-similarity" and card.data.eval_results
    notice = (FOLDER / name / "NOTICE").read_text()
    assert "all-MiniLM-L6-v2" in notice and "CC BY-SA" in notice


@pytest.mark.parametrize("name", MODELS)
def test_card_works_on_the_hub(name):
    """It is short, and links to nothing that is not pushed; its first block loads the repository."""
    files = collect_files(name, "me/mine")
    card = ModelCard(files["README.md"].decode()).text.strip()
    assert {link for link in re.findall(r"\]\(([^)\s]+)\)", card) if not link.startswith("https://")} <= {*files}
    first = re.search(r"```python\n(.+?)```", card, re.DOTALL)[1]
    assert 'SentenceTransformer("me/mine", trust_remote_code=True)' in first
    sections = re.findall("^(?:```python|## .+)$", card, re.MULTILINE)
    assert sections == ["```python", "## When to use it", "## Results", "## How it was made"]
    assert len(card.splitlines()) <= 60 and max(map(len, card.splitlines())) <= 140


@library
@pytest.mark.parametrize("name", MODELS)
def test_first_block_of_the_card_runs_in_a_clone(name, monkeypatch, capsys):
    monkeypatch.chdir(FOLDER.parent)
    (code, *_) = re.findall(r"```python\n(.+?)```", (FOLDER / name / "README.md").read_text(), re.DOTALL)
    exec(compile(code, name, "exec"), {})
    assert "tensor([[1.0" in capsys.readouterr().out


@pytest.mark.slow  # 1,500 pairs of texts
@pytest.mark.parametrize("name", MODELS)
def test_score_on_stsb_is_that_of_the_card(name):
    from scipy.stats import spearmanr

    file = FOLDER.parents[1] / "shared" / "data" / "glue" / "STS-B" / "dev.tsv"
    if not file.is_file():
        pytest.skip("needs STS-B's dev.tsv")
    rows = [line.split("\t") for line in file.read_text().rstrip("\n").split("\n")]
    head = rows[0]
    columns = [head.index(column) for column in ("sentence1", "sentence2", "score")]
    one, other, scores = zip(*([row[column] for column in columns] for row in rows[1:]), strict=True)
    folder = tokenmixers.shipped_model(name)
    found = [
        np.concatenate([embed(folder, list(texts[i : i + 50])) for i in range(0, 1500, 50)]) for texts in (one, other)
    ]
    expected = next(
        result.metric_value
        for result in ModelCard.load(FOLDER / name / "README.md").data.eval_results
        if result.dataset_name == "STS-B dev" and result.metric_type == "spearman_cosine"
    )
    assert 100 * spearmanr(cosines(*found), [float(score) for score in scores]).statistic == pytest.approx(
        expected, abs=0.2
    )
