"""Tools for development: checks of dependencies for `make check`, and the documentation site."""
