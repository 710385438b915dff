"""Prompts as a service would get them: conversations that go on, repeat, fork, and belong to tenants and adapters."""

import random

from model import VOCABULARY

# How often each kind comes, in a hundred.
SHARES = {
    "new": 22,
    "next turn": 24,
    "repeat": 10,
    "repeat of whole blocks": 8,
    "shortened": 8,
    "fork": 8,
    "other tenant": 8,
    "adapter": 8,
    "long answer": 4,
}


class Prompts:
    """A seeded stream of them."""

    def __init__(self, seed, block_size, adapter):
        self.lot = random.Random(seed)
        self.block_size = block_size
        self.shares = {kind: share for kind, share in SHARES.items() if adapter or kind != "adapter"}
        # What was said so far, newest last: (tokens, salt, tuned).
        self.told = []

    def tokens(self, least, most):
        return [self.lot.randrange(10, VOCABULARY) for _ in range(self.lot.randint(least, most))]

    def next(self):
        """The kind of the next prompt, and the prompt."""
        [kind] = self.lot.choices(list(self.shares), self.shares.values())
        if not self.told:
            kind = "new"
        # Old conversations come back too, when much of them has been evicted.
        tokens, salt, tuned = self.lot.choice(self.told[-40:]) if self.told else ([], None, False)
        output = self.lot.randint(1, 24)
        if kind == "new":
            tokens, salt, tuned = self.tokens(20, 900), self.lot.choice([None, None, "tenant-a"]), False
        elif kind == "next turn":
            tokens = tokens + self.tokens(5, 160)
        elif kind == "repeat of whole blocks":
            tokens = tokens[: max(1, len(tokens) // self.block_size) * self.block_size]
        elif kind == "shortened":
            tokens = tokens[: self.lot.randint(1, len(tokens))]
        elif kind == "fork":
            tokens = tokens[: self.lot.randint(1, len(tokens))] + self.tokens(20, 300)
        elif kind == "other tenant":
            salt = "tenant-b" if salt != "tenant-b" else None
        elif kind == "adapter":
            tuned = not tuned
        elif kind == "long answer":
            tokens, output = tokens + self.tokens(1, 40), self.lot.randint(60, 140)
        if len(tokens) > 1600:
            tokens = tokens[: self.lot.randint(200, 800)]
        return kind, {"tokens": tokens, "salt": salt, "tuned": tuned, "output": output}

    def answered(self, prompt, output):
        """Remembers a prompt with its answer, to be gone on with."""
        self.told.append((prompt["tokens"] + output, prompt["salt"], prompt["tuned"]))
