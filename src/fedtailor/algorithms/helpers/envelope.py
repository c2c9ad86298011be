"""Local steps on a Moreau envelope, for pFedMe and CGPFL."""

import jax
from jaxtyping import Array, Float, ScalarLike

from fedtailor.algorithms.helpers.own_steps import add_penalty, loop_over_batches
from fedtailor.protocol import SGD, Batch, IntScalar, LocalTrainer, Params


def envelope_steps(
    local: LocalTrainer,
    w: Float[Array, " d"],
    sgd: SGD,
    inner_steps: IntScalar,
    lam: ScalarLike,
    share: ScalarLike,
    *,
    theta: Float[Array, " d"] | None = None,
    warm_start: bool = True,
) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
    """Local training of pFedMe (Dinh et al. 2020, algorithm 1).

    On each mini-batch, `inner_steps` steps of SGD minimise F(theta) + lam/2 |theta -
    w|^2 over theta. Then w takes a step towards theta:

        theta <- theta - rate ( g(theta) + lam (theta - w) )
        w <- w - share (w - theta)

    Args:
        local: the client's data and training.
        w: the received model.
        sgd: the rate and the batches of the inner steps. Its optimizer and momentum are
            not used.
        inner_steps: steps of theta on each mini-batch.
        lam: weight of the proximal term lam/2 |theta - w|^2.
        share: step of w towards theta, as a fraction of the distance; 0 = w is fixed.
        theta: where theta starts on the first batch; None = at w.
        warm_start: whether theta continues from one batch to the next, or starts at w
            on each of them.

    Returns:
        theta and w after the last mini-batch.
    """
    rate = sgd.rate(local.round)

    def step(
        models: tuple[Params, Params], batch: Batch, index: Array
    ) -> tuple[Params, Params]:
        theta, w = models

        def inner(k: Array, theta: Params) -> Params:
            g = add_penalty(local.batch_gradient(theta, batch), theta, sgd, local)
            return jax.tree.map(
                lambda t, g, w: t - rate * (g + lam * (t - w)), theta, g, w
            )

        # w is fixed during the inner steps of theta. The step of w that follows is
        # along lam (w - theta), the gradient of the envelope.
        theta = local.fori_loop(inner_steps, inner, theta if warm_start else w)
        w = jax.tree.map(lambda w, t: w - share * (w - t), w, theta)
        return theta, w

    start = local.params(w if theta is None else theta), local.params(w)
    theta, w = loop_over_batches(local, start, step, sgd)
    return local.vector(theta), local.vector(w)
