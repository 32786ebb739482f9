"""A tiny run of every training command, for the tests of this folder, which run this file."""

import importlib
import importlib.util

from tokenmixers.run_scripts.base.commands import module_of


#: Command -> its arguments, as far as they are not those of all: see the fixture `arguments`.
SCRIPTS = {
    "run_mlm": {"train_tokenizer": 60},
    "run_clm": {"config_overrides": "is_decoder=true", "save_total_limit": 1},
    "run_span_corruption": {
        "config_name": "synthesizer-random",
        "config_overrides": "num_attention_heads=2,head_dim=8",
    },
    "run_seq2seq": {"config_name": "synthesizer-random", "config_overrides": "num_attention_heads=2,head_dim=8"}
    | {"do_predict": True, "generation_max_length": 8},
    "run_text_to_text": {"config_name": "synthesizer-random", "config_overrides": "num_attention_heads=2,head_dim=8"}
    | {"tasks": ["cb", "squad"], "freeze_embeddings": True, "generation_max_length": 8}
    | {"eval_strategy": "steps", "eval_steps": 2},
    "run_glue": {"do_predict": True, "load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 2},
    "run_token_classification": {"do_predict": True, "train_tokenizer": 60, "eval_strategy": "epoch", "save_steps": 3},
    "run_qa": {"do_predict": True, "doc_stride": 4, "max_question_length": 8},
    "run_image_classification": {"config_name": "gmlp-ti16-224", "config_overrides": "image_size=8,patch_size=4"}
    | {"do_predict": True},
}
if importlib.util.find_spec("sentence_transformers") is not None:
    SCRIPTS["run_sentence_embeddings"] = {"do_predict": True, "anchor_column": "text", "positive_column": "text"}
#: A grid of two runs, whose tokenizer the first of them trains. Its operations are many: some of them are sampled.
GRID = "run_mlm --seeds"
SCRIPTS_AND_GRID = {**SCRIPTS, GRID: {"train_tokenizer": 60, "max_steps": 3, "seeds": [1, 2]}}
#: A run whose teacher reads the texts first.
TEACHER = "run_sentence_embeddings --teacher"
if "run_sentence_embeddings" in SCRIPTS:
    SCRIPTS_AND_GRID[TEACHER] = {"teacher": "encoder-model", "anchor_column": "text", "positive_column": "animal"}
    SCRIPTS_AND_GRID[TEACHER] |= {"max_train_samples": 12}  # so that a second epoch begins

#: All kinds of augmentation.
AUGMENTED = {"auto_augment": True, "random_resized_crop": True, "random_shift": 1, "horizontal_flip": True}
AUGMENTED |= {"mixup_alpha": 0.8, "cutmix_alpha": 1.0, "label_smoothing_factor": 0.1}

#: A run without evaluations and checkpoints in between, and without a test set.
PLAIN = dict.fromkeys(("do_predict", "load_best_model_at_end", "eval_strategy", "eval_steps")) | {
    "save_strategy": "no"
}

TIMES = ("runtime", "per_second")


def without_times(value):
    """Results without what depends on the speed of the machine."""
    if isinstance(value, list):
        return [without_times(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: without_times(item) for key, item in value.items() if not key.endswith(TIMES)}


def run_here(script: str, arguments: list[str]) -> dict:
    return importlib.import_module(module_of(script.split()[0])).main(arguments)
