import typer
prices = typer.Typer(no_args_is_help=True)
@prices.command()
def show() -> None:
    pass
@prices.command()
def show2() -> None:
    pass
