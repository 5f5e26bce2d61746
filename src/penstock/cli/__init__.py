"""The command line: `penstock COMMAND`. Heavy imports wait until a command needs them, so --help is instant."""

from __future__ import annotations

import importlib
import os
import sys

import click

from penstock import __version__
from penstock.errors import PenstockError, did_you_mean
from penstock.startup import bytecode
from penstock.system.ownership import claim_process

# heading -> command -> what it does; in this order. The module of this package that has a command is of the same name,
# but for those in MODULES.
GROUPS = {
    "Talk to a model": {
        "run": "Generate an answer to one prompt.",
        "chat": "Chat with a model in the terminal.",
    },
    "Models on this machine": {
        "list": "List the models of the catalogue and on this machine.",
        "pull": "Download a model.",
        "show": "Show a model's source, architecture and settings.",
        "rm": "Remove a pulled model.",
        "quantize": "Write a quantized copy of a model.",
        "merge": "Write a model with a LoRA adapter merged into it.",
    },
    "Servers": {
        "serve": "Serve models over HTTP: OpenAI, Anthropic and Ollama APIs.",
        "ps": "List the models of a running server.",
        "top": "Watch a running server in the terminal.",
        "stop": "Unload a model of a running server.",
        "sleep": "Release the memory of a running server's model.",
        "wake": "Wake a sleeping model of a running server.",
        "adapters": "List, add and remove LoRA adapters of a running server.",
        "bench": "Load-test an OpenAI-compatible server.",
        "usage": "Show tokens and cost of a running server's requests.",
    },
    "Planning": {
        "plan": "Plan capacity: memory, speed, replicas and cost of a model.",
        "budget": "Count the tokens of a prompt's parts against the context.",
    },
    "Keys and tenants": {
        "keys": "Create, list, rotate and revoke API keys.",
        "tenants": "Set the limits of tenants (the owners of keys).",
    },
}
COMMANDS = [command for group in GROUPS.values() for command in group]
MODULES = {"list": "models"}
ALIASES = {"models": "list"}


class Commands(click.Group):
    """Imports a command's module when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return COMMANDS

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        name = ALIASES.get(name, name)
        if name not in COMMANDS:
            return None
        name = MODULES.get(name, name)
        command: click.Command = getattr(importlib.import_module(f"penstock.cli.{name}"), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-") and not ctx.resilient_parsing:
            ctx.fail(f"No such command {name!r}{did_you_mean(name, [*COMMANDS, *ALIASES]) or '.'}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for heading, commands in GROUPS.items():
            with formatter.section(heading):
                formatter.write_dl([(f"{name:{width}}", what) for name, what in commands.items()])


@click.command(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="penstock")
def penstock() -> None:
    """Penstock: LLM inference from the prompt to the token, on your machine.

    `penstock COMMAND --help` has the options of a command. Every setting can also
    come from a TOML file (--config) or from the environment (PENSTOCK_<NAME>).
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
