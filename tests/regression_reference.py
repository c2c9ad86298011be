"""Regressions of scikit-learn's diabetes data by statsmodels and lifelines.

`python tests/regression_reference.py` writes tests/statistics/regression/reference.json.
"""

import json
from pathlib import Path

import numpy as np
from sklearn.datasets import load_diabetes

from fedtailor.statistics.regression import ClientRows

HOME = Path(__file__).parent / "statistics/regression/reference.json"
NAMES = ("sex", "bmi", "bp", "s5")


def table():
    """Inputs, target of each model, whether the event was seen, and clients: decades of
    age.
    """
    data = load_diabetes(scaled=False)
    x = data.data[:, [1, 2, 3, 8]]
    clients = np.clip(data.data[:, 0] // 10, 3, 6).astype(int) - 3
    targets = {
        "linear": data.target,
        "logistic": (data.target > 140).astype(float),
        "poisson": data.target // 50,
        "cox": np.ceil(data.target / 10),
    }
    seen = (np.arange(len(x)) % 3 > 0).astype(float)
    return x, targets, seen, clients


def clients_of(model):
    """The rows of each client."""
    x, targets, seen, clients = table()
    return [
        ClientRows(
            x[clients == client],
            targets[model][clients == client],
            seen[clients == client] if model == "cox" else None,
        )
        for client in range(4)
    ]


def references():
    """ "model intercept errors library" -> coefficients, standard errors, p values,
    log-likelihood.
    """
    import pandas as pd
    import statsmodels.api as sm
    from lifelines import CoxPHFitter

    x, targets, seen, clients = table()
    designs = {
        "common": sm.add_constant(x),
        "fixed": np.hstack([x, np.eye(4)[clients]]),
    }
    found = {}

    def keep(key, coefficients, errors, p, log_likelihood, count):
        columns = (coefficients, errors, p)
        found[key] = [np.asarray(column)[:count].tolist() for column in columns]
        found[key].append(float(log_likelihood))

    for model in ("linear", "logistic", "poisson"):
        for intercept, design in designs.items():
            for errors in ("model", "CR0", "CR1"):
                kind = {"cov_type": "nonrobust"}
                if errors != "model":
                    groups = {
                        "groups": clients,
                        "use_correction": errors == "CR1",
                        "df_correction": True,
                    }
                    kind = {"cov_type": "cluster", "cov_kwds": groups, "use_t": True}
                if model == "linear":
                    fit = sm.OLS(targets[model], design).fit(**kind)
                else:
                    family = {"logistic": "Binomial", "poisson": "Poisson"}[model]
                    fit = sm.GLM(
                        targets[model], design, getattr(sm.families, family)()
                    ).fit(tol=1e-14, tol_criterion="params", **kind)
                count = 5 if intercept == "common" else 4
                key = f"{model} {intercept} {errors} statsmodels"
                keep(key, fit.params, fit.bse, fit.pvalues, fit.llf, count)
    fit = sm.PHReg(targets["cox"], x, status=seen, strata=clients, ties="efron").fit(
        method="newton", tol=1e-14
    )
    keep("cox fixed model statsmodels", fit.params, fit.bse, fit.pvalues, fit.llf, 4)
    frame = pd.DataFrame(x, columns=list(NAMES))
    frame = frame.assign(time=targets["cox"], seen=seen, client=clients)
    fit = CoxPHFitter().fit(
        frame,
        "time",
        "seen",
        strata=["client"],
        fit_options={"precision": 1e-14, "max_steps": 100},
    )
    columns = (fit.params_, fit.standard_errors_, fit.summary["p"])
    keep("cox fixed model lifelines", *columns, fit.log_likelihood_, 4)
    return found


if __name__ == "__main__":
    lines = [f"{json.dumps(key)}: {json.dumps(it)}" for key, it in references().items()]
    HOME.write_text("{\n" + ",\n".join(lines) + "\n}\n")
