"""Push a checkpoint, a shipped configuration, or a page that searches texts, to the Hub.

tokenmixers push_to_hub --source my-checkpoint --repo_id me/my-model --dry_run
tokenmixers push_to_hub --source my-export --repo_id me/my-search --space static --space_texts texts.txt --dry_run
"""

import json
import re
import tempfile
import textwrap
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PureWindowsPath
from typing import Literal

import transformers
import yaml
from huggingface_hub import CommitOperationAdd, HfApi, ModelCard
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, PreTrainedConfig

from ..configuration.auto_classes import FAMILIES
from ..configuration.checkpoint_code import auto_map, checkpoint_code
from ..configuration.shipped_models import shipped_configs
from .base.arguments import parse_arguments
from .base.errors import UserError
from .base.hub_errors import check_card, check_repo_id, check_token, report_hub_errors
from .base.shipped_files import MODEL_CARDS
from .base.trained_model import check_folder, check_modules, load_trained, load_trained_tokenizer
from .demos.static_space import licence_of, static_space_files


# What stays behind, by the name of a file or of a folder that it is in; capital letters count as small ones.
NOT_PUSHED = {
    "hidden": [".*"],
    "a key or token": [
        *("id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*.pem", "*.key", "*.ppk", "*.p12", "*.pfx", "*.jks"),
        *("*.env", "*.token", "token", "token.*", "*_token", "*_token.txt", "*_netrc", "*.gpg", "*.kdbx"),
        *("credentials*", "secret", "secrets", "secret.*", "secrets.*", "*service_account*.json"),
    ],
    "state of training": [
        *("checkpoint-*", "runs", "__pycache__", "optimizer*", "scheduler.*", "rng_state*", "scaler.*"),
        *("global_step*", "pytorch_model_fsdp*", "*.distcp", "training_args.bin", "_*"),
    ],
    "predictions": ["*predictions_*"],
    "a log": [
        *("*.log", "*.log.*", "logs", "nohup.out", "events.out.tfevents*", "wandb", "mlruns"),
    ],
    "no safetensors": [
        *("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack", "*.pkl", "*.pickle", "*.joblib", "*.ot"),
        *("*.npz", "*.npy", "*.pdparams", "*.gguf", "*.tflite", "*.pb", "*.pkl.*"),
    ],
}

#: Files that a model is made of, and those that describe it; what is pushed beside them is marked.
OF_MODEL = (
    *("*.safetensors", "*.safetensors.index.json", "*.onnx", "*.onnx_data", "*.onnx.data", "openvino_*"),
    *("config.json", "*_config.json", "config_*.json", "modules.json", "readme.md", "license*", "notice*"),
    *("tokenizer.json", "vocab.*", "merges.txt", "special_tokens_map.json", "added_tokens.json", "*.model"),
    *("chat_template.*", "all_results.json", "*_results.json", "trainer_state.json", "history.png"),
)

#: Weights of OpenVINO, which are pushed though their names end as those of PyTorch.
PUSHED = "openvino_model*.bin"

# Names that Transformers and PEFT give, or gave, to weights.
OTHER_WEIGHTS = r"(pytorch|adapter)_model.*\.bin|model.*\.pth?|tf_model.*\.h5|flax_model.*\.msgpack|.*\.safetensors"

CODE_BLOCK = r"(?ms)^```.*?^```"
#: The name of a model that code loads.
LOADED = r"""(?P<call>\bmodel\s*=\s*|(?:from_pretrained|SentenceTransformer)\(\s*)(["'])(?P<name>[^"'\n]+)\2"""


@dataclass
class PushArguments:
    """What to push, and where to."""

    source: str = field(
        metadata={"help": "Folder of a checkpoint, or the name of a shipped configuration, e.g. gmlp-base."}
    )
    repo_id: str = field(metadata={"help": "Name on the Hub, <user or organisation>/<name>."})
    space: Literal["static"] | None = field(
        default=None,
        metadata={
            "help": "Push a Space of this name instead of the model. static: a page that searches --space_texts in "
            "the browser; --source is an exported sentence transformer."
        },
    )
    space_texts: str | None = field(
        default=None,
        metadata={"help": "File with the texts that a static Space searches: one on each line, or a column text."},
    )
    update: bool = field(default=False, metadata={"help": "Add a commit to a repository that exists already."})
    private: bool = field(default=False, metadata={"help": "Make a new repository private."})
    token: str | None = field(default=None, metadata={"help": "Hub token; the stored login by default."})
    dry_run: bool = field(default=False, metadata={"help": "List what would be sent, and send nothing."})

    def __post_init__(self):
        if (self.space_texts is None) is (self.space == "static"):
            raise UserError("--space static and --space_texts go together: give both, or neither.")


def load_config(folder: Path, source: str) -> PreTrainedConfig:
    """The configuration of a checkpoint of this package."""
    try:
        fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        model_type = fields.get("model_type") if isinstance(fields, dict) else None
        if model_type not in FAMILIES:
            raise UserError(
                f"{source!r} is a model of type {model_type!r}: this command pushes {', '.join(FAMILIES)}. Use "
                "`model.push_to_hub` for others."
            )
        return AutoConfig.from_pretrained(folder)
    except (OSError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"the config.json of {source!r} cannot be read: {reason}") from error


def select_files(folder: Path) -> tuple[list[str], dict[str, str]]:
    """Which files of a folder are pushed.

    Returns:
        Names of the files to push, and what stays behind: name of a file, or of a folder with "/" at its end -> why.
    """
    names, left = [], {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        parts = [Path(*name.parts[: count + 1]) for count in range(len(name.parts))]
        reasons = {part: reason for part in parts if (reason := _reason_to_leave(part.name)) is not None}
        for part in parts:
            if (folder / part).is_symlink() and not (folder / part).resolve().is_relative_to(folder.resolve()):
                reasons[part] = "a link out of the folder"
        if reasons:
            part = next(iter(reasons))
            left[part.as_posix() + ("/" if (folder / part).is_dir() else "")] = reasons[part]
        elif path.is_file():
            names.append(name.as_posix())
    return names, left


def _reason_to_leave(name: str) -> str | None:
    if fnmatchcase(name.lower(), PUSHED):
        return None
    for reason, patterns in NOT_PUSHED.items():
        if any(fnmatchcase(name.lower(), pattern) for pattern in patterns):
            return reason
    return None


def check_weights(folder: Path, names: list[str], left: dict[str, str]) -> None:
    """Check that weights can be read to their end, without reading them."""
    tensors = {name: _tensor_names(folder / name) for name in names if name.endswith(".safetensors")}
    for name in names:
        if name.endswith(".safetensors.index.json"):
            _check_parts(folder / name, tensors, Path(name).parent)
    if tensors:
        return
    weights = [name for name in left if re.fullmatch(OTHER_WEIGHTS, name)]
    if weights:
        raise UserError(
            f"{str(folder)!r} has its weights in {weights[0]} only, which is {left[weights[0]]} and stays behind: "
            "load the model and save it again, which writes safetensors."
        )


def check_whole(folder: Path, config: PreTrainedConfig, names: list[str]) -> None:
    """Check that what is pushed can be loaded: files of modules, all weights, and a vocabulary, as far as it has them.

    Args:
        folder: The folder.
        config: Its configuration.
        names: The files to push.
    """
    check_modules(folder, names.__contains__)
    if any(re.fullmatch(r"model.*\.safetensors", name) for name in names):
        classes = FAMILIES[config.model_type].models
        (architecture, *_) = config.architectures or [""]
        auto_class = next((auto for auto, name in classes.items() if name == architecture), "AutoModel")
        load_trained(getattr(transformers, auto_class), str(folder))
    if {"modules.json", "tokenizer_config.json"} & {*names}:
        load_trained_tokenizer(str(folder))


def _tensor_names(path: Path) -> set[str]:
    try:
        with safe_open(path, framework="np") as file:
            return set(file.keys())
    except (SafetensorError, OSError) as error:
        raise UserError(
            f"the weights {str(path)!r} cannot be read to their end ({error}): the file is cut off or damaged. Save "
            "or download it again."
        ) from error


def _check_parts(index: Path, tensors: dict[str, set[str]], folder: Path) -> None:
    try:
        parts = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        missing = [name for name, part in parts.items() if name not in tensors.get((folder / part).as_posix(), ())]
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"the index {str(index)!r} cannot be read ({error}): save the model again.") from error
    if missing:
        raise UserError(
            f"{parts[missing[0]]}, which {str(index)!r} names, is missing or has no tensor {missing[0]!r}: save the "
            "model again, or copy all its parts."
        )


def read_card(path: Path) -> str:
    """The text of a model card."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{str(path)!r} is not in UTF-8, as the Hub expects ({error}): save it in UTF-8.") from error


def source_folder(source: str) -> Path:
    """The folder of a checkpoint, or of a shipped configuration."""
    folder = Path(source) if Path(source).is_dir() else MODEL_CARDS / source
    if folder.is_dir():
        check_folder(str(folder))
    if not (folder / "config.json").is_file():
        shipped = ", ".join(shipped_configs())
        raise UserError(f"{source!r} is not a folder with a config.json. Shipped configurations: {shipped}.")
    return folder


def name_repository(card: str, folder: Path, source: str, repo_id: str) -> str:
    """A card whose code names the repository instead of the folder that the model was saved in.

    Args:
        card: The card. In its code, what is loaded as a model is this one if the last part of its name is that of the
            folder or the card's title, and the card does not call it the base model: the folder may have been moved.
        folder: The folder that is pushed.
        source: The user's name of it.
        repo_id: Name on the Hub.
    """
    text, base_models = card, list[str]()
    with suppress(ValueError, yaml.YAMLError):  # the Hub says what is wrong with the metadata
        parsed = ModelCard(card)
        text, base = parsed.text, parsed.data.base_model
        base_models = [base] if isinstance(base, str) else base or []
    title = re.search(r"^# (.+)$", text, flags=re.MULTILINE)
    # As a path of Windows, which may have slashes too. "." has no name.
    own = {"", folder.resolve().name, PureWindowsPath(title[1].strip()).name if title else ""}

    def rename(match: re.Match) -> str:
        same = match[1] == f"model_cards/{source}" or Path(match[1]).resolve() == folder.resolve()
        return f'"{repo_id}"' if same else match[0]

    def rename_loaded(match: re.Match) -> str:
        same = PureWindowsPath(match["name"]).name in own and match["name"] not in base_models
        return f'{match["call"]}"{repo_id}"' if same else match[0]

    card = re.sub(r'"([^"\n]+)"', rename, card)
    return re.sub(CODE_BLOCK, lambda block: re.sub(LOADED, rename_loaded, block[0]), card)


def collect_files(source: str, repo_id: str) -> dict[str, Path | bytes]:
    """The files to push by their names: those of the folder, some changed, and the modules that load the model."""
    folder = source_folder(source)
    names, left = select_files(folder)
    if "config.json" in left:
        raise UserError(f"the config.json of {source!r} is {left['config.json']}: copy it into the folder.")
    config = load_config(folder, source)
    check_weights(folder, names, left)
    check_whole(folder, config, names)
    files: dict[str, Path | bytes] = {name: folder / name for name in names}
    config.auto_map = auto_map(config)
    with tempfile.TemporaryDirectory() as temporary:
        config.save_pretrained(temporary)
        files["config.json"] = (Path(temporary) / "config.json").read_bytes()
    files |= {name: text.encode() for name, text in checkpoint_code(config).items()}
    if "README.md" in files:  # its code names the model by its folder
        files["README.md"] = name_repository(read_card(folder / "README.md"), folder, source, repo_id).encode()
    return dict(sorted(files.items()))


def collect_space(arguments: PushArguments) -> dict[str, Path | bytes]:
    """The files of a Space: name -> content."""
    folder = source_folder(arguments.source)
    card = read_card(folder / "README.md") if (folder / "README.md").is_file() else ""
    licence = licence_of(card, arguments.source)
    return static_space_files(folder, arguments.source, arguments.repo_id, arguments.space_texts or "", licence)


def check_private(hub: HfApi, repo: dict[str, str]) -> None:
    """Check that `--private --update` does not push to a public repository."""
    try:
        private = hub.repo_info(**repo).private
    except RepositoryNotFoundError:
        return
    if not private:
        raise UserError(
            f"{repo['repo_id']!r} is public, and --private makes new repositories private only: change it in its "
            "settings on the Hub, or leave --private out. Nothing was sent."
        )


def push(arguments: PushArguments, files: dict[str, Path | bytes]) -> str:
    """Push files in one commit, and return its address."""
    hub = HfApi(token=check_token(arguments.token, arguments.repo_id))
    repo = {"repo_id": arguments.repo_id, "repo_type": "space" if arguments.space else "model"}
    if arguments.private and arguments.update:
        check_private(hub, repo)
    if "README.md" in files:  # before a repository is created, which would stay empty
        check_card(files["README.md"].decode(), repo["repo_type"])
    options = {"space_sdk": arguments.space} if arguments.space else {}
    try:
        # The Hub adds the user to a name without one.
        url = hub.create_repo(**repo, **options, private=arguments.private or None, exist_ok=arguments.update)
    except HfHubHTTPError as error:
        if error.response.status_code != 409:
            raise
        raise UserError(
            f"{arguments.repo_id!r} exists: give --update to add a commit to it, or another name."
        ) from error
    commit = hub.create_commit(
        **repo | {"repo_id": url.repo_id},
        operations=[CommitOperationAdd(name, content) for name, content in files.items()],
        commit_message="Upload page" if arguments.space else "Upload model",
    )
    return commit.commit_url


def list_files(arguments: PushArguments, files: dict[str, Path | bytes]) -> None:
    """Print what is pushed, of a Space with its text, and what of the checkpoint stays behind.

    What is not a model's is marked, since nobody may have looked at it before it is public.
    """
    for name, content in files.items():
        size = content.stat().st_size if isinstance(content, Path) else len(content)
        known = isinstance(content, bytes) or any(fnmatchcase(Path(name).name.lower(), each) for each in OF_MODEL)
        known |= arguments.space is not None
        print(f"{size:>15,} bytes  {name}{'' if known else '  <- no file of a model: may others read it?'}")
        if arguments.space and isinstance(content, bytes):
            print(textwrap.indent(content.decode(), "    "))
    if arguments.space:
        return
    for name, reason in select_files(source_folder(arguments.source))[1].items():
        print(f"{'stays behind':>21}  {name} ({reason})")
    if not any(name.endswith(".safetensors") for name in files):
        print("there are no weights: the repository gets the configuration and the files next to it")


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    (arguments,) = parse_arguments((PushArguments,), argv)
    check_repo_id(arguments.repo_id)
    files = collect_space(arguments) if arguments.space else collect_files(arguments.source, arguments.repo_id)
    list_files(arguments, files)
    if arguments.dry_run:
        kind = "the Space " if arguments.space else ""
        print(f"dry run: {len(files)} files would go to {kind}{arguments.repo_id}; nothing was sent")
        return
    again = "run the same command with --update to try again"
    with report_hub_errors(arguments.repo_id, "Nothing changed in the local folder.", again):
        print(f"pushed: {push(arguments, files)}")


if __name__ == "__main__":
    main()
