"""Pseudo-log-likelihoods of texts under masked language models.

The pseudo-log-likelihood of a text is the sum of the log-probabilities of its tokens, each masked in turn and
predicted from all others (Salazar et al., 2020, arXiv 1910.14659, equation 1). Special tokens such as [CLS] are seen,
but not scored, also where the text itself has them; only [UNK] is, which stands for text. A word of several tokens
gives itself away: where one of them is masked, the others are seen. In the variant `within_word_l2r` the tokens of the
same word to the right are masked as well (Kauf and Ivanova, 2023, arXiv 2305.10588).
"""

from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from typing import NamedTuple

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..base.errors import UserError


class ScoredText(NamedTuple):
    """A tokenized text.

    Args:
        ids: Token ids, special tokens included.
        positions: Positions of the tokens to score.
        words: The number of every token's word, `None` at special tokens; `None` if words were not asked for.
    """

    ids: list[int]
    positions: list[int]
    words: list[int | None] | None


def encode(
    text: str, tokenizer: PreTrainedTokenizerBase, longest: int | None, with_words: bool, place: str
) -> ScoredText:
    """Tokenize a text."""
    if not text.strip():
        raise UserError(f"{place}: the text {text!r} has no words.")
    encoding = tokenizer(text, return_special_tokens_mask=True, verbose=False)
    ids, special = encoding["input_ids"], encoding["special_tokens_mask"]
    # The mask has only what the tokenizer adds.
    unscored = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    positions = [index for index, token in enumerate(ids) if not special[index] and token not in unscored]
    if not positions:
        raise UserError(f"{place}: the text {text!r} has no tokens to score.")
    if longest is not None and len(ids) > longest:
        raise UserError(
            f"{place}: the text has {len(ids)} tokens, and the model takes {longest}: split it. It starts with "
            f"{text[:40]!r}."
        )
    return ScoredText(ids, positions, encoding.word_ids() if with_words else None)


def masked_positions(text: ScoredText, position: int) -> list[int]:
    """What is masked to predict the token at `position`: it alone or, with words, it and the rest of its word."""
    if text.words is None:
        return [position]
    word = text.words[position]
    return [other for other in range(position, len(text.ids)) if text.words[other] == word]


@torch.no_grad()
def token_log_probabilities(
    model: PreTrainedModel, texts: Sequence[ScoredText], mask_token_id: int, batch_size: int
) -> list[list[float]]:
    """The log-probability of every scored token, in nats.

    Returns:
        A list for every text, with a number for each of its `positions`.
    """
    results: list[list[float]] = [[] for _ in texts]
    order = sorted(range(len(texts)), key=lambda index: len(texts[index].ids), reverse=True)
    for _, same_length in groupby(order, key=lambda index: len(texts[index].ids)):
        places = ((index, position) for index in same_length for position in texts[index].positions)
        while batch := list(islice(places, batch_size)):
            for (index, _), value in zip(batch, _predict(model, texts, batch, mask_token_id), strict=True):
                results[index].append(value)
    return results


def _predict(
    model: PreTrainedModel, texts: Sequence[ScoredText], places: list[tuple[int, int]], mask_token_id: int
) -> Iterator[float]:
    ids = torch.tensor([texts[index].ids for index, _ in places])
    rows, positions = torch.arange(len(places)), torch.tensor([position for _, position in places])
    targets = ids[rows, positions]
    for row, (index, position) in enumerate(places):
        ids[row, masked_positions(texts[index], position)] = mask_token_id
    ids = ids.to(model.device)
    logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
    predicted = logits[rows.to(ids.device), positions.to(ids.device)].float().log_softmax(-1).cpu()
    return iter(predicted[rows, targets].tolist())
