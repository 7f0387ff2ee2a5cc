"""The documentation site: pages and links that `make docs` adds to the Markdown files."""
