"""Shows the gallery of components: `python -m tests.gallery [--accept] [--only GROUP] [--port PORT]`.

Without `--accept`, it serves the built gallery until it is interrupted. With it, the sheets become the committed
images, those of one group with `--only`.
"""

import argparse
import threading

from infra import web
from tests.gallery import images
from tests.gallery.sheets import GROUPS, opened_gallery, served, sheets_of


def main() -> None:
    """Serve the gallery, or accept its images."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--accept", action="store_true", help="make the sheets the committed images")
    parser.add_argument("--only", choices=GROUPS, help="accept only the images of this group")
    parser.add_argument("--port", type=int, default=8010, help="the port to serve at (8010)")
    args = parser.parse_args()
    web.gallery()
    if args.accept:
        _accept([args.only] if args.only else GROUPS)
    else:
        _serve(args.port)


def _accept(groups: list[str] | tuple[str, ...]) -> None:
    with opened_gallery() as gallery:
        for group in groups:
            for name, sheet in sheets_of(gallery, group):
                image = sheet.image()
                if images.compare(name, image, sheet.states):
                    images.accept(name, image)
                    print(f"accepted {name}")


def _serve(port: int) -> None:
    with served(port) as url:
        print(f"The gallery is at {url}")
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            print()


if __name__ == "__main__":
    main()
