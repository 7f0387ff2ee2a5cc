"""`python -m fedgh` is `fedgh`."""

from fedgh.cli import main

if __name__ == "__main__":
    main()
