"""Convert T5, Flan-T5 or mT5 to a Synthesizer, equal or without queries and keys.

tokenmixers convert_t5 --source google/flan-t5-small --output_dir flan-t5-random \
    --attention_components random vanilla
tokenmixers convert_t5 --source google/flan-t5-small --output_dir flan-t5-attention-free \
    --attention_components random --config_overrides max_position_embeddings=256
"""

from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from huggingface_hub import ModelCard
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, set_seed
from transformers.utils import cached_file

from ..modeling.conversion.t5 import synthesizer_from_t5
from .base.arguments import check_new_folder, parse_arguments
from .base.config_overrides import parse_overrides
from .base.errors import UserError
from .base.new_checkpoint import new_checkpoint
from .base.ranges import check_ranges
from .base.sequence_limits import longest_sequence
from .base.trained_model import check_folder
from .training.model_card import converted_card


@dataclass
class ConvertT5Arguments:
    """What to convert, and into what."""

    source: str = field(metadata={"help": "Hub id or folder of the T5 checkpoint."})
    output_dir: str = field(metadata={"help": "New or empty folder for the Synthesizer and its tokenizer."})
    attention_components: list[str] | None = field(
        default=None,
        metadata={
            "help": "Components of self-attention, vanilla by default. Mixed with vanilla, the others start without "
            "effect: the model computes what T5 does. Without vanilla they are drawn at random and replace T5's "
            "queries and keys: the model has to be trained."
        },
    )
    config_overrides: str | None = field(
        default=None,
        metadata={"help": "Other fields, e.g. max_position_embeddings=1024 for longer texts, 512 by default."},
    )
    seed: int = field(default=42, metadata={"help": "Seed of the new components' weights."})

    def __post_init__(self):
        check_ranges(self, ("from 0 to 4294967295", "seed"))


def _tokenizer(source: str) -> PreTrainedTokenizerBase | None:
    """The source's tokenizer, if it has one."""
    # AutoTokenizer does not fail without files: it makes an empty T5 tokenizer.
    files = ("tokenizer.json", "spiece.model")
    found = {name for name in files if cached_file(source, name, _raise_exceptions_for_missing_entries=False)}
    if not found:
        return None
    if "tokenizer.json" not in found and find_spec("sentencepiece") is None:
        raise UserError(
            f"the tokenizer of {source!r} is a spiece.model, which cannot be read without sentencepiece: pip install "
            "sentencepiece."
        )
    return AutoTokenizer.from_pretrained(source)


def _convert(arguments: ConvertT5Arguments) -> tuple[PreTrainedModel, PreTrainedTokenizerBase | None]:
    """The Synthesizer, and the tokenizer that goes with it."""
    fields = parse_overrides(arguments.config_overrides or "")
    fields["attention_components"] = arguments.attention_components or ["vanilla"]
    check_folder(arguments.source)
    set_seed(arguments.seed)
    try:
        tokenizer = _tokenizer(arguments.source)  # before the weights, which take longer
        model = synthesizer_from_t5(arguments.source, **fields)
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{arguments.source!r} cannot be converted: {error}") from error
    most = model.config.max_sequence_length
    if tokenizer is not None and most is not None:
        tokenizer.model_max_length = min(tokenizer.model_max_length, most)
    return model, tokenizer


def _check_generation(model: PreTrainedModel) -> None:
    most = model.config.get_text_config(decoder=True).max_sequence_length
    for name in ("max_length", "max_new_tokens"):
        wanted = getattr(model.generation_config, name)
        if most is not None and wanted is not None and wanted > most:
            raise UserError(
                f"the source generates texts of {name}={wanted} tokens, more than the {most} positions of the new "
                f"decoder: give --config_overrides max_position_embeddings={wanted} or more, or change its "
                "generation_config.json."
            )


def _new_sides(model: PreTrainedModel) -> list[str]:
    """Those of encoder and decoder whose self-attention has nothing of T5's queries and keys."""
    sides = ("encoder", "decoder")
    return [s for s in sides if "vanilla" not in model.config.get_text_config(**{s: True}).attention_components]


def _notes(arguments: ConvertT5Arguments, model: PreTrainedModel) -> str:
    """How the weights were made, and what limits the model."""
    sides, most = _new_sides(model), longest_sequence(model.config)
    made = "All weights are the source's. Other components of self-attention, if any, start without effect."
    if sides:
        made = (
            f"The queries and keys of the self-attention of the {' and '.join(sides)} were replaced by newly drawn "
            f"components (seed {arguments.seed}). All other weights are the source's. The model was not trained "
            "after that: finetune it before use."
        )
    length = "" if most is None else f"Sequences have at most {most} tokens. "
    return f"{made}\n\n{length}The model has the limits of its source, and was not evaluated after the conversion."


def _card(arguments: ConvertT5Arguments, model: PreTrainedModel) -> ModelCard:
    local = Path(arguments.source).exists()
    name = Path(arguments.source).name if local else arguments.source
    sides = {side: model.config.get_text_config(**{side: True}) for side in ("encoder", "decoder")}
    components = {side: " + ".join(f"`{name}`" for name in c.attention_components) for side, c in sides.items()}
    return converted_card(
        model,
        arguments.output_dir,
        "text2text-generation",
        f"tokenmixers convert_t5 --source {name}",
        summary=f"A Synthesizer with {model.num_parameters():,} parameters, converted from {name}. Components of "
        f"self-attention: {components['encoder']} in the encoder, {components['decoder']} in the decoder.",
        notes=_notes(arguments, model),
        base_model=None if local else name,
    )


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    (arguments,) = parse_arguments((ConvertT5Arguments,), argv)
    output = check_new_folder(arguments.output_dir)
    model, tokenizer = _convert(arguments)
    _check_generation(model)
    with new_checkpoint(output) as folder:
        model.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        _card(arguments, model).save(folder / "README.md")
    if tokenizer is None:
        print(f"No tokenizer goes with the model: there is none with {arguments.source!r}.")
    if sides := _new_sides(model):
        print(f"The new self-attention of the {' and '.join(sides)} is untrained: finetune the model before use.")
    components = " + ".join(model.config.attention_components)
    print(f"{model.num_parameters():,} parameters, self-attention from {components}, saved in {output}")


if __name__ == "__main__":
    main()
