import json
import re
from pathlib import Path, PureWindowsPath

import pytest
from huggingface_hub import ModelCard, ModelCardData
from PIL import Image
from transformers import AutoConfig, BertConfig, BertForMaskedLM, CLIPImageProcessorPil

import tokenmixers
from tokenmixers.configuration.auto_classes import FAMILIES
from tokenmixers.run_scripts import run_clm, run_mlm, run_span_corruption
from tokenmixers.run_scripts.base.training_arguments import ScriptTrainingArguments
from tokenmixers.run_scripts.data.images import ImageDataArguments
from tokenmixers.run_scripts.data.text_classification import TextClassificationArguments
from tokenmixers.run_scripts.data.text_corpus import TextDataArguments
from tokenmixers.run_scripts.training.model_card import (
    HUB_TASKS,
    SNIPPETS,
    TEMPLATE,
    CardFacts,
    architecture,
    citations,
    describe_data,
    last_evaluation,
    limits,
    metadata,
    snippet,
    training,
)
from tokenmixers.tokenization.tokenizer_training import train_unigram_tokenizer


SIZES = "hidden_size=16,intermediate_size=32,num_hidden_layers=2,max_position_embeddings=32"
TINY_SYNTHESIZER = {"vocab_size": 20, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
TINY_SYNTHESIZER |= {"num_attention_heads": 2, "head_dim": 8}
SYNTHESIZER = {"config_name": "synthesizer-random", "config_overrides": SIZES + ",num_attention_heads=2,head_dim=8"}


@pytest.fixture
def run_snippet(capsys):
    def run(card: Path) -> str:
        code = re.search(r"```python\n(.+?)```", card.read_text(), flags=re.DOTALL)[1]
        capsys.readouterr()
        exec(compile(code, str(card), "exec"), {})
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize(
    "script, task, changes",
    [
        (run_mlm, "fill-mask", {}),
        (run_clm, "text-generation", {"config_overrides": SIZES + ",is_decoder=true"}),
        (run_span_corruption, "text2text-generation", {**SYNTHESIZER, "train_tokenizer": 160}),
    ],
    ids=["mlm", "clm", "span corruption"],
)
def test_a_run_leaves_a_true_card(script, task, changes, command, tmp_path, run_snippet):
    script.main(command(**changes, weight_decay=0.125))
    folder = tmp_path / "run"
    card = ModelCard.load(folder / "README.md")
    assert card.data.pipeline_tag == HUB_TASKS.get(task, task)
    assert task in (card.data.pipeline_tag, *card.data.tags)
    assert card.data.model_name == "run"
    (result,) = card.data.eval_results
    assert result.metric_value == json.loads((folder / "eval_results.json").read_text())["eval_perplexity"]
    assert (result.metric_type, Path(result.dataset_name).name) == ("perplexity", "validation.txt")
    assert re.search(r"Trained on \S*train.txt\. 4 steps\.", card.text)
    config = AutoConfig.from_pretrained(folder)
    model = getattr(tokenmixers, config.architectures[0]).from_pretrained(folder)
    assert f"`{type(model).__name__}` with {model.num_parameters():,} parameters, trained from scratch" in card.text
    rows = dict(re.findall(r"^\| (\S+) +\| +(\S+) \|$", card.text, flags=re.MULTILINE))
    assert rows["`weight_decay`"] == "0.125"
    assert rows["`max_steps`"] == "4"
    assert rows["`hidden_size`"] == "16"
    assert float(rows["perplexity"]) == pytest.approx(result.metric_value, abs=1e-4)
    assert "\n\n\n" not in card.text
    assert run_snippet(folder / "README.md").strip()


def test_the_card_of_another_family_asks_for_no_code(command, tmp_path, run_snippet):
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    BertForMaskedLM(BertConfig(vocab_size=60, max_position_embeddings=32, **sizes)).save_pretrained(tmp_path / "bert")
    run_mlm.main(command(config_name=tmp_path / "bert", config_overrides=None))
    assert not re.search("trust_remote_code|tokenmixers", (tmp_path / "run" / "README.md").read_text(), re.IGNORECASE)
    assert run_snippet(tmp_path / "run" / "README.md").strip()


def test_what_a_finetuned_model_came_from(command, tmp_path):
    run_mlm.main(command(output_dir=tmp_path / "pretrained"))
    run_mlm.main(command(model_name_or_path=tmp_path / "pretrained"))
    card = ModelCard.load(tmp_path / "run" / "README.md")
    assert "finetuned from pretrained." in card.text
    assert card.data.base_model is None  # a folder is nothing that others could follow


def test_data_are_named(tmp_path):
    text, image = TextDataArguments, ImageDataArguments
    found = describe_data(text(dataset_name="me/texts", dataset_config_name="raw"))
    assert (found["data"], found["dataset_id"]) == ("me/texts (raw)", "me/texts")
    assert found["train_data"] == "me/texts (raw), split train"
    found = describe_data(text(train_file=["x/a/b.txt", "c.txt"]))
    assert (found["data"], found["train_data"]) == ("a/b.txt, c.txt (a part held out of training)", "a/b.txt, c.txt")
    assert describe_data(text(train_file=["a.txt"], validation_file=["x/v.txt"]))["data"] == "x/v.txt"
    found = describe_data(text(dataset_name="me/texts", validation_file=["x/v.txt"]))
    assert (found["data"], found["dataset_id"], found["train_data"]) == ("x/v.txt", None, "me/texts, split train")
    assert describe_data(image(train_dir="a/train", validation_dir="a/held_out"))["data"] == "a/held_out"
    found = describe_data(text(dataset_name=str(tmp_path)))
    assert (found["data"], found["dataset_id"]) == (tmp_path.name, None)
    pairs = describe_data(TextClassificationArguments(train_file="a.csv", test_file="b.csv"))
    assert (pairs["train_data"], pairs["test_data"]) == ("a.csv", "b.csv")


def test_results_of_test_data_stay_apart_from_those_of_validation_data():
    facts = CardFacts("fill-mask", data="v.txt", test_data="t.txt", metrics={"accuracy": "accuracy"})
    written = metadata(facts, "gmlp", "run", {"accuracy": 0.5}, {"accuracy": 0.25}).to_dict()
    found = [
        (part["dataset"]["name"], part["dataset"]["split"], [metric["value"] for metric in part["metrics"]])
        for part in written["model-index"][0]["results"]
    ]
    assert found == [("v.txt", "validation", [0.5]), ("t.txt", "test", [0.25])]


def test_the_last_evaluation_counts():
    history = [{"eval_f1": 0.1}, {"eval_f1": 0.3, "eval_loss": 2.0}, {"train_loss": 1}]
    assert last_evaluation(history, {"f1": "f1", "accuracy": "accuracy"}) == {"f1": 0.3}
    assert last_evaluation([], {"f1": "f1"}) == {}


HEADS = {
    "fill-mask": "AutoModelForMaskedLM",
    "text-generation": "AutoModelForCausalLM",
    "text2text-generation": "AutoModelForSeq2SeqLM",
    "text-classification": "AutoModelForSequenceClassification",
    "multiple-choice": "AutoModelForMultipleChoice",
    "token-classification": "AutoModelForTokenClassification",
    "question-answering": "AutoModelForQuestionAnswering",
    "sentence-similarity": "AutoModel",
    "image-classification": "AutoModelForImageClassification",
}


@pytest.mark.fast_cases
@pytest.mark.parametrize(
    "model_type, task",
    [(name, task) for name in FAMILIES for task in SNIPPETS if HEADS[task] in FAMILIES[name].models],
)
def test_every_snippet_runs(model_type, task, corpus, tmp_path, monkeypatch, capsys, request):
    sizes = {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2, "max_position_embeddings": 64}
    if task == "sentence-similarity":
        pytest.importorskip("sentence_transformers")
    if task == "image-classification":
        processor = CLIPImageProcessorPil(size={"shortest_edge": 8}, crop_size={"height": 8, "width": 8})
        processor.save_pretrained(tmp_path / "model")
        Image.new("RGB", (9, 8)).save(tmp_path / "picture.png")
        sizes |= {"image_size": 8, "patch_size": 4}
    else:
        kind = {"text-generation": "decoder", "text2text-generation": "encoder-decoder"}.get(task, "encoder")
        lines = (corpus / "train.txt").read_text().splitlines()
        tokenizer = train_unigram_tokenizer(lines, 160 if "2" in task else 60, 64, kind=kind, show_progress=False)
        tokenizer.save_pretrained(tmp_path / "model")
        sizes |= {"vocab_size": len(tokenizer), "is_decoder": task == "text-generation"}
        if task == "text2text-generation":
            sizes |= {"is_encoder_decoder": True, "decoder_start_token_id": tokenizer.pad_token_id}
    config = getattr(tokenmixers, FAMILIES[model_type].config)(**sizes)
    model = getattr(tokenmixers, FAMILIES[model_type].models[HEADS[task]])(config)
    if task == "text-generation":  # as `run_clm` does
        model.generation_config.max_length = config.max_position_embeddings
    model.save_pretrained(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    code = snippet(task, "model", needs_code=True, mask="[MASK]")
    assert '"model", trust_remote_code=True)' in code
    exec(compile(code, task, "exec"), {})
    assert capsys.readouterr().out.strip()
    assert "trust" not in snippet(task, "model", needs_code=False, mask="[MASK]")


def test_a_path_of_windows_has_no_escape_sequences(monkeypatch):
    monkeypatch.setattr("tokenmixers.run_scripts.training.model_card.Path", PureWindowsPath)
    for name in ("outputs\\new", "outputs/new"):
        assert 'model="outputs/new")' in snippet("fill-mask", name, needs_code=False, mask="[MASK]")


@pytest.mark.parametrize("components, has_limit", [(["vanilla"], False), (["vanilla", "random"], True)])
def test_only_models_with_learned_positions_have_a_longest_sequence(components, has_limit):
    config = tokenmixers.SynthesizerConfig(attention_components=components, max_position_embeddings=48)
    assert ("at most 48 tokens" in limits(config)) == has_limit
    model = tokenmixers.SynthesizerModel(
        tokenmixers.SynthesizerConfig(**TINY_SYNTHESIZER, attention_components=components)
    )
    assert ("`max_position_embeddings`" in architecture(model)) == has_limit


@pytest.mark.parametrize("task", SNIPPETS)
def test_the_card_says_when_trust_is_not_needed(task):
    parts = {"needs_code": True, "task": task, "limits": "none", "results": "none"}
    card = ModelCard.from_template(ModelCardData(), template_path=str(TEMPLATE), **parts)
    text = " ".join(card.text.split())
    # Transformers refuses the checkpoint's own pipeline without trust, whatever is imported.
    assert ("`trust_remote_code=True` not needed" in text) == (task != "question-answering")
    assert ('pipeline("extractive-question-answering", ...)` does the same' in text) == (task == "question-answering")
    assert 'without the package, name the layers: `LoraConfig(target_modules="all-linear")`' in text
    assert "\n\n\n## Limits" not in card.text
    titles = re.findall(r"^## (.+)$", card.text, flags=re.MULTILINE)
    assert titles == ["Use", "Limits", "Results", "Architecture", "Training"]


@pytest.mark.parametrize(
    ("config", "titles"),
    [
        (tokenmixers.SynthesizerConfig(), ["Synthesizer: Rethinking"]),
        (tokenmixers.SynthesizerConfig(feed_forward_type="swiglu"), ["Synthesizer: Rethinking", "{GLU} Variants"]),
        (tokenmixers.GMLPConfig(), ["Pay Attention to"]),
        (BertConfig(), []),
    ],
)
def test_the_papers_of_a_model_are_cited(config, titles):
    found = re.findall(r" title += \{(.+)\},", citations(config))
    assert len(found) == len(titles) and all(title in text for title, text in zip(titles, found, strict=True))


def test_the_training_table_has_what_is_set(tmp_path):
    settings = {"optim": "adafactor", "optim_args": "scale_parameter=true", "final_decay_steps": 0.1}
    text = training(ScriptTrainingArguments(str(tmp_path), **settings), 3, CardFacts("fill-mask", data="", metrics={}))
    rows = dict(re.findall(r"^\| (.+?) +\| +(.+?) +\|$", text, flags=re.MULTILINE))
    assert {f"`{key}`": str(value) for key, value in settings.items()}.items() <= rows.items()
    assert not {"`constant_warmup`", "`lr_scheduler_kwargs`"} & rows.keys()
