"""The page for scripts and agents, and llms.txt."""

import json

from fedtailor.cli import registry
from generators import gallery, methods, schemas

EXIT_CODES = {
    0: "done",
    1: "the machine or fedtailor failed; with `check`, something is not whole",
    2: "wrong input: the line on the standard error says what to change",
    130: "Ctrl-C",
    143: "SIGTERM",
}


def page() -> str:
    """The page for scripts and agents."""
    codes = "\n".join(f"| {code} | {words} |" for code, words in EXIT_CODES.items())
    lines = [
        "# Scripts and agents",
        "",
        "*For whom: you write a program, or are one, that calls fedtailor.* An agent that reads"
        " skills finds one in `skills/fedtailor/SKILL.md` of the repository, and beside"
        " `llms.txt` on this site.",
        "",
        """Commands never ask anything. Results go to the standard output, progress and errors to the standard error. An
error is one line that begins with `fedtailor:` and says what is wrong and what to do; nothing half-written is left.

| exit code | meaning |
|---|---|""",
        codes,
        "",
        """With `--json` a command prints one JSON document on the standard output, and nothing else there. Numbers that
are not finite are `null`. Fields may be added in a minor version; none is removed or changes its meaning
without a line in the [changelog](changelog.md). In Python every result is an object: [names](api/index.md).

## A session

```sh
fedtailor diagnose patients.csv --client hospital --target outcome --json > diagnosis.json   # .race: what to train
fedtailor compare patients.csv --client hospital --target outcome --plan --json              # how long it takes
fedtailor compare patients.csv --client hospital --target outcome --json > decision.json     # .decision
fedtailor models fedtailor-results --json                                                    # .run: the directories
fedtailor predict RUN rows.csv --client north --out predictions.csv
```

The same command again continues an interrupted comparison. `--seed` and `--seeds` fix everything random; two runs with
equal seeds on equal machines give equal results. Runs are directories:
`fedtailor check DIR --json` says whether one is whole.

## Schemas

[JSON Schema](https://json-schema.org/) of what each command prints. The tests read real output by these.
""",
    ]
    for command, kind in schemas.SCHEMAS.items():
        shown = json.dumps(schemas.schema(kind), indent=1)
        lines += [f"### {command}", "", f"```json\n{shown}\n```", ""]
    return "\n".join(lines)


def llms() -> str:
    """llms.txt: what fedtailor is and where to read, for language models."""
    commands = "\n".join(
        f"- `fedtailor {name}`: {summary}"
        for name, summary in registry.summaries().items()
    )
    programs = "\n".join(
        f"- [{example.title}](generated/gallery/{example.name}.html)"
        for example in gallery.examples()
    )
    names = ", ".join(methods.registered())
    return f"""# fedtailor

> Personalized federated learning on JAX: one fitted model for each client, {len(methods.registered())} methods,
> simulated or over machines, with intervals that say whether sharing helps and whom.

## Read first

- [Tutorial](tutorial.html): from a table to a model that can be handed over
- [Skill](SKILL.md): diagnose, compare, decide, finalize, and what never to do with test rows
- [Scripts and agents](generated/agents.html): exit codes, `--json`, schemas
- [Commands](generated/commands.html): every option
- [Names in Python](generated/api/index.html)
- [Which method](which-method.html), and [all methods](methods.html) by what they share
- [A first experiment](first-experiment.html): a method, a network and data of one's own
- [What sharing can and cannot do](limits.html)

## Commands

{commands}

## Programs

{programs}

## Methods

{names}: a page each in generated/methods/.
"""
