"""What `make check` asks of the packages that fedgh is installed with, and what makes the site."""
