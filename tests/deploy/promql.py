"""Looks into PromQL far enough to know which metrics it asks for, by which labels and with which values."""

import re

# What may stand where a metric's name may, and is none.
WORDS = set(
    "by without on ignoring group_left group_right offset bool and or unless sum min max avg count count_values quantile "
    "topk bottomk stddev stdvar rate irate increase delta deriv histogram_quantile absent absent_over_time time vector scalar "
    "clamp clamp_min clamp_max label_replace label_join round ceil floor abs sort sort_desc changes resets inf nan".split()
)
STRING = r'"(?:[^"\\]|\\.)*"'
NAME = r"[A-Za-z_:][A-Za-z0-9_:]*"
MATCHER = rf"\s*({NAME})\s*(=~|!~|!=|=)\s*({STRING})\s*"
SELECTOR = rf"({NAME})\s*(?:\{{((?:{MATCHER},?)*)\}})?"


def selectors(expression):
    """Every metric that is asked for, as (name, [(label, operator, value)])."""
    # Labels of groupings are no metrics.
    text = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\(([^()]*)\)", " ", expression)
    text = re.sub(r"\[[^\]]*\]", " ", text)
    found = []
    for name, inside in ((one[1], one[2] or "") for one in re.finditer(SELECTOR, blank_strings_outside(text))):
        if name.lower() not in WORDS:
            found.append((name, [(label, how, value[1:-1]) for label, how, value in re.findall(MATCHER, inside)]))
    return found


def blank_strings_outside(text):
    """The text without the strings that stand in no selector (arguments of label_replace and the like)."""
    depth, out = 0, []
    for piece in re.findall(rf"{STRING}|[{{}}]|[^\"{{}}]+", text):
        depth += {"{": 1, "}": -1}.get(piece, 0)
        out.append(piece if depth or not piece.startswith('"') else " ")
    return "".join(out)


def groupings(expression):
    """Every label that something is grouped by."""
    found = re.findall(r"\b(?:by|on|ignoring)\s*\(([^()]*)\)", expression)
    return {label.strip() for labels in found for label in labels.split(",") if label.strip()}
