"""The table of docs/truth.md: one row for each release and block size that was run on this page's account."""

import platform
from collections import Counter
from datetime import UTC, datetime

from parties import ROOT

PAGE = ROOT / "docs" / "truth.md"
BEGIN, END = "<!-- rows: `make truth` -->\n", "<!-- end of rows -->\n"
HEAD = "| engine | tokens a block, blocks | compared | equal | over | under | cached at all | why they differ |\n|---|---|---|---|---|---|---|---|\n"
DROP = "the cache had been dropped, and an idle engine says so with its next step only"


def reason(one):
    """Why an answer differed, where that is known."""
    if one["after_drop"] and one["kvtap"] > one["engine"]:
        return DROP
    return None


def row(run, options, seconds):
    """What a run came to: its row, and how many differences have no known reason."""
    found = run.found
    over = [one for one in found if one["kvtap"] > one["engine"]]
    under = [one for one in found if one["kvtap"] < one["engine"]]
    why = Counter(reason(one) or "not known" for one in over + under)
    told = "; ".join(f"{count}: {text}" for text, count in why.most_common()) or "none does"
    key = f"| vLLM {run.version} | {options.block_size}, {options.blocks} |"
    counts = [len(found), len(found) - len(over) - len(under), len(over), len(under)]
    cached = sum(one["engine"] > 0 for one in found)
    text = f"{key} {' | '.join(map(str, counts))} | {cached} | {told} |\n"
    happened = ", ".join(f"{what}: {count}" for what, count in run.happened.items())
    kinds = ", ".join(f"{kind}: {count}" for kind, count in Counter(one["kind"] for one in found).most_common())
    day = datetime.now(UTC).strftime("%Y-%m-%d")
    detail = (
        f"- vLLM {run.version}, seed {options.seed}, {day}, {platform.machine()}, {seconds / 60:.0f} minutes. "
        f"Prompts: {kinds}. In between: {happened}. {run.witness.messages} messages in {run.engine.lives} lives of the engine "
        f"and {run.tap.lives} of kvtap.\n"
    )
    return {"key": key, "text": text, "detail": detail, "unexplained": why["not known"]}


def rewrite(row):
    """Puts the row where one of the same engine was, or below."""
    before, rest = PAGE.read_text().split(BEGIN)
    rows, after = rest.split(END)
    kept = [line for line in rows.removeprefix(HEAD).splitlines(True) if line.strip()]
    release = row["detail"].split(",", 1)[0] + ","
    details = [line for line in kept if line.startswith("- ") and not line.startswith(release)]
    lines = [line for line in kept if line.startswith("|") and not line.startswith(row["key"])]
    body = HEAD + "".join([*lines, row["text"]]) + "\n" + "".join([*details, row["detail"]])
    PAGE.write_text(before + BEGIN + body + END + after)
