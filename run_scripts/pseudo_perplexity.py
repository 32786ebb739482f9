"""Score texts with a masked language model: pseudo-perplexity and minimal pairs.

    tokenmixers pseudo_perplexity --model outputs/run --file held_out.txt
    tokenmixers pseudo_perplexity --model outputs/run --text "The gate mixes tokens." --sentence_scores true
    tokenmixers pseudo_perplexity --model outputs/run --pairs blimp/anaphor_gender_agreement.jsonl

Works for every checkpoint that `AutoModelForMaskedLM` loads. A text of n tokens costs n forward passes.
"""

import json
import math
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from transformers import AutoModelForMaskedLM

import tokenmixers  # noqa: F401  (registers the models)

from .base.arguments import check_new_folder, parse_arguments
from .base.errors import UserError, report_bad_data
from .base.ranges import check_ranges
from .base.reporting import print_table, versions
from .base.sequence_limits import longest_text
from .base.trained_model import load_trained, load_trained_tokenizer
from .data.files import find_files
from .data.table_files import Row, check_text, convert_rows, read_table
from .data.text_corpus import TEXT_KINDS, read_texts
from .metrics.generation import token_perplexity
from .metrics.pseudo_likelihood import encode, token_log_probabilities


@dataclass
class PseudoPerplexityArguments:
    """What to score, and how."""

    model: str = field(metadata={"help": "Checkpoint folder or Hub id of a masked language model."})
    text: list[str] | None = field(default=None, metadata={"help": "Texts."})
    file: list[str] | None = field(
        default=None,
        metadata={"help": "Files, glob patterns or folders: txt (one text a line), json(l), csv, tsv, parquet."},
    )
    text_column_names: str = field(default="text", metadata={"help": "Column of the files that holds the text."})
    pairs: str | None = field(
        default=None,
        metadata={
            "help": "File of minimal pairs in BLiMP's columns sentence_good and sentence_bad: tsv, csv, json(l) or "
            "parquet."
        },
    )
    group_column: str | None = field(
        default=None, metadata={"help": "Column of the pairs to report accuracies by, e.g. BLiMP's UID."}
    )
    within_word_l2r: bool = field(
        default=False,
        metadata={"help": "Mask the tokens of the same word to the right as well (PLL-word-l2r)."},
    )
    sentence_scores: bool = field(default=False, metadata={"help": "Print and write the score of every text."})
    batch_size: int = field(default=32, metadata={"help": "Masked copies of texts at a time."})
    output_dir: str | None = field(default=None, metadata={"help": "New folder for results.json."})

    def __post_init__(self):
        check_ranges(self, ("at least 1", "batch_size"))
        if sum(source is not None for source in (self.text, self.file, self.pairs)) != 1:
            raise UserError("give either --text, --file or --pairs.")


@dataclass(frozen=True)
class Score:
    """The score of a text: its pseudo-log-likelihood in nats, and what it is divided by."""

    text: str
    pseudo_log_likelihood: float
    tokens: int
    words: int


class Scorer:
    """A masked language model and its tokenizer."""

    def __init__(self, arguments: PseudoPerplexityArguments):
        self.arguments, name = arguments, arguments.model
        # First: for a checkpoint without a tokenizer, as those of images, Transformers asks for packages instead.
        self.model = load_trained(AutoModelForMaskedLM, name).to("cuda" if torch.cuda.is_available() else "cpu")
        self.tokenizer = load_trained_tokenizer(name)
        if self.tokenizer.mask_token is None:
            raise UserError(f"the tokenizer of {name!r} has no mask token: give a masked language model.")
        if arguments.within_word_l2r and not self.tokenizer.is_fast:
            raise UserError(f"--within_word_l2r needs a fast tokenizer, which {name!r} does not have.")

    def __call__(self, texts: list[tuple[str, str]]) -> list[Score]:
        """Scores of texts; each comes with its place, for messages."""
        longest = longest_text(self.model.config, self.tokenizer)
        with_words = self.arguments.within_word_l2r
        encoded = [encode(text, self.tokenizer, longest, with_words, place) for place, text in texts]
        mask_token_id, batch_size = self.tokenizer.mask_token_id, self.arguments.batch_size
        values = token_log_probabilities(self.model, encoded, mask_token_id, batch_size)
        for (place, _), row in zip(texts, values, strict=True):
            if not all(map(math.isfinite, row)):
                raise UserError(
                    f"{place}: {self.arguments.model!r} gives a token a log-probability that is not finite: give a "
                    "checkpoint whose weights are."
                )
        return [
            Score(text, sum(row), len(row), len(text.split())) for (_, text), row in zip(texts, values, strict=True)
        ]


def texts_to_score(arguments: PseudoPerplexityArguments) -> list[tuple[str, str]]:
    """Places and texts; lines without text are left out."""
    if arguments.text is not None:
        return [(f"--text, number {number}", text) for number, text in enumerate(arguments.text, 1)]
    files = find_files(arguments.file or [], TEXT_KINDS)
    with report_bad_data():
        found = [(place, text) for place, text in read_texts(files, arguments.text_column_names) if text.strip()]
    if not found:
        raise UserError(f"the files {arguments.file} hold no text.")
    return found


def summarise(scores: list[Score]) -> dict[str, float]:
    """Pseudo-perplexities over all tokens and over all words of the texts, and the sums that they come from."""
    total = sum(score.pseudo_log_likelihood for score in scores)
    counts = {name: sum(getattr(score, name) for score in scores) for name in ("tokens", "words")}
    per_token, per_word = (token_perplexity([-total], [count])["perplexity"] for count in counts.values())
    return {
        "pseudo_perplexity": per_token,
        "word_pseudo_perplexity": per_word,
        "pseudo_log_likelihood": total,
        **counts,
        "texts": len(scores),
    }


def score_pairs(scorer: Scorer, arguments: PseudoPerplexityArguments) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The share of minimal pairs whose acceptable sentence has the higher pseudo-log-likelihood.

    Returns:
        Accuracies, and both scores of every pair.
    """
    table = read_table(arguments.pairs or "").with_options(arguments)

    def read(row: Row) -> list[str]:
        return [check_text(table.value(row, column)) for column in ("sentence_good", "sentence_bad")]

    with report_bad_data():
        found = [*convert_rows(table.source, table.placed, read, can_skip=False)]
    texts = [(place, text) for _, place, both in found for text in both]
    groups = []
    if arguments.group_column is not None:
        groups = [str(table.value(row, arguments.group_column)) for row in table.rows]
    scores = scorer(texts)
    pairs = [{"good": asdict(good), "bad": asdict(bad)} for good, bad in zip(scores[::2], scores[1::2], strict=True)]
    right = [pair["good"]["pseudo_log_likelihood"] > pair["bad"]["pseudo_log_likelihood"] for pair in pairs]
    summary: dict[str, Any] = {"accuracy": sum(right) / len(right), "pairs": len(right)}
    by_group: dict[str, list[bool]] = defaultdict(list)
    for group, is_right in zip(groups, right, strict=bool(groups)):
        by_group[group].append(is_right)
    if by_group:
        summary["accuracies"] = {group: sum(values) / len(values) for group, values in by_group.items()}
    return summary, pairs


def report(summary: dict[str, Any], details: list[dict[str, Any]], arguments: PseudoPerplexityArguments) -> None:
    """Print the results, and write them to `results.json`."""
    if arguments.sentence_scores:
        scores = [score for entry in details for score in (entry.values() if "good" in entry else [entry])]
        rows = [(score["text"], f"{score['pseudo_log_likelihood']:.3f}", str(score["tokens"])) for score in scores]
        print_table(("text", "pseudo-log-likelihood", "tokens"), rows)
    overall, by_group = dict(summary), summary.get("accuracies", {})
    overall.pop("accuracies", None)
    print_table(("", "value"), [(name.replace("_", " "), f"{value:,.6g}") for name, value in overall.items()])
    if by_group:
        print_table((str(arguments.group_column), "accuracy"), [(name, f"{by_group[name]:.6g}") for name in by_group])
    if arguments.output_dir is not None:
        folder = check_new_folder(arguments.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        content = {"arguments": asdict(arguments), "versions": versions(), **summary}
        if arguments.sentence_scores:
            content["scores"] = details
        (folder / "results.json").write_text(json.dumps(content, indent=2, ensure_ascii=False), encoding="utf-8")


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Entry point; returns pseudo-perplexities, or accuracies on pairs."""
    (arguments,) = parse_arguments((PseudoPerplexityArguments,), argv)
    if arguments.output_dir is not None:
        check_new_folder(arguments.output_dir)
    if arguments.pairs is not None:
        summary, details = score_pairs(Scorer(arguments), arguments)
    else:
        texts = texts_to_score(arguments)
        scores = Scorer(arguments)(texts)
        summary, details = summarise(scores), [asdict(score) for score in scores]
    report(summary, details, arguments)
    return summary


if __name__ == "__main__":
    main()
