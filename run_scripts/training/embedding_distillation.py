"""Sentence embeddings that are learned from a teacher's: the teacher, its loss, batches of like length.

Imports sentence-transformers (extra `embeddings`), as `sentence_embeddings` does.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.sampler import DefaultBatchSampler
from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator
from sentence_transformers.sentence_transformer.losses import EmbedDistillLoss
from sentence_transformers.sentence_transformer.modules import Dense, Normalize
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments
from transformers.trainer_utils import TrainOutput

from ...modeling.heads.pooling import pool
from ..base.arguments import MODEL_SOURCES, ModelArguments
from ..base.config_overrides import merge_overrides, parse_overrides
from ..base.errors import UserError
from ..base.reporting import transformers_model
from ..base.trained_model import check_folder, load_sentence_transformer
from ..data.distillation_texts import LENGTH, DistillationTexts
from .kept_layers import dropout_rates, keep_layers, mix_layers, narrow_feed_forwards, read_batches
from .model_loading import AFT_FIELDS
from .sentence_embeddings import AllEvaluators, SentenceEmbeddingTrainer
from .static_embeddings import static_embeddings
from .teacher import NoTeacher
from .teacher_embeddings import TeacherEmbeddings
from .trainer import forget_truncation


#: So many batches are sorted by length together: batches of an epoch differ from those of the next.
BATCHES_SORTED_TOGETHER = 50
#: Rows of the training data on whose texts a layer's mean attention is measured.
MEASURED_ROWS = 512
#: Shares in the loss of squared differences of similarities: of a batch's texts, and of two texts in one input.
SIMILARITY_WEIGHT, JOINED_SIMILARITY_WEIGHT = 20.0, 2.0
#: The teacher reads one row in this many again for the states of its tokens: of each text, and of two in one input.
STATES_EVERY = 4
#: A text's partner is searched among this many texts. One text in this many gets the partner of another.
PARTNERS, OTHERS_PARTNER_EVERY = 2048, 8
#: Column with the partners of single texts.
PARTNER = "partner"


class EmbeddingTeacher(NoTeacher):
    """A Sentence Transformer, or another encoder with mean pooling, that a student learns from.

    Args:
        name: Folder or Hub id.
        model_args: The student's arguments, of which the Hub token and `trust_remote_code` count here too.
        copies_token_embeddings: Whether a student starts with the teacher's token embeddings.
        kept_layers: Layers of the teacher that the student starts with, `None` for a student of its own.
        token_mixers: Their token mixing in a `HybridBertModel`; `None` for layers as they are.
    """

    model: SentenceTransformer | None = None
    _scores: dict[str, float] | None = None

    def __init__(
        self,
        name: str,
        model_args: ModelArguments,
        copies_token_embeddings: bool = False,
        kept_layers: Sequence[int] | None = None,
        token_mixers: Sequence[str] | None = None,
    ):
        self.name = name
        self.copies_token_embeddings = copies_token_embeddings
        self.kept_layers = kept_layers
        self.token_mixers = token_mixers
        self.token, self.trust_remote_code = model_args.token, model_args.trust_remote_code
        self.load()
        try:
            probe = self.model.encode(["a text"], convert_to_tensor=True, show_progress_bar=False)
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
            raise UserError(f"the teacher {name!r} gives no embeddings of texts: {error}") from error
        if probe.dim() != 2 or not probe.isfinite().all():
            raise UserError(
                f"the teacher {name!r} gives no embeddings of texts: give a Sentence Transformer or encoder."
            )
        self.dimension = probe.shape[1]

    def load(self, run: Any = None) -> None:
        """Load the model, which `embed` forgets: a grid has several runs."""
        if self.model is not None:
            return
        options = {"token": self.token, "trust_remote_code": self.trust_remote_code, "device": "cpu"}
        with torch.random.fork_rng(devices=[]):  # the student starts as without a teacher
            self.model = load_sentence_transformer(self.name, **options)
        self.model.eval().requires_grad_(False)

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The teacher's tokenizer, without the padding and truncation that its file may have."""
        tokenizer = self.model.tokenizer
        forget_truncation(tokenizer)
        return tokenizer

    @staticmethod
    def gives_tokenizer(arguments: ModelArguments) -> bool:
        """Whether a student gets the teacher's tokenizer: from scratch, without one of its own."""
        own = (arguments.model_name_or_path, arguments.tokenizer_name, arguments.train_tokenizer)
        return all(value is None for value in own)

    def student_arguments(self, arguments: ModelArguments) -> ModelArguments:
        """The student's arguments: one that gets the teacher's tokenizer also gets its vocabulary size.

        A student of the teacher's layers starts as the teacher, without dropout; see `prepare_student`.
        """
        if self.kept_layers is not None:
            return self._shallow_arguments(arguments)
        if not self.gives_tokenizer(arguments):
            return arguments
        overrides = (arguments.config_overrides or "").strip() or None
        size = {"vocab_size": len(self._token_embeddings())}
        return dataclasses.replace(arguments, config_overrides=merge_overrides(size, overrides))

    def prepare_student(
        self, student: SentenceTransformer, arguments: ModelArguments, texts: DistillationTexts
    ) -> None:
        """Give a student what it gets before training: layers or token embeddings, and the teacher's dimension.

        Args:
            student: The student.
            arguments: Its arguments.
            texts: The training texts, on which static embeddings and layers with other token mixing start.
        """
        if self.kept_layers == []:
            static = static_embeddings(self.model, self.tokenizer, texts.iterate())
            modules = [static, *(module for module in student if isinstance(module, Normalize))]
            student._modules.clear()
            student.extend(modules)
        elif self.kept_layers is not None:
            encoder = transformers_model(student)
            measured = texts.spread(MEASURED_ROWS), student.tokenizer, student.max_seq_length
            if self._width is not None:
                encoder = narrow_feed_forwards(encoder, self._width, read_batches(*measured))
            if self.token_mixers is None:
                encoder = keep_layers(encoder, self.kept_layers)
            else:
                batches = read_batches(*measured)
                encoder = mix_layers(encoder, self.kept_layers, self.token_mixers, batches, **self._aft)
            student[0].model = encoder
            for name, rate in self._dropout_rates.items():
                setattr(encoder.config, name, rate)
        if self.copies_token_embeddings:
            if arguments.model_name_or_path is not None:
                raise UserError("--copy_token_embeddings is for a student from scratch, not for --model_name_or_path.")
            self._give_token_embeddings(transformers_model(student), student.tokenizer)
        dimension = student.get_embedding_dimension()
        if dimension != self.dimension:
            if student.truncate_dim is not None:
                raise UserError(
                    f"the student cuts its embeddings to truncate_dim={student.truncate_dim}, the teacher's have "
                    f"{self.dimension} dimensions: remove truncate_dim from its config_sentence_transformers.json."
                )
            student.append(Dense(dimension, self.dimension, bias=False, activation_function=nn.Identity()))

    def reading(self, student: SentenceTransformer) -> tuple[PreTrainedTokenizerBase, int]:
        """What reads a student's texts, and how many tokens of each: with static embeddings as the teacher."""
        if student.transformers_model is None:
            return self.tokenizer, self.model.max_seq_length
        return student.tokenizer, student.max_seq_length

    def check_states(self, student: SentenceTransformer, option: str) -> None:
        """Check that a student's states of tokens can be compared with the teacher's, as `option` does.

        Raises:
            UserError: If one of them has none, or the student another width or other tokens.
        """
        if student.transformers_model is None or self.model.transformers_model is None:
            raise UserError(f"{option} compares states of tokens, and static embeddings have none: leave it out.")
        width, wanted = (transformers_model(model).config.hidden_size for model in (student, self.model))
        if width != wanted:
            raise UserError(
                f"{option} compares states of tokens: the student's width is {width}, the teacher's {wanted}: "
                f"give a student with hidden_size={wanted}."
            )
        own, given = (model.preprocess([["a text", "another one"]]) for model in (student, self.model))
        same_ids = own["input_ids"].tolist() == given["input_ids"].tolist()
        if not same_ids or student.tokenizer.get_vocab() != self.tokenizer.get_vocab():
            raise UserError(
                f"{option} compares states of tokens: the student's tokenizer gives others than that of the "
                f"teacher {self.name!r}: leave --tokenizer_name out, or give a student with the teacher's tokenizer."
            )

    def check_joined(self, student: SentenceTransformer) -> None:
        """Check that a student can read two texts in one input as the teacher does.

        Raises:
            UserError: If it has too few token types.
        """
        own = student.preprocess([["a text", "another one"]])
        types = int(own.get("token_type_ids", torch.zeros(1)).max()) + 1
        known = getattr(transformers_model(student).config, "type_vocab_size", 0)
        if 0 < known < types:
            raise UserError(
                f"--joined_weight reads two texts in one input, which have {types} token types: the student has "
                f"type_vocab_size={known}."
            )

    def _shallow_arguments(self, arguments: ModelArguments) -> ModelArguments:
        """The arguments of a student that starts as the teacher, without dropout."""
        for name in (*MODEL_SOURCES, "tokenizer_name", "train_tokenizer"):
            if getattr(arguments, name) is not None:
                raise UserError(f"--keep_layers makes the student of the teacher's parts: leave --{name} out.")
        if self.copies_token_embeddings:
            raise UserError(
                "--keep_layers keeps the teacher's token embeddings too: leave --copy_token_embeddings out."
            )
        model = transformers_model(self.model)
        check_folder(self.name)
        if not isinstance(model, PreTrainedModel):
            raise UserError(f"--keep_layers: the teacher {self.name!r} is no model of Transformers with layers.")
        given = parse_overrides((arguments.config_overrides or "").strip())
        self._dropout_rates = {n: rate for n, rate in dropout_rates(model.config).items() if n not in given}
        self._width = given.pop("intermediate_size", None) if self.kept_layers else None
        has_aft = "aft" in (self.token_mixers or ())
        self._aft = {name: given.pop(name) for name in AFT_FIELDS if has_aft and name in given}
        overrides = merge_overrides({**dict.fromkeys(self._dropout_rates, 0.0), **given}, None)
        return dataclasses.replace(arguments, model_name_or_path=self.name, config_overrides=overrides)

    def _token_embeddings(self) -> torch.Tensor:
        """The token embeddings, with those of token type 0 added where the teacher has types."""
        model = transformers_model(self.model)
        if not isinstance(model, PreTrainedModel):
            raise UserError(f"the teacher {self.name!r} has no token embeddings of a model of Transformers.")
        weight = model.get_input_embeddings().weight.float()
        types = [module for name, module in model.named_modules() if name.endswith("token_type_embeddings")]
        return weight + types[0].weight[0].float() if types else weight

    @torch.no_grad()
    def _give_token_embeddings(self, student: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        """Start a student with the teacher's token embeddings; a narrower one with their principal components."""
        if tokenizer.get_vocab() != self.tokenizer.get_vocab():
            raise UserError(
                f"the teacher {self.name!r} has another vocabulary than the student's tokenizer: leave "
                "--copy_token_embeddings out, or give a student from scratch without a tokenizer."
            )
        given, target = self._token_embeddings(), student.get_input_embeddings().weight
        if target.shape[1] > given.shape[1]:
            raise UserError(
                f"--copy_token_embeddings: the teacher's token embeddings have {given.shape[1]} dimensions, the "
                f"student's {target.shape[1]}: give a student with hidden_size={given.shape[1]} or less."
            )
        if target.shape[1] < given.shape[1]:
            centred = given - given.mean(dim=0)
            directions = torch.linalg.eigh(centred.mT @ centred).eigenvectors.flip(1)  # the largest first
            given = centred @ directions[:, : target.shape[1]]
        rows = min(len(given), len(target))
        target[:rows] = given[:rows].to(target.dtype)

    def scores(self, evaluator: AllEvaluators, args: TrainingArguments) -> dict[str, float]:
        """The metrics of an evaluator's pairs, which the runs of a grid share, in full precision."""
        if self._scores is None:
            self._scores = evaluator(self.model.to(args.device))
        return self._scores

    def embed(self, texts: DistillationTexts, folder: Path, args: TrainingArguments) -> TeacherEmbeddings:
        """The embeddings of all texts, from the cache or computed now. The teacher is not kept here."""
        model = self.model.to(args.device)
        if args.bf16 or args.fp16:
            model = model.bfloat16() if args.bf16 else model.half()
        embeddings = TeacherEmbeddings(folder, model, self.name)
        missing = embeddings.add(texts.iterate(), args.process_index, args.world_size)
        if args.process_index == 0:
            state = f"{missing:,} were missing" if missing else "complete"
            print(f"the teacher's embeddings: {embeddings.folder}, {state}", flush=True)
        if args.world_size > 1:
            torch.distributed.barrier()
            embeddings = TeacherEmbeddings(folder, model, self.name)  # with the files of all processes
        embeddings.teacher = self.model = None
        return embeddings


class TeacherLoss(nn.Module):
    """What embeddings lose against a teacher's: a dictionary of up to six parts, whose sum is trained.

    - `embedding`: 1 - the cosine of a text's embedding with the teacher's (`EmbedDistillLoss`, arXiv 2301.12005).
    - `similarity`: the mean squared difference of the cosine similarities of all texts in the batch with each other
      from the teacher's, times 20.
    - `ranking`: for pairs, the KL divergence of the distribution over the batch's other texts that follows from an
      anchor's similarities, times `scale`, from the teacher's distribution.
    - `states`: for some rows, 1 - the cosine of a token's last state with the teacher's; times `states_weight`.
    - `joined_states`: the same for these rows as two texts in one input; times `joined_weight`.
    - `joined_similarity`: the squared difference between the teacher's cosine similarity of these two texts and a
      number from the state that a classifier, or BERT's pooler, reads: the mean of its even dimensions minus the mean
      of its odd ones; times 2 `joined_weight`.

    Args:
        model: The student.
        scale: Inverse of the temperature.
        states_weight: 0 leaves this part out, and the teacher reads no texts again.
        joined_weight: 0 leaves the last two parts out. Otherwise the last features are of two texts in one input.

    Attributes:
        embeddings: The teacher's, before training starts.
        read: The teacher's `forward`, if states of tokens are in the loss.
        has_pairs: Whether there are batches of pairs.
    """

    embeddings: TeacherEmbeddings
    read: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]
    has_pairs = False

    def __init__(
        self, model: SentenceTransformer, scale: float, states_weight: float = 0.0, joined_weight: float = 0.0
    ):
        super().__init__()
        self.model = model
        self.config = getattr(model.transformers_model, "config", None)
        self.scale = scale
        self.states_weight, self.joined_weight = states_weight, joined_weight
        self.embedding_loss = EmbedDistillLoss(model)

    def forward(self, sentence_features: Iterable[dict[str, torch.Tensor]], labels: torch.Tensor) -> dict[str, Any]:
        """The parts; `labels` are places of the teacher's embeddings, `(batch, columns)`, with those of partners."""
        *sentence_features, joined = sentence_features if self.joined_weight else (*sentence_features, None)
        # Column by column: in one batch with passages, questions would be padded to their length.
        outputs = [self.model({**features}) for features in sentence_features]
        students = [output["sentence_embedding"].float() for output in outputs]
        places = labels.view(len(labels), -1).unbind(dim=1)
        teachers = [self.embeddings[place].to(students[0].device) for place in places[: len(students)]]
        losses = {"embedding": self.embedding_loss.compute_loss_from_embeddings(students, teachers)}
        student, teacher = (F.normalize(torch.cat(parts), dim=-1) for parts in (students, teachers))
        with torch.autocast(student.device.type, enabled=False):
            similarities, wanted = student @ student.mT, teacher @ teacher.mT
        losses["similarity"] = SIMILARITY_WEIGHT * F.mse_loss(similarities, wanted)
        if self.has_pairs:
            losses["ranking"] = similarities.new_zeros(())  # also for texts: processes gather the same parts
        if len(students) > 1:
            anchors = len(labels)
            logs = F.log_softmax(self.scale * similarities[:anchors, anchors:], dim=-1)
            targets = F.log_softmax(self.scale * wanted[:anchors, anchors:], dim=-1)
            losses["ranking"] = F.kl_div(logs, targets, reduction="batchmean", log_target=True)
        if self.states_weight:
            texts = zip(sentence_features, outputs, strict=True)
            states = [self._states_loss(_some_rows(features), _some_rows(output)) for features, output in texts]
            losses["states"] = self.states_weight * sum(states) / len(states)
        if joined is not None:
            pair = [self.embeddings[place[::STATES_EVERY]].to(student.device) for place in places[:2]]
            losses |= self._joined_losses(joined, F.cosine_similarity(*pair))
        return losses

    def _states_loss(self, features: dict[str, torch.Tensor], output: dict[str, torch.Tensor]) -> torch.Tensor:
        """1 - the cosine of a token's last state with the teacher's, the mean of all tokens."""
        real = features["attention_mask"].bool()
        with torch.no_grad():
            teacher = self.read({**features})["token_embeddings"][real].float()
        return 1 - F.cosine_similarity(output["token_embeddings"][real].float(), teacher, dim=-1).mean()

    def _joined_losses(self, features: dict[str, torch.Tensor], wanted: torch.Tensor) -> dict[str, torch.Tensor]:
        """The parts of two texts in one input, of which `wanted` are the similarities."""
        output = self.model({**features})
        read_by_classifiers = getattr(self.config, "classifier_pooling", "cls")
        found = pool(output["token_embeddings"].float(), features["attention_mask"], read_by_classifiers)
        found = found[:, ::2].mean(dim=-1) - found[:, 1::2].mean(dim=-1)
        similarity = JOINED_SIMILARITY_WEIGHT * F.mse_loss(found, wanted)
        parts = {"joined_states": self._states_loss(features, output), "joined_similarity": similarity}
        return {name: self.joined_weight * part for name, part in parts.items()}


def _some_rows(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: values[::STATES_EVERY] for name, values in batch.items() if isinstance(values, torch.Tensor)}


class LengthBatchSampler(DefaultBatchSampler):
    """Batches of rows with texts of like length, in another order in each epoch."""

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        lengths = np.asarray(self.sampler.with_format("numpy")[LENGTH][:])
        order = torch.randperm(len(lengths), generator=generator).numpy()
        together = BATCHES_SORTED_TOGETHER * self.batch_size
        batches = []
        for start in range(0, len(order), together):
            part = order[start : start + together]
            part = part[np.argsort(lengths[part], kind="stable")]
            batches += [part[first : first + self.batch_size] for first in range(0, len(part), self.batch_size)]
        if self.drop_last:
            batches = [batch for batch in batches if len(batch) == self.batch_size]
        for number in torch.randperm(len(batches), generator=generator).tolist():
            yield batches[number].tolist()


class DistillationCollator(SentenceTransformerDataCollator):
    """The library's collator; the column with lengths is no text, and partners are read with their text."""

    joined_length: int | None = None
    """Number of tokens to which two texts in one input are cut; `None` if there are none."""
    with_token_types: bool = False
    """Whether two texts in one input have token types, which the teacher reads though the student may not."""

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        batch = super().__call__([{n: row[n] for n in row if n not in (LENGTH, PARTNER)} for row in features])
        if self.joined_length is not None:
            names = ("text", PARTNER) if PARTNER in features[0] else ("anchor", "positive")
            pairs = [[row[name] for name in names] for row in features[::STATES_EVERY]]
            types = {"text": {"return_token_type_ids": True}} if self.with_token_types else None
            joined = self.preprocess_fn(pairs, max_length=self.joined_length, processing_kwargs=types)
            batch.update({f"joined_{name}": value for name, value in joined.items()})
        return batch


class EmbeddingDistillationTrainer(SentenceEmbeddingTrainer):
    """A `SentenceEmbeddingTrainer` whose teacher reads the texts before training starts.

    Args:
        teacher: The teacher.
        texts: The training texts, with lengths.
        folder: For the caches of all teachers.
        kwargs: Arguments of `SentenceEmbeddingTrainer`; the loss is a `TeacherLoss`.
    """

    data_collator_class = DistillationCollator
    batch_sampler = LengthBatchSampler

    def __init__(self, *, teacher: EmbeddingTeacher, texts: DistillationTexts, folder: Path, **kwargs: Any):
        self.teacher, self.texts, self.folder = teacher, texts, folder
        super().__init__(train_dataset=datasets.DatasetDict(texts.splits), **kwargs)
        self.loss.has_pairs = "pairs" in texts.splits
        self.args.dataloader_drop_last = self.args.world_size > 1  # whose processes need equal numbers of batches

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """Let the teacher read what its cache lacks, and train."""
        teacher = self.teacher.model  # which `embed` forgets
        self.loss.embeddings = self.teacher.embed(self.texts, self.folder, self.args)
        if self.loss.states_weight or self.loss.joined_weight:
            self.loss.read = teacher.forward
        if self.loss.joined_weight:
            self.data_collator.joined_length = min(teacher.max_seq_length, self.model.max_seq_length)
            self.data_collator.with_token_types = "token_type_ids" in teacher.tokenizer.model_input_names
        splits = {}
        for name, split in self.texts.splits.items():
            columns = [column for column in split.column_names if column != LENGTH]
            places = np.array([self.loss.embeddings.places(split[column][:]) for column in columns]).T
            if self.loss.joined_weight and columns == ["text"]:
                partners = find_partners(self.loss.embeddings, torch.from_numpy(places[:, 0]))
                split = split.add_column(PARTNER, split.select(partners)["text"][:])
                places = np.concatenate([places, places[partners]], axis=1)
            splits[name] = split.add_column("label", list(places))
        self.train_dataset = self.preprocess_dataset(datasets.DatasetDict(splits), dataset_name="train")
        return super().train(*args, **kwargs)


def find_partners(embeddings: TeacherEmbeddings | torch.Tensor, places: torch.Tensor) -> np.ndarray:
    """For each text the index of another one to be read with it in one input.

    It is the most similar one of `PARTNERS` texts that follow each other; for every eighth text the partner of the
    text before, so that some pairs differ.

    Args:
        embeddings: The teacher's.
        places: Where the texts' embeddings stand, shape `(texts,)`.
    """
    found: list[torch.Tensor] = []
    for start in range(0, len(places), PARTNERS):
        part = F.normalize(embeddings[places[start : start + PARTNERS]], dim=-1)
        found.append((part @ part.mT).fill_diagonal_(-2.0).argmax(dim=-1) + start)
    partners = torch.cat(found).numpy()
    others, own = np.roll(partners, 1), np.arange(len(partners))
    return np.where((own % OTHERS_PARTNER_EVERY == 0) & (others != own), others, partners)
