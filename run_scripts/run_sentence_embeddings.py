"""Train a model of sentence embeddings on pairs, or on the embeddings of a teacher.

    tokenmixers run_sentence_embeddings --model_name_or_path ... --train_file pairs.tsv --validation_file dev.tsv \
        --output_dir outputs/embeddings --do_train --do_eval
    tokenmixers run_sentence_embeddings --config_name gmlp-base --teacher sentence-transformers/all-MiniLM-L6-v2 \
        --train_file 'texts/*.txt.gz' --validation_file dev.tsv --output_dir outputs/student --do_train --do_eval
    tokenmixers run_sentence_embeddings recipe.yaml --seeds 1 2 3
    torchrun --nproc_per_node 2 -m tokenmixers.run_scripts.run_sentence_embeddings ...

It is evaluated on STS-B, on other pairs with a similarity, or by retrieval. Works for every encoder that `AutoModel`
loads, and for checkpoints of Sentence Transformers. Needs the extra `embeddings`.
"""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import datasets
from transformers import PreTrainedConfig, TrainingArguments, set_seed

import tokenmixers  # noqa: F401  (registers the models)

from .base.arguments import ModelArguments, check_output_folder, parse_arguments
from .base.errors import UserError
from .base.optional_packages import import_optional
from .base.ranges import check_ranges
from .base.reporting import print_plan, print_table
from .base.sequence_limits import longest_sequence
from .base.training_arguments import ScriptTrainingArguments, check_has_work, wanted_splits
from .data.distillation_texts import load_distillation_texts
from .data.sentence_pairs import SentencePairArguments, iterate_sentences, load_evaluation_pairs, load_training_pairs
from .training.hyperparameter_grid import Comparison, GridArguments, run_command
from .training.model_card import CardArguments, CardFacts, describe_data
from .training.model_loading import fit_vocabulary, fitting_tokenizer, load_config, sequence_length
from .training.run_folder import checkpoint_to_resume
from .training.training_run import train_and_evaluate


if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from .training.embedding_distillation import EmbeddingTeacher
    from .training.sentence_embeddings import SentenceEmbeddingTrainer


#: Folder for a teacher's embeddings in the output folder; the Hub does not get it.
TEACHER_FOLDER = "_teacher_embeddings"

#: What is reported, the most important first: of pairs with a similarity, and of held-out pairs.
METRICS = ("spearman_cosine", "pearson_cosine", "cosine_ndcg@10", "cosine_mrr@10", "cosine_accuracy@1")


@dataclass
class EmbeddingArguments:
    """How embeddings are made of a model's states, and the loss."""

    pooling_mode: Literal["mean", "cls", "max"] | None = field(
        default=None, metadata={"help": "Pooling of the states of tokens; mean by default, or the checkpoint's own."}
    )
    normalize: bool | None = field(
        default=None, metadata={"help": "Embeddings have length 1; true by default, or as the checkpoint has it."}
    )
    scale: float = field(
        default=20.0, metadata={"help": "Factor of the cosine similarities in the loss: 1 / temperature."}
    )
    matryoshka_dims: list[int] | None = field(
        default=None,
        metadata={"help": "Train the first so many dimensions of the embeddings as well, e.g. 256 128 64."},
    )

    def __post_init__(self):
        check_ranges(self, ("a finite number above 0", "scale"), ("at least 1", "matryoshka_dims"))


@dataclass
class EmbeddingTeacherArguments:
    """From which model's embeddings to learn, instead of in-batch negatives."""

    teacher: str | None = field(
        default=None,
        metadata={
            "help": "Learn the embeddings of this model: a Sentence Transformer or an encoder, a folder or Hub id."
        },
    )
    copy_token_embeddings: bool = field(
        default=False,
        metadata={
            "help": "A student from scratch starts with the teacher's token embeddings; a narrower one with their "
            "principal components."
        },
    )
    similarity_weight: float = field(
        default=20.0,
        metadata={"help": "Share in the loss of the similarities of a batch's texts with each other."},
    )
    ranking_weight: float = field(
        default=1.0,
        metadata={"help": "Share in the loss of the ranking of a batch's positives by an anchor, for pairs."},
    )
    cache_teacher: str | None = field(
        default=None,
        metadata={"help": "Folder for the teacher's embeddings, which other runs can use too; in the output folder."},
    )

    def __post_init__(self):
        check_ranges(self, ("a finite number of at least 0", "similarity_weight ranking_weight"))
        if self.teacher is None and (self.copy_token_embeddings or self.cache_teacher is not None):
            raise UserError("--copy_token_embeddings and --cache_teacher are for distillation: name a --teacher.")
        if self.cache_teacher is not None:
            check_output_folder(self.cache_teacher, "--cache_teacher")

    def in_use(self) -> dict[str, Any]:
        """The settings that affect the trained weights, by name; empty without a teacher."""
        if self.teacher is None:
            return {}
        local = Path(self.teacher).is_dir()
        names = ("similarity_weight", "ranking_weight", "copy_token_embeddings")
        teacher = Path(self.teacher).resolve().name if local else self.teacher
        return {"teacher": teacher, **{name: getattr(self, name) for name in names}}


def load_model(
    model_args: ModelArguments,
    config: PreTrainedConfig,
    data_args: SentencePairArguments,
    embedding_args: EmbeddingArguments,
    args: TrainingArguments,
    texts: Iterable[str],
    resume_from: str | None,
    teacher: "EmbeddingTeacher | None" = None,
) -> "SentenceTransformer":
    """The bi-encoder to train or evaluate.

    Raises:
        UserError: If it cannot be loaded or built, or arguments do not fit it.
    """
    from .training import sentence_embeddings as library

    if library.has_modules(model_args):
        model = library.load_sentence_transformer(model_args)
        if embedding_args.pooling_mode not in (None, library.pooling_of(model)):
            raise UserError(
                f"{model_args.model_name_or_path!r} has its own pooling ({library.pooling_of(model)}): leave "
                "--pooling_mode out."
            )
        if embedding_args.normalize is False and library.normalizes(model):
            raise UserError(
                f"{model_args.model_name_or_path!r} normalizes its embeddings, which cannot be undone: leave "
                "--normalize false out."
            )
        normalize = bool(embedding_args.normalize)
    else:
        library.check_encoder(config)
        if teacher is not None and teacher.gives_tokenizer(model_args):
            tokenizer = teacher.tokenizer
            fit_vocabulary(config, tokenizer, new_tokenizer=False)
            tokenizer.model_max_length = longest_sequence(config)
        else:
            tokenizer = fitting_tokenizer(model_args, config, data_args, texts, args, resume_from)
        model = library.build_sentence_transformer(model_args, config, tokenizer, embedding_args.pooling_mode)
        normalize = embedding_args.normalize is not False
    if teacher is not None:
        teacher.prepare_student(model, model_args)
    if normalize and args.do_train:
        library.add_normalization(model)
    model.max_seq_length = sequence_length(data_args.max_seq_length, model.config, model.tokenizer)
    library.check_dimensions(embedding_args.matryoshka_dims or (), model)
    return model


def check_views(data_args: SentencePairArguments, config: PreTrainedConfig) -> None:
    """Check that a text's two views differ where one column gives both (SimCSE, arXiv 2104.08821).

    Raises:
        UserError: If the model has no dropout, which alone makes them differ.
    """
    fields = config.to_dict().items()
    rates = [rate for name, rate in fields if "drop" in name and "classifier" not in name]
    if data_args.anchor_column == data_args.positive_column and not any(rates):
        raise UserError(
            f"--anchor_column and --positive_column are both {data_args.anchor_column!r}: dropout alone makes the two "
            "views of a text differ, and the model has none: give --config_overrides hidden_dropout_prob=0.1 or so."
        )


def check_batch(rows: int, args: TrainingArguments) -> None:
    """Check that a batch has negatives, and that there are rows for one: incomplete batches are left out.

    Raises:
        UserError: If not.
    """
    if args.train_batch_size < 2:
        raise UserError("in-batch negatives need --per_device_train_batch_size of at least 2.")
    if rows < args.train_batch_size * args.world_size:
        raise UserError(
            f"there are {rows} training pairs, and a step takes {args.train_batch_size * args.world_size}: lower "
            "--per_device_train_batch_size."
        )


def build(
    model_args: ModelArguments,
    data_args: SentencePairArguments,
    embedding_args: EmbeddingArguments,
    teacher_args: EmbeddingTeacherArguments,
    args: TrainingArguments,
    resume_from: str | None = None,
) -> tuple["SentenceEmbeddingTrainer", dict[str, datasets.Dataset]]:
    """Load data and model, and build the Trainer.

    Returns:
        The Trainer, and the pairs of the evaluations: split -> rows.

    Raises:
        UserError: If anything the user gave is missing or does not fit, or sentence-transformers is missing.
    """
    splits = [split for split in wanted_splits(args) if split != "train"]
    held_out = {split: load_evaluation_pairs(data_args, split, model_args.token) for split in splits}
    validation, dimensions = held_out.get("validation"), embedding_args.matryoshka_dims
    if teacher_args.teacher is not None:
        trainer = build_distillation(
            model_args, data_args, embedding_args, teacher_args, args, validation, resume_from
        )
        return trainer, held_out
    config = load_config(model_args)
    pairs = load_training_pairs(data_args, model_args.token) if args.do_train else None
    if pairs is not None:
        check_views(data_args, config)
        check_batch(len(pairs), args)
    import_optional("sentence_transformers", "embeddings", "run_sentence_embeddings")
    from .training import sentence_embeddings as library

    texts = iterate_sentences(pairs) if pairs is not None else ()
    model = load_model(model_args, config, data_args, embedding_args, args, texts, resume_from)
    size = args.per_device_eval_batch_size
    trainer = library.SentenceEmbeddingTrainer(
        model=model,
        args=args,
        train_dataset=pairs,
        loss=library.ranking_loss(model, embedding_args.scale, dimensions, args.world_size),
        evaluator=library.build_evaluator(validation, size, dimensions) if validation is not None else None,
    )
    return trainer, held_out


def build_distillation(
    model_args: ModelArguments,
    data_args: SentencePairArguments,
    embedding_args: EmbeddingArguments,
    teacher_args: EmbeddingTeacherArguments,
    args: TrainingArguments,
    validation: datasets.Dataset | None,
    resume_from: str | None,
) -> "SentenceEmbeddingTrainer":
    """The Trainer of a student that learns a teacher's embeddings; arguments and errors as for `build`."""
    if not args.do_train:
        raise UserError("--teacher is for training: give --do_train, or leave it out.")
    if embedding_args.matryoshka_dims is not None:
        raise UserError("--matryoshka_dims is for pairs without a --teacher: leave one of them out.")
    texts = load_distillation_texts(data_args, model_args.token)
    import_optional("sentence_transformers", "embeddings", "run_sentence_embeddings --teacher")
    from .training import embedding_distillation as distillation
    from .training.sentence_embeddings import build_evaluator

    teacher = distillation.EmbeddingTeacher(str(teacher_args.teacher), model_args, teacher_args.copy_token_embeddings)
    model_args = teacher.student_arguments(model_args)
    config = load_config(model_args)
    model = load_model(model_args, config, data_args, embedding_args, args, texts.iterate(), resume_from, teacher)
    texts = texts.with_lengths(model.tokenizer, model.max_seq_length)
    if args.process_index == 0:
        print(texts.describe(), flush=True)
    folder = Path(args.output_dir) if args.grid is None else args.grid.path
    folder = folder / TEACHER_FOLDER if teacher_args.cache_teacher is None else Path(teacher_args.cache_teacher)
    weights = teacher_args.similarity_weight, teacher_args.ranking_weight
    size = args.per_device_eval_batch_size
    return distillation.EmbeddingDistillationTrainer(
        teacher=teacher,
        texts=texts,
        folder=folder.expanduser(),
        model=model,
        args=args,
        loss=distillation.TeacherLoss(model, *weights, embedding_args.scale),
        evaluator=build_evaluator(validation, size, None) if validation is not None else None,
    )


def describe_pairs(arguments: SentencePairArguments) -> dict[str, str | None]:
    """The data of training and evaluation, as arguments of `CardFacts`."""
    name, config = arguments.eval_dataset_name, arguments.eval_dataset_config_name
    facts = describe_data(dataclasses.replace(arguments, dataset_name=name, dataset_config_name=config))
    return facts | {"train_data": describe_data(arguments)["train_data"]}


def describe_card(
    model_args: ModelArguments,
    data_args: SentencePairArguments,
    embedding_args: EmbeddingArguments,
    teacher_args: EmbeddingTeacherArguments,
    card_args: CardArguments,
    trainer: "SentenceEmbeddingTrainer",
) -> CardFacts:
    """The facts for the model card."""
    from .training import sentence_embeddings as library

    pooling, normalized = library.pooling_of(trainer.model), library.normalizes(trainer.model)
    dimensions = embedding_args.matryoshka_dims or ()
    names = [*METRICS, *(f"dim_{dimension}_{METRICS[0]}" for dimension in dimensions)]
    return CardFacts(
        "sentence-similarity",
        **describe_pairs(data_args),
        metrics={name: name for name in names},
        base_model=model_args.model_name_or_path,
        author=card_args,
        notes=f"Made with sentence-transformers {version('sentence-transformers')}.",
        hyper_parameters={
            "loss": type(trainer.loss).__name__,
            **teacher_args.in_use(),
            "scale": embedding_args.scale,
            "matryoshka_dims": embedding_args.matryoshka_dims,
            "pooling_mode": pooling,
            "normalize": normalized,
            "max_seq_length": trainer.model.max_seq_length,
        },
    )


def run_once(
    model_args: ModelArguments,
    data_args: SentencePairArguments,
    embedding_args: EmbeddingArguments,
    teacher_args: EmbeddingTeacherArguments,
    card_args: CardArguments,
    args: TrainingArguments,
) -> dict[str, float]:
    """One run: train, evaluate and predict as the arguments say.

    Returns:
        The metrics: `eval_...` after training, `before_...` before it, and `test_...` of the test pairs.
    """
    resume_from = checkpoint_to_resume(args)
    # Not `evaluate()` before `train()`: the Trainer would then leave the model without its DDP wrapper.
    args.eval_on_start = args.do_train and args.do_eval  # not when resumed, see `train_and_evaluate`
    set_seed(args.seed)
    trainer, held_out = build(model_args, data_args, embedding_args, teacher_args, args, resume_from)
    print_plan(trainer, resume_from, held_out)
    card = describe_card(model_args, data_args, embedding_args, teacher_args, card_args, trainer)

    def predict() -> dict[str, float]:
        from .training.sentence_embeddings import build_evaluator

        evaluate = build_evaluator(held_out["test"], args.per_device_eval_batch_size, embedding_args.matryoshka_dims)
        metrics = {f"test_{name}": value for name, value in evaluate(trainer.model).items()}
        trainer.save_metrics("test", metrics, combined=False)
        return metrics

    results = train_and_evaluate(trainer, card, resume_from, predict=predict if args.do_predict else None)
    for entry in trainer.state.log_history if args.do_train else ():
        if entry["step"] == 0:
            results |= {f"before_{name}": entry[f"eval_{name}"] for name in card.metrics if f"eval_{name}" in entry}
    if trainer.is_world_process_zero():
        print_results(results, list(card.metrics))
    return results


def print_results(results: dict[str, float], names: list[str]) -> None:
    """Print the metrics, before and after training as far as they were measured."""
    titles = {"before": "before training", "eval": "validation pairs", "test": "test pairs"}
    parts = {part: title for part, title in titles.items() if any(key.startswith(f"{part}_") for key in results)}
    rows = []
    for name in names:
        cells = [results.get(f"{part}_{name}") for part in parts]
        if any(cell is not None for cell in cells):
            rows.append((name, *("" if cell is None else f"{100 * cell:.2f}" for cell in cells)))
    if rows:
        print_table(("metric x 100", *parts.values()), rows)


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Entry point; returns the results of `run_once`, or for a grid those of `hyperparameter_grid.run_all`."""
    model_args, data_args, embedding_args, teacher_args, grid_args, card_args, args = parse_arguments(
        (
            ModelArguments,
            SentencePairArguments,
            EmbeddingArguments,
            EmbeddingTeacherArguments,
            GridArguments,
            CardArguments,
            ScriptTrainingArguments,
        ),
        argv,
    )
    check_has_work(args, "do_train", "do_eval", "do_predict")
    run = partial(run_once, model_args, data_args, embedding_args, teacher_args, card_args)
    shared = (model_args, data_args, embedding_args, teacher_args)
    return run_command(run, grid_args, args, shared, Comparison(METRICS, scale=100))


if __name__ == "__main__":
    main()
