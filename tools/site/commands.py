"""The reference page of the commands of `fedgh`."""

from collections.abc import Iterator

import click
import typer

from fedgh.cli import app

HEAD = """# Commands

Every command prints the same with `--help`. A command that fails prints one line that says what is
wrong and what to do. The exit code is 2 if the command line or the configuration is wrong, and 1
for any other error. Ctrl-C ends with exit code 130 and a line about how to resume.
"""


def page() -> str:
    """Return Markdown with every command, its arguments and options."""
    root = typer.main.get_command(app)
    context = click.Context(root, info_name="fedgh")
    return "\n".join([HEAD, *(_section(leaf) for leaf in leaves(context))])


def leaves(context: click.Context) -> Iterator[click.Context]:
    """Yield a context for each command, including those in groups, but not the groups."""
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
    """Return the help text from the annotation: some versions of click drop it for arguments."""
    annotations = context.command.callback.__annotations__[parameter.name].__metadata__
    return str(next(part.help for part in annotations if hasattr(part, "help")) or "")


def _default(parameter: click.Parameter) -> str:
    if parameter.required:
        return "required"
    value = parameter.default
    if value is None or value is False or value == "":
        return ""
    return f"`{getattr(value, 'value', value)}`"
