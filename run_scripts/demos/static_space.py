"""A page that searches a text collection in the browser, with an exported sentence transformer: no server computes."""

import json
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import ModelCard

from ..base.errors import UserError
from ..exports.formats import FILES


PAGE = Path(__file__).with_name("search.html")

#: Exported format -> its `dtype` in Transformers.js, the first that there is.
DTYPES = {"onnx-int8": "q8", "onnx": "fp32", "onnx-fp16": "fp16"}

README = """---
{metadata}---

# {title}

A search by meaning over the texts of `texts.txt`. The model in `model/` runs in the visitor's browser, by
Transformers.js; `settings.json` names title, precision and the prompt that the page puts before every text. On your
machine: `python -m http.server` in this folder.
"""


def static_space_files(
    folder: Path, source: str, name: str, texts: str, licence: dict[str, Any]
) -> dict[str, Path | bytes]:
    """The files of a static Space by their names: the content, or the file that has it."""
    kinds = [kind for kind in DTYPES if (folder / FILES[kind]).is_file()]
    if not kinds or not (folder / "modules.json").is_file():
        raise UserError(
            f"{source!r} is no exported sentence transformer, which --space static needs: write one with "
            "`tokenmixers export`."
        )
    try:
        content = Path(texts).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--space_texts {texts!r} cannot be read as UTF-8: {error}.") from error
    if not content.strip():
        raise UserError(f"--space_texts {texts!r} has no texts: write one on each line.")
    title = name.rpartition("/")[2]
    metadata = {"title": title, "emoji": "🔎", "colorFrom": "blue", "colorTo": "gray", "sdk": "static", **licence}
    head = yaml.safe_dump(metadata, allow_unicode=True, sort_keys=False)
    model = ["config.json", "tokenizer.json", "tokenizer_config.json", FILES[kinds[0]]]
    model += ["NOTICE"] if (folder / "NOTICE").is_file() else []  # the Apache licence wants it passed on
    if lacking := [part for part in model if not (folder / part).is_file()]:
        raise UserError(f"{source!r} has no {lacking[0]}, which the page needs: export the model again.")
    settings = {"title": title, "dtype": DTYPES[kinds[0]], "prompt": _prompt_of(folder)}
    return {
        "README.md": README.format(metadata=head, title=title).encode(),
        "index.html": PAGE,
        "settings.json": json.dumps(settings, indent=2).encode(),
        "texts.txt": content.encode(),
        **{f"model/{part}": folder / part for part in model},
    }


def _prompt_of(folder: Path) -> str:
    """The default prompt of an exported sentence transformer, which its graph does not hold."""
    file = folder / "config_sentence_transformers.json"
    settings = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return (settings.get("prompts") or {}).get(settings.get("default_prompt_name")) or ""


def licence_of(card: str, model: str) -> dict[str, Any]:
    """The licence that a model card names, as an entry of a Space's metadata; empty if it names none."""
    if not card:
        return {}
    try:
        licence = ModelCard(card).data.get("license")
    except (ValueError, yaml.YAMLError) as error:
        raise UserError(f"the metadata of the model card of {model!r} cannot be read: {error}") from error
    return {"license": licence} if licence else {}
