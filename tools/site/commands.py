"""The commands of `fedgh`, as a page."""

from collections.abc import Iterator

import click
import typer

from fedgh.cli import app

HEAD = """# Commands

Every command says the same with `--help`. A mistake ends with one line that says what to do about
it, and exit code 2 when the command or the configuration is wrong, 1 when something else is;
Ctrl-C ends with 130 and a line that says how to resume.
"""


def page() -> str:
    """Markdown with every command, its arguments and options."""
    root = typer.main.get_command(app)
    context = click.Context(root, info_name="fedgh")
    return "\n".join([HEAD, *(_section(found) for found in leaves(context))])


def leaves(context: click.Context) -> Iterator[click.Context]:
    """A context for each command that does something, groups opened."""
    command = context.command
    if not isinstance(command, click.Group):
        yield context
        return
    for name, inner in command.commands.items():
        yield from leaves(click.Context(inner, info_name=name, parent=context))


def _section(context: click.Context) -> str:
    command = context.command
    usage = command.get_usage(context).removeprefix("Usage: ")
    rows = [_row(parameter, context) for parameter in command.params]
    table = ["| | | default |", "|---|---|---|", *rows] if rows else []
    return "\n".join(
        [
            f"## {context.command_path}\n",
            f"{(command.help or '').strip()}\n",
            f"```text\n{usage}\n```\n",
            *table,
            "",
        ]
    )


def _row(parameter: click.Parameter, context: click.Context) -> str:
    names = [] if isinstance(parameter, click.Argument) else parameter.opts
    value = parameter.make_metavar(context).removesuffix(" RANGE")
    shown = ", ".join(f"`{name}`" for name in [*names, *parameter.secondary_opts])
    if not getattr(parameter, "is_flag", False):
        shown += f" `{value}`"
    return f"| {shown.strip()} | {_help(parameter, context)} | {_default(parameter)} |"


def _help(parameter: click.Parameter, context: click.Context) -> str:
    """As it is written at the command: with some versions of click, arguments lose theirs."""
    said = context.command.callback.__annotations__[parameter.name].__metadata__
    return str(next(part.help for part in said if hasattr(part, "help")) or "")


def _default(parameter: click.Parameter) -> str:
    if parameter.required:
        return "needed"
    value = parameter.default
    if value is None or value is False or value == "":
        return ""
    return f"`{getattr(value, 'value', value)}`"
