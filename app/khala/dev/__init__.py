"""`khala dev` and `khala new`: a server for developers with hot reload, and a project to begin with."""
