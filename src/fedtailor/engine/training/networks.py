"""What the networks of a run's clients must have in common."""

from fedtailor._base.choice import require
from fedtailor.models import Model
from fedtailor.protocol import Algorithm


def check_networks(method: Algorithm, model: Model) -> None:
    """Refuse a method for clients whose networks differ in what it needs in common.

    Args:
        method: the method; `Algorithm.in_common` says what it needs.
        model: the model, of one network or of several (`models.by_client`).

    Raises:
        ValueError: the method needs more than these networks have.
    """
    members = model.members
    if len(members) == 1:
        return
    name, needed = method.about.name, method.in_common
    require(
        needed != "the network",
        f"{name} needs clients that have one network, and these have {len(members)};"
        " choose fedproto, fedtgp, fedgh, fedmd, lg-fedavg (with part = 'head'),"
        " heterofl (for nested widths) or local, or one network",
    )
    if needed == "the number of features":
        shapes = {member.feature_shape for member in members}
        require(
            len(shapes) == 1,
            f"{name} needs networks with as many features (inputs of the last layer), and"
            f" these have {', '.join(map(str, sorted(shapes)))}; make their last hidden"
            " layers alike",
        )
