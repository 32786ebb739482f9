"""The tokenizer of aMLP-japanese (github.com/tanreinama/aMLP-japanese) in the `tokenizers` library.

A line of its vocabulary is a token: one text, or several comma-separated texts that are variants of the first. From
left to right, the original encoder takes at each position

1. an emoji, emoticon, space or line break, which have token classes; otherwise
2. the word with the smallest id among the words of up to three characters that begin there, or the longest token in
   angle brackets; otherwise
3. a token for a class of symbols, or the bytes of the character.

Here, a normalizer replaces variants by the first text of their token, and members of a class by its token. Then a
regular expression splits the text into tokens. The result is the same because of two properties of the vocabulary
(words without them are excluded): the word with the smallest id is the longest word that is ever taken, and any
character of a word may be replaced by a variant. Variants without the second property (half-width kana) are separated
from their neighbours by a character that is removed later.

The results differ only for small kana after a kana with a separate voicing mark (U+309B, U+309C), and for tokens such
as `<|byte227|>` that are spelled out in a text. The offsets of a class member with several characters, such as an
emoticon, are those of its last character.
"""

import itertools
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from .character_map import precompiled_character_map


#: Roles of the last four tokens in every vocabulary.
SPECIAL_TOKENS = ("cls_token", "sep_token", "mask_token", "eos_token")

_SPACES = {" ": "<SP>", "\u3000": "<SP>", "\r\n": "<BR>", "\n": "<BR>", "\r": "<BR>", "\t": "<TAB>"}
_DASHES = {"\u2014": "ー", "\u2212": "ー"}
_SYMBOLS = {
    "<KIGOU>": ((0xA1, 0xBF), (0x1C0, 0x1C3), (0x2B9, 0x2FF), (0x300, 0x362)),
    "<U2000U2BFF>": ((0x2000, 0x2BFF),),
}
_DECODED = {"<SP>": " ", "<BR>": "\n", "<TAB>": "\t", "<BLOCK>": "▀", "<KIGOU>": "\u01c0", "<U2000U2BFF>": "\u2016"}
_LONGEST_WORD = 3  # in characters
_SEPARATOR = "\ufdd0"  # a code point that Unicode reserves for internal use


class VocabularyError(ValueError):
    """The file is not a vocabulary or emoji list of aMLP-japanese."""


class _Dictionary:
    """Texts that are one token, of the vocabulary or a class: text -> id, matched from the left, longest first."""

    def __init__(self, vocabulary: Sequence[str], emoji: Mapping[str, str]):
        self.forms = [line.split(",") if "," in line and line != "," else [line] for line in vocabulary]
        if any("" in forms for forms in self.forms):
            line = next(index for index, forms in enumerate(self.forms, 1) if "" in forms)
            raise VocabularyError(f"Line {line} of the vocabulary has an empty text: {vocabulary[line - 1]!r}.")
        self.ids = {form: index for index, forms in enumerate(self.forms) for form in forms}
        needed = {
            *_SPACES.values(),
            *_DASHES.values(),
            *_SYMBOLS,
            *emoji.values(),
            *(f"<|byte{byte}|>" for byte in range(0xF5)),
        }
        missing = sorted(needed - self.ids.keys())
        if missing:
            raise VocabularyError(
                f"The vocabulary lacks {len(missing)} tokens, e.g. {missing[0]!r}: it is not from aMLP-japanese."
            )
        if any("##" in line for line in vocabulary):
            raise VocabularyError(
                "The vocabulary has words with '##', as for languages with spaces between words. Only Japanese "
                "vocabularies are supported."
            )
        classes = {**_SPACES, **_DASHES, **emoji}
        self.classes = {text: token for text, token in classes.items() if self._is_taken_class(text, classes)}
        self.names = self._names()
        self.words = [name for name in self.names if self.is_taken_word(name)]

    def _is_taken_class(self, text: str, classes: Mapping[str, str]) -> bool:
        """Whether no prefix of a text has a smaller id, or the same id and an earlier place."""
        order = list(classes)
        begins = [text[:end] for end in range(1, len(text)) if text[:end] in classes]
        key = (self.ids[classes[text]], order.index(text)) if begins else ()
        return all((self.ids[classes[begin]], order.index(begin)) > key for begin in begins)

    def is_taken_word(self, word: str) -> bool:
        """Whether a text of several characters is a token that the encoder can produce."""
        if len(word) < 2 or self.ids.get(word) is None or word[0] in self.classes:
            return False
        if word[0] == "<" and len(word) > 2:
            return not word.startswith("<|byte")
        if len(word) > _LONGEST_WORD:
            return False
        return all(self.ids.get(word[:end], len(self.ids)) >= self.ids[word] for end in range(1, len(word)))

    def _names(self) -> list[str]:
        """A distinct text for every token: its first text, unless that means another token."""
        names: dict[str, int] = {}
        for index in sorted(range(len(self.forms)), key=lambda index: self.ids[self.forms[index][0]] != index):
            own = [form for form in self.forms[index] if self.ids[form] == index]
            candidates = [*own, *self.forms[index], f"<|unused{index}|>"]
            names[next(form for form in candidates if form not in names)] = index
        return sorted(names, key=names.__getitem__)


class _Variants:
    """Replacements of the variants in a dictionary: single characters, and longer texts."""

    def __init__(self, dictionary: _Dictionary):
        names = dictionary.names
        classes = dictionary.classes.keys()
        self._by_name = defaultdict(list)
        self._name_of = {}
        for form, index in dictionary.ids.items():
            # Those of several characters are a character and a variation selector.
            if len(names[index]) == 1 and form not in classes and (len(form) == 1 or dictionary.is_taken_word(form)):
                self._by_name[names[index]].append(form)
                self._name_of[form] = names[index]
        # The circle for zero is a variant of a digit, and a word has it twice.
        in_words = {character for word in dictionary.words for character in word if word[0] != "<"}
        self.renamed: dict[str, str] = {}
        for form in [form for form in self._name_of if form in in_words and self._name_of[form] not in in_words]:
            self._rename(form)
        self._joining = self._find_joining(dictionary)
        self.characters: dict[str, str] = {}
        self.texts: dict[str, str] = {}
        for form, name in self._name_of.items():
            if form != name:
                stays = form in self._joining or name not in in_words
                of_its_kind = self.characters if len(form) == 1 else self.texts
                of_its_kind[form] = name if stays else f"{_SEPARATOR}{name}{_SEPARATOR}"
        for form, index in dictionary.ids.items():
            # Only where no word before it can take its first character.
            begins = form[0] in self.characters and form[0] not in self._joining
            if begins and form != names[index] and dictionary.is_taken_word(form):
                self.texts[form] = f"{_SEPARATOR}{names[index]}{_SEPARATOR}"

    def _rename(self, form: str) -> None:
        """Add a variant as a replacement for its token."""
        name = self._name_of[form]
        if name in self.renamed.values():
            return
        self.renamed[form] = name
        self._by_name[form] = self._by_name.pop(name)
        self._name_of.update(dict.fromkeys(self._by_name[form], form))

    def _find_joining(self, dictionary: _Dictionary) -> set[str]:
        """The variants that keep every word the same token."""
        words = [word for word in dictionary.words if word[0] != "<"]
        in_forms = {c for word in words for form in dictionary.forms[dictionary.ids[word]] for c in form}
        joining = {form for form, name in self._name_of.items() if form != name and in_forms.issuperset(form)}
        for word in words:
            choices = [[c, *joining.intersection(self._by_name[c])] for c in word]
            for combination in itertools.product(*choices):
                if dictionary.ids.get("".join(combination)) != dictionary.ids[word]:
                    joining.difference_update(c for c, own in zip(combination, word, strict=True) if c != own)
        return joining


def _words_pattern(words: Iterable[str]) -> str:
    """A regular expression for the longest of the words, or one character."""
    bracketed = sorted((re.escape(word) for word in words if word[0] == "<"), key=len, reverse=True)
    by_first: dict[str, tuple[set[str], list[str]]] = defaultdict(lambda: (set(), []))
    for word in words:
        if word[0] != "<":
            seconds, longer = by_first[word[0]]
            seconds.add(word[1]) if len(word) == 2 else longer.append(word[1:])
    branches = []
    for first, (seconds, longer) in sorted(by_first.items()):
        rests = [re.escape(rest) for rest in sorted(longer)]
        rests += [f"[{''.join(map(re.escape, sorted(seconds)))}]"] if seconds else []
        branches.append((re.escape(first), f"{re.escape(first)}(?:{'|'.join(rests)})"))
    blocks = [branches[start : start + 40] for start in range(0, len(branches), 40)]  # so that few are tried
    nested = [f"(?=[{block[0][0]}-{block[-1][0]}])(?:{'|'.join(branch for _, branch in block)})" for block in blocks]
    return "|".join([*bracketed, *nested, r"[\s\S]"])


def _normalizer(dictionary: _Dictionary, variants: _Variants) -> normalizers.Normalizer:
    by_token = defaultdict(list)
    characters = dict(variants.characters)
    for text, token in dictionary.classes.items():
        if len(text) > 1 or len(text.encode()) < 3:  # the map also replaces a mark on a short character
            by_token[token].append(text)
        else:
            characters[text] = token
    longest_first = sorted(by_token, key=lambda token: max(map(len, by_token[token])), reverse=True)
    steps = [normalizers.Replace(_any_of(by_token[token]), token) for token in longest_first]
    for token, ranges in _SYMBOLS.items():
        symbols = [chr(code) for first, last in ranges for code in range(first, last + 1)]
        unknown = [symbol for symbol in symbols if symbol not in dictionary.ids and symbol not in characters]
        steps.append(normalizers.Replace(Regex(f"[{''.join(unknown)}]"), token))
    steps += [
        normalizers.Replace(form, variants.texts[form]) for form in sorted(variants.texts, key=len, reverse=True)
    ]
    return normalizers.Sequence([*steps, normalizers.Precompiled(precompiled_character_map(characters))])


def _any_of(texts: Iterable[str]) -> Regex:
    return Regex("|".join(re.escape(text) for text in sorted(texts, key=len, reverse=True)))


def _token_texts(dictionary: _Dictionary, variants: _Variants) -> list[str]:
    """The text of every token in the tokenizer."""
    texts = list(dictionary.names)
    for form, name in variants.renamed.items():
        if form in texts:  # a token that is never produced
            texts[texts.index(form)] = f"<|unused{texts.index(form)}|>"
        texts[texts.index(name)] = form
    for byte in range(256):
        if f"<|byte{byte}|>" in dictionary.ids:
            texts[dictionary.ids[f"<|byte{byte}|>"]] = f"<0x{byte:02X}>"
    return texts


def amlp_japanese_tokenizer(
    vocabulary: Sequence[str], emoji: Mapping[str, Mapping[str, str]], model_max_length: int
) -> PreTrainedTokenizerFast:
    """The tokenizer of an aMLP-japanese model.

    A sequence becomes `<|startoftext|> A <|endoftext|>`, a pair `<|startoftext|> A <|separator|> <|startoftext|> B
    <|endoftext|>`. The mask token is `<|nottoken|>`.

    Args:
        vocabulary: The lines of `vocabulary.txt`.
        emoji: The content of `emoji.json`: `emoji`, from text to token, and `emoji_inv`, from token to text.
        model_max_length: Maximum number of tokens of the model.

    Returns:
        A tokenizer that plain Transformers loads with `AutoTokenizer`.

    Raises:
        VocabularyError: If the vocabulary lacks tokens that every aMLP-japanese vocabulary has, has empty tokens, or
            is for another language.
    """
    dictionary = _Dictionary(vocabulary, emoji["emoji"])
    variants = _Variants(dictionary)
    texts = _token_texts(dictionary, variants)
    ids = {text: index for index, text in enumerate(texts)}
    tokenizer = Tokenizer(models.BPE(ids, [], byte_fallback=True, ignore_merges=True))
    tokenizer.normalizer = _normalizer(dictionary, variants)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(_SEPARATOR, behavior="removed"),
            pre_tokenizers.Split(Regex(_words_pattern(dictionary.words)), behavior="isolated"),
        ]
    )
    tokenizer.decoder = _decoder(texts, dictionary.forms, emoji["emoji_inv"])
    roles = dict(zip(SPECIAL_TOKENS, dictionary.names[-4:], strict=True))
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in roles.values()])
    start, separator, _, end = roles.values()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{start} $A {end}",
        pair=f"{start} $A {separator} {start} $B {end}",
        special_tokens=[(text, ids[text]) for text in (start, separator, end)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=model_max_length,
        pad_token=separator,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        **roles,
    )


def _decoder(texts: Sequence[str], forms: Sequence[Sequence[str]], emoji: Mapping[str, str]) -> decoders.Decoder:
    decoded = {**_DECODED, **emoji}
    for text, own in zip(texts, forms, strict=True):
        if text != own[0] and not own[0].startswith("<|byte"):
            decoded[text] = own[0]
    in_order = sorted(decoded.items(), key=lambda item: item[1] in decoded)  # no result is replaced again
    steps = [decoders.Replace(Regex(f"^{re.escape(text)}$"), result) for text, result in in_order]
    return decoders.Sequence([*steps, decoders.ByteFallback(), decoders.Fuse()])


__all__ = ["VocabularyError", "amlp_japanese_tokenizer"]
