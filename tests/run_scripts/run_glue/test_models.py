"""Models that run_glue starts from, and teachers."""

import functools
import json
import logging

import pytest
from transformers import AutoTokenizer, BertConfig, BertForMultipleChoice, BertForSequenceClassification

from tokenmixers.run_scripts import run_glue
from tokenmixers.run_scripts.training import run as training_run


pytest.importorskip("sklearn")


def test_models_of_transformers_and_heads_of_other_tasks(trained, command, tmp_path):
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "num_hidden_layers": 1}
    BertConfig(max_position_embeddings=32, vocab_size=80, **sizes).save_pretrained(tmp_path / "bert")
    run_glue.main(command(config_name=tmp_path / "bert", config_overrides=None, task_name="mnli"))
    assert json.loads((tmp_path / "run" / "config.json").read_text())["model_type"] == "bert"
    with pytest.raises(SystemExit, match="the model predicts 'entailment', 'neutral', 'contradiction', the data ask"):
        run_glue.main(command(**trained))
    run_glue.main(command(trained, do_train=True, config_overrides="hidden_dropout_prob=0.2"))
    config = json.loads((tmp_path / "next" / "config.json").read_text())
    assert len(config["id2label"]) == 2 and config["hidden_dropout_prob"] == 0.2
    for wrong in ("hidden_size=10", "hidden_dropout_prob=0.1,vocab_size=90", "num_hidden_layers=2", "num_labels=3"):
        name = wrong.split(",")[-1].split("=")[0]
        with pytest.raises(SystemExit, match=f"'{name}': of a checkpoint only dropout rates and classifier_pooling"):
            run_glue.main(command(**trained, config_overrides=wrong))
    with pytest.raises(SystemExit, match="names 'hidden_sise', which is no field of BertConfig"):
        run_glue.main(command(**trained, config_overrides="hidden_sise=9"))


def test_training_alone_chooses_the_attention(trained, command, monkeypatch):
    calls = []
    monkeypatch.setattr(training_run, "_choose_attention", lambda model, args, lengths: calls.append([*lengths]))
    run_glue.main(command(max_steps=1))
    run_glue.main(command(**trained))
    assert calls == [[64]]


def test_a_checkpoint_with_another_pooling(trained, command, tmp_path):
    """Field that leaves the weights as they are: equal to the same weights with another configuration file."""
    run_glue.main(command(max_steps=1))
    before = run_glue.main(command(**trained))
    found = run_glue.main(command(**trained, config_overrides="classifier_pooling=cls,hidden_dropout_prob=0.2"))
    file = tmp_path / "run" / "config.json"
    file.write_text(
        json.dumps(json.loads(file.read_text()) | {"classifier_pooling": "cls", "hidden_dropout_prob": 0.2})
    )
    expected = run_glue.main(command(**trained))
    assert found["eval_loss"] == expected["eval_loss"] != before["eval_loss"]


@pytest.fixture
def teacher(tokenizer, tmp_path):
    """`teacher(labels, kind=..., **sizes)`: the folder of a BERT with random weights and these labels."""

    def build(*labels, kind=BertForSequenceClassification, **changes):
        sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32, "num_hidden_layers": 1}
        sizes |= {"vocab_size": 80, "max_position_embeddings": 64, **changes}
        model = kind(BertConfig(**sizes, id2label=dict(enumerate(labels))))
        for parameter in model.parameters():  # with initial weights it would say nothing
            parameter.data.normal_(std=0.3)
        folder = tmp_path / "teacher"
        model.save_pretrained(folder)
        AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder)
        return folder

    return build


@pytest.mark.parametrize(
    ("task", "labels", "kind"),
    [("stsb", "score", BertForSequenceClassification), ("copa", "LABEL_0", BertForMultipleChoice)],
)
def test_a_student_learns_scores_and_choices_from_a_teacher(sizes, task, labels, kind, command, teacher, tmp_path):
    options = {"task_name": task, "teacher": teacher(labels, kind=kind), "distillation_alpha": 1.0, "max_steps": 30}
    options |= {"tokenizer_name": None, "config_overrides": sizes, "logging_steps": 1, "do_eval": None}
    run_glue.main(command(**options))
    history = json.loads((tmp_path / "run" / "trainer_state.json").read_text())["log_history"]
    losses = [entry["loss"] for entry in history if "loss" in entry]
    assert sum(losses[-5:]) < 0.6 * sum(losses[:5])


@pytest.mark.parametrize("types", [0, 2])
def test_a_tokenizer_is_saved_with_the_token_types_of_its_model(types, command, sizes, teacher, monkeypatch, tmp_path):
    folder, seen = teacher("score"), []
    names = ["input_ids", "attention_mask", "token_type_ids"]
    tokenizer = AutoTokenizer.from_pretrained(folder, model_input_names=names)
    tokenizer.save_pretrained(folder)
    forward = BertForSequenceClassification.forward

    @functools.wraps(forward)
    def see(self, **options):
        seen.append(options["token_type_ids"])
        return forward(self, **options)

    monkeypatch.setattr(BertForSequenceClassification, "forward", see)
    overrides = f"{sizes},vocab_size=80,type_vocab_size={types}"
    options = {"task_name": "stsb", "tokenizer_name": None, "do_eval": None}
    run_glue.main(command(**options, teacher=folder, config_overrides=overrides))
    # And a student that is trained already, whose tokenizer gives none, with a teacher that reads them.
    again = {"model_name_or_path": tmp_path / "run", "output_dir": tmp_path / "again"}
    run_glue.main(command(options, again, teacher=folder))
    assert len(seen) == 4 and all(batch.max() == 1 for batch in seen)
    for name in ("run", "again"):
        saved = AutoTokenizer.from_pretrained(tmp_path / name)("it is", "fine")
        assert ("token_type_ids" in saved) == (types == 2)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (("bad", "good"), "predicts 'bad', 'good', the data ask for 'negative', 'positive': give a teacher"),
        (("negative", "neutral", "positive"), "'positive', the data ask for 'negative', 'positive': give a teacher"),
    ],
)
def test_teachers_with_other_labels(labels, message, command, teacher, refuses):
    refuses(run_glue.main, command(teacher=teacher(*labels)), message)


def test_a_teacher_with_unnamed_labels_is_warned_about(command, teacher, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    run_glue.main(command(teacher=teacher("LABEL_0", "LABEL_1"), do_eval=None))
    assert "have no names: they are taken for negative, positive, in this order" in caplog.text
