"""Training with the real `Trainer`: exact losses however a batch is split, label smoothing, LoRA."""

import ast
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import tokenmixers
from tokenmixers.configuration.auto_classes import FAMILIES


train_one_step = runpy.run_path(str(Path(__file__).parents[1] / "one_training_step.py"))["train_one_step"]
EVERY_HEAD = sorted({name for family in FAMILIES.values() for name in family.models.values() if "For" in name})
HEADS = [
    "GMLPForMaskedLM",
    "GMLPForTokenClassification",
    "GMLPForSequenceClassification",
    "GMLPForMultipleChoice",
    "GMLPForQuestionAnswering",
    "GMLPForCausalLM",
]
ROWS, LENGTH = 8, 7
LABELLED = [1, 5, 2, 7, 0, 1, 4, 6]  # labelled tokens by row: a mean of means would be wrong
CLASSES = [0, -100, 2, 0, 1, -100, -100, 1]


def _examples(class_name):
    generator = torch.Generator().manual_seed(3)
    examples = []
    for row in range(ROWS):
        if "Image" in class_name:
            pixels = torch.randn(3, 8, 8, generator=generator)
            examples.append({"pixel_values": pixels, "labels": torch.tensor(CLASSES[row])})
            continue
        shape = (3, LENGTH) if "MultipleChoice" in class_name else (LENGTH,)
        example = {"input_ids": torch.randint(37, shape, generator=generator)}
        example["attention_mask"] = (torch.arange(LENGTH) < 7 - row % 3).long().expand(shape)
        if "QuestionAnswering" in class_name:
            outside = LENGTH * (CLASSES[row] == -100)
            example |= {"start_positions": torch.tensor(row % 3 + outside), "end_positions": torch.tensor(4 + outside)}
            example["label"] = torch.tensor(CLASSES[row])  # for the Trainer to count
        elif class_name.endswith(("ForMaskedLM", "ForTokenClassification", "ForCausalLM", "ForConditionalGeneration")):
            labels = torch.randint(3, (LENGTH,), generator=generator)
            example["labels"] = torch.where(torch.arange(LENGTH) < LABELLED[row], labels, -100)
        else:
            example["labels"] = torch.tensor(CLASSES[row])
        examples.append(example)
    return examples


def _stack(examples):
    names = [name for name in examples[0] if name != "label"]
    return {name: torch.stack([example[name] for example in examples]) for name in names}


def _gradients(loss, model):
    gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    return {
        name: torch.zeros_like(parameter) if gradient is None else gradient
        for (name, parameter), gradient in zip(model.named_parameters(), gradients, strict=True)
    }


def _assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    assert any(gradient.abs().max() > 1e-3 for gradient in theirs.values())
    for name, gradient in ours.items():
        # The weights are of order one, so their differences carry the rounding of float32 at one.
        torch.testing.assert_close(
            gradient, theirs[name], rtol=1e-4, atol=2e-6, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.fixture
def build(undropped_model):
    return lambda class_name, **changes: undropped_model(class_name, num_labels=3, **changes)


@pytest.mark.fast_cases
@pytest.mark.parametrize("batch_size", [8, 4, 3, 1])  # of 8 rows: also an uneven last batch, and some without labels
@pytest.mark.parametrize("class_name", EVERY_HEAD)
def test_the_gradient_does_not_depend_on_accumulation(class_name, batch_size, build, tmp_path):
    model, examples = build(class_name), _examples(class_name)
    loss = model(**_stack(examples)).loss  # its value is checked in the tests of the heads
    expected = _gradients(loss, model)
    ours, reported = train_one_step(
        model,
        examples,
        tmp_path,
        per_device_train_batch_size=batch_size,
        gradient_accumulation_steps=-(-ROWS // batch_size),
    )
    _assert_same(ours, expected)
    assert reported == pytest.approx(loss.item(), rel=1e-5)


@pytest.mark.parametrize("batch_size", [8, 3])
@pytest.mark.parametrize("class_name", [name for name in HEADS if "QuestionAnswering" not in name])
def test_label_smoothing_is_exact(class_name, batch_size, build, tmp_path):
    model, examples = build(class_name), _examples(class_name)
    batch = _stack(examples)
    labels = batch.pop("labels")
    log_probabilities = model(**batch).logits.log_softmax(-1)
    classes = log_probabilities.shape[-1]
    target = torch.full((classes, classes), 0.2 / classes) + 0.8 * torch.eye(classes)
    if "CausalLM" in class_name:  # what a token predicts is the next one
        labels = F.pad(labels[:, 1:], (0, 1), value=-100)
    losses = -(target[labels.clamp(min=0)] * log_probabilities).sum(-1)
    expected = _gradients(losses[labels != -100].mean(), model)
    ours, _ = train_one_step(
        model,
        examples,
        tmp_path,
        label_smoothing_factor=0.2,
        per_device_train_batch_size=batch_size,
        gradient_accumulation_steps=-(-ROWS // batch_size),
    )
    _assert_same(ours, expected)


TWO_PROCESSES = """
import sys
import torch
from importlib.util import module_from_spec, spec_from_file_location

tests, folder = sys.argv[1:]
spec = spec_from_file_location("test_training", tests)
module = module_from_spec(spec)
spec.loader.exec_module(module)
import tokenmixers

for class_name in module.EVERY_HEAD:
    model = getattr(tokenmixers, class_name).from_pretrained(f"{folder}/{class_name}")
    gradients, _ = module.train_one_step(
        model,
        module._examples(class_name),
        f"{folder}/out",
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
    )
    assert torch.distributed.get_world_size() == 2
    if torch.distributed.get_rank() == 0:
        torch.save(gradients, f"{folder}/{class_name}.pt")
"""


@pytest.mark.slow
def test_the_gradient_does_not_depend_on_the_number_of_processes(build, tmp_path):
    expected = {}
    for class_name in EVERY_HEAD:
        model = build(class_name)
        model.save_pretrained(tmp_path / class_name)
        expected[class_name] = _gradients(model(**_stack(_examples(class_name))).loss, model)
    (tmp_path / "two_processes.py").write_text(TWO_PROCESSES)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    finished = subprocess.run(
        [*command, tmp_path / "two_processes.py", __file__, tmp_path], capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
    for class_name in EVERY_HEAD:
        _assert_same(torch.load(tmp_path / f"{class_name}.pt"), expected[class_name])


# --- LoRA --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("class_name", "mixing", "count"),
    [("GMLPForMaskedLM", "spatial_proj", 4), ("MLPMixerForMaskedLM", "token_mixing", 8)],
)
def test_spatial_weights_can_be_trained_beside_lora(class_name, mixing, count, build):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(target_modules="all-linear", r=2, modules_to_save=[mixing])
    adapted = peft.get_peft_model(build(class_name), config)
    adapted(**_stack(_examples(class_name))).loss.backward()
    spatial = [p for name, p in adapted.named_parameters() if mixing in name and p.requires_grad]
    assert len(spatial) == count
    assert all(parameter.grad.abs().sum() > 0 for parameter in spatial)


@pytest.mark.parametrize("class_name", ["GMLPForMaskedLM", "MLPMixerForMaskedLM"])
def test_a_fresh_model_learns(class_name, tiny_config):
    """From its start, gradients reach every parameter and a small batch is learnt by heart."""
    torch.manual_seed(0)
    model_class = getattr(tokenmixers, class_name)
    model = model_class(tiny_config(model_class.config_class, hidden_size=32, intermediate_size=64))
    input_ids = torch.randint(1, 37, (4, 11))
    masked = torch.rand(4, 11) < 0.3
    labels = torch.where(masked, input_ids, -100)
    inputs = torch.where(masked, 0, input_ids)  # all masked tokens look alike: only their neighbours tell them apart
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(150):
        loss = model(inputs, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.1
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())
    assert F.cross_entropy(model.eval()(inputs).logits[masked], input_ids[masked]) < 0.1


LORA = """
import sys
import peft
sys.modules.pop("tokenmixers", None)  # the process without the package
sys.path += sys.argv[1:]
import tokenmixers
from transformers import AutoConfig, AutoModel

sizes = {"hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 8, "num_hidden_layers": 2}
found = {}
for model_type in ("gmlp", "amlp", "mlp_mixer", "synthesizer", "hybrid_bert"):
    heads = {"num_attention_heads": 2} if model_type in ("synthesizer", "hybrid_bert") else {}
    model = AutoModel.from_config(AutoConfig.for_model(model_type, **sizes, **heads))
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2))
    names = [name.split(".lora_")[0] for name, _ in adapted.named_parameters() if ".lora_" in name]
    found[model_type] = sorted({name.rpartition(".")[2] for name in names})
print(found)
"""


@pytest.mark.parametrize("first", ["tokenmixers", "peft"])
def test_lora_without_target_modules(first, alone, capsys):
    """PEFT's table knows the model types, whichever package is imported first: here it is ours."""
    pytest.importorskip("peft")
    if first == "tokenmixers":
        exec("import peft\n" + LORA.partition("import tokenmixers\n")[2], {})
        shown = capsys.readouterr().out
    else:
        shown = alone(LORA, sys.path).splitlines()[-1]
    blocks = ["proj_in", "proj_out"]
    expected = dict.fromkeys(("gmlp", "amlp", "mlp_mixer"), blocks)
    expected |= {"synthesizer": ["o_proj", "v_proj"], "hybrid_bert": ["o_proj", *blocks, "v_proj"]}
    assert ast.literal_eval(shown) == expected
