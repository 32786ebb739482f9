"""Send a checkpoint, or a shipped configuration with its card, to the Hugging Face Hub.

python -m tokenmixers.run_scripts.push_to_hub --source my-checkpoint --repo_id me/my-model --dry_run
"""

import re
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from huggingface_hub.utils import filter_repo_objects
from transformers import AutoConfig

from ..configuration.auto_classes import FAMILIES
from ..modeling.self_contained import auto_map, flat_modules
from .arguments import MODEL_CARDS, UserError, parse_arguments


try:
    from huggingface_hub.utils import httpx
except ImportError:  # before huggingface_hub 2
    import httpx

# What training leaves beside a model: pickles, optimizer states and checkpoints are nobody else's business.
NOT_PUSHED = ["*.pt", "*.pth", "*.bin", "*.pkl", "checkpoint-*", "checkpoint-*/*", ".*", ".*/*", "__pycache__/*"]


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


def collect_files(source: str, repo_id: str, target: Path) -> list[Path]:
    """Copy what is to be pushed into a folder, and complete it with the modules that load the model.

    Args:
        source: Folder of a checkpoint, or name of a shipped model card.
        repo_id: Name on the Hub, which takes the place of the folder in the card's code.
        target: An empty folder.

    Returns:
        Paths relative to `target`.

    Raises:
        UserError: If the source is no checkpoint of this package.
    """
    folder = Path(source) if Path(source).is_dir() else MODEL_CARDS / source
    if not (folder / "config.json").is_file():
        shipped = ", ".join(sorted(path.parent.name for path in MODEL_CARDS.glob("*/config.json")))
        raise UserError(f"{source!r} is no folder with a config.json. Shipped model cards: {shipped}.")
    config = AutoConfig.from_pretrained(folder)
    if config.model_type not in FAMILIES:
        raise UserError(
            f"{source!r} is a model of type {config.model_type!r}: this script pushes {', '.join(FAMILIES)}. Use "
            "`model.push_to_hub` for others."
        )
    names = [str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file()]
    for name in filter_repo_objects(names, ignore_patterns=NOT_PUSHED):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / name, target / name)
    config.auto_map = auto_map(config.model_type)
    config.save_pretrained(target)
    for name, text in flat_modules(config.model_type).items():
        (target / name).write_text(text, encoding="utf-8")
    card = target / "README.md"
    if card.is_file():  # which names the model by its folder so far

        def rename(match: re.Match) -> str:
            same = match[1] == f"model_cards/{source}" or Path(match[1]).resolve() == folder.resolve()
            return f'"{repo_id}"' if same else match[0]

        card.write_text(re.sub(r'"([^"\n]+)"', rename, card.read_text(encoding="utf-8")), encoding="utf-8")
    return sorted(path.relative_to(target) for path in target.rglob("*") if path.is_file())


def _explain(error: Exception, arguments: PushArguments) -> str:
    """What went wrong between here and the Hub, and what to do."""
    untouched = "Nothing changed in the local folder."
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    if isinstance(error, OfflineModeIsEnabled):
        return f"HF_HUB_OFFLINE is set, so nothing can be sent. {untouched}"
    if status in (401, 403):
        return (
            f"the Hub refused the token for {arguments.repo_id!r} (status {status}): it needs write access there. "
            f"Make one at https://huggingface.co/settings/tokens and run `hf auth login`. {untouched}"
        )
    if status == 409 and not arguments.update:
        return f"{arguments.repo_id!r} exists: give --update to add a commit to it, or another name. {untouched}"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, httpx.TransportError):
            return (
                f"the connection to the Hub was lost ({cause or type(cause).__name__}). A commit arrives whole or not "
                f"at all; run the same command with --update to try again. {untouched}"
            )
        cause = cause.__cause__
    return f"the Hub did not take {arguments.repo_id!r}: {error} {untouched}"


def main(argv: list[str] | None = None) -> None:
    """Entry point."""
    (arguments,) = parse_arguments((PushArguments,), argv)
    with tempfile.TemporaryDirectory() as folder:
        files = collect_files(arguments.source, arguments.repo_id, Path(folder))
        for file in files:
            print(f"{(Path(folder) / file).stat().st_size:>15,} bytes  {file}")
        if arguments.dry_run:
            print(f"dry run: {len(files)} files would go to {arguments.repo_id}; nothing was sent")
            return
        token = arguments.token or get_token()
        if token is None:
            raise UserError("there is no Hub token: run `hf auth login`, or give --token. Nothing was sent.")
        hub = HfApi(token=token)
        repo = {"repo_id": arguments.repo_id}
        try:
            if not (arguments.create_pr and arguments.update):
                hub.create_repo(**repo, private=arguments.private or None, exist_ok=arguments.update)
            if arguments.branch is not None:
                hub.create_branch(**repo, branch=arguments.branch, exist_ok=True)
            commit = hub.upload_folder(
                **repo,
                folder_path=folder,
                revision=arguments.branch,
                create_pr=arguments.create_pr,
                commit_message=arguments.commit_message,
            )
        # A broken upload is a RuntimeError, bad metadata in the card a ValueError.
        except (OfflineModeIsEnabled, httpx.HTTPError, RuntimeError, ValueError) as error:
            raise UserError(_explain(error, arguments)) from error
    print(f"pushed: {commit.pr_url or commit.commit_url}")


if __name__ == "__main__":
    main()
