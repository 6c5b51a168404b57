"""The embedding model port for a model in a directory: an ONNX export of sentence-transformers, run in this process.

Needs the extra `khala-server[local]` (onnxruntime, tokenizers, numpy). The directory has `model.onnx` or
`onnx/model.onnx`, `tokenizer.json`, and, as sentence-transformers writes them, `1_Pooling/config.json`,
`sentence_bert_config.json` and `config_sentence_transformers.json`, of which all three are optional.
"""

import asyncio
from array import array
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from khala.domain.vectors import unit_vector
from khala.models import failures
from khala.models.embeddings.embedding_names import EmbeddingRef
from khala.models.embeddings.port import EmbeddingResult, Purpose

if TYPE_CHECKING:
    import numpy
    import numpy.typing
    import onnxruntime
    import tokenizers

    FloatArray: TypeAlias = numpy.typing.NDArray[numpy.float32]
    IntArray: TypeAlias = numpy.typing.NDArray[numpy.int64]

MAX_TEXTS = 16
"""Texts of one call: a call occupies its thread until it has ended."""
DEFAULT_MAX_TOKENS = 256
"""Tokens of a text that are read, if the directory does not say."""
MODEL_FILES = ("model.onnx", "onnx/model.onnx")
OUTPUTS = ("sentence_embedding", "last_hidden_state", "token_embeddings")
"""Names of outputs, the preferred one first. Without one of them, the first output is used."""


class LocalModelError(ValueError):
    """A directory has no usable model. The message says what is missing."""


class _Pooling(msgspec.Struct):
    """How the vectors of tokens become one vector. Without a mode it is their mean."""

    pooling_mode_cls_token: bool = False
    pooling_mode_max_tokens: bool = False
    pooling_mode_lasttoken: bool = False


class _Limits(msgspec.Struct):
    max_seq_length: int = DEFAULT_MAX_TOKENS


class _Prompts(msgspec.Struct):
    """Texts that precede a text, by purpose, such as `query: `."""

    prompts: dict[str, str] = {}


class LocalEmbeddings:
    """One model in memory. Its calls run one after the other in a thread of its own."""

    max_texts = MAX_TEXTS
    provider = "local"

    def __init__(self, ref: EmbeddingRef) -> None:
        """Load the model, which takes a second or more. Raises `LocalModelError`."""
        directory = Path(ref.name).expanduser()
        self.name = str(ref)
        self.model = directory.name
        self._session, self._tokenizer = _load(directory)
        self._pooling = _read(directory / "1_Pooling/config.json", _Pooling)
        self._prompts = _read(directory / "config_sentence_transformers.json", _Prompts).prompts
        self._tokenizer.enable_truncation(_read(directory / "sentence_bert_config.json", _Limits).max_seq_length)
        self._tokenizer.enable_padding()
        self._inputs = {node.name for node in self._session.get_inputs()}
        outputs = [node.name for node in self._session.get_outputs()]
        self._output = next((name for name in OUTPUTS if name in outputs), outputs[0])
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="embeddings")

    async def embed(self, texts: Sequence[str], purpose: Purpose) -> EmbeddingResult:
        """Run the model once. See `port.EmbeddingModel.embed`."""
        prompt = self._prompts.get(purpose, "")
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._thread, self._embed, [prompt + text for text in texts]
            )
        except Exception as error:  # any error of the library becomes the cause of a ModelFailed
            raise failures.from_kind(failures.INVALID_RESPONSE, self.provider, midstream=False) from error

    async def aclose(self) -> None:
        """Wait for the call in progress, and end the thread."""
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)

    def _embed(self, texts: list[str]) -> EmbeddingResult:
        import numpy as np

        encodings = self._tokenizer.encode_batch(texts)
        mask = np.array([encoding.attention_mask for encoding in encodings], dtype=np.int64)
        columns = {
            "input_ids": np.array([encoding.ids for encoding in encodings], dtype=np.int64),
            "attention_mask": mask,
            "token_type_ids": np.array([encoding.type_ids for encoding in encodings], dtype=np.int64),
        }
        inputs = {name: column for name, column in columns.items() if name in self._inputs}
        (output,) = self._session.run([self._output], inputs)
        rows = output if output.ndim == 2 else _pooled(output, mask, self._pooling)
        vectors = tuple(unit_vector(array("f", row.astype(np.float32).tolist())) for row in rows)
        return EmbeddingResult(vectors=vectors, tokens=int(mask.sum()))


def _pooled(output: "FloatArray", mask: "IntArray", pooling: _Pooling) -> "FloatArray":
    """One row for each text, from one row for each of its tokens; tokens that only pad a text do not count."""
    import numpy as np

    weights = mask[:, :, None]
    if pooling.pooling_mode_cls_token:
        return output[:, 0]
    if pooling.pooling_mode_lasttoken:
        last = output.shape[1] - 1 - np.argmax(mask[:, ::-1], axis=1)
        lasts: FloatArray = output[np.arange(len(output)), last]
        return lasts
    if pooling.pooling_mode_max_tokens:
        rows: FloatArray = np.where(weights == 0, -np.inf, output).max(axis=1)
        return rows
    total: FloatArray = (output * weights).sum(axis=1) / np.maximum(weights.sum(axis=1), 1)
    return total


def _load(directory: Path) -> "tuple[onnxruntime.InferenceSession, tokenizers.Tokenizer]":
    try:
        import onnxruntime
        from tokenizers import Tokenizer
    except ImportError as error:
        raise LocalModelError(
            "A local embedding model needs more packages: pip install 'khala-server[local]'."
        ) from error
    model = next((directory / name for name in MODEL_FILES if (directory / name).is_file()), None)
    vocabulary = directory / "tokenizer.json"
    if model is None or not vocabulary.is_file():
        missing = "model.onnx" if model is None else "tokenizer.json"
        raise LocalModelError(f"The directory {directory} has no {missing}.")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # the cores are shared with the event loop and with Postgres
    try:
        session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        return session, Tokenizer.from_file(str(vocabulary))
    except Exception as error:  # the libraries raise bare exceptions
        raise LocalModelError(f"The model in {directory} cannot be loaded: {error}") from error


def _read(path: Path, kind: type[Any]) -> Any:
    """The contents of a JSON file, or defaults if there is none. Raises `LocalModelError`."""
    if not path.is_file():
        return kind()
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except ValueError as error:
        raise LocalModelError(f"{path} cannot be read: {error}") from error
