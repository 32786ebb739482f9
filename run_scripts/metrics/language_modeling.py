"""The metric of language models: perplexity."""

import math
import sys
from collections.abc import Sequence

import datasets
import evaluate
import numpy as np

from .local_metric import LocalMetric


class TokenPerplexity(LocalMetric):
    """Perplexity over all tokens of a corpus.

    Not the `perplexity` of `evaluate`, which runs a causal model, and averages over texts.
    """

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description="Perplexity of a corpus: exp of the mean negative log-likelihood of a token.",
            citation="""@article{jelinek1977perplexity,
  title={Perplexity---a measure of the difficulty of speech recognition tasks},
  author={Jelinek, Fred and Mercer, Robert L. and Bahl, Lalit R. and Baker, James K.},
  journal={The Journal of the Acoustical Society of America},
  volume={62},
  pages={S63},
  year={1977}
}
""",
            inputs_description="""
Args:
    predictions: Summed negative log-likelihood of the tokens of every text, in nats.
    references: Number of these tokens.

Returns:
    perplexity: Infinity where it is more than a float can hold.
""",
            features=datasets.Features(
                {"predictions": datasets.Value("float64"), "references": datasets.Value("int64")}
            ),
        )

    def _compute(self, predictions: Sequence[float], references: Sequence[int]) -> dict[str, float]:
        tokens = sum(references)
        if tokens < 1:
            raise ValueError(f"perplexity needs at least one token, got {tokens} in {len(references)} texts.")
        loss = float(np.sum(predictions)) / tokens
        return {"perplexity": math.exp(loss) if loss <= math.log(sys.float_info.max) else math.inf}
