"""Transformers' own model tests, run on this package's classes: `make test-transformers`.

Those tests ship in the source distribution of transformers alone, whose root has to be on `PYTHONPATH`; the make
target fetches it. The file's name keeps it out of the default test run.
"""

import atexit
import os
import re
import tempfile
import unittest
from pathlib import Path

import torch
import transformers_suite_files as stand_ins
from transformers.models.auto import modeling_auto

import tokenmixers
from tokenmixers.configuration.auto_classes import FAMILIES


# Where the suite looks for the checkpoints of its tests of pipelines, from when it is imported on.
_folder = tempfile.TemporaryDirectory()
atexit.register(_folder.cleanup)
os.environ["TRANSFORMERS_TINY_MODEL_PATH"] = _folder.name
stand_ins.save_pipeline_models(Path(_folder.name))

from tests.generation.test_utils import GenerationTesterMixin as _NoGenerationTests  # noqa: E402  # empty
from tests.test_backbone_common import BackboneTesterMixin  # noqa: E402
from tests.test_configuration_common import ConfigTester  # noqa: E402
from tests.test_fsdp_mixin import FSDPTesterMixin  # noqa: E402
from tests.test_modeling_common import ModelTesterMixin, floats_tensor, ids_tensor, random_attention_mask  # noqa: E402
from tests.test_pipeline_mixin import PipelineTesterMixin  # noqa: E402
from tests.test_tensor_parallel_mixin import TensorParallelTesterMixin  # noqa: E402
from tests.test_training_mixin import TrainingTesterMixin  # noqa: E402

from tests import test_fsdp_mixin, test_tensor_parallel_mixin  # noqa: E402


# By default the tests run for some models of Transformers alone.
test_fsdp_mixin.FSDP_DISTRIBUTED_TEST_MODEL_TYPES = None
test_tensor_parallel_mixin.TP_DISTRIBUTED_TEST_MODEL_TYPES = None

# The suite recognises heads by class name, in tables that only in-tree models are entered in.
_NAME_TABLES = {
    "AutoModel": "MODEL_MAPPING_NAMES",
    "AutoModelForMaskedLM": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "AutoModelForSequenceClassification": "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
    "AutoModelForTokenClassification": "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
    "AutoModelForMultipleChoice": "MODEL_FOR_MULTIPLE_CHOICE_MAPPING_NAMES",
    "AutoModelForQuestionAnswering": "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
    "AutoModelForImageClassification": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
    "AutoModelForCausalLM": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "AutoModelForSeq2SeqLM": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
}
for _model_type, _family in FAMILIES.items():
    for _auto_class, _table in _NAME_TABLES.items():
        if _auto_class in _family.models:
            getattr(modeling_auto, _table)[_model_type] = _family.models[_auto_class]


class EncoderTester:
    """A tiny text encoder and inputs for it, in the form the suite expects."""

    batch_size = 13
    seq_length = 7
    is_training = True
    num_choices = 4
    num_labels = 3
    num_attention_heads = 1

    def __init__(self, parent, config_class, **config_kwargs):
        self.parent = parent
        self.config_class = config_class
        self.config_kwargs = {
            "vocab_size": 99,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "max_position_embeddings": 64,
            **config_kwargs,
        }
        for name, value in self.config_kwargs.items():
            setattr(self, name, value)

    def get_config(self):
        return self.config_class(**self.config_kwargs)

    def prepare_config_and_inputs(self):
        return self.get_config(), *self.prepare_config_and_inputs_for_common()[1].values()

    def prepare_config_and_inputs_for_common(self):
        inputs = {
            "input_ids": ids_tensor([self.batch_size, self.seq_length], self.vocab_size),
            "attention_mask": random_attention_mask([self.batch_size, self.seq_length]),
        }
        return self.get_config(), inputs


class ImageTester(EncoderTester):
    """A tiny image encoder and inputs for it, in the form the suite expects."""

    def __init__(self, parent, config_class, **config_kwargs):
        super().__init__(parent, config_class, image_size=16, patch_size=8, **config_kwargs)
        self.seq_length = self.get_config().max_position_embeddings

    def prepare_config_and_inputs_for_common(self):
        return self.get_config(), {"pixel_values": floats_tensor([self.batch_size, 3, 16, 16])}


class _Suite(ModelTesterMixin):
    """What all our models have in common."""

    family: str
    config_kwargs: dict = {}
    model_tester_class = EncoderTester
    has_attentions = False
    common_properties = ["hidden_size", "num_hidden_layers", "vocab_size"]
    test_can_init_all_missing_weights_before_2023 = True  # our files have no year on top

    @property
    def all_model_classes(self):
        names = dict.fromkeys(FAMILIES[self.family].models.values())
        return tuple(
            getattr(tokenmixers, name) for name in names if not re.search("Image|Backbone|Causal|Conditional", name)
        )

    def setUp(self):
        config_class = getattr(tokenmixers, FAMILIES[self.family].config)
        self.model_tester = self.model_tester_class(self, config_class, **self.config_kwargs)
        self.config_tester = ConfigTester(self, config_class=config_class, common_properties=self.common_properties)

    def test_config(self):
        self.config_tester.run_common_tests()


def make_cases(suite, ending, **cases):
    """Test cases of a suite in this module: name -> family and fields of its configuration."""
    for name, (family, config_kwargs) in cases.items():
        fields = {"family": family, "config_kwargs": config_kwargs, "__module__": __name__}
        fields["has_attentions"] = family in ("amlp", "synthesizer", "hybrid_bert")
        globals()[name + ending] = type(name + ending, (suite, unittest.TestCase), fields)


class _EncoderSuite(_Suite, TrainingTesterMixin):
    """Text models, which are trained to repeat a text."""

    trained_head = "AutoModelForMaskedLM"

    def setUp(self):
        super().setUp()
        self.model_tester.causal_lm_class = getattr(tokenmixers, FAMILIES[self.family].models[self.trained_head])


class _SplitEncoder(TensorParallelTesterMixin):
    """Tensor parallelism of encoders. FSDP is tested with `AutoModelForCausalLM` alone, so on decoders."""

    @unittest.skip("encoders do not generate")
    def test_tp_generation(self):
        pass

    @unittest.skip("encoders do not generate")
    def test_tp_generation_quantized(self):
        pass


class GMLPToeplitzTest(_EncoderSuite, _SplitEncoder, unittest.TestCase):
    family = "gmlp"


class MLPMixerTest(_EncoderSuite, _SplitEncoder, unittest.TestCase):
    family = "mlp_mixer"
    config_kwargs = {"token_mixing_size": 16, "type_vocab_size": 2}


class AMLPTest(_EncoderSuite, _SplitEncoder, unittest.TestCase):
    family = "amlp"
    has_attentions = True
    config_kwargs = {"attention_size": 32}


class HybridBertTest(_EncoderSuite, _SplitEncoder, unittest.TestCase):
    family = "hybrid_bert"
    has_attentions = True
    config_kwargs = {
        "num_attention_heads": 4,
        "token_mixers": ["random_synthesizer", "full_attention"],
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }


make_cases(
    _EncoderSuite,
    "Test",
    GMLPFull=("gmlp", {"spatial_weight_type": "full", "type_vocab_size": 2}),
    GMLPLinearGate=("gmlp", {"gate_type": "linear"}),
    HybridBertBlocks=(
        "hybrid_bert",
        {**HybridBertTest.config_kwargs, "token_mixers": ["dense_synthesizer", "gmlp"]},
    ),
)


class _DecoderSuite(_EncoderSuite, _NoGenerationTests, TensorParallelTesterMixin, FSDPTesterMixin):
    trained_head = "AutoModelForCausalLM"

    @property
    def all_model_classes(self):
        models = FAMILIES[self.family].models
        return tuple(getattr(tokenmixers, models[name]) for name in ("AutoModel", "AutoModelForCausalLM"))


class GMLPDecoderTest(_DecoderSuite, unittest.TestCase):
    family = "gmlp"
    config_kwargs = {"is_decoder": True}


class AMLPDecoderTest(_DecoderSuite, unittest.TestCase):
    family = "amlp"
    has_attentions = True
    config_kwargs = {"is_decoder": True, "attention_size": 32}

    def _get_tiny_config(self):
        """The sizes of `FSDPTesterMixin`, which would also set the number of heads: tiny attention has one."""
        sizes = {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 128}
        config_class = self.model_tester.config_class
        return config_class, config_class(**{**self.model_tester.config_kwargs, **sizes}).to_diff_dict()


SYNTHESIZER_KWARGS = {
    "num_attention_heads": 4,
    "head_dim": 8,
    "relative_attention_num_buckets": 8,
    "hidden_dropout_prob": 0.0,
    "attention_dropout": 0.0,
}


class _SynthesizerSuite(_EncoderSuite):
    family = "synthesizer"
    has_attentions = True
    common_properties = ["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"]

    def _has_tp_plan(self):
        return True  # not in the configuration: the two sides of a model have their own


class SynthesizerRandomVanillaTest(_SynthesizerSuite, _SplitEncoder, unittest.TestCase):
    config_kwargs = SYNTHESIZER_KWARGS


class SynthesizerRandomTest(_SynthesizerSuite, unittest.TestCase):
    config_kwargs = {**SYNTHESIZER_KWARGS, "attention_components": ["random"], "type_vocab_size": 2}


class SynthesizerDenseTest(_SynthesizerSuite, unittest.TestCase):
    config_kwargs = {
        **SYNTHESIZER_KWARGS,
        "attention_components": ["dense", "factorized_dense"],
        "position_embedding_type": "learned",
    }


class SynthesizerDecoderTest(_SynthesizerSuite, _DecoderSuite, unittest.TestCase):
    config_kwargs = {**SYNTHESIZER_KWARGS, "is_decoder": True}


class SynthesizerRandomDecoderTest(_SynthesizerSuite, _DecoderSuite, unittest.TestCase):
    config_kwargs = {
        **SYNTHESIZER_KWARGS,
        "is_decoder": True,
        "attention_components": ["random", "factorized_random"],
    }


class EncoderDecoderTester(EncoderTester):
    """The same with decoder inputs."""

    def prepare_config_and_inputs_for_common(self):
        config, inputs = super().prepare_config_and_inputs_for_common()
        shape = [self.batch_size, self.seq_length]
        inputs["decoder_input_ids"] = ids_tensor(shape, self.vocab_size)
        inputs["decoder_attention_mask"] = random_attention_mask(shape)
        return config, inputs


class SynthesizerEncoderDecoderTest(_SynthesizerSuite, _NoGenerationTests, unittest.TestCase):
    model_tester_class = EncoderDecoderTester
    is_encoder_decoder = True
    trained_head = "AutoModelForSeq2SeqLM"
    config_kwargs = {**SYNTHESIZER_KWARGS, "is_encoder_decoder": True, "attention_components": ["dense", "vanilla"]}

    @property
    def all_model_classes(self):
        return tokenmixers.SynthesizerModel, tokenmixers.SynthesizerForConditionalGeneration

    @unittest.skip("the test generates from a prompt of the decoder's, as models without an encoder do")
    def test_training_overfit(self):
        pass


class SynthesizerRandomEncoderDecoderTest(SynthesizerEncoderDecoderTest):
    config_kwargs = {
        **SynthesizerEncoderDecoderTest.config_kwargs,
        "attention_components": ["random"],
        "tie_word_embeddings": False,
    }


class _ImageSuite(_Suite):
    # The suite trains no image models, and splits none over processes.
    model_tester_class = ImageTester
    test_resize_embeddings = False

    @property
    def all_model_classes(self):
        models = FAMILIES[self.family].models
        return tuple(getattr(tokenmixers, models[name]) for name in ("AutoModel", "AutoModelForImageClassification"))

    @unittest.skip("images have no token ids")
    def test_inputs_embeds(self):
        pass

    @unittest.skip("images have no token ids")
    def test_inputs_embeds_matches_input_ids(self):
        pass

    def test_model_get_set_embeddings(self):
        for model_class in self.all_model_classes:
            model = model_class(self.model_tester.get_config())
            self.assertEqual(model.get_input_embeddings().projection.kernel_size, (8, 8))
            replacement = torch.nn.Identity()
            model.set_input_embeddings(replacement)
            self.assertIs(model.get_input_embeddings(), replacement)


make_cases(
    _ImageSuite,
    "ImageTest",
    GMLPClassToken=("gmlp", {"classifier_pooling": "cls"}),
    GMLPMeanPooled=("gmlp", {"classifier_pooling": "mean"}),
    MLPMixerMeanPooled=("mlp_mixer", {"token_mixing_size": 16}),
    MLPMixerClassToken=("mlp_mixer", {"token_mixing_size": 16, "classifier_pooling": "cls"}),
    AMLP=("amlp", {"attention_size": 32}),
    Synthesizer=("synthesizer", {**SYNTHESIZER_KWARGS, "classifier_pooling": "cls"}),
)


class _BackboneSuite(BackboneTesterMixin):
    family: str
    config_kwargs: dict = {}

    def setUp(self):
        self.config_class = getattr(tokenmixers, FAMILIES[self.family].config)
        self.all_model_classes = (getattr(tokenmixers, FAMILIES[self.family].models["AutoBackbone"]),)
        kwargs = {"num_hidden_layers": 3, **self.config_kwargs}
        self.model_tester = ImageTester(self, self.config_class, **kwargs)


make_cases(
    _BackboneSuite,
    "BackboneTest",
    GMLP=("gmlp", {}),
    AMLP=("amlp", {"attention_size": 32}),
    MLPMixer=("mlp_mixer", {"token_mixing_size": 16}),
    Synthesizer=("synthesizer", SYNTHESIZER_KWARGS),
)


for _model_type, _mapping in stand_ins.PIPELINE_MODELS.items():
    _name = FAMILIES[_model_type].models["AutoModel"].replace("Model", "PipelineTest")
    globals()[_name] = type(
        _name, (PipelineTesterMixin, unittest.TestCase), {"pipeline_model_mapping": _mapping, "__module__": __name__}
    )
