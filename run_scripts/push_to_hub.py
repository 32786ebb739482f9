"""Push a checkpoint, or a shipped configuration with its card, to the Hub.

python -m tokenmixers.run_scripts.push_to_hub --source my-checkpoint --repo_id me/my-model --dry_run
"""

import json
import re
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError
from huggingface_hub.utils import filter_repo_objects
from transformers import AutoConfig, PreTrainedConfig

from ..configuration.auto_classes import FAMILIES
from ..modeling.mixins.checkpoint_code import auto_map, checkpoint_code
from .base.arguments import parse_arguments
from .base.errors import UserError
from .base.hub_errors import check_card, check_repo_id, check_token, report_hub_errors
from .base.shipped_files import MODEL_CARDS


# Files beside a model that are not pushed: pickles, optimizer states, checkpoints, logs.
NOT_PUSHED = ["*.pt", "*.pth", "*.bin", "*.pkl", "checkpoint-*", "checkpoint-*/*", "runs/*", "__pycache__/*"]
NOT_PUSHED += [".*", "*/.*"]  # hidden files at any depth: `*` matches slashes too


@dataclass
class PushArguments:
    """What to push, and where to."""

    source: str = field(
        metadata={"help": "Folder of a checkpoint, or the name of a shipped model card such as gmlp-base."}
    )
    repo_id: str = field(metadata={"help": "Name on the Hub, <user or organisation>/<name>."})
    update: bool = field(default=False, metadata={"help": "Add a commit to a repository that exists already."})
    private: bool = field(default=False, metadata={"help": "Make a new repository private."})
    branch: str | None = field(default=None, metadata={"help": "Branch to commit to, made if there is none."})
    create_pr: bool = field(default=False, metadata={"help": "Open a pull request instead of committing."})
    commit_message: str = field(default="Upload model", metadata={"help": "First line of the commit."})
    token: str | None = field(default=None, metadata={"help": "Hub token; the stored login by default."})
    dry_run: bool = field(default=False, metadata={"help": "List what would be sent, and send nothing."})


def load_config(folder: Path, source: str) -> PreTrainedConfig:
    """The configuration of a checkpoint of this package.

    Args:
        folder: Folder of the checkpoint.
        source: The user's name of it, for messages.

    Raises:
        UserError: If it cannot be read, or the model is not of this package.
    """
    try:
        fields = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        model_type = fields.get("model_type") if isinstance(fields, dict) else None
        if model_type not in FAMILIES:
            raise UserError(
                f"{source!r} is a model of type {model_type!r}: this script pushes {', '.join(FAMILIES)}. Use "
                "`model.push_to_hub` for others."
            )
        return AutoConfig.from_pretrained(folder)
    except (OSError, ValueError, TypeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"the config.json of {source!r} cannot be read: {reason}") from error


def collect_files(source: str, repo_id: str) -> dict[str, Path | bytes]:
    """The files to push: those of the folder, and the modules that load the model.

    Args:
        source: Folder of a checkpoint, or name of a shipped model card.
        repo_id: Name on the Hub, which replaces the folder in the card's code.

    Returns:
        Name in the repository -> the file, or its content if it differs from the file.

    Raises:
        UserError: If the source is no checkpoint of this package.
    """
    folder = Path(source) if Path(source).is_dir() else MODEL_CARDS / source
    if not (folder / "config.json").is_file():
        shipped = ", ".join(sorted(path.parent.name for path in MODEL_CARDS.glob("*/config.json")))
        raise UserError(f"{source!r} is no folder with a config.json. Shipped model cards: {shipped}.")
    config = load_config(folder, source)
    names = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*")) if path.is_file()]
    files: dict[str, Path | bytes] = {
        name: folder / name for name in filter_repo_objects(names, ignore_patterns=NOT_PUSHED)
    }
    pickled = [name for name in names if re.fullmatch(r"(pytorch|adapter)_model.*\.bin", name)]
    if pickled and not any(name.endswith(".safetensors") for name in files):
        raise UserError(
            f"{source!r} has its weights in {pickled[0]} only, which is a pickle, and those are not pushed: load the "
            "model and save it again, which writes safetensors."
        )
    config.auto_map = auto_map(config)
    with tempfile.TemporaryDirectory() as temporary:
        config.save_pretrained(temporary)
        files["config.json"] = (Path(temporary) / "config.json").read_bytes()
    files |= {name: text.encode() for name, text in checkpoint_code(config).items()}
    if "README.md" in files:  # its code names the model by its folder

        def rename(match: re.Match) -> str:
            same = match[1] == f"model_cards/{source}" or Path(match[1]).resolve() == folder.resolve()
            return f'"{repo_id}"' if same else match[0]

        card = (folder / "README.md").read_text(encoding="utf-8")
        files["README.md"] = re.sub(r'"([^"\n]+)"', rename, card).encode()
    return dict(sorted(files.items()))


def check_private(hub: HfApi, repo_id: str) -> None:
    """Check that `--private --update` does not push to a public repository.

    Raises:
        UserError: If the repository exists and is public.
    """
    try:
        private = hub.repo_info(repo_id).private
    except RepositoryNotFoundError:
        return
    if not private:
        raise UserError(
            f"{repo_id!r} is public, and --private makes new repositories private only: change it in its settings on "
            "the Hub, or leave --private out. Nothing was sent."
        )


def push(arguments: PushArguments, files: dict[str, Path | bytes]) -> str:
    """Push files in one commit, and return its address.

    Raises:
        UserError: If the Hub refuses the push.
    """
    hub = HfApi(token=check_token(arguments.token, arguments.repo_id))
    repo = {"repo_id": arguments.repo_id}
    if arguments.private and arguments.update:
        check_private(hub, arguments.repo_id)
    if "README.md" in files:  # before a repository is created, which would stay empty
        check_card(files["README.md"].decode())
    if not (arguments.create_pr and arguments.update):
        try:
            # The Hub adds the user to a name without one.
            url = hub.create_repo(**repo, private=arguments.private or None, exist_ok=arguments.update)
        except HfHubHTTPError as error:
            if error.response.status_code != 409:
                raise
            raise UserError(
                f"{arguments.repo_id!r} exists: give --update to add a commit to it, or another name."
            ) from error
        repo = {"repo_id": url.repo_id}
    if arguments.branch is not None:
        hub.create_branch(**repo, branch=arguments.branch, exist_ok=True)
    commit = hub.create_commit(
        **repo,
        operations=[CommitOperationAdd(name, content) for name, content in files.items()],
        revision=arguments.branch,
        create_pr=arguments.create_pr,
        commit_message=arguments.commit_message,
    )
    return commit.pr_url or commit.commit_url


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    (arguments,) = parse_arguments((PushArguments,), argv)
    check_repo_id(arguments.repo_id)
    files = collect_files(arguments.source, arguments.repo_id)
    for name, content in files.items():
        size = content.stat().st_size if isinstance(content, Path) else len(content)
        print(f"{size:>15,} bytes  {name}")
    if arguments.dry_run:
        print(f"dry run: {len(files)} files would go to {arguments.repo_id}; nothing was sent")
        return
    again = "run the same command with --update to try again"
    with report_hub_errors(arguments.repo_id, "Nothing changed in the local folder.", again):
        print(f"pushed: {push(arguments, files)}")


if __name__ == "__main__":
    main()
