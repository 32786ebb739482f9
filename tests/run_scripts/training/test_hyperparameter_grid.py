import gc
import json
import shutil
from types import SimpleNamespace

import pytest
from transformers import PreTrainedModel, Trainer

from tokenmixers.run_scripts import run_mlm
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.base.training_arguments import ScriptTrainingArguments
from tokenmixers.run_scripts.training import run as training_run
from tokenmixers.run_scripts.training.hyperparameter_grid import (
    Comparison,
    GridArguments,
    plan,
    print_summary,
    summarise,
)


@pytest.fixture
def grid(command):
    """`grid("--seeds", ..., **changes)`: arguments of a grid of tiny runs."""
    return lambda *values, **changes: [*command(**changes), *map(str, values)]


class Killed(BaseException):
    pass


def test_a_grid_is_its_single_runs(grid, command, tokenizer_of, same_weights, tmp_path, capsys):
    summary = run_mlm.main(grid("--seeds", 3, 4, "--learning_rates", 1e-2, 1e-7))
    printed = capsys.readouterr().out
    folder = tmp_path / "run"
    assert json.loads((folder / "grid_results.json").read_text()) == summary
    assert [run["folder"] for run in summary["runs"]] == [
        f"lr{rate}_batch8_seed{seed}" for rate in ("0.01", "1e-07") for seed in (3, 4)
    ]
    assert summary["best"]["learning_rate"] == 1e-2, "the lower perplexity is the better one"
    assert summary["best"]["score"] == summary["best"]["eval_perplexity"] < summary["configurations"][1]["score"]
    assert "| perplexity " in printed and "lr 0.01, 8 rows a step (best)" in printed
    # All have the one tokenizer that the first run has trained, and the same masks in the evaluation data.
    tokenizer = (folder / "tokenizer" / "tokenizer.json").read_text()
    run = summary["runs"][1]
    assert (folder / run["folder"] / "tokenizer.json").read_text() == tokenizer
    alone = tmp_path / run["folder"]
    run_mlm.main(command(**tokenizer_of(folder / "tokenizer"), output_dir=alone, seed=run["seed"]))
    assert same_weights(alone, folder / run["folder"])
    evaluation = {"model_name_or_path": alone, "do_train": None, "output_dir": tmp_path / "evaluation"}
    assert run_mlm.main(command(**evaluation))["trained"] == pytest.approx(run["eval_perplexity"], rel=1e-5)


def test_a_grid_that_was_killed_goes_on(grid, tmp_path, monkeypatch, tokenizers_trained):
    """In its second run of four steps. It ends as a whole one: see every_command/test_interrupted_runs.py."""
    arguments = grid("--seeds", 1, 2)
    step, steps = Trainer.training_step, []

    def step_or_die(trainer, *args, **kwargs):
        if len(steps) == 6:
            raise Killed
        steps.append(trainer.args.seed)
        return step(trainer, *args, **kwargs)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Trainer, "training_step", step_or_die)
        run_mlm.main(arguments)
    folder = tmp_path / "run"
    first, second = (folder / f"lr0.01_batch8_seed{seed}" for seed in (1, 2))
    assert (second / "_unfinished").is_dir() and not (first / "_unfinished").exists()
    time = (first / "model.safetensors").stat().st_mtime_ns
    summary = run_mlm.main(arguments)
    assert tokenizers_trained == [60]
    assert (first / "model.safetensors").stat().st_mtime_ns == time, "a finished run is not repeated"
    assert not list(folder.glob("*/_*"))
    assert run_mlm.main(arguments) == summary, "all is done"


def test_the_model_of_a_run_is_freed_before_the_next(grid, monkeypatch):
    build, alive = training_run.build_model, []

    def count(*args, **kwargs):
        alive.append(sum(isinstance(found, PreTrainedModel) for found in gc.get_objects()))
        model = build(*args, **kwargs)
        model.itself = [model]  # as where models are compiled or hooked: counting references does not free it
        return model

    monkeypatch.setattr(training_run, "build_model", count)
    gc.disable()
    try:
        run_mlm.main(grid("--seeds", 1, 2, 3, max_steps=1))
    finally:
        gc.enable()
    assert len(alive) == 3
    assert alive[1] == alive[2] <= alive[0]


def test_other_training_data_of_the_same_name_are_refused(grid, corpus, tmp_path):
    lines = (corpus / "train.txt").read_text().splitlines()
    file = tmp_path / "train.txt"
    file.write_text("\n".join(lines))
    run_mlm.main(grid("--seeds", 1, max_steps=1, train_file=file))
    run_mlm.main(grid("--seeds", 1, 2, max_steps=1, train_file=file))
    file.write_text("\n".join(lines[::-1]))
    with pytest.raises(UserError, match="were made with other training data: they could not be compared"):
        run_mlm.main(grid("--seeds", 1, 2, 3, max_steps=1, train_file=file))


def test_a_folder_of_other_runs_is_refused(grid, tmp_path):
    run_mlm.main(grid("--seeds", 1, max_steps=1))
    with pytest.raises(UserError, match=r"were made with mlm_probability=0.15, now it is 0.3: they could not be comp"):
        run_mlm.main(grid("--seeds", 1, max_steps=1, mlm_probability=0.3))
    with pytest.raises(UserError, match="is not empty and holds no checkpoint"):
        run_mlm.main(grid(max_steps=1))
    left = {"grid_results.json", "grid_settings.json", "lr0.01_batch8_seed1", "tokenizer"}
    assert {path.name for path in (tmp_path / "run").iterdir()} == left


def test_a_run_without_a_batch_leaves_what_earlier_runs_of_the_grid_have_written(grid, tmp_path):
    options = {"dataloader_drop_last": True, "per_device_train_batch_size": None, "max_steps": 1}
    for sizes, left in (([600], None), ([8, 600], ["grid_settings.json", "lr0.01_batch8_seed42", "tokenizer"])):
        with pytest.raises(UserError, match="training rows give no batch of 600"):
            run_mlm.main(grid("--batch_sizes", *sizes, **options))
        folder = tmp_path / "run"
        assert (sorted(path.name for path in folder.iterdir()) if folder.exists() else None) == left


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_seq_length": 17}, "--max_seq_length 17 does not fit the model"),
        ({"resume_from_checkpoint": True}, "--resume_from_checkpoint is for a single run"),
    ],
)
def test_mistakes_are_one_sentence_before_anything_is_written(grid, refuses, changes, message):
    refuses(run_mlm.main, grid("--seeds", 1, 2, **changes), message)


def test_close_learning_rates_have_folders_of_their_own(tmp_path):
    args = ScriptTrainingArguments(str(tmp_path / "run"), do_train=True, do_eval=True, use_cpu=True)
    runs = plan(GridArguments(learning_rates=[1e-5, 1.0000001e-5, 3e-5]), args)
    assert len({run.output_dir for run in runs}) == 3
    assert runs[0].output_dir.endswith("lr1e-05_batch8_seed42") and runs[2].output_dir.endswith(
        "lr3e-05_batch8_seed42"
    )


def outcomes(comparison: Comparison, results: list[tuple[float, int, dict[str, float]]]) -> list:
    """Results of runs with a learning rate and a seed."""
    size = {"train_batch_size": 4, "gradient_accumulation_steps": 2, "world_size": 1}
    return [
        (SimpleNamespace(output_dir="x", learning_rate=rate, seed=seed, **size), comparison.values(found))
        for rate, seed, found in results
    ]


@pytest.mark.parametrize(
    ("comparison", "names", "best"),
    [
        (Comparison(("perplexity",)), ["eval_perplexity"], 1.0),
        (Comparison(("loss",)), ["eval_loss"], 1.0),
        (Comparison(("accuracy",), scale=100), ["eval_accuracy"], 2.0),
        (Comparison(("f1", "accuracy")), ["eval_accuracy"], 2.0),  # tags that mark no entities
        (Comparison(("f1", "exact_match")), ["eval_f1", "eval_exact_match"], 2.0),
        (Comparison(("bleu", "perplexity")), ["eval_bleu", "eval_perplexity"], 2.0),
        (Comparison(("perplexity", "bleu")), ["eval_bleu", "eval_perplexity"], 1.0),
        (Comparison(("accuracy", "f1"), by_mean=True), ["eval_accuracy", "eval_f1"], 2.0),
    ],
)
def test_the_best_configuration_has_the_best_median(comparison, names, best, capsys):
    """Medians are 3 and 5; the means 7 and 4, the best seeds 1 and 2, would say otherwise."""
    rows = [(1.0, 1, 17.0), (1.0, 2, 3.0), (1.0, 3, 1.0), (2.0, 1, 5.0), (2.0, 2, 5.0), (2.0, 3, 2.0)]
    results = [(rate, seed, {**dict.fromkeys(names, value), "eval_runtime": 9.0}) for rate, seed, value in rows]
    summary = summarise(outcomes(comparison, results), comparison)
    assert [found["score"] for found in summary["configurations"]] == [3.0, 5.0]
    assert summary["best"]["learning_rate"] == best and summary["best"]["batch_size"] == 8
    assert set(summary["runs"][0]) == {"folder", "learning_rate", "batch_size", "seed", "score", *names}
    print_summary(summary, comparison)
    assert f"{3 * comparison.scale:.2f}" in capsys.readouterr().out


def test_what_is_compared_is_the_first_result_or_the_mean():
    results = {"eval_f1": 0.5, "eval_accuracy": 0.7}
    assert Comparison(("f1", "accuracy")).values(results)["score"] == 0.5
    assert Comparison(("f1", "accuracy"), by_mean=True).values(results)["score"] == pytest.approx(0.6)


def test_a_result_that_is_no_number_is_the_worst():
    """Such as the correlation of constant predictions."""
    for name, value in (("pearson", -0.5), ("perplexity", 1e9)):
        comparison = Comparison((name,))
        results = [(rate, 1, {f"eval_{name}": found}) for rate, found in ((1.0, float("nan")), (2.0, value))]
        assert summarise(outcomes(comparison, results), comparison)["best"]["learning_rate"] == 2.0


@pytest.mark.slow
def test_two_processes_train_one_tokenizer_and_go_on(grid, in_two_processes, tokenizer_of, tmp_path):
    arguments = grid("--seeds", 1, 2, "--batch_sizes", 8, per_device_train_batch_size=None)
    folder = tmp_path / "run"

    def run() -> tuple[dict, str]:
        printed = in_two_processes("run_mlm", arguments)
        return json.loads((folder / "grid_results.json").read_text()), printed

    summary, printed = run()
    assert "finished before" not in printed
    assert [found["batch_size"] for found in summary["runs"]] == [8, 8]
    shutil.rmtree(folder / "lr0.01_batch8_seed2")
    again, printed = run()
    assert again == summary and printed.count("finished before") == 1
    # One process with the same tokenizer: alike, as sums are rounded in another order.
    options = tokenizer_of(folder / "tokenizer")
    alone = run_mlm.main(grid("--seeds", 1, 2, **options, output_dir=tmp_path / "alone"))
    for one, other in zip(summary["runs"], alone["runs"], strict=True):
        assert one["eval_perplexity"] == pytest.approx(other["eval_perplexity"], rel=1e-2)
