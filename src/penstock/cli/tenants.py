"""penstock tenants: the limits of all keys of a tenant together, and its weight."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click
import msgspec

from penstock.cli.key_options import actor, database_options, given_fields, limit_options, open_store

if TYPE_CHECKING:
    from penstock.gateway.keys.records import TenantRecord


@click.group()
def tenants() -> None:
    """List tenants and set their limits. Keys are created by `penstock keys`."""


@tenants.command(name="list")
@click.option("--limit", type=click.IntRange(1), default=1000, show_default=True, help="Maximum number of tenants.")
@click.option("--after", metavar="NAME", help="Begin after this tenant, the last one of the previous list.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, as the admin routes answer.")
@database_options
def list_tenants(limit: int, after: str | None, as_json: bool, **values: Any) -> None:
    """List tenants with their limits, by name."""
    with open_store(values) as store:
        found = store.tenants(after=after, limit=limit + 1)
    more = len(found) > limit
    found = found[:limit]
    if as_json:
        from penstock.http.api.admin.bodies import tenant_object

        click.echo(msgspec.json.format(msgspec.json.encode([tenant_object(one) for one in found])).decode())
    for one in () if as_json else found:
        click.echo(_line(one))
    if more:
        click.echo(f"there are more: --after {found[-1].name}", err=True)


@tenants.command(name="set")
@click.argument("name")
@click.option("--weight", type=float, help="Share among tenants that wait, relative to others. [default: 1]")
@limit_options
@database_options
def set_tenant(name: str, **values: Any) -> None:
    """Set limits and weight of a tenant, which is created if need be. `none` removes a limit."""
    from penstock.errors import NotFound

    with open_store(values) as store:
        given = given_fields(values)
        try:
            store.tenant(name)
        except NotFound:
            record = store.create_tenant(name, given, actor())
        else:
            record = store.update_tenant(name, given, actor())
    click.echo(_line(record))


def _line(record: TenantRecord) -> str:
    fields = msgspec.to_builtins(record.fields)
    shown = [f"{name}={value:g}" for name, value in fields.items() if value is not None]
    return "  ".join([record.name, *shown])
