"""Wrong calls of the commands: each ends in one sentence, before any work, and leaves the disk as it was."""

import json
from importlib import import_module
from pathlib import Path

import pytest
from PIL import Image

from tokenmixers.run_scripts.base.commands import COMMANDS, TRAINING_COMMANDS, module_of
from tokenmixers.run_scripts.base.errors import UserError


pytestmark = pytest.mark.usefixtures("arguments_are_tried")

TRAINING = (*TRAINING_COMMANDS,)
FINETUNE = ("run_glue", "run_token_classification")
ONE = ("run_mlm",)  # what all training commands share
KINDS = (*ONE, "run_seq2seq", "run_sentence_embeddings")  # one of each class of training arguments
DISTILLING = ("run_mlm", "run_glue", "run_qa", "run_seq2seq", "run_image_classification")

NOT_PREDICTING = ("run_mlm", "run_clm", "run_span_corruption")
AT_LEAST_0 = "must be a finite number of at least 0, got "
ABOVE_0 = "must be a finite number above 0, got "
AT_LEAST_1 = "must be at least 1, got "
SHARE = "must be a share from 0 to less than 1, got "

#: Commands, the argument, a wrong value and how the sentence goes on after "--name ". It names the rule, whose other
#: wrong values are in base/test_ranges.py. What all training commands share is tried with one of them.
NUMBERS = [
    (KINDS, "learning_rate", "-1", AT_LEAST_0),
    (ONE, "per_device_train_batch_size", "0", AT_LEAST_1),
    (ONE, "seed", "-1", "must be from 0 to 4294967295, got "),
    (ONE, "num_train_epochs", "0", ABOVE_0),
    (ONE, "adam_beta1", "1", SHARE),
    (ONE, "label_smoothing_factor", "1", SHARE),
    (ONE, "max_steps", "0", "must be -1 for no limit, or at least 1, got "),
    (ONE, "logging_steps", "0", ABOVE_0),
    (ONE, "train_tokenizer", "0", AT_LEAST_1),
    (ONE, "final_decay_steps", "0", ABOVE_0),
    (("run_text_to_text",), "mixing_limit", "0", AT_LEAST_1),
    (DISTILLING, "distillation_alpha", "0", "must be a share above 0, up to 1, got "),
    (DISTILLING, "distillation_temperature", "0", ABOVE_0),
    (ONE, "mlm_probability", "0", "must be a share above 0, up to 1, got "),
    (("run_span_corruption",), "noise_density", "0", "must be a share between 0 and 1, got "),
    (("run_span_corruption",), "mean_noise_span_length", "0.5", "must be a finite number of at least 1, got "),
    (("run_mlm", "run_span_corruption"), "max_seq_length", "0", AT_LEAST_1),
    (("run_clm",), "block_size", "0", AT_LEAST_1),
    (ONE, "max_eval_samples", "-1", AT_LEAST_1),
    (ONE, "train_val_split", "0", "must be a share between 0 and 1, got "),
    (FINETUNE, "max_seq_length", "0", AT_LEAST_1),
    (KINDS, "seeds", "-1", "must be from 0 to 4294967295, got "),
    (ONE, "learning_rates", "nan", AT_LEAST_0),
    (("run_qa",), "doc_stride", "-1", "must be at least 0, got "),
    (("run_qa",), "null_score_diff_threshold", "nan", "must be a finite number, got "),
    (("run_seq2seq",), "max_source_length", "0", AT_LEAST_1),
    (("run_seq2seq",), "generation_max_length", "1", "must be at least 2, got "),
    (("run_image_classification",), "mixup_alpha", "-1", AT_LEAST_0),
    (("run_image_classification",), "mixup_prob", "1.5", "must be a share from 0 to 1, got "),
    (("run_image_classification",), "crop_min_area", "0", "must be a share above 0, up to 1, got "),
    (("benchmark",), "lengths", "0", AT_LEAST_1),
    (("fill_mask", "classify_images"), "top_k", "0", AT_LEAST_1),
    (("classify_images",), "count", "0", AT_LEAST_1),
    (("evaluate_embeddings",), "threads", "0", AT_LEAST_1),
    (("plot_spatial_weights",), "columns", "0", AT_LEAST_1),
    (("make_data associative_recall",), "values", "1", "must be at least 2, got "),
]

WITH_OUTPUT = (*KINDS, "convert_t5", "convert_timm", "plot_spatial_weights", "benchmark", "make_data idx_images")
WITH_OUTPUT += ("evaluate_embeddings", "export")
WITHOUT_OUTPUT = ("make_data", "launch", "benchmark_page", "push_to_hub", "fill_mask", "classify_images")

#: Commands, arguments (a value of several words is several arguments), the sentence.
TEXTS = [
    (WITH_OUTPUT, "--output_dir file.txt", "--output_dir 'file.txt' is a file: give a folder"),
    (ONE, "--output_dir file.txt/a/b", "'file.txt/a/b' lies under 'file.txt', which is a file: give a folder"),
    (ONE, "--output_dir /proc/new", "--output_dir '/proc/new' cannot be written: "),
    (
        tuple(name for name in COMMANDS if name != "launch"),
        "--no_such_argument 3",
        "unknown arguments|required|is not|must be the name",
    ),
    (TRAINING, "", "there is nothing to do: give |give "),
    (ONE, "--max_steps 1e3", "argument --max_steps.*invalid int value: '1e3'"),
    (ONE, "--seed 1 2", "unknown arguments: 2"),
    (ONE, "--learning_rat 1", "unknown arguments: --learning_rat 1. For --learning_rat, did you mean --learning_rate"),
    (KINDS, "--model x", "For --model, did you mean --model_name_or_path"),
    (KINDS, "--torch_dtype float16", "For --torch_dtype, did you mean --precision"),
    (("classify_images",), "--model_name_or_path x --model y --data z", "did you mean --model"),
    (("run_glue",), "--text_pair_column a", "For --text_pair_column, did you mean --text_column_names"),
    (("run_glue", "run_image_classification"), "--label_column a", "did you mean --label_column_name"),
    (("run_token_classification",), "--tags_column a", "For --tags_column, did you mean --label_column_name"),
    (("run_mlm", "run_token_classification"), "--text_column_name a", "did you mean --text_column_names"),
    (("run_seq2seq",), "--text_column a", "For --text_column, did you mean --source_column"),
    (("run_clm",), "--max_seq_length 8", "For --max_seq_length, did you mean --block_size"),
    (ONE, "--validation_split_percentage 5", "did you mean --train_val_split"),
    (KINDS, "--overwrite_output_dir", "--overwrite_output_dir does not exist: nothing is overwritten: give a new"),
    (ONE, "--evaluation-strategy steps", "For --evaluation_strategy, did you mean --eval_strategy"),
    (("run_image_classification",), "--do_train --train_tokenizer 9", "a model of images has no tokenizer, leave it"),
    (ONE, "--optim_args lr", "--optim_args has 'lr'; expected name=value"),
    (ONE, "--lr_scheduler_kwargs {", "--lr_scheduler_kwargs '{' is not valid JSON"),
    (ONE, '--do_train --lr_scheduler_kwargs {"a":1}', r'--lr_scheduler_kwargs {"a": 1} cannot be used here: .*'),
    (ONE, '--do_train --gradient_checkpointing_kwargs {"a":1}', r'_checkpointing_kwargs {"a": 1} cannot be used'),
    (KINDS, "--do_train --optim adamw_torch_npu_fused", "adamw_torch_npu_fused cannot be used here: Trainer failed"),
    (KINDS, "--do_eval --prediction_loss_only true", "true cannot be used here: evaluations would have no metrics"),
    (ONE, '--accelerator_config {"a":1}', "unexpected keyword argument 'a'"),
    (ONE, "--report_to nope", "--report_to nope is unknown or not installed; there are none, all"),
    (ONE, "--eval_strategy steps --eval_steps 2.5", "--eval_steps must be an integer if bigger than 1: 2.5"),
    (ONE, "--load_best_model_at_end", "requires the save and eval strategy to match"),
    (ONE, "--do_train --dataloader_persistent_workers", "_workers true cannot be used here: .* needs num_workers > 0"),
    (ONE, "--precision fp8", "--precision fp8 is not possible"),
    (ONE, "--bf16 --fp16", "contradict each other"),
    (ONE, "nope.yaml", "there is no recipe 'nope.yaml'. Shipped recipes: "),
    (ONE, "list.yaml", "the recipe sets seed to the list .1, 2.: it takes one value"),
    (ONE, "mapping.yaml", "argument --seed: invalid int value: '{\"a\": 1}'"),
    (ONE, "null.yaml", "the recipe null.yaml cannot be read: unacceptable character"),
    (ONE, "overrides.yaml", "--config_overrides has '7'; expected name=value"),
    *[
        (ONE, f"overridden.yaml --config_overrides {given}", sentence)
        for given, sentence in (
            ("a", "--config_overrides has 'a'; expected name=value"),
            ("a=1,a=2", "--config_overrides sets 'a' twice"),
            ("a=[1,2", r"--config_overrides: '\[1,2' is not a value for 'a'"),
            ("{a:", "cannot be read: expected {name: value, ...}"),
        )
    ],
    *[
        (ONE, f"--do_train --config_name gmlp-base --config_overrides {given}", sentence)
        for given, sentence in (
            ("hidden_sizes=3", "'hidden_sizes', which is no field of GMLPConfig"),
            ("model_type=bert", "'model_type', which is no field of GMLPConfig"),
            ("hidden_size=[8,9]", r"Field 'hidden_size' expected int, got list \(value: \[8, 9\]\)"),
            ("hidden_dropout_prob=nan", "`hidden_dropout_prob` must be a probability from 0 to 1, got nan"),
            ("image_size=[112,17]", r"`image_size` must be one multiple of .* got \[112, 17\]"),
        )
    ],
    *[
        (ONE, f"--do_train --config_name {folder}", f"no configuration can be loaded from '{folder}': {sentence}")
        for folder, sentence in (
            ("negative_size", "`hidden_size` must be at least 1, got -3"),
            ("no_json", "It looks like the config file at .* is not a valid JSON file"),
            ("unknown_type", "The checkpoint you are trying to load has model type `nope`"),
            ("folder", "Unrecognized model in folder"),
        )
    ],
    (TRAINING, "--do_train --config_name a --model_name_or_path b", "give either --mod|give the|give one"),
    (ONE, "--do_train --config_name a --model_type bert", "give either --model_name_or_path .* or, to train from"),
    (ONE, "--do_train --model_name_or_path a --model_type bert", "one of --config_name and --model_type"),
    (KINDS, "--do_train --model_type berd", "'berd' is no model type of Transformers. Did you mean 'bert' or"),
    (ONE, "--do_train --model_type bert --config_overrides hidden_sizes=3", "'hidden_sizes', which is no field of"),
    (FINETUNE, "--do_train --config_name gmlp-base", "give the (train )?data as"),
    (("run_glue",), "--task_name nope --config_name gmlp-base --do_train", "--task_name 'nope' is not a task"),
    (("run_glue",), "--task_name rte --config_name gmlp-base --do_train --data_dir tasks", "there is no file"),
    (ONE, "--seeds 1 1", "--seeds takes different numbers; got "),
    (ONE, "--seeds 1 2 --do_train", "--seeds, --learning_rates and --batch_sizes need --do_train and --do_eval"),
    (
        TRAINING,
        "--seeds 1 2 --do_train --do_eval --do_predict",
        "--do_predict is for a single run. Do it afterwards|this command has no --do_predict",
    ),
    (
        tuple(name for name in TRAINING if name != "run_image_classification"),
        "--do_eval --train_tokenizer 99",
        "--train_tokenizer needs --do_train: the tokenizer is trained on",
    ),
    (NOT_PREDICTING, "--do_train --do_predict", "this command has no --do_predict: give --do_train or --do_eval"),
    (ONE, "--seeds 1 2 --do_train --do_eval --push_to_hub", "--push_to_hub is for a single run. Do it"),
    (
        ONE,
        "--batch_sizes 3 --do_train --do_eval --gradient_accumulation_steps 2",
        "--batch_sizes 3 cannot be divided into 2 equal parts",
    ),
    (ONE, "--seeds 1 2 --do_train --do_eval --output_dir full", "'full' is not empty and holds no runs of this"),
    *[
        (("run_glue",), f"--config_name gmlp-base --do_train --train_file {given}", sentence)
        for given, sentence in (
            ("floats.tsv", "such as 0.5 .*--do_regression"),
            ("nan.tsv", "line 3: the label is missing"),
            ("same.tsv", "has no label but 'a'"),
            ("same.tsv --text_column_names a b c", "--text_column_names a b c: give one column, or two"),
            ("nope.tsv", "there is no file 'nope.tsv'"),
            ("file.txt", "is of no known kind"),
            ("same.tsv --do_regression", "line 2: the label 'a' is not a finite number"),
            ("same.tsv --data_dir tasks", "--data_dir holds the files of a benchmark"),
            ("same.tsv --do_eval", "give the validation data as either --dataset_name or --validation_file"),
        )
    ],
    (
        ("run_token_classification",),
        "--config_name gmlp-base --do_train --train_file floats.jsonl",
        "line 1: the tag 0.5 is neither a name nor a whole number",
    ),
    (("run_seq2seq",), "--metric nope", "--metric nope is not possible; there are bleu"),
    *[
        (("run_text_to_text",), f"--do_train --config_name synthesizer-random {given}", sentence)
        for given, sentence in (
            ("", "give the tasks of the mixture with --tasks"),
            ("--tasks rte nope", "--tasks 'nope' is not a task. Groups: glue, super_glue. Tasks: cola, "),
            ("--tasks rte --data_dir nope", "--data_dir 'nope' has no folder RTE with the files of rte, nor has its"),
            ("--tasks cb --data_dir tasks", "tasks/CB/train.jsonl, line 2: 'hypothesis' is missing"),
            ("--tasks cola --data_dir tasks", "tasks/CoLA/train.tsv, line 2: the label '2' is not one of"),
        )
    ],
    (("run_text_to_text",), "--do_predict --predict_with_generate false", "--do_predict writes what the model"),
    (("run_glue",), "--task_name record --config_name gmlp-base --do_train", "'record' has another number of"),
    *[
        (("run_image_classification",), f"--do_train --config_name gmlp-s16-224 {given}", sentence)
        for given, sentence in (
            ("--config_overrides num_channels=1", "num_channels=1 is not possible: all images are read as RGB"),
            ("--train_dir nope", "--train_dir: there is no folder 'nope'"),
            ("", "either --dataset_name, or --train_dir"),
        )
    ],
    (("run_image_classification",), "--do_train --config_name gmlp-base", "set image_size"),
    (
        ("run_span_corruption",),
        "--do_train --config_name synthesizer-vanilla --label_smoothing_factor 0.1",
        "--label_smoothing_factor is not possible here",
    ),
    (("fill_mask",), "--model folder --text x", "'folder' cannot be loaded: Unrecognized model"),
    (("fill_mask",), "--model bert --text x", "'bert' cannot be loaded: Error no file named model.safetensors"),
    (("classify_images",), "--model bert --data nope.png", "there is no file 'nope.png'"),
    (("classify_images",), "--model bert --data damaged.parquet", "'damaged.parquet' cannot be read as parquet"),
    (("plot_spatial_weights",), "--model folder", "'folder' cannot be loaded: Unrecognized model"),
    (("export",), "--model bert --formats nope", "argument --formats: invalid choice: 'nope'"),
    (("export",), "--model bert --max_quality_loss 0.1", "--max_quality_loss needs data .*: give --validation_file"),
    (("export",), "--model nope/nope", "cannot be loaded"),
    (("convert_t5",), "--source bert", "'bert' cannot be converted: Only 't5' and 'mt5'"),
    (("convert_t5",), "--source negative_size", "cannot be converted: `hidden_size` must be at least 1, got -3"),
    (("convert_t5",), "--source bert --config_overrides a", "expected name=value"),
    (("convert_timm",), "--source folder", "'folder' holds no safetensors weights"),
    (("push_to_hub",), "--source folder --repo_id a/b", "'folder' is not a folder with a config.json"),
    (("push_to_hub",), "--source negative_size --repo_id a/b", "`hidden_size` must be at least 1, got -3"),
    (("launch",), "ddp.yaml", "there is nothing after the configuration"),
    (("make_data",), "", "the first argument must be the name of a data set; there are python_docs_corpus, "),
    (("make_data",), "number_name --output_dir x", "of a data set, got 'number_name'; there are python_docs_corpus, "),
    (("benchmark",), "--cells 99", "argument --cells: invalid choice: 99"),
    (("benchmark",), "--cells 5 --length_files nope.txt", "there is no file 'nope.txt'"),
    (("benchmark_page",), "--folder folder", "there is no folder/README.md"),
    (("make_data idx_images",), "--output_dir full", "the output folder full exists and"),
    (("make_data idx_images",), "--input_dir folder", "there is neither train-images-idx3-ubyte nor"),
    *[
        ((command,), call, "'static' is a static model: an embedding for each token, and no layers")
        for command, call in (
            ("run_mlm", "--do_train --model_name_or_path static"),
            ("run_sentence_embeddings", "--do_train --model_name_or_path static --train_file file.txt"),
            ("run_glue", "--do_train --teacher static --config_name gmlp-base --task_name cola --data_dir tasks"),
            ("fill_mask", "--model static --text x"),
            ("export", "--model static"),
            ("convert_t5", "--source static"),
            ("push_to_hub", "--source static --repo_id a/b"),
        )
    ],
    (("evaluate_embeddings",), "--models bert --data_dir nope", "--data_dir: there is no folder or file 'nope'"),
]

#: What a command cannot do without.
NEEDED = {
    "fill_mask": "--model bert --text x",
    "classify_images": "--model bert --data file.txt",
    "plot_spatial_weights": "--model bert",
    "evaluate_embeddings": "--models bert --data_dir folder",
    "export": "--model bert",
    "convert_t5": "--source bert",
    "convert_timm": "--source bert",
    "make_data idx_images": "--input_dir folder",
}


def _call(command: str, text: str, needed: bool = False) -> list[str]:
    """A command line: the given arguments, those that are needed and not in question, and an output folder."""
    arguments = NEEDED.get(command, "").split() if needed else []
    arguments = [*text.split(), *arguments] if text[:2] != "--" else [*arguments, *text.split()]
    output = command not in WITHOUT_OUTPUT and "--output_dir" not in arguments
    return arguments + (["--output_dir", "out"] if output else [])


CASES = [
    pytest.param(command, _call(command, f"--{name} {value}", needed=True), f"--{name} {sentence}")
    for commands, name, value, sentence in NUMBERS
    for command in commands
]
CASES += [
    pytest.param(command, _call(command, text, text.startswith(("--output_dir", "--no_such"))), sentence)
    for commands, text, sentence in TEXTS
    for command in commands
]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """What the calls name, wrong or not."""
    folder = tmp_path_factory.mktemp("files")
    contents = {
        "file.txt": "a text\n",
        "full/file.txt": "a text\n",
        "damaged.parquet": "a text\n",
        "list.yaml": "seed: [1, 2]\n",
        "mapping.yaml": "seed: {a: 1}\n",
        "null.yaml": "\0",
        "overrides.yaml": "config_overrides: 7\n",
        "overridden.yaml": "config_overrides: hidden_size=8\n",
        "negative_size/config.json": '{"model_type": "gmlp", "hidden_size": -3}',
        "no_json/config.json": "{",
        "unknown_type/config.json": '{"model_type": "nope"}',
        "bert/config.json": '{"model_type": "bert", "hidden_size": 8, "num_attention_heads": 2}',
        "folder/file.txt": "a text\n",
        "static/modules.json": '[{"path": "", "type": "sentence_transformers.models.StaticEmbedding"}]',
        "static/tokenizer.json": "{}",
        "static/model.safetensors": "",
        "floats.tsv": "text\tlabel\na\t0.5\nb\t1.0\n",
        "nan.tsv": "text\tlabel\na\tnan\nb\t\n",
        "same.tsv": "text\tlabel\na\ta\nb\ta\n",
        "tasks/CB/train.jsonl": '{"premise": "a", "hypothesis": "b", "label": 1}\n{"premise": "a", "label": 0}\n',
        "tasks/CoLA/train.tsv": "gj04\t1\t\tHe ran.\ngj04\t2\t*\tRan he.\n",
        "floats.jsonl": json.dumps({"tokens": ["a"], "ner_tags": [0.5]}),
    }
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    Image.new("RGB", (4, 4)).save(folder / "image.png")
    return folder


def contents(folder: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.parametrize(("command", "arguments", "sentence"), CASES)
def test_ends_in_one_sentence_and_changes_nothing(command, arguments, sentence, files, monkeypatch, capsys):
    monkeypatch.chdir(files)
    before = contents(files)
    name, *first = command.split()
    with pytest.raises(UserError, match=sentence) as ended:
        import_module(module_of(name)).main([*first, *arguments])
    assert "\n" not in str(ended.value) and str(ended.value).startswith("error: ")
    assert contents(files) == before
    assert "Traceback" not in capsys.readouterr().err


def test_there_are_many_and_every_command_is_among_them():
    assert len(CASES) >= 150
    tested = {case.values[0].partition(" ")[0] for case in CASES}
    assert tested == {*COMMANDS}
