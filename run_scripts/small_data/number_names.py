"""Write pairs of lines for translation: numbers in digits and in English words.

A small model learns this task within a minute on a CPU, although it cannot be solved word by word. The two sets have
no number in common.

    tokenmixers make_data number_names --output_dir outputs/numbers
"""

import random
from dataclasses import dataclass, field
from pathlib import Path

from ..base.errors import UserError
from ..base.ranges import check_ranges


LIMIT = 1_000_000
_SMALL = [
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


@dataclass
class Arguments:
    """What to write."""

    output_dir: str = field(
        metadata={"help": "New folder for train.digits.txt, train.words.txt, and the same of validation."}
    )
    train_count: int = field(default=20_000, metadata={"help": "Numbers to train on."})
    validation_count: int = field(default=500, metadata={"help": "Other numbers to evaluate on."})

    def __post_init__(self):
        check_ranges(self, ("at least 1", "train_count validation_count"))
        if self.train_count + self.validation_count > LIMIT:
            raise UserError(f"there are {LIMIT:,} numbers: ask for fewer than --train_count {self.train_count}.")


def english(number: int) -> str:
    """The English name of a number from 0 to 999,999: 1042 is "one thousand forty two"."""
    if number < 20:
        return _SMALL[number]
    for unit, name in ((1000, "thousand"), (100, "hundred")):
        if number >= unit:
            rest = number % unit
            return f"{english(number // unit)} {name}" + (f" {english(rest)}" if rest else "")
    rest = number % 10
    return _TENS[number // 10 - 2] + (f" {_SMALL[rest]}" if rest else "")


def write(arguments: Arguments, folder: Path) -> None:
    """Write the data set to a new or empty folder."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = random.Random(0).sample(range(LIMIT), arguments.train_count + arguments.validation_count)
    splits = {"train": numbers[: arguments.train_count], "validation": numbers[arguments.train_count :]}
    for split, chosen in splits.items():
        lines = {"digits": [" ".join(str(number)) for number in chosen], "words": list(map(english, chosen))}
        for kind, texts in lines.items():
            (folder / f"{split}.{kind}.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
        print(f"{split}: {len(chosen):,} numbers")
