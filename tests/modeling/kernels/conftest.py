import pytest

from tokenmixers.modeling.kernels import linear, measurement


@pytest.fixture
def every_kernel(monkeypatch):
    """On this processor every alternative is the faster one, whatever the size: convolutions from six rows on."""
    monkeypatch.delenv("TOKENMIXERS_KERNELS", raising=False)
    monkeypatch.setattr(measurement, "_kept_or_measured", lambda key, make_alternatives: "alternative")
    monkeypatch.setattr(measurement, "_CHOICES", {})
    monkeypatch.setattr(linear, "FEWEST_WEIGHTS", 1)
    monkeypatch.setattr(linear, "FEWEST_MULTIPLICATIONS", 1)
    monkeypatch.setattr(linear, "MANY_ROWS", 6)
