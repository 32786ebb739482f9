import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "statement",
    [
        "from tokenmixers import GMLPModel",
        "import tokenmixers.modeling.modeling_synthesizer",
        "import tokenmixers; from transformers.modeling_layers import GradientCheckpointingLayer",
    ],
)
def test_first_import(statement):
    """Our models import Transformers' layers, which import the Auto classes, which register our models."""
    check = "from transformers.models.auto.modeling_auto import MODEL_MAPPING; from tokenmixers import GMLPConfig; "
    check += "assert GMLPConfig in MODEL_MAPPING"
    subprocess.run([sys.executable, "-c", f"{statement}; {check}"], check=True)
