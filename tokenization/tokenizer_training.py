"""Train a tokenizer as in the gMLP paper: a cased Unigram model ("32K cased SentencePiece")."""

import json
from collections.abc import Iterable
from typing import Literal

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast


#: Kind of model -> role of each special token -> its text. Ids are 0, 1, 2, ... in this order, so padding is always 0.
SPECIAL_TOKENS = {
    "encoder": {
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    },
    "decoder": {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"},
    "encoder-decoder": {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"},
}


def train_unigram_tokenizer(
    texts: Iterable[str],
    vocab_size: int,
    model_max_length: int | None,
    show_progress: bool = True,
    kind: Literal["encoder", "decoder", "encoder-decoder"] = "encoder",
    num_sentinels: int = 100,
) -> PreTrainedTokenizerFast:
    """Train a cased Unigram tokenizer with the special tokens of a kind of model.

    Text is NFKC-normalised, and runs of white space are collapsed; case is kept. The same texts give the same
    tokenizer.

    | `kind`              | a sequence becomes | a pair becomes                             | special tokens        |
    |---------------------|--------------------|--------------------------------------------|-----------------------|
    | `"encoder"`         | `[CLS] A [SEP]`    | `[CLS] A [SEP] B [SEP]`, segments 0 and 1  | BERT's                |
    | `"decoder"`         | `A`                | `A B`                                      | `<pad> </s> <unk>`    |
    | `"encoder-decoder"` | `A </s>`           | `A </s> B </s>`                            | T5's, with sentinels  |

    Args:
        texts: Training texts, any iterable of strings.
        vocab_size: Desired number of token ids, including special tokens. A small corpus may give fewer.
        model_max_length: Maximum number of tokens of the model, which is only recorded; `None` for no limit.
        show_progress: Whether to show a progress bar.
        kind: Kind of model, see the table.
        num_sentinels: Number of tokens `<extra_id_0>`, `<extra_id_1>`, ... for span corruption (`"encoder-decoder"`
            only).

    Returns:
        A tokenizer that plain Transformers loads with `AutoTokenizer`.

    Raises:
        ValueError: If `kind` is unknown, there is no text, or `vocab_size` is too small for the special tokens and
            characters.
    """
    if kind not in SPECIAL_TOKENS:
        raise ValueError(f"`kind` must be one of {', '.join(map(repr, SPECIAL_TOKENS))}, got {kind!r}.")
    roles = SPECIAL_TOKENS[kind]
    sentinels = [f"<extra_id_{i}>" for i in range(num_sentinels)] if kind == "encoder-decoder" else []
    special_tokens = [*roles.values(), *sentinels]
    if vocab_size <= len(special_tokens):
        raise ValueError(
            f"`vocab_size` must be larger than the {len(special_tokens)} special tokens, got {vocab_size}."
        )
    tokenizer = Tokenizer(models.Unigram())
    # The text between special tokens, such as masks, is normalised and split separately. Only the start of a whole
    # text gets an artificial space mark, so that "[MASK], a" is split like "word, a".
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip(left=False)]
    )
    # Punctuation is split off, as in BERT, so that "word." and "word" share their pieces.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(prepend_scheme="first"), pre_tokenizers.Punctuation(behavior="isolated")]
    )
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size,
        special_tokens=special_tokens,
        unk_token=roles["unk_token"],
        show_progress=show_progress,
    )
    try:
        tokenizer.train_from_iterator(texts, trainer)
    except Exception as error:
        if "not large enough to contain all chars" not in str(error):
            raise
        raise ValueError(
            f"`vocab_size` must be larger than the {len(special_tokens)} special tokens and the different characters "
            f"of the texts together, got {vocab_size}."
        ) from error
    if tokenizer.get_vocab_size() <= len(special_tokens):
        raise ValueError("There is no text to train a tokenizer on: the texts are empty.")
    _put_in_order(tokenizer, len(special_tokens))
    if kind == "encoder":
        single, pair, framing = "[CLS]:0 $A:0 [SEP]:0", "[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", ["[CLS]", "[SEP]"]
    else:
        single, pair, framing = "$A </s>", "$A </s> $B </s>", ["</s>"]
    if kind != "decoder":  # a decoder continues where its input ends
        ids = [(token, tokenizer.token_to_id(token)) for token in framing]
        tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=model_max_length,
        padding_side="left" if kind == "decoder" else "right",
        **({"extra_special_tokens": sentinels} if sentinels else {}),
        **roles,
    )


def _put_in_order(tokenizer: Tokenizer, num_special: int) -> None:
    """Make the ids a function of the texts, because the trainer adds and sorts in the order of hash tables."""
    model = json.loads(tokenizer.to_str())["model"]
    pieces = [(round(score, 9), piece) for piece, score in model["vocab"][num_special:]]
    pieces.sort(key=lambda item: (-item[0], item[1]))
    # Characters too rare for their own score come last; some of them get decreasing scores in arbitrary order.
    rare = next((i for i in reversed(range(len(pieces))) if len(pieces[i][1]) > 1), -1) + 1
    names = [piece for _, piece in pieces[:rare]] + sorted(piece for _, piece in pieces[rare:])
    ordered = [(name, score) for name, (score, _) in zip(names, pieces, strict=True)]
    special = [tuple(item) for item in model["vocab"][:num_special]]
    tokenizer.model = models.Unigram([*special, *ordered], model["unk_id"], model["byte_fallback"])
