import functools
import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from transformers import AutoModelForMaskedLM, Trainer, TrainerState, TrainingArguments

from tokenmixers.run_scripts import run_mlm
from tokenmixers.run_scripts.base.errors import UserError
from tokenmixers.run_scripts.base.shipped_files import ACCELERATE
from tokenmixers.run_scripts.base.training_arguments import ScriptTrainingArguments
from tokenmixers.run_scripts.training.run_folder import checkpoint_to_resume
from tokenmixers.run_scripts.training.trainer import LogOften, ScriptTrainer
from tokenmixers.tokenization.tokenizer_training import train_unigram_tokenizer


SAVING = {"save_strategy": "steps", "save_steps": 2, "max_steps": 6, "do_eval": None}


@pytest.fixture(scope="module")
def tokenizer(corpus, tmp_path_factory):
    """The folder of a tokenizer: training one does not give the same each time."""
    lines, folder = (corpus / "train.txt").read_text().splitlines(), tmp_path_factory.mktemp("tokenizer")
    train_unigram_tokenizer(lines, 60, 16, show_progress=False).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def saving(arguments, tokenizer, tokenizer_of):
    """The command of a run that saves every second step, with changes."""
    options = SAVING | tokenizer_of(tokenizer)
    options["config_overrides"] += ",hidden_dropout_prob=0.1"  # random numbers are part of what has to go on
    return functools.partial(arguments, options)


@pytest.fixture(scope="module")
def whole(saving, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "run"
    run_mlm.main(saving(output_dir=folder))
    return folder


@pytest.fixture
def streaming(saving, corpus, tmp_path):
    """The command of a run that streams three files, with changes."""
    lines = (corpus / "train.txt").read_text().splitlines()
    for index in range(3):
        (tmp_path / f"part-{index}.txt").write_text("\n".join(lines[index::3]))
    stream = {"train_file": tmp_path / "part-*.txt", "streaming": True, "max_eval_samples": 5}
    stream |= {"shuffle_buffer_size": 7, "per_device_train_batch_size": 3, "gradient_accumulation_steps": 2}
    return lambda **changes: saving(**{**stream, **changes})


@pytest.mark.parametrize(
    ("step", "written"), [(2, "model.safetensors"), (2, "half a state"), (4, "optimizer.pt"), (4, "rng_state.pth")]
)
def test_an_incomplete_checkpoint_does_not_count(step, written, whole, tmp_path):
    for number in range(2, step + 1, 2):
        shutil.copytree(whole / f"checkpoint-{number}", tmp_path / f"checkpoint-{number}")
    state = tmp_path / f"checkpoint-{step}" / "trainer_state.json"
    if written == "half a state":
        state.write_text(state.read_text()[:100])
    else:
        state.unlink()
        stop = state.with_name(written).stat().st_mtime_ns
        for path in list(state.parent.iterdir()):
            if path.stat().st_mtime_ns > stop:
                path.unlink()
    found = checkpoint_to_resume(ScriptTrainingArguments(output_dir=str(tmp_path), do_train=True, use_cpu=True))
    assert found == (str(tmp_path / "checkpoint-2") if step == 4 else None)


KILLED_RUN = Path(__file__).parents[1] / "killed_run.py"


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_killed_streamed_processes_end_as_uninterrupted_ones(workers, streaming, same_weights, torchrun, tmp_path):
    def launch(point, folder):
        return torchrun(KILLED_RUN, point, *streaming(output_dir=tmp_path / folder, dataloader_num_workers=workers))

    process = launch("never", "whole")
    assert process.returncode == 0, process.stderr[-2000:]
    assert launch("5", "run").returncode != 0
    checkpoints = sorted(path.name for path in (tmp_path / "run").glob("checkpoint-*"))
    assert checkpoints == ["checkpoint-2", "checkpoint-4"]
    with pytest.raises(UserError, match="was written by 2 processes"):
        run_mlm.main(streaming(output_dir=tmp_path / "run", dataloader_num_workers=workers))
    process = launch("never", "run")
    assert process.returncode == 0, process.stderr[-2000:]
    assert same_weights(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize(
    ("given", "steps", "every"), [(500, 57, 2), (500, 12, 1), (500, 400, 20), (500, 90_000, 500), (100, 400, 100)]
)
def test_a_run_logs_at_least_twenty_times(given, steps, every, tmp_path):
    state = TrainerState(max_steps=steps, logging_steps=given)
    LogOften().on_train_begin(TrainingArguments(str(tmp_path), logging_steps=given, use_cpu=True), state, None)
    assert state.logging_steps == every


@pytest.mark.usefixtures("history_is_drawn")
def test_the_history_is_drawn_and_kept(command, tmp_path):
    pytest.importorskip("matplotlib")
    run_mlm.main(command(eval_strategy="steps", eval_steps=2))
    assert (tmp_path / "run" / "history.png").read_bytes().startswith(b"\x89PNG")
    history = json.loads((tmp_path / "run" / "trainer_state.json").read_text())["log_history"]
    assert [entry["step"] for entry in history if "loss" in entry] == [1, 2, 3, 4]
    assert [entry["step"] for entry in history if "eval_loss" in entry] == [0, 2, 4]


def test_all_rows_are_evaluated_and_rows_are_grouped_as_by_the_trainer(command, monkeypatch):
    seen = []

    def train(self, *args, **kwargs):
        seen.extend([sum(len(batch["labels"]) for batch in self.get_eval_dataloader()), len(self.eval_dataset)])
        assert len(self.get_train_dataloader()) == 120 // 16
        assert list(self._get_eval_sampler(self.eval_dataset)) == list(range(20))  # which predictions are matched by
        for sampler in (type(self)._get_train_sampler, Trainer._get_train_sampler):
            torch.manual_seed(0)
            seen.append(list(sampler(self)))
        raise InterruptedError

    monkeypatch.setattr(ScriptTrainer, "train", train)
    changes = {"per_device_train_batch_size": 16, "per_device_eval_batch_size": 16, "line_by_line": True}
    with pytest.raises(InterruptedError):
        run_mlm.main(command(**changes, dataloader_drop_last=True, train_sampling_strategy="group_by_length"))
    evaluated, rows, ours, theirs = seen
    assert evaluated == rows == 20
    assert ours == theirs and sorted(ours) == list(range(120))


@pytest.mark.slow
def test_workers_that_are_not_forked_give_the_same_weights(command, same_weights, tmp_path):
    workers = {"dataloader_num_workers": 1, "dataloader_multiprocessing_context": "spawn"}
    run_mlm.main(command(output_dir=tmp_path / "plain"))
    run_mlm.main(command(**workers))
    assert same_weights(tmp_path / "plain", tmp_path / "run")


def test_the_notice_of_a_checkpoint_goes_with_the_model_trained_from_it(command, tmp_path):
    run_mlm.main(command(max_steps=1, output_dir=tmp_path / "start"))
    assert not (tmp_path / "start" / "NOTICE").exists()
    (tmp_path / "start" / "NOTICE").write_text("Made by others.")
    run_mlm.main(command(max_steps=1, model_name_or_path=tmp_path / "start"))
    assert (tmp_path / "run" / "NOTICE").read_text() == "Made by others."


@pytest.mark.slow
def test_fsdp_on_two_processes_trains_and_saves_a_whole_checkpoint(command, torchrun, tmp_path):
    """Accelerate's FSDP falls back to DDP without GPUs; Transformers' own does not."""
    run_mlm.main(command(max_steps=1, output_dir=tmp_path / "start"))
    options = {"model_name_or_path": tmp_path / "start", "save_only_model": True, "fsdp_size": 2}
    code = (
        "import sys, torch\n"
        "from tokenmixers.run_scripts import run_mlm\n"
        "from tokenmixers.run_scripts.training.run import Run\n"
        "from torch.distributed.tensor import DTensor\n"
        "build = Run.build\n"
        "def check(run):\n"
        "    trainer = build(run)\n"
        "    assert all(isinstance(p, DTensor) and p.placements[0].is_shard() for p in trainer.model.parameters())\n"
        "    return trainer\n"
        "Run.build = check\n"
        "run_mlm.main(sys.argv[1:])\n"
    )
    (tmp_path / "sharded.py").write_text(code)
    process = torchrun(tmp_path / "sharded.py", *command(**options, max_steps=6, per_device_train_batch_size=4))
    assert process.returncode == 0, process.stderr[-3000:]
    before, after = (AutoModelForMaskedLM.from_pretrained(tmp_path / name) for name in ("start", "run"))
    for name, parameter in before.named_parameters():
        assert after.get_parameter(name).isfinite().all()
        assert not torch.equal(after.get_parameter(name), parameter), name


# Accelerate splits models on GPUs only: here it takes CPU processes for GPUs.
SPLIT_ON_CPUS = """
import sys, torch
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from torch.distributed.tensor import DTensor
from tokenmixers.run_scripts import run_mlm
from tokenmixers.run_scripts.base.training_arguments import ScriptTrainingArguments
from tokenmixers.run_scripts.training.run_folder import checkpoint_to_resume
from tokenmixers.run_scripts.training.trainer import LogOften, ScriptTrainer

def backend(self, *args):
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("gloo")
    return "gloo", DistributedType.MULTI_GPU

def training_step(self, *args):
    for name, p in self.model.named_parameters():  # accelerate keeps the vocabulary whole after an evaluation
        assert ".layers." not in name or (isinstance(p, DTensor) and p.placements[0].is_shard()), name
    return step(self, *args)

step, ScriptTrainer.training_step = ScriptTrainer.training_step, training_step
PartialState._prepare_backend = backend
PartialState.set_device = lambda self: setattr(self, "device", torch.device("cpu"))
PartialState.wait_for_everyone = lambda self: torch.distributed.barrier()
run_mlm.main(sys.argv[1:])
"""


SMALL = "hidden_size=16,intermediate_size=32,num_hidden_layers=2"
SPLIT_MODELS = {
    "gmlp-base": f"{SMALL},max_position_embeddings=16",
    "synthesizer-random-vanilla": f"{SMALL},num_attention_heads=2,head_dim=8,is_encoder_decoder=false,mixture=sigmoid",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SPLIT_MODELS)
def test_accelerates_fsdp_saves_a_whole_model_and_resumes(name, command, torchrun, tmp_path):
    """Checkpoints are in parts (`SHARDED_STATE_DICT`), of which the Trainer makes no model at the end."""
    model = {"config_name": name, "config_overrides": SPLIT_MODELS[name], "max_seq_length": 16}
    run_mlm.main(command(**model, max_steps=1, output_dir=tmp_path / "start"))
    (tmp_path / "split.py").write_text(SPLIT_ON_CPUS)
    config = yaml.safe_load((ACCELERATE / "fsdp2.yaml").read_text())["fsdp_config"]
    settings = {f"FSDP_{key.removeprefix('fsdp_').upper()}": str(value) for key, value in config.items()}

    def start(**changes):
        options = {"model_name_or_path": tmp_path / "start", "max_steps": 4, "save_steps": 2, **changes}
        options["max_seq_length"] = 16
        words = command(**options, save_strategy="steps", per_device_train_batch_size=4)
        return torchrun(tmp_path / "split.py", *words, ACCELERATE_USE_FSDP="true", **settings)

    whole = start()
    assert whole.returncode == 0, whole.stderr[-3000:]
    shutil.copytree(tmp_path / "run" / "checkpoint-2", tmp_path / "interrupted" / "checkpoint-2")
    resumed = start(output_dir=tmp_path / "interrupted")
    assert resumed.returncode == 0, resumed.stderr[-3000:]
    names = ("start", "run", "interrupted")
    before, after, again = (AutoModelForMaskedLM.from_pretrained(tmp_path / name).state_dict() for name in names)
    for key, tensor in before.items():
        assert not torch.equal(after[key], tensor), key
        assert torch.equal(after[key], again[key]), key
    refused = start(output_dir=tmp_path / "only", save_only_model=True)
    assert "error: the arguments do not fit the accelerate configuration: save_only_model" in refused.stderr
