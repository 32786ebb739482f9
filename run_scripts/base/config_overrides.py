"""`--config_overrides`: changes to a configuration, given as text, or as a mapping in a recipe."""

import json
from typing import Any

import yaml

from .errors import UserError


_UNFINISHED = object()  # not a YAML value, perhaps because its end is missing


def parse_overrides(text: str) -> dict[str, Any]:
    """Parse `"a=1,b=[x,y]"` into `{"a": 1, "b": ["x", "y"]}`; values, or a mapping in braces, are read as YAML."""
    if text.lstrip().startswith("{"):
        mapping = _read_value(text)
        if not isinstance(mapping, dict) or not all(isinstance(key, str) for key in mapping):
            raise UserError(f"--config_overrides {text!r} cannot be read: expected {{name: value, ...}}.")
        return mapping
    overrides: dict[str, Any] = {}
    begun = ""
    for part in text.split(",") if text.strip() else ():
        begun += part
        key, equals, value = (piece.strip() for piece in begun.partition("="))
        if not key or not equals or not value:
            raise UserError(f"--config_overrides has {begun!r}; expected name=value[,name=value ...].")
        if key in overrides:
            raise UserError(f"--config_overrides sets {key!r} twice: give it once.")
        found = _read_value(value)
        if found is _UNFINISHED:  # the comma was inside brackets or quotes
            begun += ","
        else:
            overrides[key], begun = found, ""
    if begun:
        raise UserError(
            f"--config_overrides: {value!r} is not a value for {key!r}; lists are [a,b], all brackets closed."
        )
    return overrides


def merge_overrides(recipe: Any, command_line: str | None) -> str | None:
    """Merge the `config_overrides` of a recipe, text or mapping, with those of the command line, which win."""
    recipe = json.dumps(recipe, default=str) if isinstance(recipe, dict) else recipe
    if recipe is None or (command_line is not None and not command_line.strip()):
        return command_line
    merged = {**parse_overrides(str(recipe)), **parse_overrides(command_line or "")}
    return ",".join(f"{name}={json.dumps(value, default=str)}" for name, value in merged.items())


def _read_value(text: str) -> Any:
    """Read a YAML value, or return `_UNFINISHED`. Numbers such as 1e-5, which YAML reads as text, are numbers."""

    def number(value: Any) -> Any:
        if isinstance(value, list):
            return [number(item) for item in value]
        try:
            return float(value) if isinstance(value, str) else value
        except ValueError:
            return value

    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        return _UNFINISHED
    if isinstance(value, dict):
        return {key: number(item) for key, item in value.items()}
    return number(value)
