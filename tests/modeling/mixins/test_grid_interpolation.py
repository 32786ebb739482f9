"""Interpolation between grids of patches, against Pillow's bicubic filter."""

import numpy as np
import pytest
import torch
from PIL import Image

from tokenmixers.modeling.mixins.grid_interpolation import grid_interpolation


@pytest.mark.parametrize("tokens", [0, 1])
@pytest.mark.parametrize(("old", "new"), [((4, 6), (8, 9)), ((8, 6), (4, 3)), ((9, 4), (5, 7)), ((3, 5), (3, 5))])
def test_rows_interpolate_pictures_as_pillow_does(old, new, tokens):
    """Smaller pictures are low-pass filtered: each of their pixels is a mean over the old ones that it covers."""
    picture = np.random.default_rng(0).normal(size=old).astype(np.float32)
    resized = np.asarray(Image.fromarray(picture).resize(new[::-1], Image.Resampling.BICUBIC))
    rows, _ = grid_interpolation(old, new, tokens)
    assert rows.shape == (tokens + new[0] * new[1], tokens + old[0] * old[1])
    values = torch.cat([torch.full((tokens,), 7.0), torch.from_numpy(picture).flatten()]).to(rows.dtype)
    found = rows @ values
    expected = torch.from_numpy(resized.copy()).flatten()
    torch.testing.assert_close(found[tokens:].float(), expected, rtol=1e-4, atol=1e-4)
    assert (found[:tokens] == 7).all()
