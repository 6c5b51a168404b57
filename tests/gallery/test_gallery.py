"""Each state of the page looks as it is committed, and axe finds nothing in it."""

import time
from collections.abc import Iterator

import pytest
from PIL import Image, ImageDraw

from infra import web
from tests.gallery import images
from tests.gallery.sheets import GROUPS, Gallery, Sheet, State, opened_gallery, sheets_of

pytestmark = pytest.mark.timeout(240)
ADVICE = "Look at .cache/gallery-differences. If that is as it should be, run `make gallery ARGS=--accept`."
DRAWING_SECONDS = 5.0
SHEET = Image.new("RGB", (400, 300), (255, 255, 255))
STATE = State("a button", 0, 0, 400, 300)


@pytest.fixture(scope="module")
def gallery() -> Iterator[Gallery]:
    web.gallery()
    with opened_gallery() as opened:
        yield opened


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_looks_as_it_is_committed_and_axe_finds_nothing_in_it(gallery: Gallery, group: str) -> None:
    problems: list[str] = []
    for name, sheet in sheets_of(gallery, group):
        problems += differences(name, sheet)
        # Names, roles and so on are the same in all variants; the colours of the dark theme are not. One group stands
        # for what only text from right to left may break.
        if name == "pages-rtl" or not name.endswith("-rtl"):
            problems += sheet.violations(only_colors=name.endswith("-narrow"))
    assert problems == [], "\n".join([ADVICE, *problems])


def differences(name: str, sheet: Sheet) -> list[str]:
    """What still differs after some seconds: workers draw graphs, and may be late."""
    found = images.compare(name, sheet.image(), sheet.states)
    until = time.monotonic() + DRAWING_SECONDS
    while found and time.monotonic() < until:
        time.sleep(0.25)
        found = images.compare(name, sheet.image(), sheet.states)
    return found


@pytest.fixture
def accepted(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "ACCEPTED", tmp_path_factory.mktemp("accepted"))
    monkeypatch.setattr(images, "DIFFERENCES", tmp_path_factory.mktemp("differences"))
    images.accept("sheet", drawn())


def drawn(*, left: int = 40, color: tuple[int, int, int] = (63, 81, 209)) -> Image.Image:
    """A sheet with a round button."""
    sheet = SHEET.copy()
    ImageDraw.Draw(sheet).rounded_rectangle((left, 40, left + 90, 70), 15, color)
    return sheet


@pytest.mark.usefixtures("accepted")
def test_the_same_sheet_does_not_differ_nor_does_one_whose_shades_are_rounded_otherwise() -> None:
    assert images.compare("sheet", drawn(), [STATE]) == []
    assert images.compare("sheet", drawn(color=(65, 80, 208)), [STATE]) == []


@pytest.mark.usefixtures("accepted")
@pytest.mark.parametrize("changed", [drawn(color=(63, 81, 229)), drawn(left=44), SHEET])
def test_another_color_a_shift_by_4_px_and_an_absent_element_differ(changed: Image.Image) -> None:
    [problem] = images.compare("sheet", changed, [STATE])
    assert "“a button”" in problem
    with Image.open(images.DIFFERENCES / "sheet.difference.png") as difference:
        assert (255, 0, 0) in {color for _, color in difference.getcolors(1 << 24) or []}


@pytest.mark.usefixtures("accepted")
def test_a_sheet_of_another_size_and_one_without_an_image_differ() -> None:
    assert images.compare("sheet", SHEET.resize((400, 310)), [STATE]) == ["sheet is 400 × 310 px, and was 400 × 300 px"]
    assert images.compare("other", SHEET, [STATE]) == ["other has no committed image"]
