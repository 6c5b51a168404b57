"""`python -m app` is `khala`."""

from app.cli import main

main()
