"""docs/attention.md shows what its code prints: python blocks run in order, each followed by its output."""

import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

PAGE = Path(__file__).resolve().parent.parent / "docs/attention.md"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples(text: str) -> Iterator[tuple[int, str, str]]:
    """(line of the fence, code, text shown) of every python block; its text block is the next one, if any."""
    blocks = [(text.count("\n", 0, at.start(2)), at[1], at[2]) for at in _BLOCK.finditer(text)]
    for index, (line, language, body) in enumerate(blocks):
        before, after = blocks[index - 1][1] if index else "", [*blocks, (0, "", "")][index + 1]
        if language == "python":
            yield line, body, after[2] if after[1] == "text" else ""
        elif (language, before) != ("text", "python"):
            raise ValueError(f"line {line}: a block of {language!r} that no code prints")


def misprints(text: str) -> list[str]:
    """What is shown and not printed, or printed and not shown, with its line."""
    wrong, names = [], dict[str, Any]()
    with np.printoptions():
        for line, code, shown in examples(text):
            printed = StringIO()
            with redirect_stdout(printed):
                exec(compile("\n" * line + code, PAGE.name, "exec"), names)
            if printed.getvalue() != shown:
                wrong.append(f"line {line}: printed\n{printed.getvalue()}shown\n{shown}")
    return wrong


def test_the_page_shows_what_it_prints() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert "\n".join(misprints(text)) == ""
    assert len(list(examples(text))) > 15


def test_a_misprint_is_found() -> None:
    code = "```python\nx = 2\n```\n\n```python\nprint(x)\n```\n"
    assert misprints(code + "\n```text\n2\n```\n") == []
    assert misprints(code + "\n```text\n3\n```\n") == ["line 5: printed\n2\nshown\n3\n"]
    assert misprints(code) == ["line 5: printed\n2\nshown\n"]
    with pytest.raises(ValueError, match="line 1: a block of 'text' that no code prints"):
        misprints("```text\n2\n```\n")
