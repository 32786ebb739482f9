"""Convert a T5, T5 v1.1, Flan-T5 or mT5 checkpoint to an equivalent Synthesizer.

tokenmixers convert_t5 --source google/flan-t5-small --output_dir flan-t5-random \
    --attention_components random vanilla
"""

from dataclasses import dataclass, field

import torch
from transformers import AutoTokenizer
from transformers.utils import cached_file

from ..modeling.conversion.t5 import synthesizer_from_t5
from .base.arguments import check_new_folder, parse_arguments
from .base.config_overrides import parse_overrides
from .base.errors import UserError


@dataclass
class ConvertT5Arguments:
    """What to convert, and into what."""

    source: str = field(metadata={"help": "Hub id or folder of the T5 checkpoint."})
    output_dir: str = field(metadata={"help": "New or empty folder for the Synthesizer and its tokenizer."})
    attention_components: list[str] = field(
        default_factory=lambda: ["vanilla"],
        metadata={
            "help": "Components of self-attention, vanilla among them. New ones start at zero: the model computes "
            "what T5 does, and can be finetuned from there."
        },
    )
    decoder_attention_components: list[str] | None = field(
        default=None, metadata={"help": "The same for the decoder, if it is to differ."}
    )
    mixture: str = field(default="softmax", metadata={"help": "How components are mixed: softmax, sigmoid or sum."})
    config_overrides: str | None = field(
        default=None, metadata={"help": "Other fields, e.g. max_position_embeddings=1024,factorized_random_rank=16."}
    )
    dtype: str | None = field(
        default=None, metadata={"help": "Type of the weights, e.g. float32 or bfloat16; as saved by default."}
    )


def _has_tokenizer(source: str) -> bool:
    # AutoTokenizer does not fail without files: it makes an empty T5 tokenizer.
    files = ("tokenizer.json", "spiece.model")
    found = [cached_file(source, file, _raise_exceptions_for_missing_entries=False) for file in files]
    return any(file is not None for file in found)


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    (arguments,) = parse_arguments((ConvertT5Arguments,), argv)
    output = check_new_folder(arguments.output_dir)
    dtype = None if arguments.dtype is None else getattr(torch, arguments.dtype, None)
    if arguments.dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise UserError(
            f"--dtype {arguments.dtype!r} is not a floating point type of PyTorch, such as float32 or bfloat16."
        )
    try:
        model = synthesizer_from_t5(
            arguments.source,
            dtype=dtype,
            attention_components=arguments.attention_components,
            decoder_attention_components=arguments.decoder_attention_components,
            mixture=arguments.mixture,
            **parse_overrides(arguments.config_overrides or ""),
        )
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{arguments.source!r} cannot be converted: {error}") from error
    model.save_pretrained(output)
    if _has_tokenizer(arguments.source):
        AutoTokenizer.from_pretrained(arguments.source).save_pretrained(output)
    else:
        print(f"No tokenizer goes with the model: there is none with {arguments.source!r}.")
    components = " + ".join(model.config.attention_components)
    print(f"{model.num_parameters():,} parameters, self-attention from {components}, saved in {output}")


if __name__ == "__main__":
    main()
