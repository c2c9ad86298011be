"""How the suite runs each method, and which general properties a method does not have,
with the reason.

A method that is not listed runs with its defaults and must have every property.
"""

from dataclasses import replace

from fedtailor import algorithms as ft
from fedtailor.aggregation import ServerOptimizer
from fedtailor.protocol import SGD, Algorithm

TRAINED = SGD(lr=0.1, momentum=0.9, epochs=2, batch_size=8)
PLAIN = SGD(lr=0.1, epochs=2, batch_size=8)


def without_adapters(algorithm: Algorithm) -> Algorithm:
    """The method with settings that a network without adapters can have.

    By default FedDPA trains two adapters, of which one travels.
    """
    if isinstance(algorithm, ft.FedDPA):
        return replace(algorithm, part="bias", share=0.0)
    return algorithm


EXAMPLES: dict[str, Algorithm] = {
    "local": ft.Local(sgd=TRAINED),
    "fedavg": ft.FedAvg(sgd=TRAINED),
    "finetune": ft.FineTune(sgd=TRAINED, tune=PLAIN),
    "oracle": ft.Oracle(sgd=TRAINED),
    "ucfl": ft.UCFL(sgd=TRAINED, streams=2, warm=0),
    "ucfl-parallel": ft.UCFLParallel(sgd=TRAINED, streams=2, warm=0),
    "fedprox": ft.FedProx(sgd=TRAINED, mu=0.5),
    "scaffold": ft.SCAFFOLD(sgd=PLAIN),
    "ditto": ft.Ditto(sgd=TRAINED, lam=0.5),
    "pfedme": ft.PFedMe(sgd=PLAIN, lam=2.0, outer_lr=0.3),
    "cfl": ft.CFL(sgd=TRAINED, eps1=100.0, eps2=0.0, first_split=0),
    "fedfomo": ft.FedFomo(sgd=TRAINED, downloads=3),
    "per-fedavg": ft.PerFedAvg(sgd=TRAINED, alpha=0.2),
    "apfl": ft.APFL(sgd=PLAIN),
    "l2gd": ft.L2GD(sgd=TRAINED, p=0.4),
    "self-fl": ft.SelfFL(sgd=TRAINED),
    "cgpfl": ft.CGPFL(sgd=PLAIN, lam=2.0, contexts=2),
    "cgpfl-heur": ft.CGPFLHeur(sgd=PLAIN, lam=2.0),
    "fedavgm": ft.FedAvgM(sgd=TRAINED),
    "hypcluster": ft.HypCluster(sgd=TRAINED),
    "ifca": ft.IFCA(sgd=TRAINED, clusters=2),
    "mapper": ft.MAPPER(sgd=TRAINED, fit=PLAIN),
    "dapper": ft.DAPPER(sgd=TRAINED, tune=PLAIN),
    "fedper": ft.FedPer(sgd=TRAINED, part="bias"),
    "fedrep": ft.FedRep(sgd=TRAINED, head=PLAIN, part="bias"),
    "lg-fedavg": ft.LGFedAvg(sgd=TRAINED, part="bias"),
    "fedbn": ft.FedBN(sgd=TRAINED),
    "fedbabu": ft.FedBABU(sgd=TRAINED, tune=PLAIN, part="bias"),
    "fedrod": ft.FedRoD(sgd=PLAIN),
    "feddpa": without_adapters(ft.FedDPA(sgd=TRAINED)),
    "flexlora": ft.FlexLoRA(sgd=TRAINED),
    "fedala": ft.FedALA(sgd=TRAINED, part="everything", share=1.0),
    "moon": ft.MOON(sgd=TRAINED),
    "feddbe": ft.FedDBE(sgd=PLAIN),
    "knn-per": ft.KNNPer(sgd=TRAINED, capacity=64),
    "mr-mtl": ft.MRMTL(sgd=TRAINED, lam=0.5),
    "feddyn": ft.FedDyn(sgd=TRAINED, alpha=0.3),
    "fedadam": ft.FedAdam(sgd=TRAINED),
    "fedyogi": ft.FedYogi(sgd=TRAINED),
    "fedem": ft.FedEM(sgd=PLAIN, components=2),
    "fedamp": ft.FedAMP(sgd=TRAINED, sigma=2.0),
    "pacfl": ft.PACFL(sgd=TRAINED, clusters=2),
    "pfedhn": ft.PFedHN(sgd=TRAINED, hidden_size=8, newcomer_steps=3),
    "fedadagrad": ft.FedAdagrad(sgd=TRAINED),
    "fedproto": ft.FedProto(sgd=TRAINED),
    "fedgh": ft.FedGH(sgd=TRAINED, server_lr=0.1),
    "fedtgp": ft.FedTGP(sgd=TRAINED, server_lr=0.1, server_epochs=5),
    "heterofl": ft.HeteroFL(sgd=TRAINED),
    "fedmd": ft.FedMD(sgd=TRAINED, digest_lr=0.1),
    "fedfew": ft.FedFew(sgd=TRAINED, models=2, mu=0.5),
    "fedlc": ft.FedLC(sgd=TRAINED),
    "ccvr": ft.CCVR(sgd=TRAINED, draws=20, server_lr=0.1),
    "fedas": ft.FedAS(sgd=TRAINED, align=PLAIN, part="bias"),
    "fedpac": ft.FedPAC(sgd=TRAINED, head=PLAIN, part="bias"),
    "fedex-lora": ft.FedExLoRA(sgd=TRAINED),
    "gpfl": ft.GPFL(sgd=PLAIN, part="bias"),
    "fedcp": ft.FedCP(sgd=PLAIN),
    "hetlora": ft.HetLoRA(sgd=TRAINED),
}

FOR_ONE: dict[str, Algorithm] = {
    "ucfl": ft.UCFL(sgd=TRAINED, warm=0),
    "ucfl-parallel": ft.UCFLParallel(sgd=TRAINED, warm=0),
    "cgpfl": ft.CGPFL(sgd=PLAIN, lam=2.0, contexts=1),
    "hypcluster": ft.HypCluster(sgd=TRAINED, clusters=1, optimizer=ServerOptimizer()),
    "ifca": ft.IFCA(sgd=TRAINED, clusters=1),
    "pacfl": ft.PACFL(sgd=TRAINED, clusters=1),
}
"""Where the example asks for more streams or models than a single client allows."""

OPT_OUTS: dict[tuple[str, str], str] = {
    (
        "enrolment",
        "local",
    ): "trains alone in as many rounds, with other batches than client i drew",
    (
        "enrolment",
        "oracle",
    ): "is sent the model of its true group, not of client i's data",
    (
        "enrolment",
        "ditto",
    ): "client i's model has a history; a newcomer's starts from the global one",
    ("enrolment", "pfedme"): (
        "client i's model was solved around its own last w_i, a newcomer's around the"
        " final w"
    ),
    (
        "enrolment",
        "fedfomo",
    ): "client i's model has a history; a newcomer weighs all models once",
    (
        "enrolment",
        "feddpa",
    ): "client i's local adapter has a history; a newcomer trains one for a round",
    (
        "loss scale",
        "fedprox",
    ): "the proximal term does not scale with the loss (unless mu does)",
    (
        "loss scale",
        "ditto",
    ): "the proximal term does not scale with the loss (unless lam does)",
    (
        "loss scale",
        "pfedme",
    ): "the envelope's term does not scale with the loss (unless lam does)",
    (
        "enrolment",
        "apfl",
    ): "client i's model and share have a history; a newcomer trains one round",
    (
        "enrolment",
        "l2gd",
    ): "client i's model has a history; a newcomer's starts from the mean",
    (
        "enrolment",
        "self-fl",
    ): "client i's model has a history; a newcomer's starts from the global one",
    ("enrolment", "cgpfl"): (
        "client i's model was solved around its own last w_i, a newcomer's around the"
        " context"
    ),
    ("enrolment", "cgpfl-heur"): "as cgpfl",
    (
        "loss scale",
        "per-fedavg",
    ): "the rate alpha of the personal step does not scale with the loss",
    (
        "loss scale",
        "apfl",
    ): "the rate of the share does not scale with the loss (unless alpha_lr does)",
    (
        "loss scale",
        "l2gd",
    ): "the averaging term does not scale with the loss (unless lam does)",
    (
        "loss scale",
        "self-fl",
    ): "the number of steps depends on the rate and on the curvature of the loss",
    (
        "loss scale",
        "cgpfl",
    ): "the pull towards the context does not scale with the loss (unless lam does)",
    ("loss scale", "cgpfl-heur"): "as cgpfl",
    (
        "loss scale",
        "afl",
    ): "its rates are those of the server's steps, which do not scale with the loss",
    (
        "enrolment",
        "mr-mtl",
    ): "client i's model has a history; a newcomer's starts from the mean",
    (
        "loss scale",
        "mr-mtl",
    ): "the pull towards the mean does not scale with the loss (unless lam does)",
    (
        "loss scale",
        "feddyn",
    ): "the proximal term does not scale with the loss (unless alpha does)",
    ("enrolment", "fedem"): (
        "client i's proportions have made one E step a round, a newcomer's are those"
        " that last"
    ),
    (
        "loss scale",
        "fedem",
    ): "losses are negative log-likelihoods, which no factor leaves what they are",
    (
        "enrolment",
        "fedamp",
    ): "client i's model has a history; a newcomer's starts from the mean of all",
    ("loss scale", "fedamp"): (
        "the pull towards the client's mean does not scale with the loss (unless lam"
        " does)"
    ),
    ("identical clients", "pfedhn"): "every client has an embedding of its own",
    ("enrolment", "pfedhn"): (
        "client i's embedding has a history; a newcomer's is fitted to the final"
        " hypernetwork"
    ),
    ("identical clients", "mapper"): "every client parts its data at random",
    (
        "identical clients",
        "dapper",
    ): "every client holds out samples, and is sent examples, at random",
    ("enrolment", "fedper"): (
        "client i's own part has a history; a newcomer's is trained on the final shared"
        " part"
    ),
    ("enrolment", "fedrep"): "as fedper",
    ("enrolment", "lg-fedavg"): "as fedper",
    (
        "enrolment",
        "fedrod",
    ): "client i's residual head has a history; a newcomer's is zero",
    ("enrolment", "fedala"): (
        "client i has a model of its own to mix with; a newcomer is served the"
        " global one"
    ),
    (
        "loss scale",
        "fedala",
    ): "the rate of the weights does not scale with the loss (unless eta does)",
    (
        "enrolment",
        "feddbe",
    ): "client i's vector has a history; a newcomer trains one for a round",
    (
        "loss scale",
        "feddbe",
    ): "the pull of mean features does not scale with the loss (unless kappa does)",
    (
        "loss scale",
        "moon",
    ): "the contrast does not scale with the loss (unless mu does)",
    (
        "identical clients",
        "knn-per",
    ): "every client stores its samples in an order of its own",
    (
        "enrolment",
        "fedproto",
    ): "client i's model has a history of prototypes; a newcomer's knows the last ones",
    (
        "loss scale",
        "fedproto",
    ): "the pull to prototypes does not scale with the loss (unless lam does)",
    ("enrolment", "fedtgp"): "as fedproto",
    ("loss scale", "fedtgp"): "as fedproto",
    ("enrolment", "fedgh"): "as fedper",
    (
        "enrolment",
        "fedmd",
    ): "client i's model has a history of consensuses; a newcomer's knows the last one",
    (
        "loss scale",
        "fedmd",
    ): "the distance to the consensus does not scale with the loss (unless digest_lr does)",
    (
        "loss scale",
        "fedgh",
    ): "the rate of the server's steps does not scale with the loss",
    ("enrolment", "knn-per"): "as for identical clients",
    (
        "loss scale",
        "fedfew",
    ): "the smoothness of the minimum does not scale with the loss (unless mu does)",
    (
        "enrolment",
        "mapper",
    ): "every client parts its data, and draws batches, at random",
    (
        "enrolment",
        "dapper",
    ): "every client holds out samples, and is sent examples, at random",
    ("loss scale", "ccvr"): (
        "the rate of the server's steps does not scale with the loss"
    ),
    ("enrolment", "fedas"): (
        "client i's model has a history; a newcomer's starts from the shared body"
    ),
    ("loss scale", "fedas"): (
        "the distance of features does not scale with the loss (unless the rate of align does)"
    ),
    ("enrolment", "fedpac"): ("as fedper"),
    ("enrolment", "gpfl"): ("as fedper"),
    ("loss scale", "gpfl"): (
        "neither embeddings' loss nor the distance to them scales with the loss"
    ),
    ("enrolment", "fedcp"): (
        "client i's head has a history; a newcomer trains one for a round"
    ),
    ("loss scale", "fedcp"): (
        "the distance of features does not scale with the loss (unless lam does)"
    ),
    ("loss scale", "fedpac"): (
        "the pull to mean features does not scale with the loss (unless lam does)"
    ),
    ("loss scale", "hetlora"): (
        "the penalty of the rank does not scale with the loss (unless lam does)"
    ),
}
"""(property, method) -> why the method need not have it."""


ALONE_IS_LOCAL = {
    "local",
    "fedavg",
    "oracle",
    "scaffold",
    "cfl",
    "heterofl",
    "hypcluster",
    "ifca",
    "pacfl",
    "fedper",
    "lg-fedavg",
    "fedbn",
}
"""Methods that are exactly local training when there is one client."""

TRAFFIC: dict[str, tuple[float, ...]] = {
    "local": (0, 0, 0, 0, 0),
    "fedavg": (1, 1, 1, 0, 0),
    "finetune": (1, 1, 1, 0, 0),
    "oracle": (2, 1, 1, 0, 0),
    "ucfl": (2, 1, 1, 0, 0),
    "ucfl-parallel": (2, 2, 2, 0, 0),
    "fedprox": (1, 1, 1, 0, 0),
    "scaffold": (2, 2, 2, 0, 0),
    "ditto": (1, 1, 1, 0, 0),
    "pfedme": (1, 1, 1, 0, 0),
    "cfl": (2, 1, 1, 0, 0),
    "fedfomo": (4, 3, 1, 0, 0),
    "per-fedavg": (1, 1, 1, 0, 0),
    "apfl": (1, 1, 1, 0, 0),
    "self-fl": (1, 1, 1, 3, 1),
    "cgpfl": (2, 1, 1, 0, 0),
    "fedavgm": (1, 1, 1, 0, 0),
    "afl": (1, 1, 1, 0, 1),
    "hypcluster": (2, 2, 1, 0, 1),
    "ifca": (2, 2, 1, 0, 1),
    "mapper": (1, 1, 1, 0, 0),
    "dapper": (1, 1, 1, 0, 0),
    "fedper": (1, 1, 1, 0, 0),
    "fedrep": (1, 1, 1, 0, 0),
    "lg-fedavg": (1, 1, 1, 0, 0),
    "fedbn": (1, 1, 1, 0, 0),
    "fedbabu": (1, 1, 1, 0, 0),
    "fedrod": (1, 1, 1, 0, 0),
    "fedala": (1, 1, 1, 0, 0),
    "moon": (1, 1, 1, 0, 0),
    "feddbe": (1, 1, 1, 0, 0),
    "feddpa": (1, 1, 1, 0, 0),
    "flexlora": (1, 1, 1, 0, 0),
    "knn-per": (1, 1, 1, 0, 0),
    "mr-mtl": (1, 1, 1, 0, 0),
    "feddyn": (1, 1, 1, 0, 0),
    "fedadam": (1, 1, 1, 0, 0),
    "fedyogi": (1, 1, 1, 0, 0),
    "fedem": (2, 2, 2, 0, 0),
    "fedamp": (4, 1, 1, 0, 0),
    "pacfl": (2, 1, 1, 0, 0),
    "pfedhn": (4, 1, 1, 0, 0),
    "fedadagrad": (1, 1, 1, 0, 0),
    "fedproto": (0, 0, 0, 0, 0),
    "fedgh": (1, 1, 0, 0, 0),
    "fedtgp": (0, 0, 0, 0, 0),
    "heterofl": (1, 1, 1, 0, 0),
    "fedmd": (0, 0, 0, 0, 0),
    "fedfew": (2, 2, 2, 0, 2),
    "fedlc": (1, 1, 1, 0, 0),
    "ccvr": (1, 1, 1, 0, 0),
    "fedas": (1, 1, 1, 0, 1),
    "fedpac": (1, 1, 1, 0, 1),
    "fedex-lora": (1, 1, 1, 0, 0),
    "hetlora": (1, 1, 1, 1, 1),
    "gpfl": (1, 1, 1, 0, 0),
    "fedcp": (1, 1, 1, 0, 0),
}
"""In a round with two groups, streams or models: (streams down, models a client
receives, models it sends, scalars it receives, scalars it sends)."""


def example(name: str, clients: int = 5) -> Algorithm:
    """The method as the suite runs it."""
    if clients == 1 and name in FOR_ONE:
        return FOR_ONE[name]
    return EXAMPLES[name] if name in EXAMPLES else Algorithm.registry[name]()


def opt_outs_table() -> str:
    """`OPT_OUTS` as docs/conformance.md shows them."""
    rows = [
        f"| {check} | {method} | {reason} |"
        for (check, method), reason in sorted(OPT_OUTS.items())
    ]
    return (
        "\n".join(
            ["| property | method | why it need not hold |", "|---|---|---|", *rows]
        )
        + "\n"
    )


if __name__ == "__main__":
    print(opt_outs_table())
