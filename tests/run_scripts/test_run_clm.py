import functools
import math

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

from tokenmixers.run_scripts import run_clm


SIZES = (
    "is_decoder=true,is_encoder_decoder=false,hidden_size=16,intermediate_size=32,num_hidden_layers=2,num_attention_heads=2,head_dim=8,"
    "max_position_embeddings=16,hidden_dropout_prob=0.0,attention_dropout=0.0"
)


@pytest.fixture
def causal(command):
    """`causal(name=value, ...)`: arguments of a tiny run."""
    return functools.partial(command, {"config_name": "synthesizer-random", "config_overrides": SIZES})


def test_trains_saves_and_generates(causal, tmp_path, capsys):
    results = run_clm.main(causal(max_steps=30, learning_rate=3e-2))
    assert "SynthesizerForCausalLM (synthesizer)" in capsys.readouterr().out
    assert results["trained"] < 0.6 * results["untrained"]
    assert results["trained"] < results["unigram"]

    model = AutoModelForCausalLM.from_pretrained(tmp_path / "run").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run")
    assert model.config.eos_token_id == tokenizer.eos_token_id == 1
    generate = pipeline("text-generation", model=model, tokenizer=tokenizer)
    texts = generate(["gate token", "splits"], max_new_tokens=5, do_sample=False, batch_size=2)
    assert all(text[0]["generated_text"] for text in texts)
    (text,) = generate("gate token", eos_token_id=None, return_tensors=True)
    assert len(text["generated_token_ids"]) == 16  # all of the model's positions


@pytest.mark.parametrize(("kind", "length"), [("line_by_line", 16), ("isolate_documents", 128)])
def test_perplexity_is_that_of_every_token_but_the_first_of_a_text(kind, length, causal, corpus, tmp_path):
    sizes = SIZES.replace("max_position_embeddings=16", f"max_position_embeddings={length}")
    options = {"max_steps": 5, "per_device_eval_batch_size": 3, "config_overrides": sizes}
    results = run_clm.main(causal(**options, **{kind: True}))
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "run").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "run")
    total, tokens = 0.0, 0
    for line in (corpus / "validation.txt").read_text().splitlines():
        ids = tokenizer(line, truncation=True, max_length=length, return_tensors="pt").input_ids
        with torch.no_grad():
            logits = model(ids).logits[0, :-1].double()
        asked = ids[0, 1:] != tokenizer.bos_token_id if tokenizer.bos_token_id is not None else slice(None)
        labels = ids[0, 1:][asked]
        total += torch.nn.functional.cross_entropy(logits[asked], labels, reduction="sum").item()
        tokens += len(labels)
    assert results["trained"] == pytest.approx(math.exp(total / tokens), rel=1e-4)
