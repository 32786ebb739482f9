import math

import pytest

from tokenmixers.modeling.kernels import linear, measurement


@pytest.fixture
def every_kernel(monkeypatch):
    """On this processor every alternative is the faster one, whatever the size: convolutions from six rows on."""
    monkeypatch.delenv("TOKENMIXERS_KERNELS", raising=False)

    def fastest(name, make_alternatives):
        if not name.startswith("linear"):
            return "alternative"
        return "inner_product" if "4 rows" in name else "convolution"

    monkeypatch.setattr(measurement, "fastest", fastest)
    monkeypatch.setattr(measurement, "_MEASURED", {})
    monkeypatch.setattr(linear, "FEWEST_WEIGHTS", 1)
    monkeypatch.setattr(linear, "FEWEST_MULTIPLICATIONS", 1)
    monkeypatch.setattr(linear, "ROWS", {4: 6, 128: 12, 512: math.inf})
