"""Which rows of a table count: `country = 'NL' and (age >= 18 or age is null)`.

A small grammar of its own, read word by word: nothing in it is run. Comparisons of a column with a value, `in (…)`,
`is null`, `and`, `or`, `not` and parentheses, as in SQL: a row whose answer is unknown does not count.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any

from likewise.contracts.values import dataclass
from likewise.errors import UsageError, nearest

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

WORDS = (
    r"""\s*(?:(?P<text>'(?:[^']|'')*')|(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w.]))"""
    r"""|(?P<quoted>"(?:[^"]|"")+"|`[^`]+`)|(?P<sign><=|>=|<>|!=|==|=|<|>|\(|\)|,)|(?P<word>[^\W\d][\w.]*))"""
)
SIGNS: dict[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("=", "=="), operator.eq),
    **dict.fromkeys(("!=", "<>"), operator.ne),
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
RESERVED = ("and", "or", "not", "in", "is", "null", "true", "false")
EXAMPLE = "Write a condition such as \"country = 'NL' and age >= 18\"; names with blanks in double quotes"

DEEPEST = 50
"""Parentheses within each other: more than anybody writes, fewer than Python's own limit."""

LONGEST = 100
"""Digits of a whole number, zeros in front of it included."""

MOST_WORDS = 8_000
"""Words of a condition: pyarrow goes down into it comparison by comparison, and ten thousand of them end its stack."""


@dataclass(frozen=True)
class Where:
    """A condition on rows, as it was written; what is read from it is an expression of pyarrow's."""

    text: str

    @property
    def expression(self) -> pc.Expression:
        """What pyarrow filters by."""
        return _Reader(self.text).whole()[0]

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it looks at."""
        return tuple(_Reader(self.text).whole()[1])

    def require(self, schema: pa.Schema) -> None:
        """A usage error for columns that a table does not have, or values that cannot be compared with them."""
        import pyarrow as pa

        expression, names = _Reader(self.text).whole()
        for name in names:
            if name not in schema.names:
                raise UsageError(f"--where: there is no column {name!r}{nearest(name, schema.names)}")
        try:
            schema.empty_table().filter(expression)
        except (pa.ArrowException, TypeError) as error:
            told = str(error).splitlines()[0]
            raise UsageError(
                f"--where {self.text}: {told}", remedy="Compare a column with a value of its type"
            ) from error


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rows of a file are asked for: a condition over the columns of a table, some of which its folders say."""

    where: Where
    schema: pa.Schema
    said: Mapping[str, Any]

    def any_in(self, file: pq.ParquetFile, group: int) -> bool:
        """Does a row group hold such a row? By its values: the least and largest that a file notes may be wrong."""
        import pyarrow as pa

        names, expression = dict.fromkeys(self.where.columns), self.where.expression
        stored = [name for name in names if name not in self.said]
        told = {name: pa.scalar(self.said[name], self.schema.field(name).type) for name in names if name in self.said}
        if not stored:
            return bool(
                pa.table({name: pa.repeat(value, 1) for name, value in told.items()}).filter(expression).num_rows
            )
        for batch in file.iter_batches(row_groups=[group], columns=stored):
            columns = {name: batch.column(name) for name in stored}
            columns |= {name: pa.repeat(value, batch.num_rows) for name, value in told.items()}
            if pa.table(columns).filter(expression).num_rows:
                return True
        return False


class _Reader:
    """Reads a condition from left to right."""

    def __init__(self, text: str) -> None:
        self._text, self._words, self._names = text, list[tuple[str, str]](), list[str]()
        place, text = 0, text.rstrip()
        while place < len(text):
            found = re.compile(WORDS).match(text, place)
            if found is None:
                raise self._wrong(text[place : place + 1000].strip()[:20])
            if len(self._words) == MOST_WORDS:
                raise UsageError(f"--where has more than {MOST_WORDS:,} words", remedy=EXAMPLE)
            assert found.lastgroup is not None
            self._words.append((found.lastgroup, found[found.lastgroup]))
            place = found.end()
        self._words.reverse()
        self._depth = 0

    def whole(self) -> tuple[pc.Expression, list[str]]:
        found = self._any()
        if self._words:
            raise self._wrong(self._words[-1][1])
        return found, self._names

    def _any(self) -> pc.Expression:
        parts = [self._all()]
        while self._takes("or"):
            parts.append(self._all())
        return reduce(operator.or_, parts)

    def _all(self) -> pc.Expression:
        parts = [self._one()]
        while self._takes("and"):
            parts.append(self._one())
        return reduce(operator.and_, parts)

    def _one(self) -> pc.Expression:
        self._depth += 1
        if self._depth > DEEPEST:
            raise UsageError(f"--where is nested more than {DEEPEST} times", remedy=EXAMPLE)
        try:
            if self._takes("not"):
                return ~self._one()
            if self._takes("("):
                found = self._any()
                self._needs(")")
                return found
            return self._comparison()
        finally:
            self._depth -= 1

    def _comparison(self) -> pc.Expression:
        import pyarrow.compute as pc

        kind, word = self._next()
        if kind not in ("word", "quoted") or (kind == "word" and word.lower() in RESERVED):
            raise self._wrong(word)
        name = word if kind == "word" else word[1:-1].replace('""', '"')
        self._names.append(name)
        column = pc.field(name)
        if self._takes("is"):
            missing = not self._takes("not")
            self._needs("null")
            return column.is_null() if missing else column.is_valid()
        denied = self._takes("not")
        if denied or self._peeks("in"):
            self._needs("in")
            self._needs("(")
            values = [self._value()]
            while self._takes(","):
                values.append(self._value())
            self._needs(")")
            # Of a missing value nobody knows whether it is among them.
            among = reduce(operator.or_, [column == value for value in values])
            return ~among if denied else among
        kind, sign = self._next()
        if sign not in SIGNS:
            raise self._wrong(sign)
        return SIGNS[sign](column, self._value())

    def _value(self) -> pc.Expression:
        import pyarrow.compute as pc

        kind, word = self._next()
        if kind == "text":
            return pc.scalar(word[1:-1].replace("''", "'"))
        if kind == "number":
            return self._number(word)
        if word.lower() in ("true", "false"):
            return pc.scalar(word.lower() == "true")
        raise self._wrong(word)

    def _number(self, word: str) -> pc.Expression:
        import pyarrow as pa
        import pyarrow.compute as pc

        if re.search(r"[.eE]", word):
            return pc.scalar(float(word))
        if len(word) > LONGEST or not -(2**63) <= int(word) < 2**64:
            raise UsageError(f"--where compares with a whole number that no column holds: {word[:30]}", remedy=EXAMPLE)
        return pc.scalar(int(word) if int(word) < 2**63 else pa.scalar(int(word), pa.uint64()))

    def _next(self) -> tuple[str, str]:
        if not self._words:
            raise UsageError(f"--where ends too early: {self._text}", remedy=EXAMPLE)
        return self._words.pop()

    def _peeks(self, word: str) -> bool:
        return bool(self._words) and self._words[-1][0] in ("word", "sign") and self._words[-1][1].lower() == word

    def _takes(self, word: str) -> bool:
        found = self._peeks(word)
        if found:
            self._words.pop()
        return found

    def _needs(self, word: str) -> None:
        if not self._takes(word):
            raise self._wrong(self._words[-1][1] if self._words else "its end")

    def _wrong(self, word: str) -> UsageError:
        return UsageError(f"--where cannot be read at {word!r}: {self._text}", remedy=EXAMPLE)
