"""The package as a whole: registration, lazy imports, the wheel."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
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


#: From here on packages that an installation without extras does not bring cannot be found.
HIDE_EXTRAS = """
import importlib.util, sys, tomllib
from importlib.machinery import PathFinder
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

wanted = tomllib.loads(Path(sys.argv[1]).read_text())["project"]["dependencies"]
known, found = {"tokenmixers"}, {*map(Requirement, wanted)}
while found:
    requirement = found.pop()
    known.add(canonicalize_name(requirement.name))
    try:
        needed = [Requirement(line) for line in requires(requirement.name) or ()]
    except PackageNotFoundError:
        continue
    for one in needed:
        chosen = [{"extra": extra} for extra in ("", *requirement.extras)]
        if canonicalize_name(one.name) not in known and (not one.marker or any(map(one.marker.evaluate, chosen))):
            found.add(one)
modules = packages_distributions()

class Installed(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        owners = {*map(canonicalize_name, modules.get(name, ()))}
        return super().find_spec(name, path, target) if not owners or owners & known else None

sys.meta_path[:] = [Installed if finder is PathFinder else finder for finder in sys.meta_path]
"""
IMPORT_TWICE = """
import tokenmixers
import tokenmixers
assert not {"torch", "transformers"} & sys.modules.keys()
assert len([finder for finder in sys.meta_path if type(finder).__module__ == "tokenmixers"]) == 1
for name in ("configuration_auto", "modeling_auto", "tokenization_auto"):
    assert importlib.util.find_spec(f"transformers.models.auto.{name}")
assert "torch" not in sys.modules
"""
IMPORT_COMMANDS = """
import pkgutil
import tokenmixers.run_scripts
# Most experiments do without the packages that read data: a machine that is lent for its GPU may not have them.
sys.modules |= dict.fromkeys(("datasets", "evaluate"))
import tokenmixers.run_scripts.benchmark
del sys.modules["datasets"], sys.modules["evaluate"]
for module in pkgutil.iter_modules(tokenmixers.run_scripts.__path__):
    if module.name != "__main__":
        print(importlib.import_module(f"tokenmixers.run_scripts.{module.name}").__name__)
"""


def run_python(*code: str) -> str:
    """Run code in a process of its own, whose imports start from nothing."""
    command = [sys.executable, "-c", "\n".join(code), str(ROOT / "pyproject.toml")]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_registers_and_imports_commands_with_nothing_but_the_dependencies():
    """The case that needs most care: somebody looks for the Auto classes after `tokenmixers` was imported."""
    shown = run_python(HIDE_EXTRAS, IMPORT_TWICE, CHECK_REGISTRATION, IMPORT_COMMANDS).split()
    assert shown[0] == "registered" and "tokenmixers.run_scripts.run_glue" in shown


IMPORT_THRICE = """
import importlib, sys
import tokenmixers
from tokenmixers import GMLPConfig
assert importlib.reload(tokenmixers).GMLPConfig is GMLPConfig
del sys.modules["tokenmixers"]
import tokenmixers
"""


@pytest.mark.slow  # a process each
@pytest.mark.parametrize(
    "first",
    [
        "from transformers import AutoConfig, AutoModel, AutoTokenizer",
        "from transformers import Trainer, pipeline",
        "from tokenmixers.modeling.modeling_gmlp import GMLPModel",
        "from tokenmixers.modeling.pipelines.question_answering import Window",
        "import tokenmixers; from transformers.modeling_layers import GradientCheckpointingLayer",
        IMPORT_THRICE,
    ],
)
def test_registers_whatever_was_imported_first(first):
    assert run_python(first, CHECK_REGISTRATION) == "registered\n"


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


# --- what is published ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def listed():
    """Names of the files under version control, and of new ones that git does not ignore."""
    names = {}
    for kind in ("--cached", "--others"):
        command = ["git", "ls-files", "-z", kind, "--exclude-standard"]
        finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if finished.returncode:
            pytest.skip("the list of the project's files comes from git, and this is no git checkout")
        names[kind] = {name for name in finished.stdout.split("\0") if name and (ROOT / name).is_file()}
    return names["--cached"], names["--others"]


BUILD = """
import os, shutil, sys
from setuptools import build_meta
folder = sys.argv[1]
sdist = build_meta.build_sdist(folder)
os.chdir(folder)
shutil.unpack_archive(sdist)
os.chdir(sdist.removesuffix(".tar.gz"))
build_meta.build_wheel(folder)
"""


@pytest.fixture(scope="module")
def distributions(listed, tmp_path_factory):
    """Source distribution, and the wheel built from it.

    They are made from a copy of the listed files, so that nothing else lying about gets in. Weights are left empty:
    packing a hundred megabytes takes longer than all else.
    """
    folder = tmp_path_factory.mktemp("distributions")
    for name in set.union(*listed):
        (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.devnull if name.endswith(".safetensors") else ROOT / name, folder / "source" / name)
    _run(sys.executable, "-c", BUILD, folder, cwd=folder / "source")
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


@pytest.fixture(scope="module")
def source_names(distributions):
    """Names of the files in the source distribution, but for what the build writes into it."""
    with tarfile.open(distributions[0]) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    return {name for name in names if not name.startswith("tokenmixers.egg-info/")} - {"PKG-INFO", "setup.cfg"}


@pytest.fixture(scope="module")
def installed(distributions, tmp_path_factory):
    """The interpreter of an environment with the wheel and the dependencies, but not this checkout in any form."""
    environment = tmp_path_factory.mktemp("installed") / "environment"
    venv.create(environment, with_pip=False)
    python = environment / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python)
    _run(*pip, "install", "--no-deps", "--no-index", distributions[1])
    (package,) = environment.glob("**/site-packages/tokenmixers")
    # A folder named in a .pth file is searched, but .pth files inside it, such as an editable install's, are not read.
    folders = [folder for folder in sys.path if Path(folder).name in ("site-packages", "dist-packages")]
    (package.parent / "dependencies.pth").write_text("\n".join(folders))
    return python


def _run(*command, cwd=None):
    finished = subprocess.run([*map(str, command)], cwd=cwd, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, (finished.stdout + finished.stderr)[-3000:]
    return finished.stdout


def test_the_source_distribution_holds_what_a_clone_holds(source_names, listed):
    tracked, new = listed
    only_for_git = {".gitignore"}
    missing = tracked - only_for_git - source_names
    assert not missing, f"MANIFEST.in does not list {', '.join(sorted(missing))}"
    assert source_names <= tracked | new


def test_the_wheel_holds_the_package_and_nothing_else(distributions, source_names):
    names = set(zipfile.ZipFile(distributions[1]).namelist())
    information = f"tokenmixers-{tokenmixers.__version__}.dist-info"
    names = {name.removeprefix("tokenmixers/") for name in names if not name.startswith(f"{information}/")}
    modules = {name for name in source_names if name.endswith(".py") and not name.startswith("tests/")}
    modules -= {name for name in modules if name.startswith("model_cards/") and name.count("/") > 1}
    folders = {name.rpartition("/")[0] for name in modules - names}
    assert not folders, f"`packages` in pyproject.toml lacks the folders {', '.join(sorted(folders))}"
    cards = [name.rpartition("/")[0] for name in source_names if re.fullmatch(r"model_cards/[^/]+/config\.json", name)]
    data = {f"{card}/{file}" for card in cards for file in ("config.json", "README.md")}
    of_scripts = r"run_scripts/(recipes|accelerate|demos|studies|training)/.+\.(yaml|md|html)"
    data |= {name for name in source_names if re.fullmatch(of_scripts, name)}
    folders = [f"model_cards/{name}/" for name in tokenmixers.shipped_models()]
    data |= {name for name in source_names if name.startswith(tuple(folders))}
    assert names == modules | data | {"py.typed"}


@pytest.mark.slow
def test_the_installed_wheel_works_without_the_checkout(installed, tmp_path):
    code = f"""
import tokenmixers
package = tokenmixers.__file__.removesuffix("__init__.py")
assert package.startswith({str(installed.parents[1])!r}), package
import sys
for name in tokenmixers.__all__:
    value = getattr(tokenmixers, name)
    if name != "__version__":
        assert sys.modules[value.__module__].__file__.startswith(package), (name, value)
"""
    assert _run(installed, "-I", "-c", code + CHECK_REGISTRATION, cwd=tmp_path) == "registered\n"


@pytest.mark.slow
def test_the_installed_command_lists_and_runs_commands(installed, tmp_path):
    command = installed.with_name("tokenmixers")
    assert _run(command, "--version", cwd=tmp_path) == f"tokenmixers {tokenmixers.__version__}\n"
    assert "  run_mlm  " in _run(command, "--help", cwd=tmp_path)
    _run(command, "make_data", "number_names", "--output_dir", "numbers", cwd=tmp_path)
    assert len((tmp_path / "numbers" / "train.words.txt").read_text().splitlines()) == 20_000


@pytest.mark.slow
def test_type_checkers_know_every_public_name(installed, tmp_path):
    """In the code of somebody who has the package installed; without what it is built on, which takes a minute."""
    pytest.importorskip("mypy")
    names = tokenmixers.__all__
    lines = ["import tokenmixers", *(f"reveal_type(tokenmixers.{name})" for name in names), "tokenmixers.GMPLModel"]
    (tmp_path / "code.py").write_text("\n".join(lines))
    others = ",".join(f"{name}.*" for name in ("huggingface_hub", "numpy", "tokenizers", "torch", "transformers"))
    (tmp_path / "mypy.ini").write_text(f"[mypy]\n[mypy-{others}]\nfollow_imports = skip\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", installed, "code.py"]
    finished = subprocess.run([*map(str, command)], cwd=tmp_path, capture_output=True, text=True, check=False)
    *revealed, unknown, _ = finished.stdout.splitlines()
    assert len(revealed) == len(names), finished.stdout + finished.stderr
    for name, line in zip(names, revealed, strict=True):
        kind = (
            rf"def \(.+\) -> tokenmixers\.\S+\.{name}" if name[0].isupper() else r"str|def \((texts: .+|name: |\)).*"
        )
        assert re.search(f'Revealed type is "({kind})"$', line), line
    assert 'Module has no attribute "GMPLModel"' in unknown


def test_only_its_own_target_changes_the_environment_of_the_quickstart_and_the_tests():
    if shutil.which("make") is None:
        pytest.skip("make tells the commands of its targets")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = re.findall(r"^([\w-]+):", makefile, flags=re.MULTILINE)
    assert {"quickstart", "test", "test-extras", "test-transformers", "bench"} <= {*targets}
    environments = (".venv/.installed", ".venv/.tested")
    old = [f"--old-file={environment}" for environment in environments]
    told = _run("make", "--dry-run", "--always-make", *old, *targets, cwd=ROOT)
    pips = [line.split(" -m pip install ") for line in told.splitlines() if " -m pip install " in line]
    assert len(pips) >= 8
    assert [options for python, options in pips if python == ".venv/bin/python" and "--target " not in options] == []
    for extras, environment in zip(("digits,plot", "test"), environments, strict=True):
        told = _run("make", "--dry-run", "--always-make", environment, cwd=ROOT)
        assert re.search(rf"\.venv/bin/python -m pip install .* --editable '\.\[{extras}\]'", told)
    (timm,) = [options for _, options in pips if re.search(r"\btimm\b", options)]
    assert "--no-deps" in timm  # with its torchvision, which may not fit, Transformers cannot be imported


@pytest.mark.slow
def test_the_quickstart_runs_from_the_installed_wheel(installed, tmp_path):
    """Its commands, and those it names to try next, but for the number of training steps."""
    if shutil.which("make") is None:
        pytest.skip("make tells the commands of the quickstart")
    told = _run("make", "--dry-run", "quickstart", cwd=ROOT).replace("\\\n", "")
    told = re.sub(r"^echo ' *(.+)'$", r"\1", told, flags=re.MULTILINE)
    steps = re.findall(r"( -m tokenmixers\.run_scripts\.|bin/tokenmixers )(.+)", told)
    assert len(steps) >= 8 and {*dict(steps)} == {" -m tokenmixers.run_scripts.", "bin/tokenmixers "}
    shown = {}
    for start, step in steps:
        module, *arguments = shlex.split(step)
        if module.startswith("run_"):
            arguments += ["--max_steps", "2"]
        entry_point = [installed.with_name("tokenmixers"), module]
        command = [installed, "-I", "-m", f"tokenmixers.run_scripts.{module}"] if start[0] == " " else entry_point
        shown[module] = _run(*command, *arguments, cwd=tmp_path)
    assert "modeling_gmlp.py" in shown["push_to_hub"] and "model.safetensors" in shown["push_to_hub"]
    assert (tmp_path / "outputs/quickstart/gmlp/README.md").is_file()
