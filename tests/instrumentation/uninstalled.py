"""Takes what Lockstep has put into torch out again, so that each test begins with torch's own."""

from typing import Any

from lockstep.patches import install
from lockstep.patches.points import ORIGINAL, owner_of


def uninstall() -> None:
    originals, replaced = dict[int, Any](), list[Any]()
    for path, attribute in install._in_torch:
        owner = owner_of(path)
        current = getattr(owner, attribute)
        original = getattr(current, ORIGINAL, current)
        setattr(owner, attribute, original)
        originals[id(current)] = original
        replaced.append(current)  # so that no other object gets its id
    install.rebind(originals)
    install._in_torch.clear()
    install._LateModules.groups.clear()
