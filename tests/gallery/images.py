"""Compares sheets with their committed images, state by state."""

from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageChops

from tests.gallery.sheets import ROOT, State

ACCEPTED = Path(__file__).parent / "images"
DIFFERENCES = ROOT / ".cache" / "gallery-differences"
MAX_SHADE = 12
"""A pixel differs if a channel differs by more than this, of 255. `MAX_ROUNDING` and another processor differ less."""
MAX_PIXELS = 12
"""A state differs if more of its pixels do. Another processor may place the edge of a curve differently."""
COLORS = 256
"""Of the palette of a committed image, which makes it much smaller."""
MAX_ROUNDING = 8
"""A palette whose shades are farther from those of the sheet is not used: all colours are committed."""


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
    mask = _mask(before, sheet, MAX_SHADE)
    found = [Difference(state.name, _count(mask.crop(state.box))) for state in states]
    problems = [f"{name}: {one.pixels} px of “{one.state}” differ" for one in found if one.pixels > MAX_PIXELS]
    if problems:
        red = Image.new("RGB", sheet.size, (255, 0, 0))
        _save(name, sheet, Image.composite(red, sheet.point(lambda shade: 255 - (255 - shade) // 4), mask))
    return problems


def accept(name: str, sheet: Image.Image) -> None:
    """Make the sheet the committed image."""
    ACCEPTED.mkdir(exist_ok=True)
    image = sheet.quantize(COLORS, Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)
    is_close = _count(_mask(sheet, image.convert("RGB"), MAX_ROUNDING)) == 0
    (image if is_close else sheet).save(ACCEPTED / f"{name}.png", optimize=True)


def _mask(before: Image.Image, after: Image.Image, allowed: int) -> Image.Image:
    """White where a channel differs by more than this, of 255."""
    channels = ImageChops.difference(before, after).point(lambda shade: 255 if shade > allowed else 0).split()
    return ImageChops.lighter(ImageChops.lighter(channels[0], channels[1]), channels[2])


def _count(mask: Image.Image) -> int:
    return mask.histogram()[255]


def _save(name: str, sheet: Image.Image, difference: Image.Image | None) -> None:
    DIFFERENCES.mkdir(parents=True, exist_ok=True)
    sheet.save(DIFFERENCES / f"{name}.png")
    if difference is not None:
        difference.save(DIFFERENCES / f"{name}.difference.png")
