"""Finetune a token classifier, as for named entities, and report precision, recall and F1 of whole entities.

    python -m tokenmixers.run_scripts.run_token_classification --train_file train.conll --validation_file dev.conll \
        --model_name_or_path ... --output_dir outputs/ner --do_train --do_eval
    torchrun --nproc_per_node 2 -m tokenmixers.run_scripts.run_token_classification ...

Works for every checkpoint that `AutoModelForTokenClassification` loads. Sentences that are too long for the model are
cut into pieces: no word is lost, but an entity across a cut counts as two.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import datasets
import numpy as np
import torch
from transformers import (
    AutoModelForTokenClassification,
    DataCollatorForTokenClassification,
    EvalPrediction,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import PredictionOutput

import tokenmixers  # noqa: F401  (registers the models)

from .base.arguments import ModelArguments, UserError, parse_arguments
from .base.reporting import print_plan, print_table
from .base.training_arguments import ScriptTrainingArguments
from .data.table_files import Table, load_split, read_conll, read_table
from .metrics import load_metric
from .training.language_modeling import build_model
from .training.model_card import CardArguments, CardFacts, describe_data
from .training.model_loading import (
    checkpoint_to_resume,
    fitting_tokenizer,
    load_config,
    sequence_length,
    set_label_names,
)
from .training.trainer import ScriptTrainer, leave_processes, train_and_evaluate


#: Label of tokens that nothing is asked about, as in Transformers' losses.
IGNORED = -100


@dataclass
class TokenClassificationArguments:
    """Where the tagged sentences come from."""

    dataset_name: str | None = field(default=None, metadata={"help": "Data set on the Hub, or a local folder of one."})
    dataset_config_name: str | None = field(default=None, metadata={"help": "Configuration of that data set."})
    train_file: str | None = field(
        default=None,
        metadata={
            "help": "json(l) or parquet with a list of words and one of tags in each row, or CoNLL text: a word a "
            "line, its tag in the last column, empty lines between sentences."
        },
    )
    validation_file: str | None = field(default=None, metadata={"help": "As train_file, for evaluation."})
    test_file: str | None = field(default=None, metadata={"help": "As train_file, to predict; tags may be missing."})
    train_split: str = field(default="train", metadata={"help": "Name of the training split of dataset_name."})
    validation_split: str = field(default="validation", metadata={"help": "Name of its validation split."})
    test_split: str = field(default="test", metadata={"help": "Name of its test split."})
    tokens_column: str = field(default="tokens", metadata={"help": "Column that holds the words."})
    tags_column: str = field(default="ner_tags", metadata={"help": "Column that holds the tags."})
    tag_names: list[str] | None = field(
        default=None, metadata={"help": "Names of tags that are numbers in the data, from 0 on."}
    )
    label_all_tokens: bool = field(
        default=False, metadata={"help": "Train on all tokens of a word instead of its first one only."}
    )
    max_seq_length: int | None = field(
        default=None, metadata={"help": "Tokens per sequence, special ones included; the model's maximum by default."}
    )
    max_train_samples: int | None = field(default=None, metadata={"help": "Use this many training sentences only."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "Use this many validation sentences only."})


def load_sentences(
    arguments: TokenClassificationArguments, splits: Sequence[str], token: str | None = None
) -> dict[str, datasets.Dataset]:
    """Sentences with columns `tokens` and, but for untagged test sentences, `tags`, both lists of strings.

    Raises:
        UserError: If something is missing, or a row is not as it should be, with its place.
    """
    files = {"train": arguments.train_file, "validation": arguments.validation_file, "test": arguments.test_file}
    if (arguments.dataset_name is None) == (not any(files.values())):
        raise UserError("give the data as either --dataset_name, or --train_file and --validation_file.")
    sentences = {}
    for split in splits:
        if arguments.dataset_name is not None:
            name = getattr(arguments, f"{split}_split")
            table = load_split(arguments.dataset_name, arguments.dataset_config_name, name, token)
        elif files[split] is None:
            raise UserError(f"--{split}_file is missing.")
        elif Path(files[split]).suffix in (".json", ".jsonl", ".parquet"):
            table = read_table(files[split])
        else:
            table = read_conll(files[split], arguments.tokens_column, arguments.tags_column)
        sentences[split] = _check(table, arguments, tagged=split != "test")
    return sentences


def _check(table: Table, arguments: TokenClassificationArguments, tagged: bool) -> datasets.Dataset:
    tokens_column, tags_column = arguments.tokens_column, arguments.tags_column
    tagged = tagged or tags_column in table.rows[0][1]
    rows = []
    for number, row in table.rows:
        tokens = table.value(number, row, tokens_column)
        if not isinstance(tokens, list) or not tokens or not all(isinstance(word, str) for word in tokens):
            raise table.error(number, f"{tokens_column!r} must be a list of words, not {tokens!r}.")
        if not all(word.strip() for word in tokens):
            raise table.error(number, f"a word is empty: {tokens!r}.")
        rows.append({"tokens": tokens})
        if tagged:
            tags = table.value(number, row, tags_column)
            if not isinstance(tags, list) or len(tags) != len(tokens):
                raise table.error(number, f"{tags_column!r} must be a list of {len(tokens)} tags, not {tags!r}.")
            try:
                rows[-1]["tags"] = [_tag_name(tag, arguments.tag_names) for tag in tags]
            except ValueError as error:
                raise table.error(number, str(error)) from error
    return datasets.Dataset.from_list(rows)


def _tag_name(tag: str | int, names: Sequence[str] | None) -> str:
    if isinstance(tag, int) and names is not None:
        if not 0 <= tag < len(names):
            raise ValueError(f"the tag {tag} is not below {len(names)}, the number of --tag_names.")
        return names[tag]
    if names is not None and tag not in names:
        raise ValueError(f"the tag {tag!r} is not one of --tag_names {', '.join(names)}.")
    return str(tag)


def tag_names(sentences: datasets.Dataset) -> list[str]:
    """All tags, `O` first. Where entities are marked, each type has both `B-` and `I-`."""
    found = {tag for tags in sentences["tags"] for tag in tags}
    if not marks_entities(found):
        return sorted(found, key=lambda tag: (int(tag), tag) if tag.isdecimal() else (len(found), tag))
    kinds = sorted({tag.partition("-")[2] for tag in found if tag != "O"})
    return ["O", *(f"{prefix}-{kind}" for kind in kinds for prefix in "BI")]


def marks_entities(tags: set[str]) -> bool:
    """Whether the tags are `O`, `B-...` and `I-...`; otherwise they are about words, such as parts of speech."""
    return all(tag == "O" or tag.startswith(("B-", "I-")) for tag in tags)


def tokenize(
    sentences: datasets.Dataset,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    names: Sequence[str],
    label_all_tokens: bool = False,
) -> datasets.Dataset:
    """Turn sentences into sequences, several where one is too long.

    Args:
        sentences: From `load_sentences`, with tags in `names`.
        tokenizer: A fast one.
        max_seq_length: Tokens per sequence, special ones included.
        names: The tags in the order of their numbers.
        label_all_tokens: Whether the further tokens of a word have a label too, for `B-` then the `I-` of its type.

    Returns:
        The tokenizer's columns, `labels` if there are tags, `sentence` (its number), and the `words` (numbers) whose
        first tokens are at the positions `starts`.
    """
    numbers = {name: index for index, name in enumerate(names)}

    def inside(tag: str) -> int:
        return numbers.get(f"I-{tag[2:]}", numbers[tag]) if tag.startswith("B-") else numbers[tag]

    def encode(rows: dict[str, list], indices: list[int]) -> dict[str, list]:
        encoded = tokenizer(
            rows["tokens"],
            is_split_into_words=True,
            truncation=True,
            max_length=max_seq_length,
            return_overflowing_tokens=True,
        )
        samples = encoded.pop("overflow_to_sample_mapping")
        columns = {**encoded, "sentence": [], "words": [], "starts": []}
        if "tags" in rows:
            columns["labels"] = []
        seen = (None, None)
        for piece, sample in enumerate(samples):
            starts, labels = [], []
            for position, word in enumerate(encoded.word_ids(piece)):
                labels.append(IGNORED)
                if word is None:
                    continue
                if seen != (sample, word):
                    starts.append((position, word))
                    labels[-1] = numbers[rows["tags"][sample][word]] if "tags" in rows else IGNORED
                elif label_all_tokens:
                    labels[-1] = inside(rows["tags"][sample][word])
                seen = (sample, word)
            columns["sentence"].append(indices[sample])
            columns["starts"].append([position for position, _ in starts])
            columns["words"].append([word for _, word in starts])
            if "tags" in rows:
                columns["labels"].append(labels)
        return columns

    return sentences.map(
        encode, batched=True, with_indices=True, remove_columns=sentences.column_names, desc="Tokenizing"
    )


def tag_metrics(prediction: EvalPrediction, names: Sequence[str]) -> dict[str, float]:
    """Scores of entities, or of other tags the accuracy, from predicted tag numbers and labels.

    Args:
        prediction: Tag numbers, both of shape `(rows, length)`; labels are `IGNORED` where nothing is asked.
        names: The tags.

    Returns:
        `precision`, `recall` and `f1` over all entities, `f1_TYPE` for every type among the labels, and the `accuracy`
        of the tags; what has no entities to count is 0.
    """
    asked = prediction.label_ids != IGNORED
    if not marks_entities(set(names)):
        tags = {"predictions": prediction.predictions[asked], "references": prediction.label_ids[asked]}
        return load_metric("accuracy").compute(**tags)
    predicted, labels = (
        [[names[tag] for tag in row[mask]] for row, mask in zip(tags, asked, strict=True)]
        for tags in (prediction.predictions, prediction.label_ids)
    )
    found = load_metric("seqeval").compute(predictions=predicted, references=labels)
    overall = {name: found.pop(f"overall_{name}") for name in ("precision", "recall", "f1", "accuracy")}
    return overall | {f"f1_{kind}": scores["f1"] for kind, scores in found.items() if scores["number"]}


def write_conll(
    path: Path, sentences: datasets.Dataset, rows: datasets.Dataset, predictions: np.ndarray, names: Sequence[str]
) -> None:
    """Write word, tag if known, and predicted tag, as CoNLL's scorer reads them.

    Args:
        path: The file.
        sentences: From `load_sentences`.
        rows: From `tokenize`.
        predictions: Tag numbers, shape `(rows, length)`.
        names: The tags. Words without a token, such as invisible characters, get the first one.
    """
    columns = [list(sentences["tokens"]), *([list(sentences["tags"])] if "tags" in sentences.column_names else [])]
    predicted = [[names[0]] * len(tokens) for tokens in columns[0]]
    for row, tags in zip(rows, predictions, strict=True):
        for position, word in zip(row["starts"], row["words"], strict=True):
            predicted[row["sentence"]][word] = names[tags[position]]
    with path.open("w", encoding="utf-8") as file:
        for sentence in zip(*columns, predicted, strict=True):
            file.writelines(" ".join(word) + "\n" for word in zip(*sentence, strict=True))
            file.write("\n")


@dataclass
class TaggedData:
    """Sentences of each split, the same as sequences, and their tags."""

    sentences: dict[str, datasets.Dataset]
    rows: dict[str, datasets.Dataset]
    names: list[str]


def build(
    model_args: ModelArguments,
    data_args: TokenClassificationArguments,
    args: TrainingArguments,
    resume_from: str | None = None,
) -> tuple[ScriptTrainer, TaggedData]:
    """Load data, tokenizer and model, and join them in a Trainer.

    Raises:
        UserError: If anything the user gave is missing or does not fit.
    """
    config = load_config(model_args)
    wanted = {"train": args.do_train, "validation": args.do_eval, "test": args.do_predict}
    sentences = load_sentences(data_args, [split for split in wanted if wanted[split]], model_args.token)
    for split, limit in (("train", data_args.max_train_samples), ("validation", data_args.max_eval_samples)):
        if limit is not None and split in sentences:
            sentences[split] = sentences[split].shuffle(seed=0).take(limit)
    names = data_args.tag_names or _known_tags(sentences, config)
    _check_tags(sentences, names)
    set_label_names(config, names, args.do_train)
    if model_args.train_tokenizer is not None and not args.do_train:
        raise UserError("--train_tokenizer needs --do_train.")
    texts = (" ".join(row["tokens"]) for row in sentences.get("train", ()))
    tokenizer = fitting_tokenizer(model_args, config, texts, args, resume_from)
    tokenizer.padding_side = "right"  # predictions are then found at the positions of the tokens
    length = sequence_length(data_args.max_seq_length, config, tokenizer)
    rows = {
        split: tokenize(found, tokenizer, length, names, data_args.label_all_tokens and split == "train")
        for split, found in sentences.items()
    }
    trainer = ScriptTrainer(
        model=build_model(model_args, config, AutoModelForTokenClassification, ignore_mismatched_sizes=args.do_train),
        args=args,
        train_dataset=rows.get("train"),
        eval_dataset=rows.get("validation"),
        data_collator=DataCollatorForTokenClassification(tokenizer),
        processing_class=tokenizer,
        compute_metrics=lambda prediction: tag_metrics(prediction, names),
        preprocess_logits_for_metrics=best_tags,
    )
    return trainer, TaggedData(sentences, rows, names)


def _known_tags(sentences: dict[str, datasets.Dataset], config: PreTrainedConfig) -> list[str]:
    if "train" in sentences:
        return tag_names(sentences["train"])
    return [config.id2label[index] for index in range(config.num_labels)]


def _check_tags(sentences: dict[str, datasets.Dataset], names: Sequence[str]) -> None:
    for split, rows in sentences.items():
        found = {tag for tags in rows["tags"] for tag in tags} if "tags" in rows.column_names else set()
        if found - set(names):
            raise UserError(
                f"the {split} sentences have the tag {min(found - set(names))!r}, which is not among "
                f"{', '.join(names)}, those of the {'training sentences' if 'train' in sentences else 'model'}."
            )


def best_tags(logits: torch.Tensor | tuple, labels: torch.Tensor) -> torch.Tensor:
    """Tag numbers of shape `(batch, length)`, which evaluation gathers instead of the logits."""
    return (logits[0] if isinstance(logits, tuple) else logits).argmax(dim=-1)


def main(argv: list[str] | None = None) -> dict[str, float]:
    """Entry point; returns the metrics, under names that start with `eval_` or, for a tagged test set, `test_`."""
    model_args, data_args, card_args, args = parse_arguments(
        (ModelArguments, TokenClassificationArguments, CardArguments, ScriptTrainingArguments), argv
    )
    if not (args.do_train or args.do_eval or args.do_predict):
        raise UserError("there is nothing to do: give --do_train, --do_eval or --do_predict.")
    resume_from = checkpoint_to_resume(args)
    set_seed(args.seed)
    trainer, data = build(model_args, data_args, args, resume_from)
    print_plan(trainer, resume_from)
    reported = ("f1", "precision", "recall", "accuracy") if marks_entities(set(data.names)) else ("accuracy",)
    card = CardFacts(
        "token-classification",
        **describe_data(data_args),
        metrics={name: name for name in reported},
        base_model=model_args.model_name_or_path,
        author=card_args,
        hyper_parameters={"label_all_tokens": data_args.label_all_tokens},
    )

    def write(output: PredictionOutput, split: str = "validation") -> None:
        path = Path(args.output_dir) / f"predictions_{split}.conll"
        write_conll(path, data.sentences[split], data.rows[split], output.predictions, data.names)

    results = train_and_evaluate(trainer, card, resume_from, write)
    if args.do_predict:
        output = trainer.predict(data.rows["test"], metric_key_prefix="test")
        trainer.save_metrics("test", output.metrics)
        results |= {name: value for name, value in output.metrics.items() if name[5:] in reported}
        if trainer.is_world_process_zero():
            write(output, "test")
    if trainer.is_world_process_zero():
        for split, rows in (("eval", "validation"), ("test", "test")):
            if f"{split}_accuracy" in results:
                cells = [(name, f"{100 * results[f'{split}_{name}']:.2f}") for name in reported]
                print_table((f"on the {rows} sentences, x 100", trainer.model.config.model_type), cells)
    leave_processes()
    return results


if __name__ == "__main__":
    main()
