"""Files in a prompt: the kinds that models read directly, and the text that replaces other files."""

from typing import Literal, TypeAlias

from khala.models.port import PromptFile

PromptFileKind: TypeAlias = Literal["image", "pdf", "text", "other"]

IMAGE_TYPES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""Media types of images that models read."""
PDF_TYPE = "application/pdf"


def media_type(file: PromptFile) -> str:
    """The file's media type without parameters."""
    return file.media_type.partition(";")[0].strip().lower()


def kind_of(file: PromptFile) -> PromptFileKind:
    """The form in which a model receives a file: an image, a PDF, text if it is UTF-8, or only its name (`other`)."""
    base_type = media_type(file)
    if base_type in IMAGE_TYPES:
        return "image"
    if base_type == PDF_TYPE:
        return "pdf"
    return "other" if decode_text(file) is None else "text"


def decode_text(file: PromptFile) -> str | None:
    """The text of a file; None if it is not UTF-8 or has zero bytes."""
    if b"\0" in file.data:
        return None
    try:
        return file.data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None


def heading(file: PromptFile) -> str:
    """The line before a file that the model reads directly."""
    return f"[{_label(file)}]"


def as_text(file: PromptFile) -> str:
    """The text that replaces a file that the model cannot read directly."""
    text = decode_text(file)
    label = _label(file)
    return f"[{label}: not readable as text]" if text is None else f"[{label}]\n{text}\n[End of {file.name!r}]"


def _label(file: PromptFile) -> str:
    return f"File {file.name!r} ({file.media_type}, {len(file.data)} bytes)"
