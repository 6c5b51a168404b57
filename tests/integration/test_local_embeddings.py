"""An embedding model of the operator's own disk: an ONNX export in the form of sentence-transformers."""

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save
from tokenizers import Tokenizer, models, pre_tokenizers

from khala.models.embeddings import embedding_names
from khala.models.embeddings.embedder import Embedder
from khala.models.embeddings.factory import EmbeddingModelError, open_embedder
from khala.models.provider_registry import ProviderAccess

WORDS = ["[UNK]", "[PAD]", "query:", "a", "dog", "puppy", "car", "tea"]
WEIGHTS = np.random.default_rng(7).normal(size=(len(WORDS), 6)).astype(np.float32)


def export(directory: Path, **config: Any) -> Path:
    """A model that maps each token to a row of `WEIGHTS`. `config`: the contents of further files by folder."""
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"])
    mask = helper.make_tensor_value_info("attention_mask", TensorProto.INT64, ["batch", "length"])
    output = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, ["batch", "length", 6])
    seen = helper.make_tensor_value_info("seen", TensorProto.INT64, ["batch", "length"])
    nodes = [
        helper.make_node("Gather", ["weights", "input_ids"], ["last_hidden_state"]),
        helper.make_node("Identity", ["attention_mask"], ["seen"]),
    ]
    graph = helper.make_graph(
        nodes, "embeddings", [ids, mask], [seen, output], [numpy_helper.from_array(WEIGHTS, "weights")]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (directory / "onnx").mkdir(parents=True)
    save(model, str(directory / "onnx/model.onnx"))
    vocabulary = {word: index for index, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(directory / "tokenizer.json"))
    for name, content in config.items():
        path = directory / name.replace("__", "/")
        path.parent.mkdir(exist_ok=True)
        path.with_suffix(".json").write_text(json.dumps(content))
    return directory


def opened(directory: Path) -> Embedder:
    ref = embedding_names.parse(f"local:{directory}")
    assert ref is not None
    return open_embedder(ref, ProviderAccess())


@pytest.fixture
async def embedders() -> AsyncIterator[list[Embedder]]:
    """Embedders that the test opens; they are closed at its end."""
    opened_here: list[Embedder] = []
    yield opened_here
    for embedder in opened_here:
        await embedder.aclose()


def expected(words: Sequence[str], how: str) -> Any:
    rows = WEIGHTS[[WORDS.index(word) for word in words]]
    pooled = {"mean": rows.mean(axis=0), "cls": rows[0], "last": rows[-1], "max": rows.max(axis=0)}[how]
    return pytest.approx(list(pooled / np.linalg.norm(pooled)), abs=1e-6)


@pytest.mark.parametrize(
    ("how", "config"),
    [
        ("mean", {}),
        ("mean", {"1_Pooling__config": {"pooling_mode_mean_tokens": True}}),
        ("cls", {"1_Pooling__config": {"pooling_mode_cls_token": True}}),
        ("max", {"1_Pooling__config": {"pooling_mode_max_tokens": True}}),
        ("last", {"1_Pooling__config": {"pooling_mode_lasttoken": True}}),
    ],
)
async def test_texts_of_different_lengths_are_pooled_as_the_model_says(
    tmp_path: Path, embedders: list[Embedder], how: str, config: dict[str, Any]
) -> None:
    embedder = opened(export(tmp_path / "model", **config))
    embedders.append(embedder)
    result = await embedder.documents(["a dog tea", "puppy"])
    assert list(result.vectors[0]) == expected(["a", "dog", "tea"], how)
    assert list(result.vectors[1]) == expected(["puppy"], how)
    assert result.tokens == 4


async def test_a_query_is_preceded_by_the_prompt_of_the_model(tmp_path: Path, embedders: list[Embedder]) -> None:
    prompts = {"prompts": {"query": "query: ", "document": ""}}
    embedder = opened(export(tmp_path / "model", config_sentence_transformers=prompts))
    embedders.append(embedder)
    query = await embedder.query("dog")
    assert query is not None
    assert list(query) == expected(["query:", "dog"], "mean")
    assert list((await embedder.documents(["dog"])).vectors[0]) == expected(["dog"], "mean")


async def test_a_text_is_read_to_the_length_that_the_model_supports(tmp_path: Path, embedders: list[Embedder]) -> None:
    embedder = opened(export(tmp_path / "model", sentence_bert_config={"max_seq_length": 2}))
    embedders.append(embedder)
    result = await embedder.documents(["a dog " + "tea " * 1000])
    assert list(result.vectors[0]) == expected(["a", "dog"], "mean")


async def test_more_texts_than_fit_into_a_call_are_all_embedded(tmp_path: Path, embedders: list[Embedder]) -> None:
    embedder = opened(export(tmp_path / "model"))
    embedders.append(embedder)
    result = await embedder.documents(["dog", "car"] * 50)
    assert list(result.vectors[99]) == expected(["car"], "mean")
    assert len(result.vectors) == 100


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ("onnx/model.onnx", "has no model.onnx"),
        ("tokenizer.json", "has no tokenizer.json"),
    ],
)
def test_a_directory_without_a_file_is_refused_by_name(tmp_path: Path, broken: str, reason: str) -> None:
    directory = export(tmp_path / "model")
    (directory / broken).unlink()
    with pytest.raises(EmbeddingModelError, match=reason):
        opened(directory)


@pytest.mark.parametrize("broken", ["onnx/model.onnx", "tokenizer.json", "1_Pooling/config.json"])
def test_a_damaged_file_is_refused(tmp_path: Path, broken: str) -> None:
    directory = export(tmp_path / "model", **{"1_Pooling__config": {}})
    (directory / broken).write_bytes(b"damaged")
    with pytest.raises(EmbeddingModelError, match=r"cannot be (loaded|read)"):
        opened(directory)
