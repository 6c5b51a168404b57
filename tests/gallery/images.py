"""Compares sheets with their committed images, state by state."""

from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageChops

from tests.gallery.sheets import ROOT, State

ACCEPTED = Path(__file__).parent / "images"
DIFFERENCES = ROOT / ".cache" / "gallery-differences"
MAX_SHADE = 12
"""A pixel differs if a channel differs by more than this, of 255: by more than `SHADES` and another processor may."""
MAX_PIXELS = 12
"""A state differs if more of its pixels do. Another processor may place the edge of a curve differently."""
SHADES = 16
"""Shades of a channel in committed images, which makes them smaller. This changes a shade by 8 at most."""
MAX_COLORS = 256
"""Of an image with a palette."""


@dataclass(frozen=True)
class Difference:
    """A state that does not look as it is committed."""

    state: str
    pixels: int


def compare(name: str, sheet: Image.Image, states: list[State]) -> list[str]:
    """Say how a sheet differs from its committed image, in words.

    If it does, `.cache/gallery-differences` has `NAME.png`, as it is, and `NAME.difference.png`, with what differs in
    red.
    """
    path = ACCEPTED / f"{name}.png"
    if not path.exists():
        return [f"{name} has no committed image"]
    with Image.open(path) as accepted:
        before = accepted.convert("RGB")
    if before.size != sheet.size:
        _save(name, sheet, None)
        return [f"{name} is {sheet.width} × {sheet.height} px, and was {before.width} × {before.height} px"]
    mask = _mask(before, sheet)
    found = [Difference(state.name, _count(mask.crop(state.box))) for state in states]
    problems = [f"{name}: {one.pixels} px of “{one.state}” differ" for one in found if one.pixels > MAX_PIXELS]
    if problems:
        red = Image.new("RGB", sheet.size, (255, 0, 0))
        _save(name, sheet, Image.composite(red, sheet.point(lambda shade: 255 - (255 - shade) // 4), mask))
    return problems


def accept(name: str, sheet: Image.Image) -> None:
    """Make the sheet the committed image."""
    ACCEPTED.mkdir(exist_ok=True)
    steps = SHADES - 1
    coarse = sheet.point([round(round(shade * steps / 255) * 255 / steps) for shade in range(256)] * 3)
    if coarse.getcolors(MAX_COLORS) is not None:
        coarse = coarse.quantize(MAX_COLORS, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    coarse.save(ACCEPTED / f"{name}.png", optimize=True)


def _mask(before: Image.Image, after: Image.Image) -> Image.Image:
    """White where a channel differs by more than `MAX_SHADE`."""
    channels = ImageChops.difference(before, after).point(lambda shade: 255 if shade > MAX_SHADE else 0).split()
    return ImageChops.lighter(ImageChops.lighter(channels[0], channels[1]), channels[2])


def _count(mask: Image.Image) -> int:
    return mask.histogram()[255]


def _save(name: str, sheet: Image.Image, difference: Image.Image | None) -> None:
    DIFFERENCES.mkdir(parents=True, exist_ok=True)
    sheet.save(DIFFERENCES / f"{name}.png")
    if difference is not None:
        difference.save(DIFFERENCES / f"{name}.difference.png")
