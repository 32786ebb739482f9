"""Load checkpoints through every Auto class they name, and save what the models compute: see test_saving.py.

Run with the arguments `OUTPUTS.safetensors FOLDER...`, it works without this package.
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file


def load(folder: Path, auto_class: str):
    """A model in evaluation mode; weights that the checkpoint does not have are the same in every process."""
    torch.manual_seed(0)
    auto = getattr(transformers, auto_class)
    # `AutoBackbone.from_pretrained` asks the Hub before it calls this one, and takes no folders.
    from_pretrained = auto.__base__.__base__.from_pretrained if auto_class == "AutoBackbone" else auto.from_pretrained
    return from_pretrained.__func__(auto, folder, trust_remote_code=True).eval()


def outputs_of(folder: Path) -> dict[str, torch.Tensor]:
    """First output of every class that `auto_map` names and that fits the configuration, for some inputs."""
    outputs = {}
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True)
    for auto_class in json.loads((folder / "config.json").read_text())["auto_map"]:
        reads_images = auto_class in ("AutoModelForImageClassification", "AutoBackbone")
        if auto_class == "AutoConfig" or reads_images != bool(config.image_size):
            continue
        try:
            model = load(folder, auto_class)
        except ValueError as error:
            if "needs a configuration with" not in str(error):  # e.g. a decoder's head on an encoder
                raise
            continue
        ids = torch.randint(1, config.vocab_size, (2, 3, 7), generator=torch.Generator().manual_seed(1))
        if config.image_size:
            pixels = torch.linspace(-1, 1, 2 * 3 * config.image_size**2).view(2, 3, config.image_size, -1)
            inputs = {"pixel_values": pixels}
        else:
            inputs = {"input_ids": ids if auto_class == "AutoModelForMultipleChoice" else ids[:, 0]}
        if config.is_encoder_decoder:
            inputs["decoder_input_ids"] = ids[:, 1]
        with torch.no_grad():
            first = model(**inputs)[0]
            first = first[-1] if isinstance(first, tuple) else first  # feature maps
            outputs[f"{folder.name}/{auto_class}"] = first.contiguous()
            if model.can_generate():
                tokens = model.generate(inputs["input_ids"], max_new_tokens=4, do_sample=False)
                outputs[f"{folder.name}/{auto_class}/generate"] = tokens
    return outputs


def main() -> None:
    target, *folders = map(Path, sys.argv[1:])
    results = {}
    for folder in folders:
        results |= outputs_of(folder)
        again, sharded = (folder.with_name(folder.name + end) for end in ("-again", "-sharded"))
        architecture = json.loads((folder / "config.json").read_text())["architectures"][0]
        names = json.loads((folder / "config.json").read_text())["auto_map"].items()
        auto_class = next(key for key, value in names if value.endswith(f".{architecture}"))
        model = load(folder, auto_class)
        model.save_pretrained(again)
        # What `fully_shard` makes of a model's class.
        place = {"__module__": "torch.distributed.fsdp._fully_shard._fsdp_init"}
        model.__class__ = type(f"FSDP{type(model).__name__}", (type(model),), place)
        model.save_pretrained(sharded)
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True)
        config.save_pretrained(folder.with_name(folder.name + "-config"))
        files = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix == ".py"}
        expected = json.loads((folder / "config.json").read_text())
        weights = load_file(folder / "model.safetensors")
        for copy in (again, sharded):
            found = load_file(copy / "model.safetensors")
            assert found.keys() == weights.keys() and all(torch.equal(found[key], weights[key]) for key in weights)
            assert {path.name: path.read_bytes() for path in copy.iterdir() if path.suffix == ".py"} == files
            found = json.loads((copy / "config.json").read_text())
            assert found["auto_map"] == expected["auto_map"]
            assert found.get("custom_pipelines") == expected.get("custom_pipelines")
    save_file(results, target)


if __name__ == "__main__":
    main()
