"""What a study compares, read from a YAML file: tasks, models, seeds, claims.

A file has these keys. Those with (task) may also stand below a name in `tasks`, for a study of several tasks; a
setting leaves one out by null.

- `title`, `question`: texts for the report.
- `seeds`: the seeds of every model; `more_seeds`: further seeds for the models of claims that are then undecided.
- `settings`: other settings, such as `quick`: keys to replace, e.g. fewer steps. Mappings are merged.
- `command` (task): the training command. `arguments` (task): its arguments, as in a recipe.
- `data` (task): `files`, arguments with `{data_dir}` in their paths; `hub`, the same data on the Hub; or `made_by`, a
  data set of `make_data`, with `made_with`, its arguments, and `files`, with `{made}`, a folder of the study, in their
  paths; `measured_on`, folders of sets for the measures of `measures.py` that read texts.
- `tokenizer` (task): size of a tokenizer that is trained once for all models. Images need none, and a teacher brings
  its own. If `files` have `cache_teacher`, the teacher's embeddings are computed once too.
- `example` (task): shapes of a model's inputs for one example, by name, to count operations.
- `variants` (task): name -> arguments that are added to the task's; below `sizes`, further ones by name of the size.
  Every variant, or each of its sizes, is a model of the study; those that are null, e.g. in a setting, are not. A
  variant with `keep_layers` starts with layers of the teacher: its `model_type` and sizes in `config_overrides` say
  what these are like, to count operations. Its own overrides also change the kept layers, where these can be changed:
  `intermediate_size`, and the fields of `aft`. A variant may have `learning_rates` of its own.
- `baseline` (task): the variant whose number of parameters all others must match within 2 %.
- `learning_rates` (task): every model gets the one with the best result for the first seed; of equal ones the larger.
- `metric`, `better` (task): name of a result without `eval_`, and `lower` or `higher`. `compared_as` (task): `log`
  for differences of logarithms, else `value`. `budgets` (task): steps whose results are in the table too.
- `plateau` (task): a number, or the name of a result, that a model must surpass; otherwise its claims stay undecided.
- `starts_from` (task): name of an earlier task. Its models of the same name and seed are finetuned, from the runs with
  the best learning rate. Dropout rates and `classifier_pooling` may differ.
- `measures` (task): what `measures.py` measures in the trained models.
- `claims`: see `claims.py`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from ..base.commands import TRAINING_COMMANDS
from ..base.errors import UserError
from ..base.shipped_files import find_shipped
from ..training.model_loading import AFT_FIELDS, can_change
from .claims import KINDS, SLOPE, Claim


STUDIES = Path(__file__).parent

#: Keys of a study as a whole, and of its tasks.
STUDY_KEYS = ("title", "question", "seeds", "more_seeds", "settings", "tasks", "claims")
TASK_KEYS = (
    *("command", "arguments", "data", "tokenizer", "example", "variants", "baseline"),
    *("learning_rates", "metric", "better", "compared_as", "budgets", "plateau"),
    *("starts_from", "measures"),
)
DATA_KEYS = ("files", "hub", "made_by", "made_with", "measured_on")

#: Arguments of the commands that the study itself sets.
RESERVED = ("output_dir", "seed", "learning_rate", "seeds", "learning_rates", "tokenizer_name", "train_tokenizer")


@dataclass(frozen=True)
class Task:
    """What all models do. The fields are the keys described above."""

    name: str
    command: str
    arguments: Mapping[str, Any]
    data: Mapping[str, Any]
    models: Mapping[str, Mapping[str, Any]]
    """Name -> arguments that are added to those of the task. With sizes the names are `variant/size`."""
    learning_rates: Sequence[float]
    metric: str
    better: str
    example: Mapping[str, Sequence[int]]
    baseline: str | None = None
    tokenizer: int | None = None
    compared_as: str = "value"
    budgets: Sequence[int] = ()
    plateau: str | float | None = None
    starts_from: str | None = None
    measures: Sequence[str] = ()
    own_rates: Mapping[str, Sequence[float]] = field(default_factory=dict)
    """Model -> its learning rates, if they are not those of the task."""

    @property
    def steps(self) -> int:
        """Training steps of every run."""
        return self.arguments["max_steps"]

    @property
    def prepared(self) -> str | None:
        """What a first run of one step makes for all others: the tokenizer, the teacher's embeddings, or nothing."""
        if self.tokenizer is not None:
            return "tokenizer"
        return "teacher" if "cache_teacher" in self.data.get("files", {}) else None

    @property
    def sign(self) -> int:
        """1 if higher results are better, else -1."""
        return 1 if self.better == "higher" else -1

    def members(self, name: str) -> list[str]:
        """The models of a variant, one per size, or the model of this name."""
        return [found for found in self.models if name in (found, variant_of(found))]

    def rates(self, model: str) -> Sequence[float]:
        """The learning rates that a model tries."""
        return self.own_rates.get(model, self.learning_rates)

    def description(self, model: str) -> dict[str, Any]:
        """The arguments of the task and a model, with the overrides of both in one mapping."""
        return merge(self.arguments, self.models[model])

    def recipe(self, model: str) -> dict[str, Any]:
        """The arguments of a model's runs."""
        recipe = self.description(model)
        if self.starts_from is not None or "keep_layers" in recipe:  # its start has a configuration
            recipe = {key: value for key, value in recipe.items() if key not in ("config_name", "model_type")}
            own = self.models[model].get("config_overrides", {}) if recipe.get("keep_layers") else {}
            recipe["config_overrides"] = {
                key: value
                for key, value in recipe.get("config_overrides", {}).items()
                if can_change(key) or (key in own and key in ("intermediate_size", *AFT_FIELDS))
            }
        return recipe


@dataclass(frozen=True)
class Study:
    """A study in one of its settings."""

    name: str
    setting: str
    title: str
    question: str
    seeds: Sequence[int]
    more_seeds: Sequence[int]
    tasks: Mapping[str, Task]
    claims: Sequence[Claim]
    definition: Mapping[str, Any]
    """The content of the file with the setting's values, as JSON has it."""

    @property
    def stem(self) -> str:
        """Name of its files: the study's, and that of the setting."""
        return self.name if self.setting == "default" else f"{self.name}-{self.setting}"


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping with changes; mappings in it are merged too, but `data` is replaced as a whole."""
    merged = dict(base)
    for key, value in changes.items():
        mappings = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if mappings and key != "data" else value
    return merged


def variant_of(model: str) -> str:
    """The variant of a model: its name up to the size."""
    return model.partition("/")[0]


def size_of(model: str) -> str:
    """The size of a model, empty if its variant has no sizes."""
    return model.partition("/")[2]


def names_of_studies() -> list[str]:
    """The studies that come with this package."""
    return sorted(path.stem for path in STUDIES.glob("*.yaml"))


def read_study(name: str, setting: str = "default") -> Study:
    """Read a study of this package, or a YAML file, in its default setting or one of its `settings`."""
    is_file = Path(name).suffix in (".yaml", ".yml")
    file = find_shipped(name if is_file else f"{name}.yaml", STUDIES, "study file")
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"the study {file} cannot be read: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("settings", {}), dict):
        raise UserError(f"the study {file} must be a mapping, and its settings too.")
    settings = content.pop("settings", {})
    if setting != "default":
        if setting not in settings:
            raise UserError(f"the study {file.stem} has no setting {setting!r}; there are {', '.join(settings)}.")
        content = merge(content, settings[setting] or {})
    return build_study(file.stem, setting, content)


def build_study(name: str, setting: str, definition: Mapping[str, Any]) -> Study:
    """A study from the content of a file, or from the `definition` in a report."""
    try:
        return _build_study(name, setting, definition)
    except (TypeError, ValueError, AttributeError) as error:  # such as a number where a list is wanted
        raise UserError(
            f"the study {name} has a value of another kind than studies/definition.py says: {error}."
        ) from error


def _build_study(name: str, setting: str, definition: Mapping[str, Any]) -> Study:
    where = f"the study {name}"
    _check_keys(where, definition, (*STUDY_KEYS, *TASK_KEYS))
    common = {key: value for key, value in definition.items() if key in TASK_KEYS}
    parts = definition.get("tasks") or {name: {}}
    tasks: dict[str, Task] = {}
    for part, changes in parts.items():
        if changes is None:  # a setting without this task
            continue
        _check_keys(f"{where}, task {part}", changes, TASK_KEYS)
        tasks[part] = _build_task(f"{where}, task {part}", part, merge(common, changes))
        start = tasks[part].starts_from
        if start is not None and start not in tasks:
            raise UserError(f"{where}: {part} starts from {start!r}, which is not a task before it.")
    for key in ("title", "seeds", "claims"):
        if not definition.get(key):
            raise UserError(f"{where} needs {key!r}.")
    seeds, more = list(definition["seeds"]), list(definition.get("more_seeds", ()))
    if len({*seeds, *more}) < len(seeds) + len(more) or len(seeds) < 2:
        raise UserError(f"{where} needs at least two different seeds, got {seeds} and {more}.")
    claims = [read_claim(where, claim, tasks) for claim in definition["claims"]]
    return Study(
        name,
        setting,
        definition["title"],
        definition.get("question", ""),
        seeds,
        more,
        tasks,
        claims,
        definition,
    )


def _check_keys(where: str, mapping: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in mapping:
        if key not in known:
            raise UserError(f"{where} has an unknown key {key!r}; there are {', '.join(known)}.")


def _build_task(where: str, name: str, keys: dict[str, Any]) -> Task:
    for key in ("command", "arguments", "data", "variants", "learning_rates", "metric", "better", "example"):
        if key not in keys:
            raise UserError(f"{where} needs {key!r}.")
    if keys["command"] not in TRAINING_COMMANDS:
        raise UserError(f"{where}: {keys['command']!r} is unknown; there are {', '.join(TRAINING_COMMANDS)}.")
    if keys["better"] not in ("lower", "higher") or keys.get("compared_as", "value") not in ("log", "value"):
        raise UserError(f"{where}: `better` is lower or higher, and `compared_as` log or value.")
    keys["learning_rates"] = list(map(float, keys["learning_rates"]))  # YAML reads 1e-3 as a text
    _check_keys(f"{where}, data", keys["data"], DATA_KEYS)
    variants = keys.pop("variants")
    baseline = keys.get("baseline")
    if baseline is not None and baseline not in variants:
        raise UserError(f"{where}: the baseline {baseline!r} is not a variant; there are {', '.join(variants)}.")
    models = _expand(variants)
    own_rates = {name: model.pop("learning_rates") for name, model in models.items() if "learning_rates" in model}
    keys["own_rates"] = {name: list(map(float, rates)) for name, rates in own_rates.items()}
    _check_arguments(where, keys["arguments"], models)
    every = keys["arguments"].get("eval_steps", 1)
    for step in keys.get("budgets", ()):
        if step % every:
            raise UserError(f"{where}: nothing is evaluated at the budget {step}, only every {every} steps.")
    return Task(name=name, models=models, **keys)


def _expand(variants: Mapping[str, Mapping[str, Any] | None]) -> dict[str, dict[str, Any]]:
    """The models: every variant, or each of its sizes, without those that are null."""
    models = {}
    for name, arguments in variants.items():
        if arguments is None:
            continue
        own = {key: value for key, value in arguments.items() if key != "sizes"}
        for size, more in (arguments.get("sizes") or {None: {}}).items():
            if more is not None:
                models[name if size is None else f"{name}/{size}"] = merge(own, more)
    return models


def _check_arguments(where: str, arguments: Mapping[str, Any], models: Mapping[str, Mapping[str, Any]]) -> None:
    for owner, found in (("", arguments), *models.items()):
        place = f"{where}, {owner}" if owner else where
        for key in found:
            if key in RESERVED:
                raise UserError(f"{place}: {key} is set by the study itself.")
        overrides = found.get("config_overrides", {})
        if not isinstance(overrides, Mapping):
            raise UserError(f"{place}: config_overrides must be a mapping, got {overrides!r}.")
    if not isinstance(arguments.get("max_steps"), int):
        raise UserError(f"{where}: `arguments` need max_steps, the same number for all models.")


def read_claim(where: str, keys: Mapping[str, Any], tasks: Mapping[str, Task]) -> Claim:
    """Check a claim of a study's file."""
    kinds = [kind for kind in KINDS if kind in keys]
    place = f"{where}, claim {keys.get('claim')!r}"
    if len(kinds) != 1 or KINDS[kinds[0]] not in keys or "claim" not in keys or "source" not in keys:
        ways = ", ".join(f"{kind} and {other}" for kind, other in KINDS.items())
        raise UserError(f"{place} needs `claim`, `source`, and one of: {ways}.")
    (kind,) = kinds
    allowed = {"claim", "source", "task", kind, KINDS[kind], "margin", "at", "of"}
    if unknown := keys.keys() - allowed:
        raise UserError(f"{place} has an unknown key {min(unknown)!r}.")
    if (kind in ("better", "above")) == ("margin" in keys):
        raise UserError(f"{place}: `margin` belongs to not_worse and equal, and they need it.")
    task = keys.get("task", next(iter(tasks)) if len(tasks) == 1 else None)
    if task not in tasks:
        raise UserError(f"{place} needs `task`, one of {', '.join(tasks)}.")
    _check_place(place, keys, tasks[task])
    value = None if kind != "above" else float(keys["value"])
    sides = [_as_list(keys[kind]), _as_list(keys[kind] if value is not None else keys[KINDS[kind]])]
    pairs = [pair for a, b in product(*sides) for pair in _pairs(place, tasks[task], a, b, keys.get("of") == SLOPE)]
    optional = {key: keys[key] for key in ("margin", "at", "of") if key in keys}
    return Claim(keys["claim"], keys["source"], task, kind, pairs, value=value, **optional)


def _check_place(place: str, keys: Mapping[str, Any], task: Task) -> None:
    if keys.get("at") not in (None, task.steps, *task.budgets):
        raise UserError(f"{place}: `at` {keys['at']} is not one of the budgets {', '.join(map(str, task.budgets))}.")
    if keys.get("of") not in (None, SLOPE, *task.measures):
        raise UserError(f"{place}: `of` {keys['of']!r} is unknown; there are {', '.join((SLOPE, *task.measures))}.")


def _as_list(value: str | list[str]) -> list[str]:
    return value if isinstance(value, list) else [value]


def _pairs(place: str, task: Task, a: str, b: str, whole: bool) -> list[tuple[str, str]]:
    """The models to compare; with `whole` the variants themselves."""
    sides = [task.members(name) for name in (a, b)]
    for name, members in zip((a, b), sides, strict=True):
        if not members:
            raise UserError(f"{place} names {name!r}, which is not a variant; there are {', '.join(task.models)}.")
        if whole and len(members) < 2:
            raise UserError(f"{place}: {name} has no sizes, over which a slope could be.")
    if whole:
        return [(a, b)]
    if len(sides[0]) == len(sides[1]):
        return list(zip(*sides, strict=True))
    if 1 not in map(len, sides):
        raise UserError(f"{place}: {a} and {b} have different sizes.")
    return list(product(*sides))
