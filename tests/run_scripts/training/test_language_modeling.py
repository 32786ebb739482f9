import collections
import math
from types import SimpleNamespace

import datasets
import pytest
import tokenizers
import torch
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import AutoTokenizer, EvalPrediction, PreTrainedTokenizerFast

from tokenmixers import GMLPConfig
from tokenmixers.run_scripts import run_mlm
from tokenmixers.run_scripts.base.arguments import ModelArguments
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.base.training_arguments import ScriptTrainingArguments
from tokenmixers.run_scripts.data.text_corpus import TextDataArguments
from tokenmixers.run_scripts.training import language_modeling, model_loading
from tokenmixers.run_scripts.training.language_modeling import (
    LanguageModeling,
    next_token_row_losses,
    perplexity,
    row_losses,
    unigram_perplexity,
)


def test_texts_without_a_row_are_an_error():
    backend = tokenizers.Tokenizer(WordLevel({"<unk>": 0, "gate": 1, "token": 2}, unk_token="<unk>"))
    backend.pre_tokenizer = Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    args = SimpleNamespace(seed=0, data_seed=None)
    names = {"line_by_line": True, "isolate_documents": False, "streaming": False, "preprocessing_num_workers": None}

    def rows(*texts):
        data = {"train": datasets.Dataset.from_dict({"text": texts})}
        run = SimpleNamespace(data=data, tokenizer=tokenizer, data_args=SimpleNamespace(**names), args=args)
        return LanguageModeling().tokenize(run, 8, shortest_row=2, special_tokens=False)

    assert rows("gate", "gate token")["train"]["input_ids"] == [[1, 2]]
    with pytest.raises(UserError, match="the train data have no text of 2 tokens or more: give longer texts"):
        rows("gate", "token")


@pytest.mark.parametrize(("seeds", "expected"), [({}, 5), ({"data_seed": 3}, 3), ({"data_seed": 0}, 0)])
def test_the_order_of_a_stream_has_its_own_seed(seeds, expected, command, monkeypatch):
    used = []

    def stop(train_dataset, **others):
        used.append(train_dataset.seed)
        raise UserError("stop")

    monkeypatch.setattr(language_modeling, "ScriptTrainer", stop)
    with pytest.raises(UserError, match="stop"):
        run_mlm.main(command(streaming=True, max_eval_samples=4, seed=5, **seeds))
    assert used == [expected]


@pytest.mark.parametrize("causal", [False, True])
def test_row_losses_and_perplexity_by_hand(causal):
    logits = torch.randn(3, 4, 7)
    labels = torch.tensor([[1, -100, 2, -100], [-100] * 4, [0, 6, 5, 3]])
    expected, tokens = [], 0
    for row in range(3):
        total = 0.0
        for position in range(4):
            label = labels[row, position].item()
            if label != -100 and not (causal and position == 0):
                scores = logits[row, position - causal].double()
                total += math.log(sum(math.exp(s) for s in scores.tolist())) - scores[label].item()
                tokens += 1
        expected.append(total)
    losses = (next_token_row_losses if causal else row_losses)((logits, "more outputs"), labels)
    assert losses.tolist() == pytest.approx(expected, rel=1e-5)
    prediction = EvalPrediction(predictions=losses.numpy(), label_ids=labels.numpy())
    found = perplexity(prediction, causal)["perplexity"]
    assert found == pytest.approx(math.exp(sum(expected) / tokens), rel=1e-5)


def test_unigram_perplexity_by_hand():
    datasets = pytest.importorskip("datasets")
    train = datasets.Dataset.from_dict(
        {"input_ids": [[2, 5, 6, 3], [2, 5, 5, 3]], "special_tokens_mask": [[1, 0, 0, 1]] * 2}
    )
    evaluation = datasets.Dataset.from_dict({"labels": [[-100, 5, -100], [-100, 6, 7]]})
    counts = collections.Counter([5, 6, 5, 5])
    probabilities = [(counts[label] + 1) / (4 + 8) for label in (5, 6, 7)]
    expected = math.exp(-sum(map(math.log, probabilities)) / 3)
    assert unigram_perplexity(train, evaluation, vocab_size=8) == pytest.approx(expected)


def test_the_unigram_model_knows_the_tokens_of_the_tokenizer_alone(arguments, tmp_path, monkeypatch):
    """Whatever the number of rows of the model, of which too many give a warning."""
    warnings = []
    monkeypatch.setattr(model_loading.logger, "warning", warnings.append)
    sizes = "hidden_size=8,intermediate_size=8,num_hidden_layers=1,max_position_embeddings=16"
    run_mlm.main(arguments(output_dir=tmp_path / "first", max_steps=1, config_overrides=sizes))
    tokenizer = {"tokenizer_name": tmp_path / "first", "max_steps": 1}
    found = {
        rows: run_mlm.main(
            arguments(**tokenizer, output_dir=tmp_path / str(rows), config_overrides=f"{sizes},vocab_size={rows}")
        )["unigram"]
        for rows in (60, 500)
    }
    assert found[60] == found[500]
    (warning,) = warnings
    ids = len(AutoTokenizer.from_pretrained(tmp_path / "first"))
    assert f"vocab_size=500 and the tokenizer {ids} ids" in warning


class Tokenizer:
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size


@pytest.mark.parametrize(
    ("rows", "ids", "warns"),
    [(2000, 2000, False), (2048, 2000, False), (2049, 2000, True), (32000, 2000, True), (128, 128, False)],
)
def test_rows_that_are_never_trained_give_a_warning(rows, ids, warns, monkeypatch):
    warnings = []
    monkeypatch.setattr(model_loading.logger, "warning", warnings.append)
    model_loading.warn_of_unused_rows(GMLPConfig(vocab_size=rows), Tokenizer(ids))
    assert len(warnings) == warns
    if warns:
        assert f"vocab_size={rows} and the tokenizer {ids} ids: {rows - ids} rows" in warnings[0]
        assert f"--config_overrides vocab_size={ids}" in warnings[0]


def test_held_out_documents_depend_on_no_seed_and_need_no_training(tmp_path):
    lines = [f"line {number}" for number in range(40)]
    (tmp_path / "text.txt").write_text("\n".join(lines))
    data_args = TextDataArguments(train_file=[str(tmp_path / "text.txt")], train_val_split=0.5)
    model_args = ModelArguments(config_name="gmlp-base", train_tokenizer=40)

    def held_out(**seeds):
        args = ScriptTrainingArguments(output_dir=str(tmp_path / "run"), use_cpu=True, **seeds)
        documents = LanguageModeling().load(SimpleNamespace(args=args, data_args=data_args, model_args=model_args))
        assert ("train" in documents) == args.do_train  # which need not be tokenized to evaluate
        return documents["validation"]["text"]

    assert held_out(seed=5) == held_out(seed=7, data_seed=3) == held_out(seed=5, do_train=True)
    assert len(held_out()) == 20 and held_out() != lines[:20]
