"""The Hub's rules for the metadata of model cards, as far as they are documented.

From the specification in hub-docs (modelcard.md, repositories-licenses.md), the task names of huggingface.js
(tasks/src/pipelines.ts) and the messages that the Hub gives. `hub_stand_in.py` answers by them.
"""

import re

import yaml


_LICENSES = """
apache-2.0 mit openrail bigscience-openrail-m creativeml-openrail-m bigscience-bloom-rail-1.0 bigcode-openrail-m
afl-3.0 artistic-2.0 bsl-1.0 bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear c-uda cc cc0-1.0 cc-by-2.0 cc-by-2.5
cc-by-3.0 cc-by-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nd-4.0 cc-by-nc-nd-3.0
cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cdla-sharing-1.0 cdla-permissive-1.0
cdla-permissive-2.0 wtfpl ecl-2.0 epl-1.0 epl-2.0 etalab-2.0 eupl-1.1 eupl-1.2 agpl-3.0 gfdl gpl gpl-2.0 gpl-3.0 lgpl
lgpl-2.1 lgpl-3.0 isc h-research intel-research lppl-1.3c ms-pl apple-ascl apple-amlr mpl-2.0 odc-by odbl openmdw-1.0
openrail++ osl-3.0 postgresql ofl-1.1 ncsa unlicense zlib pddl lgpl-lr deepfloyd-if-license
fair-noncommercial-research-license llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 grok2-community gemma unknown
other
"""
# "text2text-generation" was one until 2025; such models are under text-generation since.
_TASKS = """
text-classification token-classification table-question-answering question-answering zero-shot-classification
translation summarization feature-extraction text-generation fill-mask sentence-similarity text-to-speech
text-to-audio automatic-speech-recognition audio-to-audio audio-classification audio-text-to-text
voice-activity-detection depth-estimation image-classification object-detection image-segmentation text-to-image
image-to-text image-to-image image-to-video unconditional-image-generation video-classification reinforcement-learning
robotics tabular-classification tabular-regression tabular-to-text table-to-text multiple-choice text-ranking
text-retrieval time-series-forecasting text-to-video image-text-to-text visual-question-answering
document-question-answering zero-shot-image-classification graph-ml mask-generation zero-shot-object-detection
text-to-3d image-to-3d image-feature-extraction video-text-to-text keypoint-detection visual-document-retrieval
any-to-any video-to-video other
"""
LICENSES, TASKS = _LICENSES.split(), _TASKS.split()
REPOSITORY = r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?"


def metadata_of(card: str) -> dict | None:
    """The YAML at the head of a card."""
    block = re.match(r"\s*---[\r\n]+([\s\S]*?)[\r\n]+---([\r\n]|$)", card)
    return yaml.safe_load(block[1]) if block else None


def metadata_errors(card: str) -> list[str]:
    """What the Hub would not accept; nothing of a good card, or of one without metadata."""
    try:
        metadata = metadata_of(card)
    except yaml.YAMLError as error:
        return [f"YAML metadata cannot be read: {error}"]
    if metadata is None:
        return []
    if not isinstance(metadata, dict):
        return ["YAML metadata must be an object"]
    errors = []

    def check(name, known, advice, many=True):
        if name not in metadata:
            return
        value = metadata[name]
        values = value if many and isinstance(value, list) else [value]
        for entry in values:
            if not isinstance(entry, str):
                errors.append(f'"{name}" must be a string')
            elif not known(entry):
                errors.append(f'"{name}" with value "{entry}" is not valid. {advice}')

    check("license", LICENSES.__contains__, f"It must be one of {', '.join(LICENSES)}.")
    check("pipeline_tag", TASKS.__contains__, f"It must be one of {', '.join(TASKS)}.", many=False)
    check(
        "language",
        lambda code: re.fullmatch(r"[a-z]{2,3}|code|multilingual", code),
        'It must be an ISO 639-1, 639-2 or 639-3 code (two/three letters), or "code" or "multilingual".',
    )
    check("datasets", lambda name: re.fullmatch(REPOSITORY, name), "Use a dataset id from https://hf.co/datasets.")
    check("base_model", lambda name: re.fullmatch(REPOSITORY, name), "Use a model id from https://hf.co/models.")
    check("library_name", lambda name: re.fullmatch(r"[\w.-]+", name), "Use the name of a library.", many=False)
    for name in ("tags", "metrics"):
        if not isinstance(metadata.get(name, []), list):
            errors.append(f'"{name}" must be an array')
        check(name, str.strip, "It must not be empty.")
    return errors + _index_errors(metadata.get("model-index", []))


_COLOURS = ("red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray")


def space_metadata_errors(card: str) -> list[str]:
    """The same for the head of a Space's README.md, from hub-docs (spaces-config-reference.md)."""
    metadata = metadata_of(card)
    if metadata is None:
        return ["missing configuration in README"]
    rules = {
        "sdk": lambda value: value in ("gradio", "docker", "static"),
        "sdk_version": lambda value: isinstance(value, str) and re.fullmatch(r"\d+\.\d+\.\d+", value),
        "app_file": lambda value: isinstance(value, str),
        "colorFrom": _COLOURS.__contains__,
        "colorTo": _COLOURS.__contains__,
        "emoji": lambda value: len(value) == 1 and not value.isascii(),
        "short_description": lambda value: len(value) <= 60,
        "pinned": lambda value: isinstance(value, bool),
        "models": lambda value: all(re.fullmatch(REPOSITORY, name) for name in value),
    }
    needed = ("sdk", "sdk_version") if metadata.get("sdk") == "gradio" else ("sdk",)
    missing = [f'"{name}" is required' for name in needed if name not in metadata]
    wrong = [f'"{name}" is not valid' for name, rule in rules.items() if name in metadata and not rule(metadata[name])]
    return [*missing, *wrong, *metadata_errors(card)]


def _index_errors(index: object) -> list[str]:
    if not isinstance(index, list):
        return ['"model-index" must be an array']
    errors = []

    def need(parent, key, kind, path):
        """The entry, if it is there and of the kind; else an error."""
        value = parent.get(key) if isinstance(parent, dict) else None
        if value is None or value == "":  # a Trainer that was not evaluated writes `results: []`
            errors.append(f'"{path}.{key}" is required')
        elif not isinstance(value, kind):
            errors.append(f'"{path}.{key}" must be {"an array" if kind is list else "a " + kind.__name__}')
        else:
            return value
        return [] if kind is list else {}

    for number, model in enumerate(index):
        need(model, "name", str, f"model-index[{number}]")
        for place, result in enumerate(need(model, "results", list, f"model-index[{number}]")):
            path = f"model-index[{number}].results[{place}]"
            need(need(result, "task", dict, path), "type", str, f"{path}.task")
            dataset = need(result, "dataset", dict, path)
            need(dataset, "name", str, f"{path}.dataset")
            kind = need(dataset, "type", str, f"{path}.dataset")
            if kind and not re.fullmatch(REPOSITORY, kind):
                errors.append(f'"{path}.dataset.type" with value "{kind}" is not valid. Use a dataset id.')
            for rank, metric in enumerate(need(result, "metrics", list, path)):
                need(metric, "type", str, f"{path}.metrics[{rank}]")
                need(metric, "value", object, f"{path}.metrics[{rank}]")
    return errors
