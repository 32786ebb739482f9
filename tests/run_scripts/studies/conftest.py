"""A small report, as `study` writes it."""

import copy

import pytest


DEFINITION = {
    "title": "Small gates",
    "question": "Which gate is best?",
    "seeds": [1, 2, 3],
    "more_seeds": [4],
    "command": "run_mlm",
    "arguments": {"max_steps": 100, "eval_steps": 20},
    "data": {"files": {"train_file": ["train.txt"]}},
    "example": {"input_ids": [8]},
    "variants": {"split": {}, "linear": {}, "mixer": {}},
    "baseline": "split",
    "learning_rates": [0.001, 0.01],
    "metric": "perplexity",
    "better": "lower",
    "compared_as": "log",
    "plateau": "unigram",
    "budgets": [20],
    "claims": [
        {"claim": "Split beats linear.", "source": "gMLP, Table 3: 1 and 2", "better": "split", "than": "linear"},
        {"claim": "Mixer beats split.", "source": "nobody", "better": "mixer", "than": "split"},
        {"claim": "Split and linear are equal.", "source": "nobody", "equal": "split", "to": "linear", "margin": 0.5},
        {"claim": "All are early.", "source": "nobody", "better": ["split", "mixer"], "than": "linear", "at": 20},
    ],
}

#: Perplexities after 20, 80 and 100 steps by model, learning rate and seed.
CURVES = {
    ("split", 0.001, 1): (90, 60, 50),
    ("split", 0.01, 1): (80, 41, 40),
    ("split", 0.01, 2): (82, 43, 42),
    ("split", 0.01, 3): (81, 42, 41),
    ("linear", 0.001, 1): (70, 47, 46),
    ("linear", 0.01, 1): None,  # diverged
    ("linear", 0.001, 2): (71, 49, 48),
    ("linear", 0.001, 3): (69, 48, 47),
    ("mixer", 0.001, 1): (95, 93, 92),
    ("mixer", 0.01, 1): (89, 85, 84),
    ("mixer", 0.01, 2): (88, 86, 85),
    ("mixer", 0.01, 3): (87, 87, 86),
}
STEP_SECONDS = {"split": 2.0, "linear": 1.0, "mixer": 4.0}


def _run(model: str, rate: float, seed: int, curve: tuple[float, ...] | None) -> dict:
    run = {"task": "small", "model": model, "learning_rate": rate, "seed": seed, "measures": {}}
    if curve is None:
        return run | {"result": None, "evaluations": [], "steps": 0, "seconds": None, "plateau": None}
    evaluations = [[step, value] for step, value in zip((20, 80, 100), curve, strict=True)]
    return run | {"result": curve[-1], "evaluations": evaluations, "steps": 100, "seconds": 300.0, "plateau": 400.0}


@pytest.fixture
def report():
    """Split is best in the end and linear earlier; linear diverged with the higher learning rate."""
    facts = {"parameters": 1000, "flops": 2_000_000, "bytes": 4000}
    return {
        "study": "small",
        "setting": "default",
        "data": "files",
        "machine": {"processor": "A processor", "instructions": "AVX2", "accelerator": None, "jobs": 2, "threads": 1},
        "packages": "torch 2",
        "versions": {"torch": "2"},
        "dates": ["2026-01-01 00:00 UTC", "2026-01-02 00:00 UTC"],
        "definition": copy.deepcopy(DEFINITION),
        "models": {"small": {name: facts | {"step_seconds": STEP_SECONDS[name]} for name in DEFINITION["variants"]}},
        "runs": [_run(*key, curve) for key, curve in CURVES.items()],
    }
