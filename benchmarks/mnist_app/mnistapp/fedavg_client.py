"""A node of FedAvg: local steps of SGD from the model that came, on the minibatches that lasg's node draws."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from lasg.problems.flat import FlatView
from mnistapp.task import model, problem

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Return the model after the local steps."""
    config = context.run_config
    steps, eta = int(config["local-steps"]), float(config["eta"])
    own = problem(context, int(str(context.node_config["worker"])))
    net = model()
    net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    flat = FlatView(net.named_parameters())
    theta = flat.gather().clone()
    before = (int(str(message.content["config"]["server-round"])) - 1) * steps
    for step in range(before, before + steps):
        theta = theta - eta * own.gradients(step, [theta], None)[0][0]
    flat.point_at(theta)
    metrics = MetricRecord({"num-examples": own.samples})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)
