"""Write sentences for associative recall: which value came with a repeated key.

Multi-query associative recall (MQAR, "Zoology", arXiv 2312.04927) in a form for encoders. A sentence has pairs of a
key and a value, then all its keys again in random order. The tag of a repeated key names its value, all other tags are
`O`, so that the F1 of `run_token_classification` is the share of right answers. Which key has which value is drawn
anew for every sentence: no model can learn it by heart.

    tokenmixers associative_recall --output_dir outputs/recall
"""

import random
from dataclasses import dataclass, field

from ..base.arguments import check_new_folder, parse_arguments
from ..base.errors import UserError
from ..base.ranges import check_ranges


FIRST_KEY, FIRST_VALUE = 0x4E00, 0x3041  # Chinese characters and kana: every word is one character
MOST_VALUES = 83


@dataclass
class RecallArguments:
    """What to write."""

    output_dir: str = field(metadata={"help": "New folder for train.conll and validation.conll."})
    pairs: int = field(default=16, metadata={"help": "Pairs in a sentence, which has three words for each."})
    keys: int = field(default=64, metadata={"help": "Different keys."})
    values: int = field(default=32, metadata={"help": "Different values."})
    train_count: int = field(default=20_000, metadata={"help": "Sentences to train on."})
    validation_count: int = field(default=500, metadata={"help": "Sentences to evaluate on."})
    seed: int = field(default=0, metadata={"help": "Decides which sentences."})

    def __post_init__(self):
        check_ranges(self, ("at least 1", "pairs keys train_count validation_count"))
        check_ranges(self, ("at least 2", "values"))
        if self.pairs > self.keys:
            raise UserError(f"--pairs {self.pairs} needs as many different --keys, there are {self.keys}.")
        if self.values > MOST_VALUES:
            raise UserError(f"--values {self.values} is too many: there are names for {MOST_VALUES}.")


def sentence(arguments: RecallArguments, draw: random.Random) -> list[tuple[str, str]]:
    """The words of a sentence with their tags."""
    keys = [chr(FIRST_KEY + index) for index in draw.sample(range(arguments.keys), arguments.pairs)]
    values = {key: chr(FIRST_VALUE + draw.randrange(arguments.values)) for key in keys}
    pairs = [(word, "O") for key in keys for word in (key, values[key])]
    return pairs + [(key, f"B-{values[key]}") for key in draw.sample(keys, len(keys))]


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    (arguments,) = parse_arguments((RecallArguments,), argv)
    folder = check_new_folder(arguments.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(arguments.seed)
    for split, count in (("train", arguments.train_count), ("validation", arguments.validation_count)):
        sentences = (
            "\n".join(f"{word} {tag}" for word, tag in sentence(arguments, draw)) + "\n" for _ in range(count)
        )
        (folder / f"{split}.conll").write_text("\n".join(sentences), encoding="utf-8")
        print(f"{split}: {count:,} sentences of {3 * arguments.pairs} words")


if __name__ == "__main__":
    main()
