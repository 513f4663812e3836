"""Vectors in PostgreSQL with pgvector: a table that many programs query, searched by its HNSW index.

A new table is written, indexed and measured in one transaction, and takes the name of the former one at its
end; an edit is one transaction too. What the vectors are of stands in the table's comment.
"""

import os
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from threading import Timer
from typing import Any, TypeVar
from uuid import uuid4

import numpy as np

from realmlm.errors import (
    ArtefactExists,
    ArtefactMissing,
    BadInput,
    NotEnough,
    RealmError,
    Unavailable,
    require,
)
from realmlm.index.shared import COLUMNS, Batch, Check, Condition, Found, State, unchecked
from realmlm.log import say

T = TypeVar("T")
_TABLE = "realmlm"  # where the address names no other
_MOST_NUMBERS = 2000  # of a vector in an index of pgvector
_MOST_EFFORT = 1000  # the largest hnsw.ef_search
SEARCH_S = 30.0  # that a statement may take which a question waits for, or an edit for another
_SPARE_S = 5.0  # after which a server that does not give up by itself is not waited for
_CONNECTION = {  # where the address says nothing else; a connection whose other end is gone breaks in 30 s
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}
_OLDEST = (0, 8)  # pgvector that looks further where a filter leaves too few
_ALL = {
    "enable_indexscan": "off",
    "enable_bitmapscan": "off",
}  # settings for a search that leaves nothing out
_HOW = "realmlm export vectors --corpus CORPUS --to postgres DSN"
_LISTED = ", ".join(COLUMNS)
_CREATE = """CREATE TABLE {table} (
    id bigint PRIMARY KEY, title text NOT NULL, text text NOT NULL, source text NOT NULL,
    vector vector({size}) NOT NULL)"""
_PUT = f"""INSERT INTO {{table}} ({_LISTED}) VALUES (%s, %s, %s, %s, %s::vector)
    ON CONFLICT (id) DO UPDATE SET {", ".join(f"{name} = EXCLUDED.{name}" for name in COLUMNS[1:])}"""
_NEAREST = """SELECT id, -(vector <#> %s::vector) FROM {table} {where}
    ORDER BY vector <#> %s::vector LIMIT %s"""


def _psycopg() -> Any:
    return require("psycopg", extra="postgres", why="PostgreSQL")


class PostgresStore:
    """A table, at a DSN that psycopg understands, followed by #TABLE."""

    def __init__(self, address: str) -> None:
        self._psycopg = _psycopg()
        self._dsn, _, table = address.partition("#")
        self.table = table or _TABLE
        try:
            known = self._psycopg.conninfo.conninfo_to_dict(self._dsn)
        except self._psycopg.ProgrammingError as error:
            example = "postgresql://USER@HOST/DATABASE"
            raise BadInput(f"that is no address of a PostgreSQL database; write {example}") from error
        self._where = f"{known.get('host', 'localhost')}/{known.get('dbname', '')}"  # without the password
        self._defaults = {name: value for name, value in _CONNECTION.items() if name not in known}
        if "PGCONNECT_TIMEOUT" in os.environ:
            self._defaults.pop("connect_timeout", None)
        self._held: Any = None
        self._given_up = False
        self._trouble = ""  # with the database, as it was said

    def __str__(self) -> str:
        return f"postgres:{self._where}#{self.table}"

    def _connection(self) -> Any:
        """An open one; a new one where the last was cut off."""
        if self._held is None or self._held.closed:
            try:
                self._held = self._psycopg.connect(self._dsn, autocommit=True, **self._defaults)
            except self._psycopg.OperationalError as error:
                raise self._unavailable("cannot be reached", error) from error
        return self._held

    @contextmanager
    def _transaction(self) -> Iterator["_Table"]:
        """The table in a transaction: all of what is done happens, or nothing."""
        connection = self._connection()
        with connection.transaction():
            yield _Table(connection, self.table)

    def _read(self, work: Callable[["_Table"], T]) -> T:
        """What `work` reads; on a new connection if the one held was cut off since it was last used."""
        try:
            try:
                return self._read_once(work)
            except self._psycopg.OperationalError:
                if not self._held.closed or self._given_up:
                    raise
                return self._read_once(work)
        except self._psycopg.Error as error:
            raise self._said(error) from error

    def _read_once(self, work: Callable[["_Table"], T]) -> T:
        connection = self._connection()
        self._given_up = False
        timer = Timer(SEARCH_S + _SPARE_S, self._give_up, [connection])
        timer.daemon = True
        timer.start()
        try:
            with self._transaction() as table:
                table.limit(SEARCH_S)
                done = work(table)
        finally:
            timer.cancel()
        self._trouble = ""
        return done

    def _give_up(self, connection: Any) -> None:
        """Cut the connection to a server that has stopped, though its machine still answers: whoever waits
        for it is told."""
        self._given_up = True
        with (
            suppress(OSError, self._psycopg.Error),
            socket.socket(fileno=os.dup(connection.fileno())) as same,
        ):
            same.shutdown(socket.SHUT_RDWR)

    def _unavailable(self, what: str, error: Exception) -> Unavailable:
        """The error for those who ask; whoever runs this is told, once, where and why."""
        trouble = f"{self} {what}: {_why(error)}"
        if trouble != self._trouble:
            say(trouble)
        self._trouble = trouble
        cure = "try again later; if it lasts, check that the database runs, and its address"
        return Unavailable(f"the PostgreSQL that holds the vectors {what}; {cure}")

    def _said(self, error: Exception) -> RealmError:
        """What the database complains about, for people."""
        if isinstance(error, self._psycopg.OperationalError):
            return self._unavailable("does not answer", error)
        if isinstance(error, self._psycopg.errors.UndefinedTable):
            return ArtefactMissing(f"no table {self}; write it: {_HOW}")
        if isinstance(error, self._psycopg.DataError):
            return BadInput(f"{self} cannot compare so ({_why(error)}); correct the --filter")
        return NotEnough(f"{self} refuses ({_why(error)}); try again when that is cured, or write it: {_HOW}")

    def _read_checked(self, work: Callable[["_Table"], T], check: Check) -> T:
        """What `work` reads of the state that was checked, whatever others write meanwhile."""

        def checked(table: "_Table") -> T:
            table.freeze()
            check(self._ours(table.state()))
            return work(table)

        return self._read(checked)

    def state(self) -> State:
        return self._ours(self._read(_Table.state))

    def _ours(self, state: State | None) -> State:
        if state is None:
            raise ArtefactMissing(f"no vectors of realmlm in {self}; write them: {_HOW}")
        return state

    def check(self) -> None:
        def refuse_foreign(table: "_Table") -> None:
            if table.exists() and table.state() is None:
                cure = "name another table: --to postgres DSN#TABLE"
                raise ArtefactExists(f"{self} was not written by realmlm; {cure}")

        self._read(refuse_foreign)

    @contextmanager
    def write(self, given: Iterator[Batch], state: State) -> Iterator["_PostgresDraft"]:
        if state.dim > _MOST_NUMBERS:
            raise BadInput(f"pgvector indexes vectors of at most {_MOST_NUMBERS} numbers, not {state.dim}")
        self.check()
        try:
            with self._transaction() as table:
                try:
                    table.run("CREATE EXTENSION IF NOT EXISTS vector")
                except self._psycopg.Error as error:
                    cure = "install it on the server, and let its owner run: CREATE EXTENSION vector"
                    raise NotEnough(f"{self} has no pgvector ({_why(error)}); {cure}") from error
                self._check_version(table)
                new = _Table(table.connection, f"{self.table[:40]}_{uuid4().hex[:8]}")
                new.create(given, state.dim)
                yield _PostgresDraft(new, self.table)
        except self._psycopg.Error as error:
            raise self._said(error) from error

    def _check_version(self, table: "_Table") -> None:
        query = "SELECT extversion FROM pg_extension WHERE extname = 'vector'"
        version = str(table.run(query).fetchone()[0])
        if tuple(map(int, re.findall(r"\d+", version)[:2])) < _OLDEST:
            cure = "install 0.8 or newer, then: ALTER EXTENSION vector UPDATE"
            raise NotEnough(f"{self} has pgvector {version}, which cannot search on behind a filter; {cure}")

    def edit(self, written: Batch | None, removed: list[int], state: State) -> None:
        try:
            with self._transaction() as table:
                table.hold(self.table, SEARCH_S)
                there = table.state()
                if there is None or there.corpus_edits >= state.corpus_edits:
                    return  # another process was faster
                table.edit(written, removed)
                table.describe(state)
        except self._psycopg.Error as error:
            raise self._said(error) from error

    def search(
        self,
        query_D: np.ndarray,
        k: int,
        *,
        effort: int,
        only: Sequence[Condition],
        check: Check = unchecked,
    ) -> Found:
        return self._read_checked(lambda table: table.best(query_D, k, effort=effort, only=only), check)

    def vectors(self, ids: list[int], *, check: Check = unchecked) -> tuple[np.ndarray, np.ndarray]:
        rows = self._read_checked(lambda table: table.vectors(ids), check)
        found = np.array([number for number, _ in rows], dtype=np.int64)
        return found, np.array([vector for _, vector in rows], dtype=np.float32)

    def ids(self, only: Sequence[Condition], *, check: Check = unchecked) -> np.ndarray:
        return self._read_checked(lambda table: table.ids(only), check)

    def locked(self) -> AbstractContextManager[object]:
        return nullcontext()  # the transaction of an edit locks


class _Table:
    """A table in a transaction."""

    def __init__(self, connection: Any, name: str) -> None:
        self.connection = connection
        self._name = _psycopg().sql.Identifier(name)

    def sql(self, statement: str, **parts: Any) -> Any:
        return _psycopg().sql.SQL(statement).format(table=self._name, **parts)

    def run(self, statement: str, values: Sequence[Any] | None = None, **parts: Any) -> Any:
        return self.connection.execute(self.sql(statement, **parts), values)

    def exists(self) -> bool:
        name = self._name.as_string(self.connection)
        return bool(self.run("SELECT to_regclass(%s) IS NOT NULL", [name]).fetchone()[0])

    def state(self) -> State | None:
        """What its comment says; None: it is not there, or not ours."""
        name = self._name.as_string(self.connection)
        return State.of(self.run("SELECT obj_description(to_regclass(%s), 'pg_class')", [name]).fetchone()[0])

    def describe(self, state: State) -> None:
        self.run("COMMENT ON TABLE {table} IS {comment}", comment=_psycopg().sql.Literal(state.to_json()))

    def create(self, given: Iterator[Batch], dim: int) -> None:
        """A new one with these passages, indexed."""
        self.run(_CREATE, size=_psycopg().sql.Literal(dim))
        with self.connection.cursor().copy(self.sql(f"COPY {{table}} ({_LISTED}) FROM STDIN")) as copy:
            for batch in given:
                for row in _rows(batch):
                    copy.write_row(row)
        self.run("CREATE INDEX ON {table} USING hnsw (vector vector_ip_ops)")
        self.run("ANALYZE {table}")

    def limit(self, seconds: float) -> None:
        """The time for each statement until the transaction ends. First in it."""
        self.run(f"SET LOCAL statement_timeout = {round(1000 * seconds)}")

    def freeze(self) -> None:
        """See it as it is now until the transaction ends. Before anything is read: with the lock no other
        takes its name, and only what comes after the lock decides which edits are seen."""
        self.run("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; LOCK TABLE {table} IN ACCESS SHARE MODE")

    def hold(self, name: str, patience_s: float = 0) -> None:
        """Let no one else edit the table of this name, or replace it, until the transaction ends; waits so
        long for others (0: until they are done)."""
        self.run(f"SET LOCAL lock_timeout = {round(1000 * patience_s)}")
        self.run("SELECT pg_advisory_xact_lock(hashtext(%s))", [name])

    def edit(self, written: Batch | None, removed: list[int]) -> None:
        if written is not None:
            self.connection.cursor().executemany(self.sql(_PUT), list(_rows(written)))
        if removed:
            self.run("DELETE FROM {table} WHERE id = ANY(%s)", [removed])

    def rename(self, name: str) -> None:
        """Take the place of another table."""
        new = _psycopg().sql.Identifier(name)
        self.run("DROP TABLE IF EXISTS {new}", new=new)
        self.run("ALTER TABLE {table} RENAME TO {new}", new=new)

    def best(self, query_D: np.ndarray, k: int, *, effort: int, only: Sequence[Condition]) -> Found:
        """The k best, as far as the effort goes (hnsw.ef_search, which finds no more than so many)."""
        settings = _ALL
        if effort and k <= _MOST_EFFORT:
            settings = {"hnsw.ef_search": str(max(effort, k)), "hnsw.iterative_scan": "strict_order"}
        for setting, value in settings.items():
            self.run("SELECT set_config(%s, %s, true)", [setting, value])
        where, values = self._where(only)
        literal = _literal(query_D)
        rows = self.run(_NEAREST, [literal, *values, literal, k], where=where).fetchall()
        ids = np.array([number for number, _ in rows], dtype=np.int64)
        return ids, np.array([score for _, score in rows], dtype=np.float32)

    def vectors(self, ids: list[int]) -> list[tuple[int, list[float]]]:
        query = self.sql("SELECT id, vector::real[] FROM {table} WHERE id = ANY(%s)")
        return list(self.connection.cursor(binary=True).execute(query, [ids]).fetchall())

    def ids(self, only: Sequence[Condition]) -> np.ndarray:
        where, values = self._where(only)
        rows = self.run("SELECT id FROM {table} {where} ORDER BY id", values, where=where).fetchall()
        return np.array([number for (number,) in rows], dtype=np.int64)

    def _where(self, only: Sequence[Condition]) -> tuple[Any, list[str]]:
        """Conditions as SQL, and their values as parameters, which PostgreSQL reads as the column's type."""
        sql = _psycopg().sql
        if not only:
            return sql.SQL(""), []
        columns = [column.name for column in self.run("SELECT * FROM {table} LIMIT 0").description]
        for one in only:
            one.check(columns)
        parts = [sql.SQL(f"{{}} {one.operator} %s").format(sql.Identifier(one.column)) for one in only]
        return sql.SQL("WHERE ") + sql.SQL(" AND ").join(parts), [one.value for one in only]


class _PostgresDraft:
    """A new table, in a transaction that is not over yet."""

    most_effort = _MOST_EFFORT

    def __init__(self, table: _Table, name: str) -> None:
        self._table = table
        self._name = name  # that it is to have

    def search(self, query_D: np.ndarray, k: int, *, effort: int) -> Found:
        return self._table.best(query_D, k, effort=effort, only=())

    def hold(self) -> None:
        self._table.hold(self._name)

    def edit(self, written: Batch | None, removed: list[int]) -> None:
        self._table.edit(written, removed)

    def publish(self, state: State) -> None:
        self._table.describe(state)
        self._table.rename(self._name)


def _rows(batch: Batch) -> Iterator[tuple[int, str, str, str, str]]:
    """What is inserted; PostgreSQL stores no NUL."""
    columns = (batch.titles, batch.texts, batch.sources)
    texts = ([text.replace("\0", "") for text in column] for column in columns)
    return zip(batch.ids, *texts, map(_literal, batch.vectors_ND), strict=True)


def _literal(vector_D: np.ndarray) -> str:
    """A vector as pgvector reads it."""
    return "[" + ",".join(map(repr, vector_D.tolist())) + "]"


def _why(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
