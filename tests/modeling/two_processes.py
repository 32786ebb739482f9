"""Models split over two processes compute what whole ones do: see test_distributed.py.

`torchrun --nproc_per_node 2 two_processes.py FOLDER`: each sub-folder holds `model` and `inputs.safetensors`. A line
of JSON says which parameters were split: sub-folder -> kind of split -> names.
"""

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import transformers
from safetensors.torch import load_file, save_file
from torch.distributed.tensor import DTensor
from transformers import AutoConfig, Trainer, TrainingArguments
from transformers.distributed import DistributedConfig

import tokenmixers  # registers the models


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, put together if it is split."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def split_parameters(model) -> list[str]:
    """Names of the parameters of which this process holds a part only."""
    return sorted(
        name
        for name, parameter in model.named_parameters()
        if isinstance(parameter, DTensor) and any(placement.is_shard() for placement in parameter.placements)
    )


def load(folder: Path, **sizes: int):
    config = AutoConfig.from_pretrained(folder / "model")
    model_class = getattr(tokenmixers, config.architectures[0])
    return model_class.from_pretrained(folder / "model", distributed_config=DistributedConfig(**sizes))


def run_split(folder: Path, kind: str, **saving) -> tuple[torch.nn.Module, list[str]]:
    """The split model, of which outputs and the whole are saved in `folder`, and names of its split parameters."""
    model = load(folder, **{f"{kind}_size": 2}).eval()
    with torch.no_grad():
        outputs = whole(model(**load_file(folder / "inputs.safetensors"))[0])
    if dist.get_rank() == 0:
        save_file({"outputs": outputs.contiguous()}, folder / f"{kind}.safetensors")
    model.save_pretrained(folder / kind, **saving)
    return model, split_parameters(model)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    results = {}
    for folder in sorted(Path(sys.argv[1]).iterdir()):
        inputs = load_file(folder / "inputs.safetensors")
        results[folder.name] = {}
        for kind in ("tp", "fsdp"):
            saving = {"push_to_hub": True, "repo_id": f"me/{folder.name}-{kind}"}
            model, results[folder.name][kind] = run_split(folder, kind, **saving)
            if kind == "fsdp":
                model.save_pretrained(folder / "parts", distributed_checkpoint=True)
            dist.barrier()
        if "labels" not in inputs:
            continue
        model = load(folder, fsdp_size=2)
        rows = [{name: tensor[index] for name, tensor in inputs.items()} for index in range(4)]
        arguments = TrainingArguments(
            str(folder / "run"),
            use_cpu=True,
            max_steps=2,
            per_device_train_batch_size=2,
            learning_rate=0.01,
            save_strategy="no",
            disable_tqdm=True,
        )
        trainer = Trainer(model, arguments, train_dataset=rows)
        trainer.train()
        trainer.save_model(str(folder / "trained"))
        results[folder.name]["trained"] = split_parameters(trainer.model)
        dist.barrier()
    if dist.get_rank() == 0:
        print("\n" + json.dumps(results), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    transformers.utils.logging.set_verbosity_error()
    main()
