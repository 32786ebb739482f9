"""Write sentences for associative recall: which value came with a repeated key.

Multi-query associative recall (MQAR, "Zoology", arXiv 2312.04927) in a form for encoders. A sentence has pairs of a
key and a value, then all its keys again in random order. The tag of a repeated key names its value, all other tags are
`O`, so that the F1 of `run_token_classification` is the share of right answers. Which key has which value is drawn
anew for every sentence: no model can learn it by heart. The folder also gets a tokenizer with a token for every word.

    tokenmixers make_data associative_recall --pairs 6 --least_pairs 1 --keys 12 --values 8 --output_dir outputs/recall

`run_token_classification` takes it with `--tokenizer_name outputs/recall/tokenizer`.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from ...tokenization.tokenizer_training import SPECIAL_TOKENS
from ..base.errors import UserError
from ..base.ranges import check_ranges
from . import OutputArguments


FIRST_KEY, FIRST_VALUE = 0x4E00, 0x3041  # Chinese characters and kana: every word is one character
MOST_VALUES = 83
#: Sentences to evaluate on.
VALIDATION_COUNT = 500


@dataclass
class Arguments(OutputArguments):
    """What to write."""

    pairs: int = field(default=16, metadata={"help": "Pairs in a sentence, which has three words for each."})
    least_pairs: int | None = field(
        default=None,
        metadata={"help": "Training sentences have from this number to --pairs; by default all have --pairs."},
    )
    keys: int = field(default=64, metadata={"help": "Different keys."})
    values: int = field(default=32, metadata={"help": "Different values."})
    train_count: int = field(default=20_000, metadata={"help": "Sentences to train on."})

    def __post_init__(self):
        check_ranges(self, ("at least 1", "pairs least_pairs keys train_count"))
        check_ranges(self, ("at least 2", "values"))
        if self.pairs > self.keys:
            raise UserError(f"--pairs {self.pairs} needs as many different --keys, there are {self.keys}.")
        if self.least_pairs is not None and self.least_pairs > self.pairs:
            raise UserError(f"--least_pairs {self.least_pairs} is more than --pairs {self.pairs}.")
        if self.values > MOST_VALUES:
            raise UserError(f"--values {self.values} is too many: there are names for {MOST_VALUES}.")


def sentence(arguments: Arguments, count: int, draw: random.Random) -> list[tuple[str, str]]:
    """The words of a sentence of `count` pairs with their tags."""
    keys = [chr(FIRST_KEY + index) for index in draw.sample(range(arguments.keys), count)]
    values = {key: chr(FIRST_VALUE + draw.randrange(arguments.values)) for key in keys}
    pairs = [(word, "O") for key in keys for word in (key, values[key])]
    return pairs + [(key, f"B-{values[key]}") for key in draw.sample(keys, len(keys))]


def word_tokenizer(words: Iterable[str], model_max_length: int) -> PreTrainedTokenizerFast:
    """A tokenizer with one token for each word, between `[CLS]` and `[SEP]`."""
    roles = SPECIAL_TOKENS["encoder"]
    ids = {token: index for index, token in enumerate((*roles.values(), *words))}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=roles["unk_token"]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    ends = [(token, ids[token]) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=model_max_length, **roles)


def write(folder: Path, arguments: Arguments) -> None:
    """Write the data set to a new or empty folder."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(0)
    least = {"train": arguments.least_pairs or arguments.pairs, "validation": arguments.pairs}
    for split, count in (("train", arguments.train_count), ("validation", VALIDATION_COUNT)):
        pairs = (draw.randint(least[split], arguments.pairs) for _ in range(count))
        rows = ("\n".join(map(" ".join, sentence(arguments, number, draw))) + "\n" for number in pairs)
        (folder / f"{split}.conll").write_text("\n".join(rows), encoding="utf-8")
        print(f"{split}: {count:,} sentences of {3 * least[split]} to {3 * arguments.pairs} words")
    keys, values = (range(FIRST_KEY, FIRST_KEY + arguments.keys), range(FIRST_VALUE, FIRST_VALUE + arguments.values))
    word_tokenizer(map(chr, (*keys, *values)), 3 * arguments.pairs + 2).save_pretrained(folder / "tokenizer")
