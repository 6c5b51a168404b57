"""The client of `khala plan`: starts, follows and changes plans on a running server."""
