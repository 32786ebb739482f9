r"""Train a model of sentence embeddings on pairs, or on the embeddings of a teacher.

    tokenmixers run_sentence_embeddings --model_name_or_path ... --train_file pairs.tsv --validation_file dev.tsv \
        --output_dir outputs/embeddings --do_train --do_eval
    tokenmixers run_sentence_embeddings --config_name gmlp-mini --teacher sentence-transformers/all-MiniLM-L6-v2 \
        --train_file 'texts/*.txt.gz' --validation_file dev.tsv --output_dir outputs/student --do_train --do_eval
    tokenmixers run_sentence_embeddings recipe.yaml --seeds 1 2 3
    torchrun --nproc_per_node 2 -m tokenmixers.run_scripts.run_sentence_embeddings ...

It is evaluated on STS-B, on other pairs with a similarity, or by retrieval. Works for every encoder that `AutoModel`
loads, and for checkpoints of Sentence Transformers. Needs the extra `embeddings`. Cosine similarities of pairs with a
similarity are written to `predictions_validation.csv`, and with `--do_predict` to `predictions_test.csv`.
"""

import copy
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import datasets
from transformers import AutoModel, PreTrainedConfig, TrainingArguments

import tokenmixers  # noqa: F401  (registers the models)

from .base.arguments import check_output_folder
from .base.errors import UserError
from .base.optional_packages import import_optional
from .base.ranges import check_ranges
from .base.reporting import print_table
from .base.sequence_limits import longest_sequence
from .base.training_arguments import wanted_splits
from .data.distillation_texts import load_distillation_texts
from .data.loading import INDEX
from .data.sentence_pairs import STSB, SentencePairArguments, iterate_sentences, load_sentence_pairs
from .training.kept_layers import dropout_rates
from .training.model_card import describe_data
from .training.model_loading import fit_vocabulary, sequence_length
from .training.run import Run, Task
from .training.schedules import choose_student_rate


if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from .training.embedding_distillation import EmbeddingDistillationTrainer, EmbeddingTeacher
    from .training.sentence_embeddings import AllEvaluators, SentenceEmbeddingTrainer


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
        metadata={"help": "Also train the embeddings cut to this many dimensions, e.g. 256 128 64."},
    )
    max_tokens_per_batch: int | None = field(
        default=None,
        metadata={
            "help": "Train with the memory of this many tokens, e.g. 4096: batches that are longer, padding included, "
            "are read in parts, and each part again in the backward pass. Loss and gradients stay those of all rows."
        },
    )

    def __post_init__(self):
        check_ranges(
            self, ("a finite number above 0", "scale"), ("at least 1", "matryoshka_dims max_tokens_per_batch")
        )


@dataclass
class EmbeddingTeacherArguments:
    """From which model's embeddings to learn, instead of in-batch negatives."""

    teacher: str | None = field(
        default=None,
        metadata={
            "help": "Learn the embeddings of this model: a Sentence Transformer or an encoder, a folder or Hub id."
        },
    )
    keep_layers: list[int] | None = field(
        default=None,
        metadata={
            "help": "Start the student with these layers of the teacher (from 0, e.g. 0 2 5) and its other parts, "
            "in place of a model; without a number with static embeddings. It trains without dropout."
        },
    )
    token_mixers: list[str] | None = field(
        default=None,
        metadata={
            "help": "Token mixing of each kept layer of a BERT, e.g. aft aft full_attention: the student is a "
            "HybridBert."
        },
    )
    copy_token_embeddings: bool = field(
        default=False,
        metadata={
            "help": "A student from scratch starts with the teacher's token embeddings; a narrower one with their "
            "principal components."
        },
    )
    states_weight: float = field(
        default=0.0,
        metadata={
            "help": "Weight of one more term of the loss: the states of tokens, for which the teacher reads every "
            "fourth row again. The student needs the teacher's width and tokenizer, and no longer texts."
        },
    )
    joined_weight: float = field(
        default=0.0,
        metadata={
            "help": "Weight of two more terms of the loss, for every fourth row read as two texts in one input: the "
            "states of its tokens, and the similarity of the two. For students to be finetuned on pairs of texts."
        },
    )
    cache_teacher: str | None = field(
        default=None,
        metadata={"help": "Folder for the teacher's embeddings, which other runs can use too; in the output folder."},
    )

    def __post_init__(self):
        check_ranges(self, *(("a finite number of at least 0", name) for name in ("states_weight", "joined_weight")))
        for name in ("keep_layers", "copy_token_embeddings", "states_weight", "joined_weight", "cache_teacher"):
            if self.teacher is None and getattr(self, name) not in (None, False):
                raise UserError(f"--{name} is for distillation: name a --teacher.")
        if self.token_mixers is not None and len(self.token_mixers) != len(self.keep_layers or ()):
            raise UserError(
                f"--token_mixers names {len(self.token_mixers)} types for the {len(self.keep_layers or ())} layers of "
                "--keep_layers: give one for each."
            )
        if self.cache_teacher is not None:
            check_output_folder(self.cache_teacher, "--cache_teacher")

    def in_use(self) -> dict[str, Any]:
        """The settings that affect the trained weights, by name; empty without a teacher."""
        if self.teacher is None:
            return {}
        local = Path(self.teacher).is_dir()
        names = ("states_weight", "joined_weight", "copy_token_embeddings", "keep_layers", "token_mixers")
        teacher = Path(self.teacher).resolve().name if local else self.teacher
        return {"teacher": teacher, **{name: getattr(self, name) for name in names}}


def check_views(data_args: SentencePairArguments, config: PreTrainedConfig) -> None:
    """Check that a text's two views differ where one column gives both (SimCSE, arXiv 2104.08821).

    Raises:
        UserError: If the model has no dropout, which alone makes them differ.
    """
    if data_args.anchor_column == data_args.positive_column and not dropout_rates(config):
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


class SentenceEmbeddings(Task):
    """Embeddings of texts, learned from pairs with in-batch negatives.

    The Trainer and the model are those of Sentence Transformers: the model has the tokenizer, and an evaluator the
    evaluation pairs.
    """

    arguments = (SentencePairArguments, EmbeddingArguments, EmbeddingTeacherArguments)
    pipeline_tag = "sentence-similarity"
    auto_class = AutoModel
    evaluates_before = True
    scale = 100

    def load(self, run: Run) -> dict[str, Any]:
        pairs = self.load_pairs(run, wanted_splits(run.args))
        import_optional("sentence_transformers", "embeddings", "run_sentence_embeddings")
        return pairs

    def load_pairs(self, run: Run, splits: Sequence[str]) -> dict[str, Any]:
        pairs = load_sentence_pairs(run.data_args, splits, run.model_args.token)
        if "train" in pairs:
            check_views(run.data_args, run.config)
            check_batch(len(pairs["train"]), run.args)
        return pairs

    def texts(self, run: Run) -> Iterable[str]:
        return iterate_sentences(run.data["train"])

    def load_tokenizer(self, run: Run, resume_from: str | None) -> Any:
        """The tokenizer of a new bi-encoder; a checkpoint of Sentence Transformers has its own."""
        from .training import sentence_embeddings as library

        if library.has_modules(run.model_args):
            return None
        library.check_encoder(run.config)
        return super().load_tokenizer(run, resume_from)

    def lengths(self, run: Run) -> dict[str, int]:
        """None: see `build_model`."""
        return {}

    def encode(self, run: Run) -> dict[str, Any]:
        return {}

    def build_model(self, run: Run, config: PreTrainedConfig) -> "SentenceTransformer":
        """The bi-encoder.

        Raises:
            UserError: If it cannot be loaded or built, or arguments do not fit it.
        """
        from .training import sentence_embeddings as library

        name, wanted = run.model_args.model_name_or_path, run[EmbeddingArguments]
        if run.tokenizer is None:
            model = library.load_bi_encoder(run.model_args)
            if wanted.pooling_mode not in (None, library.pooling_of(model)):
                raise UserError(
                    f"{name!r} has its own pooling ({library.pooling_of(model)}): leave --pooling_mode out."
                )
            if wanted.normalize is False and library.normalizes(model):
                raise UserError(
                    f"{name!r} normalizes its embeddings, which cannot be undone: leave --normalize false out."
                )
            normalize = bool(wanted.normalize)
        else:
            model = library.build_sentence_transformer(run.model_args, config, run.tokenizer, wanted.pooling_mode)
            normalize = wanted.normalize is not False
        self.prepare_model(run, model)
        if normalize and run.args.do_train:
            library.add_normalization(model)
        if model.transformers_model is not None:  # static embeddings have no longest text
            model.max_seq_length = sequence_length(run.data_args.max_seq_length, model.config, model.tokenizer)
        library.check_dimensions(wanted.matryoshka_dims or (), model)
        if wanted.max_tokens_per_batch is not None and run.args.do_train:
            library.read_in_parts(model, wanted.max_tokens_per_batch)
        return model

    def prepare_model(self, run: Run, model: "SentenceTransformer") -> None:
        """What a model gets before its embeddings are normalized."""

    def build_trainer(self, run: Run, model: "SentenceTransformer", **options: Any) -> "SentenceEmbeddingTrainer":
        from .training import sentence_embeddings as library

        wanted, args, pairs = run[EmbeddingArguments], run.args, run.data.get("train")
        if pairs is not None:
            total, pairs = len(pairs), library.without_false_negatives(pairs, model)
            if args.process_index == 0 and len(pairs) < total:
                left = f"{total - len(pairs):,} of {total:,} training pairs left out"
                print(f"{left}: a hard negative reads like the anchor or the positive", flush=True)
            if not len(pairs):
                raise UserError(
                    f"--negative_columns {' '.join(run.data_args.negative_columns)}: in all {total:,} training pairs "
                    "a hard negative reads like the anchor or the positive: name columns of other texts."
                )
            check_batch(len(pairs), args)  # the batch sizes of a grid differ
        loss = library.ranking_loss(model, wanted.scale, wanted.matryoshka_dims, args.world_size)
        evaluator = self.evaluator(run, "validation")
        return library.SentenceEmbeddingTrainer(
            model=model, args=args, train_dataset=pairs, loss=loss, evaluator=evaluator
        )

    def evaluator(self, run: Run, split: str) -> Any:
        """What evaluates the embeddings of a split; `None` if there is none."""
        from .training.sentence_embeddings import build_evaluator

        pairs, dimensions = run.data.get(split), run[EmbeddingArguments].matryoshka_dims
        return None if pairs is None else build_evaluator(pairs, run.args.per_device_eval_batch_size, dimensions)

    def planned(self, run: Run) -> dict[str, datasets.Dataset]:
        return {split: pairs for split, pairs in run.data.items() if split != "train"}

    def metric_types(self, run: Run) -> dict[str, str]:
        dimensions = run[EmbeddingArguments].matryoshka_dims or ()
        return {name: name for name in (*METRICS, *(f"dim_{dimension}_{METRICS[0]}" for dimension in dimensions))}

    def card_facts(self, run: Run, model: "SentenceTransformer") -> dict[str, Any]:
        """The data of training and evaluation, and how embeddings are made."""
        from .training import sentence_embeddings as library

        data_args, wanted = run.data_args, run[EmbeddingArguments]
        own = {"dataset_name": STSB, "dataset_config_name": None}
        others = {} if data_args.train_val_split else own
        facts = describe_data(dataclasses.replace(data_args, **others))
        return facts | {
            "train_data": describe_data(data_args)["train_data"],
            "notes": f"Made with sentence-transformers {version('sentence-transformers')}.",
            "hyper_parameters": {
                **self.loss_settings(run),
                "scale": wanted.scale,
                "matryoshka_dims": wanted.matryoshka_dims,
                "pooling_mode": library.pooling_of(model),
                "normalize": library.normalizes(model),
                "max_seq_length": model.max_seq_length,
            },
        }

    def loss_settings(self, run: Run) -> dict[str, Any]:
        is_nested = run[EmbeddingArguments].matryoshka_dims is not None
        return {"loss": "MatryoshkaLoss" if is_nested else "MultipleNegativesRankingLoss"}

    def validation_results(self, run: Run, trainer: "SentenceEmbeddingTrainer") -> dict[str, float]:
        results = trainer.evaluate()
        self._write_similarities(run, "validation", trainer, trainer.evaluator)
        return results

    def test_results(self, run: Run, trainer: "SentenceEmbeddingTrainer") -> dict[str, float]:
        evaluator = self.evaluator(run, "test")
        results = {f"test_{name}": value for name, value in evaluator(trainer.model).items()}
        self._write_similarities(run, "test", trainer, evaluator)
        return results

    def _write_similarities(
        self, run: Run, split: str, trainer: "SentenceEmbeddingTrainer", evaluator: "AllEvaluators"
    ) -> None:
        """Write each pair with its score and cosine similarity. Pairs without a score give no file."""
        pairs = run.data[split]
        if trainer.is_world_process_zero() and evaluator.similarities is not None:
            names = {INDEX: INDEX, "sentence1": "sentence1", "sentence2": "sentence2", "score": "label"}
            columns = {title: pairs[name][:] for name, title in names.items()}
            columns["prediction"] = evaluator.similarities
            run.write_predictions(split, "", columns)

    def report(self, run: Run, results: Mapping[str, Any], model_type: str) -> None:
        """Print the metrics, before and after training as far as they were measured."""
        trained = "after training" if run.args.do_train else "validation pairs"
        titles = {"teacher": "teacher", "before": "before training", "eval": trained, "test": "test pairs"}
        parts = {part: title for part, title in titles.items() if any(key.startswith(f"{part}_") for key in results)}
        rows = []
        for name in self.metric_types(run):
            cells = [results.get(f"{part}_{name}") for part in parts]
            if any(cell is not None for cell in cells):
                rows.append((name, *("" if cell is None else f"{100 * cell:.2f}" for cell in cells)))
        if rows:
            print_table(("metric x 100", *parts.values()), rows)


class EmbeddingDistillation(SentenceEmbeddings):
    """Embeddings of texts or pairs, learned from those of a teacher."""

    def check(self, run: Run) -> None:
        """The teacher is for training, and takes the place of the loss."""
        if not run.args.do_train:
            raise UserError("--teacher is for training: give --do_train, or leave it out.")
        if run[EmbeddingArguments].matryoshka_dims is not None:
            raise UserError("--matryoshka_dims is for pairs without a --teacher: leave one of them out.")
        kept = run[EmbeddingTeacherArguments].keep_layers
        if kept is not None:
            choose_student_rate(run.args, kept)

    def find_teacher(self, run: Run) -> "EmbeddingTeacher":
        import_optional("sentence_transformers", "embeddings", "run_sentence_embeddings --teacher")
        from .training.embedding_distillation import EmbeddingTeacher

        given = run[EmbeddingTeacherArguments]
        kept = given.keep_layers, given.token_mixers
        return EmbeddingTeacher(str(given.teacher), run.model_args, given.copy_token_embeddings, *kept)

    def load_pairs(self, run: Run, splits: Sequence[str]) -> dict[str, Any]:
        pairs = super().load_pairs(run, [split for split in splits if split != "train"])
        return pairs | {"train": load_distillation_texts(run.data_args, run.model_args.token)}

    def texts(self, run: Run) -> Iterable[str]:
        return run.data["train"].iterate()

    def load_tokenizer(self, run: Run, resume_from: str | None) -> Any:
        """The teacher's, if the student from scratch has none of its own."""
        if not run.teacher.gives_tokenizer(run.model_args):
            return super().load_tokenizer(run, resume_from)
        tokenizer = copy.deepcopy(run.teacher.tokenizer)  # its length is the student's
        fit_vocabulary(run.config, tokenizer, new_tokenizer=False)
        tokenizer.model_max_length = longest_sequence(run.config)
        return tokenizer

    def prepare_model(self, run: Run, model: "SentenceTransformer") -> None:
        run.teacher.prepare_student(model, run.model_args, run.data["train"])
        given = run[EmbeddingTeacherArguments]
        if wanted := [name for name in ("states_weight", "joined_weight") if getattr(given, name)]:
            run.teacher.check_states(model, f"--{wanted[0]}")
        if given.joined_weight:
            run.teacher.check_joined(model)

    def build_trainer(self, run: Run, model: "SentenceTransformer", **options: Any) -> "EmbeddingDistillationTrainer":
        """A Trainer whose teacher reads the texts first."""
        from .training import embedding_distillation as library

        given, args = run[EmbeddingTeacherArguments], run.args
        if given.states_weight and model.max_seq_length > (longest := run.teacher.model.max_seq_length):
            raise UserError(
                f"--states_weight compares states of tokens: the student reads {model.max_seq_length} tokens of a "
                f"text, the teacher {longest}: give --max_seq_length {longest} or less."
            )
        texts = run.data["train"].with_lengths(*run.teacher.reading(model))
        if args.process_index == 0:
            print(texts.describe(), flush=True)
        folder = Path(args.output_dir) if args.grid is None else args.grid.path
        folder = folder / TEACHER_FOLDER if given.cache_teacher is None else Path(given.cache_teacher)
        return library.EmbeddingDistillationTrainer(
            teacher=run.teacher,
            texts=texts,
            folder=folder.expanduser(),
            model=model,
            args=args,
            loss=library.TeacherLoss(model, run[EmbeddingArguments].scale, given.states_weight, given.joined_weight),
            evaluator=self.evaluator(run, "validation"),
        )

    def baselines(self, run: Run, trainer: "EmbeddingDistillationTrainer") -> dict[str, float]:
        """The teacher's metrics on the validation pairs, as `teacher_...`."""
        if trainer.evaluator is None:
            return {}
        return {f"teacher_{name}": value for name, value in run.teacher.scores(trainer.evaluator, run.args).items()}

    def loss_settings(self, run: Run) -> dict[str, Any]:
        return {"loss": "TeacherLoss", **run[EmbeddingTeacherArguments].in_use()}


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Entry point; returns the results of `Run.execute`, or for a grid those of `hyperparameter_grid.run_all`."""
    run = Run(SentenceEmbeddings(), argv)
    if run[EmbeddingTeacherArguments].teacher is not None:
        run.task = EmbeddingDistillation()
    return run.command()


if __name__ == "__main__":
    main()
