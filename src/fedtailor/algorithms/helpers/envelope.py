"""Local steps on a Moreau envelope, which pFedMe and CGPFL take."""

import jax
from jaxtyping import Array, Float, ScalarLike

from fedtailor.protocol import SGD, Batch, IntScalar, LocalTrainer, Params, is_off


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
    steps: IntScalar | None = None,
) -> tuple[Float[Array, " d"], Float[Array, " d"]]:
    """Inner solves around w on mini-batches, each followed by a step of w (Dinh et al.
    2020, algorithm 1).

    On each batch `inner_steps` of SGD descend F(theta) + lam/2 |theta - w|^2, and then

        w <- w - share (w - theta).

    Args:
        w: the received model.
        sgd: the rate and the batches of the inner steps; its optimizer and momentum are
            not used.
        inner_steps: steps on each mini-batch.
        lam: strength of the pull of theta towards w.
        share: of the way from w to theta; 0 leaves w where it is.
        theta: where the first inner solve starts; None = w.
        warm_start: start the next inner solves from the last theta, or else from the
            present w.
        steps: mini-batches; None = as many as `sgd` has.

    Returns:
        theta and w after the last mini-batch.
    """
    rate = sgd.rate(local.round)

    def step(
        models: tuple[Params, Params], batch: Batch, index: Array
    ) -> tuple[Params, Params]:
        theta, w = models

        def inner(k: Array, theta: Params) -> Params:
            g = local.batch_gradient(theta, batch)
            if not is_off(sgd.weight_decay):
                g = jax.tree.map(lambda g, t: g + sgd.weight_decay * t, g, theta)
            return jax.tree.map(
                lambda t, g, w: t - rate * (g + lam * (t - w)), theta, g, w
            )

        # Inner solve on this one batch, around a w that stands still; then w's step,
        # along lam (w - theta), the gradient of the envelope.
        theta = local.fori_loop(inner_steps, inner, theta if warm_start else w)
        return theta, jax.tree.map(lambda w, t: w - share * (w - t), w, theta)

    start = local.params(w if theta is None else theta), local.params(w)
    steps = local.steps(sgd) if steps is None else steps
    theta, w = local.loop(start, step, steps, sgd.batch_size, drop_last=sgd.drop_last)
    return local.vector(theta), local.vector(w)
