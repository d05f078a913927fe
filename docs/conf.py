"""How the documentation is built: ``sphinx-build -W --keep-going -b html docs docs/_build``."""

from __future__ import annotations

import sys
from collections import _tuplegetter  # type: ignore[attr-defined]
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

from fx_instrument import __version__

project = "fx_instrument"
author = "fx_instrument contributors"
project_copyright = "fx_instrument contributors"
release = __version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]
html_theme = "alabaster"
html_theme_options = {
    "description": "Time every node of a PyTorch model",
    "page_width": "1100px",
    "sidebar_width": "260px",
}
html_show_sphinx = False

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
# Named as in the code, not spelled out.
autodoc_type_aliases = {name: name for name in ("ClockChoice", "Keep", "ModuleChoice", "Target")}
python_maximum_signature_line_length = 80
napoleon_google_docstring = True
napoleon_numpy_docstring = False
# Attributes are described where the class is, and those that are properties where they are, too.
napoleon_use_ivar = True


def skip_fields_of_tuples(
    app: Any, what: str, name: str, obj: Any, skip: bool, options: Any
) -> bool | None:
    """Leave out the fields of a NamedTuple, of which the class's docstring tells."""
    return True if isinstance(obj, _tuplegetter) else None


def setup(app: Any) -> None:
    """Connect what is done here with Sphinx."""
    app.connect("autodoc-skip-member", skip_fields_of_tuples)
