import ast
import builtins
from pathlib import Path

import pytest
import torch
from transformers.dynamic_module_utils import get_relative_import_files

import tokenmixers
from tokenmixers.configuration.auto_classes import FAMILIES
from tokenmixers.configuration.checkpoint_code import auto_map, checkpoint_code


def configs() -> dict[str, tokenmixers.GMLPConfig]:
    text = {model_type: getattr(tokenmixers, family.config)() for model_type, family in FAMILIES.items()}
    reads_images = [name for name, family in FAMILIES.items() if "AutoBackbone" in family.models]
    images = {f"{name}-images": type(text[name])(image_size=32) for name in reads_images}
    answering = tokenmixers.GMLPConfig()
    answering.custom_pipelines = {"question-answering": {}}
    kinds = {
        "gmlp-decoder": tokenmixers.GMLPConfig(is_decoder=True),
        "synthesizer-seq2seq": tokenmixers.SynthesizerConfig(is_encoder_decoder=True),
    }
    return {**text, **images, **kinds, "gmlp-answers": answering}


CONFIGS = pytest.mark.parametrize("name", configs())


@CONFIGS
def test_transformers_finds_the_files_and_no_others(name, tmp_path):
    config = configs()[name]
    code = checkpoint_code(config)
    for file, source in code.items():
        (tmp_path / file).write_text(source)
        first, second = source.splitlines()[:2]
        assert f"tokenmixers {tokenmixers.__version__}" in first and "Apache License, Version 2.0" in second
    start = f"modeling_{config.model_type}.py"
    found = get_relative_import_files(tmp_path / start)
    assert {Path(path).name for path in found} | {start} == set(code)
    for source in code.values():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0 or (node.level == 1 and f"{node.module}.py" in code)
                assert node.level or not node.module.startswith("tokenmixers")


@CONFIGS
def test_every_name_is_defined_once_and_used(name):
    for file, source in checkpoint_code(configs()[name]).items():
        if file == "question_answering.py":
            continue
        tree = ast.parse(source)
        defined = [node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
        assert len(defined) == len(set(defined))
        loaded = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        imported = {
            alias.asname or alias.name
            for node in tree.body
            if isinstance(node, ast.Import | ast.ImportFrom)
            for alias in node.names
        }
        assert imported <= loaded
        roots = {entry.rpartition(".")[2] for entry in auto_map(configs()[name]).values()}
        assert set(defined) - roots <= loaded


@CONFIGS
def test_code_runs_by_itself(name, tmp_path, monkeypatch):
    """Executed as a package of its own, each class of the map builds on the others of these files."""
    config = configs()[name]
    package = f"alone_{name.replace('-', '_')}"
    (tmp_path / package).mkdir()
    for file, source in checkpoint_code(config).items():
        (tmp_path / package / file).write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    for entry in auto_map(config).values():
        module, class_name = entry.split(".")
        loaded = getattr(__import__(f"{package}.{module}", fromlist=[class_name]), class_name)
        assert loaded.__module__.startswith(package)
        ours = [base for base in loaded.__mro__ if base.__module__.startswith("tokenmixers")]
        assert not ours and all(not hasattr(builtins, base.__name__) or base is object for base in loaded.__mro__)


@CONFIGS
def test_the_map_names_the_classes_for_the_input(name):
    config = configs()[name]
    entries, code = auto_map(config), checkpoint_code(config)
    heads = {"AutoModelForImageClassification", "AutoBackbone"}
    if config.image_size is None:
        heads = {f"AutoModelFor{task}" for task in ("PreTraining", "MaskedLM", "MultipleChoice", "QuestionAnswering")}
        heads |= {"AutoModelForSequenceClassification", "AutoModelForTokenClassification"}
        if name in ("gmlp-decoder", "synthesizer-seq2seq"):
            heads = {"AutoModelForCausalLM" if config.is_decoder else "AutoModelForSeq2SeqLM"}
    expected = {"AutoModel"} | heads
    assert set(entries) == {"AutoConfig"} | expected
    for entry in entries.values():
        module, class_name = entry.split(".")
        assert f"class {class_name}(" in code[f"{module}.py"]


def test_definitions_keep_their_comments_decorators_and_documentation(tmp_path):
    source = checkpoint_code(tokenmixers.SynthesizerConfig())["modeling_synthesizer.py"]
    tree = ast.parse(source)
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    assert ast.get_docstring(classes["SynthesizerModel"]) in tokenmixers.SynthesizerModel.__doc__.replace(
        "\n    ", "\n"
    )
    assert "# Type -> (activation" in source and "Components whose logits depend on the input." in source
    config = checkpoint_code(tokenmixers.GMLPConfig())["configuration_gmlp.py"]
    assert "@strict_configuration\nclass GMLPConfig" in config
    assert torch.nn.Module in tokenmixers.GMLPModel.__mro__


def definitions(source: str) -> dict[str, str]:
    """Functions and classes of a module without their documentation, by name."""
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            for part in ast.walk(node):
                if isinstance(part, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(part) is not None:
                    part.body = part.body[1:] or [ast.Pass()]
            found[node.name] = ast.dump(node)
    return found


def test_of_definitions_the_sections_of_their_documentation_are_missing_and_nothing_else():
    package = Path(tokenmixers.__file__).parent
    written = set()
    for path in (*package.glob("modeling/**/*.py"), *package.glob("configuration/*.py")):
        written |= definitions(path.read_text(encoding="utf-8")).items()
    for name in ("gmlp", "synthesizer", "gmlp-decoder"):
        for source in checkpoint_code(configs()[name]).values():
            assert definitions(source).items() <= written
            assert "Args:" not in source and "Raises:" not in source
