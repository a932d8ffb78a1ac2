"""The server of lasg."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from lasg.flower import Settings
from lasg.flower.apps import train
from mnistapp.task import measure, model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train as the settings say."""
    train(grid, Settings.from_config(context.run_config), model(), measure(context))
