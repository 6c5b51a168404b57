"""`python -m khala` is `khala`."""

from khala.cli import main

main()
