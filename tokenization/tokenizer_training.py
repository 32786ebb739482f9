"""Train the tokenizer of the gMLP paper's kind: a cased Unigram model (papers' "32K cased SentencePiece")."""

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast


#: Role of each special token -> its text. Their ids are 0, 1, 2, ... in this order, so that padding is 0.
SPECIAL_TOKENS = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}


def train_unigram_tokenizer(
    texts: Iterable[str], vocab_size: int, model_max_length: int | None, show_progress: bool = True
) -> PreTrainedTokenizerFast:
    """Train a cased Unigram tokenizer with BERT's special tokens and sequence format.

    The text is NFKC-normalised with runs of white space folded; case is kept. A single sequence becomes
    `[CLS] A [SEP]`, a pair `[CLS] A [SEP] B [SEP]` with segment ids 0 and 1.

    Args:
        texts: Training texts, any iterable of strings.
        vocab_size: Number of token ids wanted, the five special ones included. A small corpus may give fewer.
        model_max_length: Most tokens that the model will take, only recorded; `None` for no limit.
        show_progress: Whether to draw a progress bar.

    Returns:
        A tokenizer that plain Transformers loads with `AutoTokenizer`.

    Raises:
        ValueError: If there is no text, or `vocab_size` leaves no room besides the special tokens and characters.
    """
    if vocab_size <= len(SPECIAL_TOKENS):
        raise ValueError(
            f"`vocab_size` must be larger than the {len(SPECIAL_TOKENS)} special tokens, got {vocab_size}."
        )
    special_tokens = list(SPECIAL_TOKENS.values())
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    )
    # Punctuation stands alone, as in BERT: "word." and "word" then share their pieces.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(), pre_tokenizers.Punctuation(behavior="isolated")]
    )
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.train_from_iterator(
        texts,
        trainers.UnigramTrainer(
            vocab_size=vocab_size,
            special_tokens=special_tokens,
            unk_token=SPECIAL_TOKENS["unk_token"],
            show_progress=show_progress,
        ),
    )
    if tokenizer.get_vocab_size() <= len(SPECIAL_TOKENS):
        raise ValueError("There is no text to train a tokenizer on: the texts are empty.")
    cls_id, sep_id = (tokenizer.token_to_id(SPECIAL_TOKENS[role]) for role in ("cls_token", "sep_token"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(SPECIAL_TOKENS["cls_token"], cls_id), (SPECIAL_TOKENS["sep_token"], sep_id)],
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=model_max_length, **SPECIAL_TOKENS)
