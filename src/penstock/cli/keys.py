"""penstock keys: the API keys of a database. Servers that use it act on changes within a second."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal, get_args

import click

from penstock.cli.key_options import Seconds, actor, database_options, given_fields, key_field_options, open_store

if TYPE_CHECKING:
    from penstock.gateway.keys.records import KeyRecord

KeyState = Literal["active", "expired", "revoked"]

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, as the admin routes answer.")


@click.group()
def keys() -> None:
    """Create, list, change, rotate and revoke API keys.

    Works on the database itself (--database, --data-dir or the settings of the server), whether or not a server runs.
    """


@keys.command()
@click.option("--tenant", required=True, help="Who owns the key; created if necessary.")
@key_field_options
@json_option
@database_options
def create(tenant: str, as_json: bool, **values: Any) -> None:
    """Create a key and print it: it is stored as a hash, and cannot be shown again."""
    with open_store(values) as store:
        record, key = store.create_key(tenant, given_fields(values), actor())
    _print_new(record, key, as_json=as_json)


@keys.command(name="list")
@click.option("--tenant", help="Only the keys of this tenant.")
@click.option("--search", metavar="TEXT", help="Only keys with this text in id, name or tenant.")
@click.option("--state", type=click.Choice(get_args(KeyState)), help="Only keys in this state.")
@click.option("--limit", type=click.IntRange(1), default=1000, show_default=True, help="Maximum number of keys.")
@click.option("--after", metavar="ID", help="Begin after this key, the last one of the previous list.")
@json_option
@database_options
def list_keys(limit: int, after: str | None, as_json: bool, **values: Any) -> None:
    """List keys by tenant, oldest first, without the keys themselves."""
    from rich.markup import escape
    from rich.table import Table

    from penstock.cli.tables import print_table
    from penstock.gateway.keys.records import Wanted

    wanted = Wanted(**{name: values.pop(name) for name in Wanted.__struct_fields__})
    with open_store(values) as store:
        records = store.keys(wanted, after=after, limit=limit + 1)
    shown = records[:limit]
    if as_json:
        _print_json([_object(record) for record in shown])
    else:
        table = Table("id", "tenant", "name", "state", "scopes", "tier", "expires", box=None, pad_edge=False)
        for one in shown:
            state, scopes = one.state(time.time()), " ".join(sorted(one.scopes))
            table.add_row(one.id, one.tenant, escape(one.name), state, scopes, one.tier, time_text(one.expires))
        print_table(table)
    if len(records) > limit:
        click.echo(f"there are more: --after {shown[-1].id}", err=True)


@keys.command()
@click.argument("id")
@json_option
@database_options
def show(id: str, as_json: bool, **values: Any) -> None:
    """Show a key's limits and state, without the key itself."""
    with open_store(values) as store:
        record = store.key(id)
    _print_record(record, as_json=as_json)


@keys.command()
@click.argument("id")
@key_field_options
@json_option
@database_options
def update(id: str, as_json: bool, **values: Any) -> None:
    """Change a key. What is not named stays; `none` removes a limit."""
    with open_store(values) as store:
        record = store.update_key(id, given_fields(values), actor())
    _print_record(record, as_json=as_json)


@keys.command()
@click.argument("id")
@database_options
def revoke(id: str, **values: Any) -> None:
    """Revoke a key for good."""
    with open_store(values) as store:
        record = store.revoke_key(id, actor())
    click.echo(f"{record.id} of {record.tenant} is revoked")


@keys.command()
@click.argument("id")
@click.option("--grace", type=Seconds(), default="0s", help="How long the old key stays valid. [default: not at all]")
@json_option
@database_options
def rotate(id: str, grace: int, as_json: bool, **values: Any) -> None:
    """Replace the secret of a key and print the new key. Its id, limits and usage stay."""
    with open_store(values) as store:
        record, key = store.rotate_key(id, grace, actor())
    _print_new(record, key, as_json=as_json)


@keys.command()
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Maximum number of entries.")
@click.option("--target", help="Only entries about this key, tenant or model.")
@json_option
@database_options
def audit(limit: int, target: str | None, as_json: bool, **values: Any) -> None:
    """Show the audit log, newest first."""
    with open_store(values) as store:
        entries = store.audit.entries(limit=limit, target=target)
    if as_json:
        _print_json(entries)
        return
    for one in entries:
        details = " ".join(f"{name}={value}" for name, value in one.details.items())
        click.echo(
            f"{time_text(one.time)}  {one.action}  {one.target}  by {one.actor}: {one.outcome}  {details}".rstrip()
        )


def time_text(moment: float | None) -> str:
    return "" if moment is None else time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(moment))


def _object(record: KeyRecord, key: str | None = None) -> Any:
    from penstock.http.api.admin.bodies import key_object

    return key_object(record, key)


def _print_new(record: KeyRecord, key: str, *, as_json: bool) -> None:
    if as_json:
        _print_json(_object(record, key))
        return
    click.echo(f"{record.id} of {record.tenant}: keep this key, it is not shown again", err=True)
    click.echo(key)


def _print_record(record: KeyRecord, *, as_json: bool) -> None:
    if as_json:
        _print_json(_object(record))
        return
    import msgspec

    shown = {"id": record.id, "tenant": record.tenant, "state": record.state(time.time())}
    fields = msgspec.to_builtins(record.fields)
    fields["expires_at"] = time_text(record.expires) or None
    fields |= {"created": time_text(record.created), "revoked": time_text(record.revoked) or None}
    for name, value in (shown | fields).items():
        text = "-" if value in (None, "") else " ".join(value) if isinstance(value, list | tuple) else value
        click.echo(f"{name:<21}{text}")


def _print_json(value: Any) -> None:
    import msgspec

    click.echo(msgspec.json.format(msgspec.json.encode(value)).decode())
