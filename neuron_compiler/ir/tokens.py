"""Text to tokens, and what the readers of programs and of kernels share: names, types, lists, and where a fault is."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable
from typing import NoReturn, TypeVar

from neuron_compiler.errors import ParseError
from neuron_compiler.ir.graph import DType, TensorType

T = TypeVar("T")
U = TypeVar("U")

DTYPES = {dtype.value: dtype for dtype in DType}

_STRING = r'"(?:[^"\\\n]|\\.)*"'
_TOKEN = re.compile(
    rf"""(?P<space>[ \t\r\n]+)
    |(?P<value>%(?:[\w.$]+|{_STRING}))
    |(?P<type>(?:{"|".join(DTYPES)})\[[-\d, ]*\])
    |(?P<number>-?(?:\d+(?:\.\d*)?(?:[eE][+-]?\d+)?|inf\b|nan\b))
    |(?P<hex>hex"[^"\n]*")
    |(?P<word>[^\W\d][\w.$]*)
    |(?P<string>{_STRING})
    |(?P<arrow>->)
    |(?P<mark>[()\[\]{{}}=:,*+-])
    |(?P<comment>\#[^\n]*)
    |(?P<bad>.)""",
    re.VERBOSE,
)


class Reader:
    """Recursive descent over a list of tokens, one method a construct."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[tuple[str, str, int]] = []
        for match in _TOKEN.finditer(text):
            if match.lastgroup == "bad":
                self.fail(f"unexpected character {match.group()!r}", match.start())
            if match.lastgroup != "space":
                self.tokens.append((str(match.lastgroup), match.group(), match.start()))
        self.tokens.append(("end", "", len(text)))
        self.index = 0
        self.types: dict[str, TensorType] = {}

    # Tokens

    def fail(self, what: str, at: int | None = None) -> NoReturn:
        at = self.peek()[2] if at is None else at
        start = self.text.rfind("\n", 0, at) + 1
        end = self.text.find("\n", at)
        line = self.text[start : len(self.text) if end < 0 else end].rstrip("\r")
        pad = "".join("\t" if c == "\t" else " " for c in line[: at - start])
        place = f"line {self.text.count(chr(10), 0, at) + 1}, column {at - start + 1}"
        raise ParseError(f"{place}: {what}\n    {line}\n    {pad}^")

    def peek(self) -> tuple[str, str, int]:
        while self.tokens[self.index][0] == "comment":
            self.index += 1
        return self.tokens[self.index]

    def take(self, kind: str, what: str) -> str:
        found, text, _ = self.peek()
        if found != kind:
            self.fail(f"expected {what}, found {shown(found, text)}")
        self.index += 1
        return text

    def at(self, text: str) -> bool:
        kind, found, _ = self.peek()
        return found == text and kind in ("mark", "word", "arrow")

    def accept(self, text: str) -> bool:
        if self.at(text):
            self.index += 1
            return True
        return False

    def expect(self, text: str, after: str) -> None:
        if not self.accept(text):
            kind, found, _ = self.peek()
            self.fail(f"expected {text!r} after {after}, found {shown(kind, found)}")

    def trailing_comment(self) -> str:
        """The comment that ends the line of the last token, else nothing."""
        kind, text, start = self.tokens[self.index]
        if kind != "comment":
            return ""
        previous = self.tokens[self.index - 1]
        if "\n" in self.text[previous[2] + len(previous[1]) : start]:
            return ""
        self.index += 1
        return re.sub(r"\\(.)", _unescape, text[1:].removeprefix(" ").removesuffix("\r"))

    def listed(self, item: Callable[[], T], closing: str, what: str) -> tuple[T, ...]:
        """Items between commas up to ``closing``; a comma may follow the last one."""
        found: list[T] = []
        while not self.accept(closing):
            found.append(item())
            if not self.accept(","):
                self.expect(closing, what)
                break
        return tuple(found)

    def arguments(
        self, positional: Callable[[], T], keyword: Callable[[], U]
    ) -> tuple[tuple[T, ...], tuple[tuple[str, U], ...]]:
        """What stands up to a closing parenthesis: operands, then ``name=`` and what follows it."""
        operands: list[T] = []
        attrs: list[tuple[str, U]] = []
        while not self.accept(")"):
            kind, _, start = self.peek()
            if kind in ("word", "string") and self.tokens[self.index + 1][1] == "=":
                name = self.name("a name")
                self.index += 1
                attrs.append((name, keyword()))
            elif attrs:
                self.fail("a positional operand stands after a keyword", start)
            else:
                operands.append(positional())
            if not self.accept(","):
                self.expect(")", "the operands")
                break
        return tuple(operands), tuple(attrs)

    # Names and types

    def name(self, what: str) -> str:
        kind, text, _ = self.peek()
        if kind == "string":
            return self.string(what)
        return self.take("word", what) if kind != "word" else self._advance(text)

    def _advance(self, text: str) -> str:
        self.index += 1
        return text

    def string(self, what: str) -> str:
        return self.quoted(self.take("string", what))

    def quoted(self, text: str) -> str:
        try:
            return str(json.loads(text))
        except json.JSONDecodeError as error:
            self.fail(f"string cannot be read: {error.msg}", self.tokens[self.index - 1][2])

    def value(self, what: str = "a value such as %x") -> str:
        text = self.take("value", what)[1:]
        return self.quoted(text) if text.startswith('"') else text

    def tensor_type(self) -> TensorType:
        kind, text, start = self.peek()
        if kind == "word" and text not in DTYPES and text != "none":
            self.fail(f"unknown element type {text!r}{known(text, DTYPES)}")
        self.take("type", "a type such as f32[4,8]")
        found = self.types.get(text)
        if found is None:
            dtype, _, shape = text[:-1].partition("[")
            try:
                extents = tuple(int(n) for n in shape.split(",")) if shape.strip() else ()
            except ValueError:
                self.fail(f"{text!r} is not a type such as f32[4,8]", start)
            found = self.types[text] = TensorType(extents, DTYPES[dtype])
        return found


def shown(kind: str, text: str) -> str:
    return "the end of the text" if kind == "end" else repr(text)


def known(word: str, words: Iterable[str]) -> str:
    words = list(words)
    close = difflib.get_close_matches(word, words, 1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(words)}"


def _unescape(match: re.Match[str]) -> str:
    return {"n": "\n", "r": "\r"}.get(match.group(1), match.group(1))
