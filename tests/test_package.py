"""The package as a whole: registration, lazy imports, the wheel."""

import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import tokenmixers
from tokenmixers.configuration.auto_classes import FAMILIES


ROOT = Path(__file__).parents[1]

CHECK_REGISTRATION = """
import tokenmixers
import transformers
from tokenmixers.configuration.auto_classes import FAMILIES
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING

assert FAMILIES
for model_type, family in FAMILIES.items():
    config_class = getattr(tokenmixers, family.config)
    assert type(transformers.AutoConfig.for_model(model_type)) is config_class
    assert TOKENIZER_MAPPING[config_class]
    for auto_class, name in family.models.items():
        registered = getattr(transformers, auto_class)._model_mapping[config_class]
        assert registered is getattr(tokenmixers, name), (auto_class, registered)
        assert registered.config_class is config_class
from transformers.pipelines import PIPELINE_REGISTRY
_, task, _ = PIPELINE_REGISTRY.check_task("extractive-question-answering")
assert task["impl"] is tokenmixers.QuestionAnsweringPipeline
assert task["pt"] == (transformers.AutoModelForQuestionAnswering,)
print("registered")
"""


def run_python(*code: str) -> str:
    """Run code in a process of its own, whose imports start from nothing."""
    finished = subprocess.run([sys.executable, "-c", "\n".join(code)], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.mark.parametrize(  # a process each; the first is the case that needs most care
    "first",
    [
        pytest.param(
            """
            import sys
            import tokenmixers
            import tokenmixers  # twice
            assert not {"torch", "transformers"} & sys.modules.keys()
            assert len([finder for finder in sys.meta_path if type(finder).__module__ == "tokenmixers"]) == 1
            import importlib.util
            for name in ("configuration_auto", "modeling_auto", "tokenization_auto"):
                assert importlib.util.find_spec(f"transformers.models.auto.{name}")
            assert "torch" not in sys.modules
            """,
            id="tokenmixers, then somebody looks for the Auto classes",
        ),
        pytest.param(
            "from transformers import AutoConfig, AutoModel, AutoTokenizer", id="Auto classes", marks=pytest.mark.slow
        ),
        pytest.param("from transformers import Trainer, pipeline", id="Trainer and pipeline", marks=pytest.mark.slow),
        pytest.param("from tokenmixers.modeling.modeling_gmlp import GMLPModel", id="a model", marks=pytest.mark.slow),
        pytest.param(
            "from tokenmixers.modeling.question_answering import Window",
            id="the pipeline's module",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "import tokenmixers; from transformers.modeling_layers import GradientCheckpointingLayer",
            id="Transformers' layers, which import the Auto classes",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            """
            import importlib, sys
            import tokenmixers
            from tokenmixers import GMLPConfig
            assert importlib.reload(tokenmixers).GMLPConfig is GMLPConfig
            del sys.modules["tokenmixers"]
            import tokenmixers
            """,
            id="tokenmixers three times",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_registers_whatever_was_imported_first(first):
    lines = re.sub(r"^ {12}", "", first, flags=re.MULTILINE)
    assert run_python(lines, CHECK_REGISTRATION) == "registered\n"


@pytest.mark.slow
def test_the_configuration_imports_no_model():
    run_python(
        "import sys",
        "from tokenmixers import GMLPConfig",
        "GMLPConfig(num_hidden_layers=2)",
        "assert not [name for name in sys.modules if name.startswith('tokenmixers.modeling')]",
    )


def test_public_names():
    assert len(set(tokenmixers.__all__)) == len(tokenmixers.__all__)
    for family in FAMILIES.values():
        assert {family.config, *family.models.values()} <= set(tokenmixers.__all__)
    assert set(tokenmixers.__all__) <= set(dir(tokenmixers))


@pytest.mark.parametrize("name", [name for name in tokenmixers.__all__ if not name.startswith("__")])
def test_every_public_name_can_be_imported(name):
    value = getattr(tokenmixers, name)
    assert value.__name__ == name
    assert value.__module__.startswith("tokenmixers.")
    assert value.__doc__


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="'tokenmixers' has no attribute 'GMPLModel'"):
        tokenmixers.GMPLModel  # noqa: B018
    with pytest.raises(ImportError, match="GMPLModel"):
        from tokenmixers import GMPLModel  # noqa: F401


def test_the_version_is_that_of_pyproject():
    (version,) = re.findall(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE)
    assert tokenmixers.__version__ == version


# --- the wheel ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel built from a copy of the files under version control, so that nothing lying about gets in."""
    folder = tmp_path_factory.mktemp("wheel")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("the list of the project's files comes from git, and this is no git checkout")
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / "source" / name)
    _pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, folder / "source")
    (path,) = folder.glob("*.whl")
    return path


def _pip(*arguments):
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *map(str, arguments)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout + finished.stderr


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    information = f"tokenmixers-{tokenmixers.__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {"tokenmixers", information}
    assert not [name for name in names if name.startswith("tokenmixers/tests")]
    modules = {str(path.relative_to(ROOT)) for path in ROOT.glob("*/*.py") if path.parent.name != "tests"}
    cards = [path for path in ROOT.glob("model_cards/*/*") if path.name in ("config.json", "README.md")]
    data = {str(path.relative_to(ROOT)) for path in cards}
    data |= {str(path.relative_to(ROOT)) for path in ROOT.glob("run_scripts/recipes/*.yaml")}
    assert {f"tokenmixers/{name}" for name in {"__init__.py", *modules, *data}} <= set(names)


def test_the_installed_wheel_works_without_the_checkout(wheel, tmp_path):
    """In an empty environment that has the dependencies, but not this checkout, however it is installed here."""
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=False)
    python = environment / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    _pip("--python", python, "install", "--no-deps", "--no-index", wheel)
    (package,) = environment.glob("**/site-packages/tokenmixers")
    # A folder named in a .pth file is searched, but .pth files inside it, such as an editable install's, are not read.
    folders = [folder for folder in sys.path if Path(folder).name in ("site-packages", "dist-packages")]
    (package.parent / "dependencies.pth").write_text("\n".join(folders))
    code = f"""
import tokenmixers
assert tokenmixers.__file__ == {str(package / "__init__.py")!r}, tokenmixers.__file__
import sys
for name in tokenmixers.__all__:
    value = getattr(tokenmixers, name)
    if name != "__version__":
        assert sys.modules[value.__module__].__file__.startswith({str(package)!r}), (name, value)
"""
    finished = subprocess.run(
        [python, "-I", "-c", code + CHECK_REGISTRATION], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == "registered\n"
