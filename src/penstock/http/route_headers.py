"""Response headers that say which deployment answered, and why: for requests that something was decided about."""

from __future__ import annotations

from penstock.deployment.ticket import Ticket

DEPLOYMENT = "x-penstock-deployment"  # "smollm2/1"
ROUTE = "x-penstock-route"  # the decisions and failed attempts, in words


def route_headers(ticket: Ticket) -> dict[str, str]:
    """Empty for a request that had only one place to go to."""
    if ticket.call is None or ticket.deployment is None:
        return {}
    route = ticket.call.route.header()
    named = {DEPLOYMENT: ticket.deployment.name} if route or ticket.deployment.card.remote else {}
    return {**named, ROUTE: route} if route else named
