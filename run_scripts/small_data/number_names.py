"""Write pairs of lines for translation: numbers in digits and in English words.

A small model learns this task within a minute on a CPU, although it cannot be solved word by word. The two sets have
no number in common.

    tokenmixers make_data number_names --output_dir outputs/numbers
"""

import random
from pathlib import Path


#: Numbers to train on, and other ones to evaluate on.
TRAIN_COUNT, VALIDATION_COUNT = 20_000, 500
LIMIT = 1_000_000
_SMALL = [
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


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


def write(folder: Path) -> None:
    """Write the data set to a new or empty folder."""
    folder.mkdir(parents=True, exist_ok=True)
    numbers = random.Random(0).sample(range(LIMIT), TRAIN_COUNT + VALIDATION_COUNT)
    splits = {"train": numbers[:TRAIN_COUNT], "validation": numbers[TRAIN_COUNT:]}
    for split, chosen in splits.items():
        lines = {"digits": [" ".join(str(number)) for number in chosen], "words": list(map(english, chosen))}
        for kind, texts in lines.items():
            (folder / f"{split}.{kind}.txt").write_text("\n".join(texts) + "\n", encoding="utf-8")
        print(f"{split}: {len(chosen):,} numbers")
