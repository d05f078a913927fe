"""A page: one HTML file that holds all that it shows, and asks the network for nothing.

What is in the page is put there by Jinja2, with all text escaped. The data is JSON in an element of
its own, in which no text can end that element. The policy of the page
(https://www.w3.org/TR/CSP3/) lets a browser run only the script that is told by its hash, so that
what a name may look like is never run.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Mapping
from importlib import resources
from typing import Any

import jinja2
from markupsafe import Markup

from .version import __version__
from .writing import Target, text_file

__all__ = ["write_page"]


def write_page(data: Mapping[str, Any], target: Target) -> None:
    """Write a page.

    Args:
        data: what it shows; see :mod:`fx_instrument.page_data`.
        target: the path of the file, or a file that is open for text.

    Raises:
        FileAccessError: the file cannot be written.
        TypeError: ``target`` is something else.
    """
    style, script = _text_of("page.css"), _text_of("page.js")
    text = (
        _environment()
        .from_string(_text_of("page.html"))
        .render(
            data=data,
            # The text of these two is ours, and is no HTML.
            style=Markup(style),
            script=Markup(script),
            style_hash=_hash_of(style),
            script_hash=_hash_of(script),
            version=__version__,
        )
    )
    # Whatever encoding a file was opened with, a browser reads the same.
    text = text.encode("ascii", "xmlcharrefreplace").decode("ascii")
    with text_file(target) as file:
        file.write(text)


@functools.lru_cache(maxsize=1)
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        autoescape=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined
    )
    environment.policies["json.dumps_kwargs"] = {
        "allow_nan": False,
        "separators": (",", ":"),
    }
    return environment


@functools.lru_cache(maxsize=3)
def _text_of(name: str) -> str:
    file = resources.files(__package__) / "templates" / name
    return file.read_text(encoding="utf-8")


def _hash_of(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
