"""``python -m fx_instrument``, the same as the command ``fx-instrument``."""

from .cli import main

if __name__ == "__main__":
    raise SystemExit(main())
