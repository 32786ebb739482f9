"""Static embeddings of tokens to start a student from: what is left of a teacher without its layers.

Imports sentence-transformers (extra `embeddings`), as `sentence_embeddings` does.
"""

import copy
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from torch.nn import functional as F
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from ..base.errors import UserError
from ..data.packing import special_token_frame
from .trainer import forget_truncation


#: The constant a of the weights a / (a + p), Arora et al., "A Simple but Tough-to-Beat Baseline" (2017), section 3.
FREQUENCY = 1e-4

#: Length of the mean embedding. AdamW's steps do not depend on it, so it decides how far a learning rate goes.
LENGTH = 5.0

#: Tokens that the teacher reads together, and texts that are counted together.
_TOGETHER = 512


def static_embeddings(
    teacher: SentenceTransformer, tokenizer: PreTrainedTokenizerBase, texts: Iterable[str]
) -> StaticEmbedding:
    """An embedding for each token, which texts average: the teacher's of the token alone, as in model2vec.

    The embeddings are centred, and those of tokens with the share p of the texts' tokens weighted by a / (a + p).

    Args:
        teacher: The teacher.
        tokenizer: Its tokenizer, a fast one. The result has a copy of its own.
        texts: In which tokens are counted.

    Raises:
        UserError: If the tokenizer is not a fast one.
    """
    if not tokenizer.is_fast:
        raise UserError("--keep_layers without layers needs a teacher with a fast tokenizer (tokenizer.json).")
    size = max(tokenizer.get_vocab().values()) + 1
    counts = Counter(itertools.chain.from_iterable(_ids(tokenizer, texts)))
    shares = torch.tensor([counts[token] + 1.0 for token in range(size)])
    shares /= shares.sum()
    parts = [_embed(teacher, tokenizer, range(size)[start : start + _TOGETHER]) for start in range(0, size, _TOGETHER)]
    embeddings = F.normalize(torch.cat(parts), dim=-1)
    embeddings = (embeddings - embeddings.mean(dim=0)) * (FREQUENCY / (FREQUENCY + shares))[:, None]
    own = copy.deepcopy(tokenizer)  # `encode` of the teacher lets its own pad and truncate
    forget_truncation(own)
    static = StaticEmbedding(own, embeddings * (LENGTH / embeddings.norm(dim=-1).mean()))
    # What the commands ask of a model of Transformers.
    static.config = PreTrainedConfig(architectures=["StaticEmbedding"])
    static.config.model_type = "static"
    static.num_parameters = embeddings.numel
    return static


def _ids(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str]) -> Iterator[list[int]]:
    texts = iter(texts)
    while part := list(itertools.islice(texts, _TOGETHER)):
        yield from tokenizer(part, add_special_tokens=False, verbose=False)["input_ids"]


@torch.no_grad()
def _embed(teacher: SentenceTransformer, tokenizer: PreTrainedTokenizerBase, tokens: Iterable[int]) -> torch.Tensor:
    """The teacher's embeddings of single tokens between the special tokens of a text, `(tokens, dimension)`."""
    before, after = special_token_frame(tokenizer)
    ids = torch.tensor([[*before, token, *after] for token in tokens], device=teacher.device)
    return teacher({"input_ids": ids, "attention_mask": torch.ones_like(ids)})["sentence_embedding"].float().cpu()
