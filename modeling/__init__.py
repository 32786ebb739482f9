"""Models: one `modeling_<model_type>.py` per family, over the layers and task heads they share."""

# Transformers' building blocks import its Auto classes, and these, once imported, ask for the modules in this folder
# (see the registration in the package's `__init__`): in this order no module meets itself half imported.
import transformers.models.auto.modeling_auto  # noqa: F401
