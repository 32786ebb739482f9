import json
import math
import random
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from tokenmixers.run_scripts import run_seq2seq
from tokenmixers.run_scripts.run_seq2seq import MetricArguments, score_texts


sacrebleu = pytest.importorskip("sacrebleu")
pytest.importorskip("rouge_score")

WORDS = ["gate", "token", "channel", "mixes", "splits", "learns", "layer", "norm"]
SIZES = (
    "is_encoder_decoder=true,hidden_size=16,intermediate_size=32,num_hidden_layers=1,num_decoder_layers=1,"
    "num_attention_heads=2,head_dim=8,max_position_embeddings=24,hidden_dropout_prob=0.0,attention_dropout=0.0"
)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Lines, and the same in capitals; also as jsonl, and as dialogues."""
    folder, draw = tmp_path_factory.mktemp("texts"), random.Random(0)
    for split, count in (("train", 64), ("validation", 12), ("test", 7)):
        sources = [" ".join(draw.choices(WORDS, k=draw.randint(1, 3))) for _ in range(count)]
        targets = [source.upper() for source in sources]
        (folder / f"{split}.source").write_text("\n".join(sources) + "\n")
        (folder / f"{split}.target").write_text("\n".join(targets) + "\n")
        rows = [{"source": s.split(), "target": [t, t[:4]]} for s, t in zip(sources, targets, strict=True)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        turns = [f"{1 + i % 4} {s}\t{t}\n" for i, (s, t) in enumerate(zip(sources, targets, strict=True))]
        (folder / f"{split}.txt").write_text("".join(turns))
    return folder


@pytest.fixture
def writing(command, texts):
    """`writing(name=value, ...)`: arguments of a tiny run."""
    lines = {f"{split}_{kind}_file": texts / f"{split}.{kind}" for split in ("train", "validation", "test")
             for kind in ("source", "target")}  # fmt: skip

    def build(**changes):
        if any(name.endswith("_file") for name in changes):
            lines.clear()
        defaults = {"train_file": None, "validation_file": None, **lines, "config_name": "synthesizer-random-dense"}
        return command(defaults, {"config_overrides": SIZES, "train_tokenizer": 160}, **changes)

    return build


def lines_of(file):
    return file.read_text().splitlines()


@pytest.mark.usefixtures("history_is_drawn")
def test_trains_predicts_saves_and_reports(writing, texts, tmp_path, capsys, table_of):
    results = run_seq2seq.main(writing(max_steps=20, do_predict=True, per_device_eval_batch_size=5))
    run = tmp_path / "run"
    printed = capsys.readouterr().out
    assert "SynthesizerForConditionalGeneration (synthesizer)" in printed
    assert "| 12 validation examples | 7 test examples |" in printed
    assert results["bleu_signature"] in printed
    assert json.loads((run / "eval_results.json").read_text())["bleu_signature"].startswith("nrefs:1|case:mixed|")
    assert json.loads((run / "test_results.json").read_text())["test_bleu"] == results["test_bleu"]
    card = (run / "README.md").read_text()
    assert "validation.source" in card
    assert "perplexity" in card
    assert (run / "history.png").stat().st_size > 5000
    for prefix, split in (("eval", "validation"), ("test", "test")):
        rows = table_of(run / f"predictions_{split}.csv")
        references = lines_of(texts / f"{split}.target")
        assert [json.loads(row["references"]) for row in rows] == [[line] for line in references]
        assert [row["source"] for row in rows] == lines_of(texts / f"{split}.source")
        predictions = lines_of(run / f"predictions_{split}.txt")
        assert [row["prediction"] for row in rows] == predictions
        expected = sacrebleu.corpus_bleu(predictions, [references]).score
        assert results[f"{prefix}_bleu"] == pytest.approx(expected)
    # The saved checkpoint writes by itself what the script wrote.
    model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(run).eval(), AutoTokenizer.from_pretrained(run)
    assert model.generation_config.max_length == 25
    for source, prediction in zip(lines_of(texts / "test.source"), predictions, strict=True):
        ids = model.generate(**tokenizer(source, return_tensors="pt"))
        assert " ".join(tokenizer.decode(ids[0], skip_special_tokens=True).split()) == prediction


def test_new_texts_need_no_references(writing, texts, tmp_path, capsys, table_of):
    run_seq2seq.main(writing(max_steps=20, do_predict=True))
    changes = {"do_train": None, "do_eval": None, "do_predict": True, "output_dir": tmp_path / "new"}
    changes |= {"model_name_or_path": tmp_path / "run", "test_source_file": texts / "test.source"}
    with pytest.raises(SystemExit, match="leave out --predict_with_generate false"):
        run_seq2seq.main(writing(**changes, predict_with_generate="false"))
    assert not (tmp_path / "new").exists()
    capsys.readouterr()
    results = run_seq2seq.main(writing(**changes))
    file = tmp_path / "new" / "predictions_test.csv"
    known = table_of(tmp_path / "run" / "predictions_test.csv")
    assert table_of(file) == [{key: row[key] for key in row if key != "references"} for row in known]
    assert not any("loss" in name or "bleu" in name or "perplexity" in name for name in results)
    printed = capsys.readouterr().out
    assert f"predictions for the test set: {file}" in printed and "examples |" not in printed
    run_seq2seq.main(writing(**changes | {"output_dir": tmp_path / "few"}, max_predict_samples=3))
    few = table_of(tmp_path / "few" / "predictions_test.csv")
    assert len(few) == 3 and [int(row["index"]) for row in few] == sorted(int(row["index"]) for row in few)
    assert few == [row for row in table_of(file) if row["index"] in {row["index"] for row in few}]


def test_perplexity_is_that_of_every_target_token(writing, texts, tmp_path):
    results = run_seq2seq.main(writing(per_device_eval_batch_size=5, label_smoothing_factor=0.1))
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "run").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run")
    total = tokens = 0
    for source, target in zip(*(lines_of(texts / f"validation.{kind}") for kind in ("source", "target")), strict=True):
        labels = tokenizer(target, return_tensors="pt").input_ids
        start = torch.full((1, 1), model.config.decoder_start_token_id)
        shifted = torch.cat([start, labels[:, :-1]], dim=1)
        ids = tokenizer(source, return_tensors="pt").input_ids
        logits = model(input_ids=ids, decoder_input_ids=shifted).logits.detach()
        total += float(F.cross_entropy(logits[0].double(), labels[0], reduction="sum"))
        tokens += labels.shape[1]
    assert results["eval_perplexity"] == pytest.approx(math.exp(total / tokens), rel=1e-5)


def test_rows_sorted_by_length_keep_their_references(writing, texts, tmp_path, table_of):
    plain = run_seq2seq.main(writing(do_train=True))
    again = {"model_name_or_path": tmp_path / "run", "do_train": None, "per_device_eval_batch_size": 4}
    grouped = run_seq2seq.main(
        writing(**again, output_dir=tmp_path / "grouped", train_sampling_strategy="group_by_length")
    )
    rows = table_of(tmp_path / "grouped" / "predictions_validation.csv")
    assert [json.loads(row["references"]) for row in rows] == [
        [line] for line in lines_of(texts / "validation.target")
    ]
    assert rows == table_of(tmp_path / "run" / "predictions_validation.csv")
    for name in ("eval_bleu", "eval_perplexity"):
        assert grouped[name] == pytest.approx(plain[name], rel=1e-5)


def test_summaries_with_several_references(writing, texts, tmp_path, table_of):
    files = {"train_file": texts / "train.jsonl", "validation_file": texts / "validation.jsonl"}
    results = run_seq2seq.main(writing(**files, metric="rouge", max_steps=5, num_beams=2))
    rows = [json.loads(line) for line in lines_of(texts / "validation.jsonl")]
    written = table_of(tmp_path / "run" / "predictions_validation.csv")
    assert [json.loads(row["references"]) for row in written] == [row["target"] for row in rows]
    predictions = [row["prediction"] for row in written]
    expected, _ = score_texts(predictions, [row["target"] for row in rows], MetricArguments(metric=["rouge"]))
    for name, value in expected.items():
        assert results[f"eval_{name}"] == pytest.approx(value)
    assert "eval_bleu" not in results
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "run").generation_config.num_beams == 2


def test_dialogues_with_evaluations_while_training(writing, texts, tmp_path):
    files = {"train_file": texts / "train.txt", "validation_file": texts / "validation.txt"}
    options = {"eval_strategy": "steps", "eval_steps": 2, "max_history": 2}
    arguments = [*writing(**files, **options), "--metric", "bleu", "bleu_1", "rouge"]
    results = run_seq2seq.main(arguments)
    assert {f"eval_{name}" for name in ("bleu", "bleu_1", "rougeL", "perplexity")} <= results.keys()
    history = json.loads((tmp_path / "run" / "trainer_state.json").read_text())["log_history"]
    assert [entry["step"] for entry in history if "eval_bleu_1" in entry] == [2, 4]


@pytest.mark.parametrize(("generates", "compared"), [(True, ["bleu", "perplexity"]), (False, ["perplexity"])])
def test_a_grid_compares_bleu_or_the_perplexity(generates, compared):
    class Arguments(dict):
        args = SimpleNamespace(predict_with_generate=generates)

    run = Arguments({MetricArguments: MetricArguments()})
    assert run_seq2seq.SequenceToSequence().comparison(run).metrics == compared


def test_what_is_saved_does_not_depend_on_evaluations_before(writing, tmp_path):
    run_seq2seq.main(writing(max_steps=2))
    run_seq2seq.main(writing(max_steps=2, eval_strategy="steps", eval_steps=1, output_dir=tmp_path / "evaluated"))
    settings = [(tmp_path / name / "generation_config.json").read_text() for name in ("run", "evaluated")]
    assert settings[0] == settings[1]


def test_without_generation_there_is_perplexity_alone(writing, tmp_path):
    results = run_seq2seq.main(writing(predict_with_generate=False))
    assert math.isfinite(results["eval_perplexity"])
    assert "eval_bleu" not in results
    assert not list((tmp_path / "run").glob("predictions*"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_source_length": 25}, "--max_source_length 25 does not fit the model"),
        ({"max_target_length": 1}, "--max_target_length 1 leaves no room for text; the least is 2"),
        ({"generation_max_length": 26}, "--generation_max_length 26 does not fit the model: at most 25"),
        ({"generation_config": "nowhere", "train_file": "nope"}, "--generation_config 'nowhere' cannot be used: "),
        ({"generation_config": __file__, "train_file": "nope"}, f"--generation_config {__file__!r} cannot be used: "),
    ],
)
def test_mistakes_are_one_sentence(writing, refuses, changes, message):
    refuses(run_seq2seq.main, writing(**changes), message)
