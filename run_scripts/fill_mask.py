"""Fill the masks of sentences with a saved masked language model.

tokenmixers fill_mask --model outputs/run --text "Raise an [MASK] if it is empty."
"""

from dataclasses import dataclass, field

from transformers import AutoModelForMaskedLM, pipeline

import tokenmixers  # noqa: F401  (registers the models)

from .base.arguments import parse_arguments
from .base.errors import UserError
from .base.ranges import check_ranges
from .base.sequence_limits import longest_text
from .base.trained_model import load_trained, load_trained_tokenizer


@dataclass
class FillMaskArguments:
    """What to fill."""

    model: str = field(metadata={"help": "Checkpoint folder or Hub id."})
    text: list[str] = field(metadata={"help": "Sentences with one mask token each."})
    top_k: int = field(default=5, metadata={"help": "Fillings to show."})

    def __post_init__(self):
        check_ranges(self, ("at least 1", "top_k"))


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    (arguments,) = parse_arguments((FillMaskArguments,), argv)
    model = load_trained(AutoModelForMaskedLM, arguments.model)
    tokenizer = load_trained_tokenizer(arguments.model)
    if tokenizer.mask_token is None:
        raise UserError(f"the tokenizer of {arguments.model!r} has no mask token.")
    longest = longest_text(model.config, tokenizer)
    for text in arguments.text:
        if text.count(tokenizer.mask_token) != 1:
            raise UserError(f"{text!r} needs exactly one {tokenizer.mask_token}.")
        length = len(tokenizer(text, verbose=False)["input_ids"])
        if longest is not None and length > longest:
            raise UserError(f"{text!r} has {length} tokens, and the model takes {longest}: shorten it.")
    fill = pipeline("fill-mask", model=model, tokenizer=tokenizer)
    for text in arguments.text:
        print(text)
        for filling in fill(text, top_k=min(arguments.top_k, model.config.vocab_size)):
            print(f"  {filling['score']:6.1%}  {filling['token_str']}")


if __name__ == "__main__":
    main()
