"""The `job.toml` that `federation init` writes, to be edited."""

TEMPLATE = """\
# What this federation trains. Every machine has a copy of this file; a client takes part in no other job.

title = "{title}"

[coordinator]
address = "{address}"       # host name or IP address of the coordinator, and its port

[data]                            # one row for each example; files with more columns are welcome, these are read
target = "label"                  # column to predict
classes = ["no", "yes"]           # what the target can be; leave this out to predict a number
validation = 0.1                  # shares of each client's rows that do not train
test = 0.2
preprocessing = "federated"       # numbers standardised, gaps filled, by sums over all clients; "none": as they stand
[data.columns]                    # inputs: "number", "category", "boolean", "date", or the categories in a list
age = "number"
ward = ["surgery", "medicine"]

[model]
use = "mlp"                       # any model of `fedtailor scenarios`, with its arguments
hidden = 32

[method]
use = "ucfl"                  # any of `fedtailor algorithms`, with its hyper-parameters
sgd = {{ lr = 0.05, epochs = 1, batch_size = 32 }}

[training]
rounds = 50
seed = 0
minimum = {minimum}                       # clients without which a round does not count
deadline = 300                    # seconds that a round waits for clients
participation = 1.0               # who trains in a round: a share of the clients (up to 1), or a number (from 2)
sampling = "uniform"              # or "samples": by training rows; "poisson": each independently (for noise)

[privacy]
evaluate = true                   # whether clients send sums of losses and of correct predictions
uplink = []                       # what happens to an update before it leaves, such as {{ use = "clip", norm = 1.0 }}
secure_aggregation = false        # true: the coordinator sees sums over clients, and no client's own update
"""


def template(title: str, address: str, clients: int) -> str:
    """Fill in the template of a job file.

    Args:
        title: name of the federation; characters that TOML would escape are replaced.
        address: "host:port" of the coordinator.
        clients: number of clients with a kit; a round needs half of them.
    """
    return TEMPLATE.format(
        title=title.replace("\\", "/").replace('"', "'"),
        address=address,
        minimum=max(1, clients // 2),
    )
