"""The demo of a checkpoint as a Space: the files that the Hub runs it from."""

from collections.abc import Collection
from typing import Any

import yaml
from huggingface_hub import HfApi, ModelCard
from huggingface_hub.errors import RepositoryNotFoundError
from transformers import PreTrainedConfig

import tokenmixers

from ..base.errors import UserError
from .checkpoints import find_task


#: The version of Gradio that the tests run with; the Hub needs an exact one.
GRADIO_VERSION = "6.31.0"

#: Of a Space without a requirement of the user.
REQUIREMENT_NOTE = (
    f"requirements.txt needs tokenmixers {tokenmixers.__version__} on the package index (PyPI). If it is not there, "
    "the Space cannot start: give --space_requirement 'tokenmixers[demo] @ git+https://github.com/<user>/tokenmixers'"
)

APP = '''"""The demo of {model}."""

from tokenmixers.run_scripts.demos.checkpoints import load_checkpoint
from tokenmixers.run_scripts.demos.page import launch


launch(load_checkpoint("{model}"))
'''

README = """---
{metadata}---

# {title}

The demo of [{model}](https://huggingface.co/{model}): what the model answers, and which tokens it mixes for that.

The same on your own machine:

```bash
pip install "{requirement}"
tokenmixers demo --model {model}
```
"""


def space_files(
    config: PreTrainedConfig, names: Collection[str], model: str, requirement: str | None = None, card: str = ""
) -> dict[str, bytes]:
    """The files of a Space.

    Args:
        config: Configuration of the checkpoint.
        names: Names of its files.
        model: Its name on the Hub, `<user or organisation>/<name>`.
        requirement: What `pip` installs this package from, with the extra `demo`; by default this version from
            the package index, which has to have it.
        card: Its model card, whose licence the Space gets; empty if there is none.

    Returns:
        Name -> content of `app.py`, `requirements.txt` and `README.md`, whose head says how the Hub runs them.

    Raises:
        UserError: If the demo does not show the model's task, the checkpoint lacks weights or what prepares its
            inputs, the name has no user, or the requirement is none of this package.
    """
    if "/" not in model:
        raise UserError(f"{model!r} does not say whose model the Space shows: give <user or organisation>/<name>.")
    task = find_task(config, model).name
    _check_complete(names, task, model)
    requirement = _checked(requirement)
    title = model.rpartition("/")[2]
    metadata = {
        "title": title,
        "emoji": "🧩",
        "colorFrom": "blue",
        "colorTo": "gray",
        "sdk": "gradio",
        "sdk_version": GRADIO_VERSION,
        "app_file": "app.py",
        "pinned": False,
        "short_description": f"{task}, and which tokens are mixed",
        **licence_of(card, model),
        "models": [model],
    }
    head = yaml.safe_dump(metadata, allow_unicode=True, sort_keys=False)
    readme = README.format(metadata=head, title=title, model=model, requirement=requirement)
    files = {"README.md": readme, "app.py": APP.format(model=model), "requirements.txt": f"{requirement}\n"}
    return {name: content.encode() for name, content in files.items()}


def check_model_of_space(hub: HfApi, model: str) -> None:
    """Check that the Hub has the model that a Space will load; of a private one, print what its Space needs.

    Raises:
        UserError: If the Hub has it not, or not for this token.
    """
    try:
        private = hub.repo_info(model).private
    except RepositoryNotFoundError as error:
        raise UserError(
            f"the Hub has no model {model!r}, which the Space would show: push it first, without --space."
        ) from error
    if private:
        print(f"{model} is private: give its Space a secret HF_TOKEN that may read it, in the settings on the Hub")


def _checked(requirement: str | None) -> str:
    if requirement is None:
        return f"tokenmixers[demo]=={tokenmixers.__version__}"
    if "\n" in requirement or "tokenmixers" not in requirement:
        raise UserError(
            f"--space_requirement {requirement!r} does not name this package: give a line of a requirements.txt, e.g. "
            "'tokenmixers[demo] @ git+https://github.com/<user>/tokenmixers'."
        )
    return requirement


def licence_of(card: str, model: str) -> dict[str, Any]:
    """The licence that a model card names, as an entry of a Space's metadata; empty if it names none.

    Raises:
        UserError: If its metadata cannot be read.
    """
    if not card:
        return {}
    try:
        licence = ModelCard(card).data.get("license")
    except (ValueError, yaml.YAMLError) as error:
        raise UserError(f"the metadata of the model card of {model!r} cannot be read: {error}") from error
    return {"license": licence} if licence else {}


def _check_complete(names: Collection[str], task: str, model: str) -> None:
    if not any(name.endswith(".safetensors") for name in names):
        raise UserError(f"the checkpoint of {model!r} has no weights: a demo needs them.")
    if task == "image-classification":
        wanted, what = {"preprocessor_config.json", "processor_config.json"}, "image processor"
    else:
        wanted, what = {"tokenizer_config.json", "tokenizer.json"}, "tokenizer"
    if not wanted & set(names):
        raise UserError(
            f"the checkpoint of {model!r} has no {what}, which a demo needs: save one in the folder of the model."
        )
