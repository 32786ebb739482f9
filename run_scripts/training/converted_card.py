"""Model cards of converted checkpoints."""

from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard
from transformers import PreTrainedModel

from ..base.reporting import versions
from .model_card import CardFacts, architecture, citations, metadata, snippet


TEMPLATE = """---
{{ card_data }}
---

# {{ title }}

{{ summary }}

## Use

```python
{{ snippet }}
```

The checkpoint brings its own code, so Transformers alone is enough. Where the package `tokenmixers` is imported, that
code is not used and `trust_remote_code=True` not needed.

## Architecture

{{ architecture }}

{{ notes }}

Converted with `{{ command }}` and {{ versions }}.

## Citation

```bibtex
{{ citation }}
```
"""


def converted_card(
    model: PreTrainedModel,
    output: str,
    task: str,
    command: str,
    *,
    summary: str,
    notes: str = "",
    licence: str | None = None,
    **entries: Any,
) -> ModelCard:
    """The card of a converted checkpoint.

    Args:
        model: The model.
        output: The folder that it is saved in.
        task: A key of `model_card.SNIPPETS`.
        command: What has converted it.
        summary: The first paragraph.
        notes: Further paragraphs.
        licence: Licence of the weights.
        entries: Further metadata.
    """
    title = Path(output).resolve().name
    facts = CardFacts(task, data="", metrics={})
    data = metadata(facts, model.config.model_type, title, {})
    for name, value in {"license": licence, **entries}.items():
        setattr(data, name, value)
    return ModelCard.from_template(
        data,
        template_str=TEMPLATE,
        title=title,
        summary=summary,
        snippet=snippet(task, output, True, None),
        architecture=architecture(model),
        notes=notes,
        command=command,
        versions=versions(),
        citation=citations(model.config),
    )
