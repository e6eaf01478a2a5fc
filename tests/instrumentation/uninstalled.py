"""Takes what Lockstep has put into torch out again, so that each test begins with torch's own."""

from lockstep.patches import install
from lockstep.patches.points import ORIGINAL, owner_of


def uninstall() -> None:
    for path, attribute in install._in_torch:
        owner = owner_of(path)
        current = getattr(owner, attribute)
        original = getattr(current, ORIGINAL, current)
        setattr(owner, attribute, original)
        install.rebind({id(current): original})
    install._in_torch.clear()
    install._LateModules.groups.clear()
