import pytest
import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    DistilBertConfig,
    DistilBertForMaskedLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    RobertaConfig,
    RobertaForMaskedLM,
)

from tokenmixers.run_scripts.training.teacher_outputs import masked_token_logits, teacher_inputs


BERT = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 37}
OTHERS = {
    "bert": lambda: BertForMaskedLM(BertConfig(**BERT)),
    "roberta": lambda: RobertaForMaskedLM(RobertaConfig(**BERT)),
    "distilbert": lambda: DistilBertForMaskedLM(DistilBertConfig(vocab_size=37, dim=8, n_layers=1, n_heads=2)),
    "modernbert": lambda: ModernBertForMaskedLM(ModernBertConfig(**BERT, pad_token_id=0)),
}
OURS = ("GMLP", "AMLP", "Synthesizer", "MLPMixer")


@pytest.fixture
def build(tiny_model, randomise):
    def make(name):
        if name in OURS:
            return tiny_model(f"{name}ForMaskedLM").eval()
        return randomise(OTHERS[name]()).eval()

    return make


@pytest.mark.parametrize("name", [*OURS, *OTHERS])
def test_logits_of_masked_tokens_are_those_of_all(name, build):
    model, ids = build(name), torch.randint(3, 37, (3, 7))
    labels = torch.full((3, 7), -100)
    labels[0, 2] = labels[0, 5] = labels[2, 1] = labels[2, 6] = 4
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    seen = []
    hook = model.get_output_embeddings().register_forward_hook(lambda module, args, output: seen.append(args[0]))
    found = masked_token_logits(model, inputs, labels)
    hook.remove()
    assert seen[0].flatten(0, -2).shape[0] == 4  # the vocabulary's matrix is multiplied with these alone
    torch.testing.assert_close(found, model(**inputs).logits[labels != -100])
    assert masked_token_logits(model, inputs, torch.full((3, 7), -100)).shape == (0, 37)


def test_models_without_a_base_are_run_on_all_tokens(build):
    class Plain(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.base_model = self
            self.inner = build("bert")

        def forward(self, **inputs):
            return self.inner(**inputs)

    model, ids = Plain(), torch.randint(3, 37, (2, 5))
    labels = torch.where(torch.arange(5) % 2 == 0, 4, -100).expand(2, 5)
    found = masked_token_logits(model, {"input_ids": ids}, labels)
    torch.testing.assert_close(found, model.inner(ids).logits[labels != -100])


def test_a_teacher_gets_what_it_takes(build):
    names = ("input_ids", "attention_mask", "token_type_ids", "seq_idx", "labels", "decoder_input_ids", "index")
    batch = {name: torch.zeros(1, 2) for name in names}
    assert {*teacher_inputs(build("bert"), batch)} == {"input_ids", "attention_mask", "token_type_ids"}
    assert {*teacher_inputs(build("distilbert"), batch)} == {"input_ids", "attention_mask"}
    assert {*teacher_inputs(build("GMLP"), batch)} == {"input_ids", "attention_mask", "token_type_ids", "seq_idx"}
