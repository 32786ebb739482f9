"""Pretrain a masked language model, and report its perplexity.

    tokenmixers run_mlm recipe.yaml --output_dir outputs/run [--seeds 1 2 3] [--learning_rates 1e-3 2e-3]
    torchrun --nproc_per_node 2 -m tokenmixers.run_scripts.run_mlm ...
    tokenmixers launch ddp.yaml run_mlm ...

Works for every checkpoint that `AutoModelForMaskedLM` loads.
"""

from transformers import AutoModelForMaskedLM, Trainer

import tokenmixers  # noqa: F401  (registers the models)

from ..modeling.heads.language_modeling import MaskedLMHead
from .base.arguments import ModelArguments
from .base.errors import UserError
from .base.training_arguments import ScriptTrainingArguments
from .data.collators import precompute_labels
from .data.masking import MaskingArguments, MaskingCollator
from .data.row_seeds import SeededCollator
from .data.text_corpus import TextDataArguments
from .training.distillation import TokenDistillation, TokenDistillationArguments
from .training.language_modeling import build_trainer, load_corpus, run_script, tokenize_corpus
from .training.model_loading import build_model, sequence_length
from .training.teacher import find_teacher


def build(
    model_args: ModelArguments,
    data_args: TextDataArguments,
    masking_args: MaskingArguments,
    distillation_args: TokenDistillationArguments,
    args: ScriptTrainingArguments,
    resume_from: str | None = None,
) -> Trainer:
    """Load data, tokenizer and model, and build the Trainer.

    Raises:
        UserError: If anything the user gave is missing or does not fit.
    """
    teacher = find_teacher(distillation_args, model_args, args)
    if teacher is not None:
        model_args = teacher.student_arguments(model_args)
        check_cache(distillation_args, masking_args)
    corpus = load_corpus(model_args, data_args, args, resume_from)
    length = sequence_length(data_args.max_seq_length, corpus.config, corpus.tokenizer)
    if teacher is not None:
        teacher.check_texts(corpus.tokenizer, {"--max_seq_length": length})
    try:
        collator = MaskingCollator(corpus.tokenizer, **masking_args.collator_options())
    except ValueError as error:
        raise UserError(f"masking is not possible: {error}") from error
    rows = tokenize_corpus(corpus, data_args, args, length, word_offsets=masking_args.whole_word_mask)
    if teacher is not None:
        teacher.load(AutoModelForMaskedLM, rows["train"])
    model = build_model(model_args, corpus.config, AutoModelForMaskedLM)
    if isinstance(model, MaskedLMHead):
        model.config.sparse_prediction = True  # training needs the logits of masked tokens only
    evaluation = precompute_labels(rows["validation"], SeededCollator(collator, args.evaluation_seed))
    masks = SeededCollator(collator, args.seed, every_epoch=not masking_args.static_masking)
    trainer = build_trainer(model, corpus, args, rows.get("train"), evaluation, masks)
    if teacher is not None:
        teacher.teach(trainer, TokenDistillation, {"seed": args.seed, **vars(masking_args)})
    return trainer


def check_cache(arguments: TokenDistillationArguments, masking_args: MaskingArguments) -> None:
    """Check that the teacher's logits stay the same, if they are to be kept.

    Raises:
        UserError: If every epoch has other masks.
    """
    if arguments.cache_teacher is not None and not masking_args.static_masking:
        raise UserError(
            "--cache_teacher cannot keep the logits of masks that change in every epoch: give --static_masking, which "
            "masks the same tokens each time, or let the teacher run in every step."
        )


def main(argv: list[str] | None = None) -> dict[str, float]:
    """Entry point; returns perplexities and training tokens per second."""
    return run_script(build, (MaskingArguments, TokenDistillationArguments), "fill-mask", argv)


if __name__ == "__main__":
    main()
