"""Models of ``transformers`` and ``timm``, made small, compiled: what they return, and one step of training.

Two dozen of many kinds are always among the tests; all model types of both libraries run where time is not limited.
Nothing is downloaded: weights are random. A type whose class cannot be made small and run without knowing it better
is skipped with the reason.
"""

from __future__ import annotations

import importlib.util
import zlib
from pathlib import Path
from typing import Any

import image_library
import pytest
import shrunk
from shrunk import NotBuilt
from steps import Specimen, assert_forward, assert_training

pytestmark = pytest.mark.filterwarnings("ignore")

CLASSES = (
    "GPTNeoXForCausalLM",
    "OPTForCausalLM",
    "BloomForCausalLM",
    "FalconForCausalLM",
    "Gemma2ForCausalLM",
    "PhiForCausalLM",
    "Qwen2MoeForCausalLM",
    "RwkvForCausalLM",
    "RobertaForMaskedLM",
    "DebertaV2ForMaskedLM",
    "AlbertForMaskedLM",
    "FNetForMaskedLM",
    "DistilBertForSequenceClassification",
    "BartForConditionalGeneration",
    "MarianMTModel",
    "SwinForImageClassification",
    "SegformerForSemanticSegmentation",
    "YolosForObjectDetection",
    "Wav2Vec2ForCTC",
    "ASTForAudioClassification",
    "CLIPModel",
    "PatchTSTForPrediction",
)
TRAINED = ("GPTNeoXForCausalLM", "RobertaForMaskedLM", "BartForConditionalGeneration", "SwinForImageClassification")

IMAGE_MODELS = ("vit_tiny_patch16_224", "mobilenetv3_small_050", "convnext_atto", "efficientnet_b0", "mixer_s32_224")
TRAINED_IMAGE_MODELS = ("mobilenetv3_small_050", "convnext_atto")

TRAINED_SHARE = 3
"""Of all model types, one of this many is trained, too."""


def model_types() -> list[str]:
    """Folders of the library that hold a model; nothing is imported."""
    spec = importlib.util.find_spec("transformers")
    if spec is None or not spec.submodule_search_locations:
        return []
    folder = Path(spec.submodule_search_locations[0]) / "models"
    return sorted(p.parent.name for p in folder.glob("*/modeling_*.py") if p.stem == f"modeling_{p.parent.name}")


def trained(names: list[str]) -> list[str]:
    return [name for name in names if zlib.crc32(name.encode()) % TRAINED_SHARE == 0]


MODEL_TYPES, MODULES = model_types(), image_library.modules()


def of_type(name: str) -> Specimen:
    try:
        return shrunk.build(shrunk.class_of_type(name))
    except NotBuilt as reason:
        pytest.skip(f"cannot be made small: {reason}")


def of_module(name: str) -> Specimen:
    try:
        return image_library.build(image_library.smallest(name))
    except NotBuilt as reason:
        pytest.skip(f"cannot be made small: {reason}")


def need(library: str) -> Any:
    """Skip where a library that the tests are about is not installed."""
    return pytest.mark.skipif(importlib.util.find_spec(library) is None, reason=f"{library} is not installed")


@need("transformers")
@pytest.mark.parametrize("name", CLASSES)
def test_class(name: str) -> None:
    assert_forward(shrunk.build(name))


@need("transformers")
@pytest.mark.parametrize("name", TRAINED)
def test_class_trains(name: str) -> None:
    assert_training(shrunk.build(name))


@need("timm")
@pytest.mark.parametrize("name", IMAGE_MODELS)
def test_image_model(name: str) -> None:
    assert_forward(image_library.build(name))


@need("timm")
@pytest.mark.parametrize("name", TRAINED_IMAGE_MODELS)
def test_image_model_trains(name: str) -> None:
    assert_training(image_library.build(name))


@pytest.mark.full
@need("transformers")
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_model_type(model_type: str) -> None:
    assert_forward(of_type(model_type))


@pytest.mark.full
@need("transformers")
@pytest.mark.parametrize("model_type", trained(MODEL_TYPES))
def test_model_type_trains(model_type: str) -> None:
    assert_training(of_type(model_type))


@pytest.mark.full
@need("timm")
@pytest.mark.parametrize("module", MODULES)
def test_image_module(module: str) -> None:
    assert_forward(of_module(module))


@pytest.mark.full
@need("timm")
@pytest.mark.parametrize("module", trained(MODULES))
def test_image_module_trains(module: str) -> None:
    assert_training(of_module(module))


def test_models_are_found() -> None:
    """The sweep is over many: neither library has moved its files."""
    for library, found, least in (("transformers", MODEL_TYPES, 300), ("timm", MODULES, 60)):
        if importlib.util.find_spec(library) is not None:
            assert len(found) >= least
