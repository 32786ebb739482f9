"""A page that searches a text collection in the browser, with an exported sentence transformer: no server computes."""

import json
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import ModelCard

from ..base.errors import UserError, report_bad_data
from ..data.files import find_files
from ..data.text_corpus import TEXT_KINDS, read_texts
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
    with report_bad_data():
        lines = [" ".join(text.split()) for _, text in read_texts(find_files([texts], TEXT_KINDS))]
    content = "".join(f"{line}\n" for line in lines if line)  # the page has a text on each line
    if not content:
        raise UserError(f"--space_texts {texts!r} has no texts: write one on each line, or in a column text.")
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
