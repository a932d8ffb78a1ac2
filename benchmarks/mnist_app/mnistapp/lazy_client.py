"""A node of lasg."""

from lasg.flower import client_app
from mnistapp.task import problem

app = client_app(problem)
