"""The server: it holds the model and what every worker last contributed."""

from lasg.flower import server_app
from lazyapp.task import measure, model

app = server_app(lambda _: model(), measure)
