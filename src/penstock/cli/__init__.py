"""The command line: `penstock COMMAND`. Heavy imports wait until a command needs them, so --help is instant."""

from __future__ import annotations

import importlib
import os
import sys

import click

from penstock import __version__
from penstock.errors import PenstockError
from penstock.startup import bytecode
from penstock.system.ownership import claim_process

# command -> module of this package with a click command of the same name; listed in this order
COMMANDS = {
    "serve": "Serve a model over HTTP: OpenAI, Anthropic and Ollama APIs.",
    "run": "Generate an answer to one prompt.",
    "chat": "Chat with a model in the terminal.",
    "plan": "Plan capacity: memory, speed, replicas and cost of a model.",
    "budget": "Count the tokens of a prompt's parts against the context.",
    "top": "Watch a running server in the terminal.",
    "usage": "Show tokens and cost of a running server's requests.",
    "sleep": "Release the memory of a running server's model.",
    "wake": "Wake a model of a running server that sleeps.",
    "keys": "Create, list, rotate and revoke API keys.",
    "tenants": "Set the limits of tenants, which own keys.",
    "pull": "Download a model into the cache.",
    "models": "List the models of the catalogue and on this machine.",
}


class Commands(click.Group):
    """Imports a command's module when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"penstock.cli.{name}")
        command: click.Command = getattr(module, name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="penstock")
def penstock() -> None:
    """Penstock: LLM inference from the prompt to the token, on your machine.

    Every setting can also come from a TOML file (--config) or from the environment (PENSTOCK_<NAME>).
    """


def main() -> None:
    claim_process()
    debug = "--debug" in sys.argv[1:]
    try:
        with bytecode.keep():
            code = penstock.main(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except click.Abort:
        code = 130
    except KeyboardInterrupt:
        code = 130
    except BrokenPipeError:  # the reader of our output is gone, as in `penstock run … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    except PenstockError as error:
        if debug:
            raise
        click.echo(f"error: {error.message}", err=True)
        code = 1
    except Exception as error:
        if debug:
            raise
        click.echo(f"error: {type(error).__name__}: {error} (run with --debug for the trace)", err=True)
        code = 1
    sys.exit(code if isinstance(code, int) else 0)
