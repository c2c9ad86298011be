"""An LSTM over roles of a play.

Each client is a role, and its data are the lines that it speaks: an LSTM reads twelve
characters and predicts the next one. Roles speak alike enough to learn from each other.
The few lines of `Romeo and Juliet` in this file are in place of a play; a text file in
which every line is `ROLE: words` can be given as the argument.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import fedtailor as ft

LINES = """\
ROMEO: But, soft! what light through yonder window breaks? It is the east, and Juliet is the sun.
ROMEO: Arise, fair sun, and kill the envious moon, who is already sick and pale with grief.
ROMEO: See, how she leans her cheek upon her hand! O, that I were a glove upon that hand, that I might touch that cheek!
ROMEO: O, speak again, bright angel! for thou art as glorious to this night, being o'er my head.
ROMEO: With love's light wings did I o'er-perch these walls; for stony limits cannot hold love out.
JULIET: O Romeo, Romeo! wherefore art thou Romeo? Deny thy father and refuse thy name.
JULIET: 'Tis but thy name that is my enemy; thou art thyself, though not a Montague.
JULIET: What's in a name? that which we call a rose by any other name would smell as sweet.
JULIET: My bounty is as boundless as the sea, my love as deep; the more I give to thee, the more I have, for both are infinite.
JULIET: Good night, good night! parting is such sweet sorrow, that I shall say good night till it be morrow.
MERCUTIO: O, then, I see Queen Mab hath been with you. She is the fairies' midwife, and she comes in shape no bigger than an agate-stone.
MERCUTIO: If love be rough with you, be rough with love; prick love for pricking, and you beat love down.
MERCUTIO: No, 'tis not so deep as a well, nor so wide as a church-door; but 'tis enough, 'twill serve.
MERCUTIO: Ask for me to-morrow, and you shall find me a grave man. A plague o' both your houses!
NURSE: Even or odd, of all days in the year, come Lammas-eve at night shall she be fourteen.
NURSE: Now, by my maidenhead, at twelve year old, I bade her come. What, lamb! what, ladybird!
NURSE: There's no trust, no faith, no honesty in men; all perjured, all forsworn, all naught, all dissemblers.
"""  # noqa: E501
LENGTH = 12


def windows(text: str) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Windows of character ids, the next character of each, and who speaks it."""
    letters = sorted({letter for letter in text.lower()})
    ids = {letter: number + 1 for number, letter in enumerate(letters)}  # 0 is padding
    x, y, role = [], [], []
    for line in text.strip().split("\n"):
        name, _, words = line.partition(": ")
        codes = [ids[letter] for letter in words.lower()]
        for start in range(len(codes) - LENGTH):
            x.append(codes[start : start + LENGTH])
            y.append(codes[start + LENGTH])
            role.append(name)
    labels = np.unique(y, return_inverse=True)[1]
    return np.array(x, np.int32), labels, np.array(role), len(ids) + 1


text = Path(sys.argv[1]).read_text() if len(sys.argv) > 1 else LINES
x, y, role, vocabulary = windows(text)
federation = ft.federation.from_arrays(x, y, role, test=0.2)
print(f"{len(federation)} roles, {len(y)} windows, {federation.classes} characters")

lstm = ft.models.lstm(vocabulary, embedding=16, hidden=48)
sgd = ft.SGD(lr=0.3, momentum=0.9, epochs=1, batch_size=16)
methods = (ft.Local(sgd=sgd), ft.FedAvg(sgd=sgd), ft.FineTune(sgd=sgd, tune=sgd))
for method in methods:
    run = ft.run(method, federation, lstm, rounds=25, evaluate_every=5)
    name = method.about.name
    loss = run.metrics.values("loss")
    print(f"{name:9} loss {loss.mean():.2f}, accuracy {run.summary().mean:.3f}")
    plt.bar(
        [place + 0.25 * methods.index(method) for place in range(len(federation))],
        run.metrics.values("accuracy"),
        width=0.25,
        label=name,
    )
plt.xticks([place + 0.25 for place in range(len(federation))], federation.names)
plt.ylabel("next characters that are right")
plt.legend()
plt.tight_layout()
plt.savefig("shakespeare_lstm.png", dpi=120)
