"""Prints what an installed engine asks for, so that a package index alone can give it: `requirements.py PACKAGE`.

CPU builds of engines ask for `torch==X+cpu`, which lies on PyTorch's own index and not on PyPI. PyPI's `torch==X` is the same
source with the same interfaces, and computes on the CPU where there is no other device.
"""

import importlib.metadata
import sys

from pip._vendor.packaging.requirements import Requirement

wanted = [Requirement(text) for text in importlib.metadata.requires(sys.argv[1])]
wanted = [one for one in wanted if one.marker is None or one.marker.evaluate({"extra": ""})]
[torch] = [str(one.specifier).removeprefix("==").replace("+cpu", "") for one in wanted if one.name == "torch"]
for one in wanted:
    one.marker = None
    # Built against one release of torch or an older one, which it does not say.
    print(f"torchaudio<={torch}" if one.name == "torchaudio" else str(one).replace("+cpu", ""))
