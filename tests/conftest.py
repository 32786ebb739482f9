"""Helpers shared by the tests, as fixtures: the repository root is a package, so test modules import nothing here."""

import os


os.environ["HF_HUB_OFFLINE"] = "1"  # before anything reads it: no test may wait for, or depend on, a network

import hypothesis
import pytest
import torch
import transformers
from hypothesis import strategies as st
from transformers import set_seed

import tokenmixers


# One core is enough for models this small, and torch's threads would fight with those of parallel test workers.
torch.set_num_threads(1)

hypothesis.settings.register_profile("default", max_examples=25, deadline=None)
hypothesis.settings.register_profile("ci", max_examples=25, deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")


class _TorchRandom:
    """Torch's generator in the form in which Hypothesis resets generators before every example."""

    seed = staticmethod(torch.manual_seed)
    getstate = staticmethod(torch.get_rng_state)
    setstate = staticmethod(torch.set_rng_state)


_TORCH_RANDOM = _TorchRandom()  # Hypothesis keeps a weak reference only
hypothesis.register_random(_TORCH_RANDOM)


@pytest.fixture(autouse=True)
def _seeded():
    set_seed(0)


@pytest.fixture
def _auto_image_processor():
    """Skip where Transformers cannot find an image processor by itself: 5.17 needs torchvision for that."""
    if type(transformers.AutoImageProcessor).__name__ == "DummyObject":
        pytest.skip("AutoImageProcessor of this version of Transformers needs torchvision")


@pytest.fixture(scope="session")
def tiny_config():
    """`tiny_config(**changes)`: a configuration small enough for every test, with odd and distinct sizes.

    Of gMLP, unless another `config_class` is given whose models take the same sizes.
    """

    def build(config_class=tokenmixers.GMLPConfig, **changes) -> tokenmixers.GMLPConfig:
        sizes = {
            "vocab_size": 37,
            "hidden_size": 10,
            "intermediate_size": 14,
            "num_hidden_layers": 2,
            "max_position_embeddings": 11,
        }
        if config_class is tokenmixers.MLPMixerConfig:
            sizes["token_mixing_size"] = 7
        return config_class(**{**sizes, **changes})

    return build


@pytest.fixture(scope="session")
def randomise():
    """`randomise(module)`: give every parameter random values, so that no transposed or skipped weight goes unseen.

    A fresh gMLP hides most mistakes: its spatial weights are nearly zero, its biases constant. Each matrix keeps the
    scale of its fan-in, so that activations stay of order one.
    """

    def fill(module: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                scale = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.3
                offset = 1.0 if parameter.dim() == 1 and name.endswith("norm.weight") else 0.0
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(offset + scale * noise)
        return module

    return fill


@pytest.fixture(scope="session")
def spatial_matrix():
    """`spatial_matrix(projection, rows, columns)`: the weights from the tokens at `columns` to those at `rows`.

    Written out with loops from the definition: `W[i, j] = w[n - 1 + j - i]` for Toeplitz weights `w`.
    """

    def build(projection, rows: list[int], columns: list[int] | None = None) -> torch.Tensor:
        columns = rows if columns is None else columns
        weight, n = projection.weight, projection.max_length
        if weight.dim() == 1:
            return torch.stack([torch.stack([weight[n - 1 + j - i] for j in columns]) for i in rows])
        return torch.stack([torch.stack([weight[i, j] for j in columns]) for i in rows])

    return build


@pytest.fixture(scope="session")
def pad():
    """`pad(rows, length, offsets)`: one batch of 1-D tensors, and its mask; row `b` starts `offsets[b]` tokens late.

    Padding is filled with random numbers, so that anything that looks at it shows.
    """

    def place(rows: list[torch.Tensor], length: int, offsets: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        batch = torch.randint(0, 30, (len(rows), length))
        mask = torch.zeros(len(rows), length, dtype=torch.long)
        for index, (row, offset) in enumerate(zip(rows, offsets, strict=True)):
            batch[index, offset : offset + len(row)] = row
            mask[index, offset : offset + len(row)] = 1
        return batch, mask

    return place


@pytest.fixture(scope="session")
def padded_layouts():
    """A strategy for `(lengths, padded length, offsets)` of a batch: padding left, right, on both sides or nowhere."""

    @st.composite
    def layouts(draw, max_length: int = 11, min_rows: int = 1, min_padded: int = 1):
        lengths = draw(st.lists(st.integers(1, max_length), min_size=min_rows, max_size=4))
        padded = draw(st.integers(max(min_padded, *lengths), max_length))
        side = draw(st.sampled_from(["left", "right", "any"]))
        places = {
            "left": lambda free: st.just(free),
            "right": lambda free: st.just(0),
            "any": lambda free: st.integers(0, free),
        }
        return lengths, padded, [draw(places[side](padded - length)) for length in lengths]

    return layouts
