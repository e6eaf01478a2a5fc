"""The cases that prove the conditions of alerts: a folder an area, as the conditions have."""

from importlib import import_module
from pkgutil import iter_modules

for area in iter_modules(__path__):
    if area.ispkg:
        folder = import_module(f"{__name__}.{area.name}")
        for module in iter_modules(folder.__path__):
            import_module(f"{folder.__name__}.{module.name}")
