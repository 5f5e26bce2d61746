"""Files, batches and lines in a database: that of one server, or one that servers share. Each method is one
transaction; all of them block, so they are called in a thread. What belongs to another tenant does not exist."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Connection, Row, Select, Table, delete, func, insert, select, text, update

from penstock.batch import tables
from penstock.batch.records import UNFINISHED, Batch, End, InputError, Line, Purpose, Result, StoredFile
from penstock.database.database import POSTGRESQL, Database
from penstock.database.sqlite import create_schema, open_file
from penstock.errors import InvalidRequest, NotFound, QueueFull
from penstock.system import typed

if TYPE_CHECKING:
    from penstock.batch.leases import Leases

files, batches, lines = tables.files, tables.batches, tables.lines


def open_store(path: Path) -> BatchStore:
    """Of one server, in a SQLite file."""
    engine = open_file(path)
    create_schema(engine, "batch", tables.metadata, tables.VERSION, tables.UPGRADES)
    return BatchStore(Database(engine))


class BatchStore:
    def __init__(self, database: Database, leases: Leases | None = None) -> None:
        """`leases`: servers share the database, and methods of a batch's job raise LeaseLost."""
        self.leases = leases
        self._database = database

    def close(self) -> None:
        self._database.close()

    @contextlib.contextmanager
    def _job(self, name: str) -> Iterator[Connection]:
        """A transaction of the server that works on this batch."""
        with self._database.write() as connection:
            if self.leases is not None:
                self.leases.lock(connection, name)
            yield connection

    # --- files

    def add_file(self, file: StoredFile) -> None:
        with self._database.write() as connection:
            connection.execute(insert(files).values(**msgspec.structs.asdict(file)))

    def file(self, tenant: str, name: str, *, param: str = "file_id") -> StoredFile:
        """Raises NotFound; `param` is where the client gave the id."""
        with self._database.read() as connection:
            row = connection.execute(_visible(tenant).where(files.c.id == _storable(name))).one_or_none()
        if row is None:
            raise NotFound(f"there is no file {name[:64]!r}", param=param)
        return _file(row)

    def files(
        self, tenant: str, *, purpose: Purpose | None, after: str | None, limit: int, order: str
    ) -> tuple[list[StoredFile], bool]:
        """A page, and whether there are more."""
        query = _visible(tenant)
        if purpose is not None:
            query = query.where(files.c.purpose == purpose)
        with self._database.read() as connection:
            rows, more = _page(connection, query, files, tenant, after, limit, descending=order == "desc")
        return [_file(row) for row in rows], more

    def delete_file(self, tenant: str, name: str) -> None:
        self.file(tenant, name)
        with self._database.write() as connection:
            connection.execute(update(files).where(files.c.id == name).values(deleted=True))

    def expire_files(self, now: float) -> None:
        with self._database.write() as connection:
            connection.execute(update(files).where(files.c.expires_at <= now).values(deleted=True))

    def drop_deleted(self) -> list[str]:
        """Forget deleted files that no unfinished batch reads; returns their ids."""
        read = select(batches.c.input_file_id).where(batches.c.status.in_(UNFINISHED))
        with self._database.write() as connection:
            unused = select(files.c.id).where(files.c.deleted, files.c.id.not_in(read))
            names = list(connection.scalars(unused))
            connection.execute(delete(files).where(files.c.id.in_(names)))
        return names

    def file_ids(self) -> set[str]:
        """All that have a content, deleted ones included."""
        with self._database.read() as connection:
            return set(connection.scalars(select(files.c.id)))

    # --- batches

    def add_batch(self, batch: Batch, *, most: int) -> None:
        """This server works on it. Raises QueueFull if the tenant has `most` unfinished ones."""
        unfinished = select(func.count()).where(batches.c.tenant == batch.tenant, batches.c.status.in_(UNFINISHED))
        with self._database.write() as connection:
            if self._database.kind == POSTGRESQL:  # one after the other, so that no two take the last place
                lock = "SELECT pg_advisory_xact_lock(hashtext('batches'), hashtext(:tenant))"
                connection.execute(text(lock), {"tenant": batch.tenant})
            if (connection.scalar(unfinished) or 0) >= most:
                raise QueueFull(f"{most} batches are unfinished already; wait for one, or cancel it")
            connection.execute(insert(batches).values(**msgspec.to_builtins(batch)))
            if self.leases is not None:
                self.leases.take(connection, batch.id)

    def batch(self, name: str, tenant: str | None = None) -> Batch:
        """Raises NotFound; without a tenant, of any."""
        query = select(batches).where(batches.c.id == _storable(name))
        if tenant is not None:
            query = query.where(batches.c.tenant == tenant)
        with self._database.read() as connection:
            row = connection.execute(query).one_or_none()
        if row is None:
            raise NotFound(f"there is no batch {name[:64]!r}", param="batch_id")
        return _batch(row)

    def batches(self, tenant: str, *, after: str | None, limit: int) -> tuple[list[Batch], bool]:
        """A page, newest first, and whether there are more."""
        query = select(batches).where(batches.c.tenant == tenant)
        with self._database.read() as connection:
            rows, more = _page(connection, query, batches, tenant, after, limit, descending=True)
        return [_batch(row) for row in rows], more

    def unfinished(self) -> list[Batch]:
        """Oldest first."""
        query = select(batches).where(batches.c.status.in_(UNFINISHED)).order_by(batches.c.place)
        with self._database.read() as connection:
            return [_batch(row) for row in connection.execute(query)]

    def fail(self, name: str, errors: Sequence[InputError], now: int) -> None:
        """validating -> failed. A batch that is cancelled meanwhile stays so."""
        failed = {"status": "failed", "failed_at": now, "errors": msgspec.to_builtins(errors)}
        with self._job(name) as connection:
            change = update(batches).where(batches.c.id == name, batches.c.status == "validating").values(**failed)
            if connection.execute(change).rowcount and self.leases is not None:
                self.leases.end(connection, name)

    def start(self, name: str, found: Sequence[Line], model: str | None, now: int) -> None:
        """validating -> in_progress, with its lines. A batch that is cancelled meanwhile stays so."""
        with self._job(name) as connection:
            connection.execute(delete(lines).where(lines.c.batch_id == name))
            connection.execute(insert(lines), [{"batch_id": name, **msgspec.structs.asdict(line)} for line in found])
            connection.execute(update(batches).where(batches.c.id == name).values(total=len(found), model=model))
            connection.execute(
                update(batches)
                .where(batches.c.id == name, batches.c.status == "validating")
                .values(status="in_progress", in_progress_at=now)
            )

    def pending(self, name: str, after: int, limit: int) -> list[Line]:
        """Lines behind number `after` that have not run."""
        query = (
            select(*(lines.c[field] for field in Line.__struct_fields__))
            .where(lines.c.batch_id == name, lines.c.number > after, lines.c.output.is_(None))
            .order_by(lines.c.number)
            .limit(limit)
        )
        with self._database.read() as connection:
            return [Line(*row) for row in connection.execute(query)]

    def record(self, name: str, results: Sequence[Result]) -> None:
        """Store results and count them, each line once."""
        with self._job(name) as connection:
            row = connection.execute(select(batches).where(batches.c.id == name)).one()
            batch = _batch(row)
            completed, failed, usage = batch.completed, batch.failed, batch.usage
            for result in results:
                stored = connection.execute(
                    update(lines)
                    .where(lines.c.batch_id == name, lines.c.number == result.line, lines.c.output.is_(None))
                    .values(output=result.output, failed=result.failed)
                )
                if stored.rowcount:
                    completed += not result.failed
                    failed += result.failed
                    usage += result.usage
            connection.execute(
                update(batches)
                .where(batches.c.id == name)
                .values(completed=completed, failed=failed, usage=msgspec.to_builtins(usage))
            )

    def cancel(self, tenant: str, name: str, now: int) -> Batch:
        """-> cancelling. Raises InvalidRequest for a batch that has ended or is about to."""
        batch = self.batch(name, tenant)
        if batch.status == "cancelling":
            return batch
        values = {"status": "cancelling", "cancelling_at": now, "end": "cancelled"}
        cancellable = batches.c.status.in_(("validating", "in_progress"))
        with self._database.write() as connection:
            change = update(batches).where(batches.c.id == name, cancellable).values(**values)
            cancelled = connection.execute(change).rowcount > 0
        batch = self.batch(name, tenant)
        if not cancelled and batch.status != "cancelling":  # by another request at this moment
            raise InvalidRequest(f"a batch with status {batch.status!r} cannot be cancelled", param="batch_id")
        return batch

    def finalize(self, name: str, end: End, now: int) -> Batch:
        """in_progress or validating -> finalizing. A batch that is cancelling stays so."""
        with self._job(name) as connection:
            connection.execute(
                update(batches)
                .where(batches.c.id == name, batches.c.status.in_(("validating", "in_progress")))
                .values(status="finalizing", finalizing_at=now, end=end)
            )
        return self.batch(name)

    def results(self, name: str) -> Iterator[tuple[int, str, bytes | None, bool | None]]:
        """Number, custom_id, output and failed of all lines, in order; read from the database as they are taken."""
        query = (
            select(lines.c.number, lines.c.custom_id, lines.c.output, lines.c.failed)
            .where(lines.c.batch_id == name)
            .order_by(lines.c.number)
            .execution_options(yield_per=64)
        )
        with self._database.read() as connection:
            for row in connection.execute(query):
                yield row[0], row[1], row[2], row[3]

    def finish(self, name: str, output: StoredFile | None, errors: StoredFile | None, now: int) -> None:
        """finalizing or cancelling -> its end, with its files; the lines are forgotten."""
        end = self.batch(name).end
        assert end is not None
        with self._job(name) as connection:
            for file in (output, errors):
                if file is not None:
                    connection.execute(insert(files).values(**msgspec.structs.asdict(file)))
            connection.execute(delete(lines).where(lines.c.batch_id == name))
            if self.leases is not None:
                self.leases.end(connection, name)
            ids = {"output_file_id": output and output.id, "error_file_id": errors and errors.id}
            connection.execute(
                update(batches).where(batches.c.id == name).values(status=end, **{f"{end}_at": now}, **ids)
            )


def _storable(name: str) -> str:
    """PostgreSQL takes no NUL: nothing has such a name, nor an empty one."""
    return "" if "\0" in name else name


def _visible(tenant: str) -> Select[Any]:
    return select(files).where(files.c.tenant == tenant, ~files.c.deleted)


def _page(
    connection: Connection, query: Select[Any], table: Table, tenant: str, after: str | None, limit: int, *,
    descending: bool,
) -> tuple[list[Row[Any]], bool]:  # fmt: skip
    """`limit` rows behind the one with id `after`, and whether there are more."""
    if after is not None:
        place = connection.scalar(select(table.c.place).where(table.c.id == _storable(after), table.c.tenant == tenant))
        if place is None:
            raise InvalidRequest(f"after is {after[:64]!r}, but no entry has that id", param="after")
        query = query.where(table.c.place < place if descending else table.c.place > place)
    query = query.order_by(table.c.place.desc() if descending else table.c.place).limit(limit + 1)
    rows = list(connection.execute(query))
    return rows[:limit], len(rows) > limit


def _file(row: Row[Any]) -> StoredFile:
    return StoredFile(**{name: getattr(row, name) for name in StoredFile.__struct_fields__})


def _batch(row: Row[Any]) -> Batch:
    return typed.convert({name: getattr(row, name) for name in Batch.__struct_fields__}, Batch)
