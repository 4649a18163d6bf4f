"""The rows of a report: what was done at each site, and where activations were seen to which none leads."""

from kernels.conversion import recognise
from kernels.conversion.choose import error_of
from kernels.conversion.report import Converted
from kernels.conversion.sites import Site, within
from kernels.conversion.together import Trial
from kernels.methods.compressed import Compressed
from kernels.methods.method import Method


def unreached(sites: list[Site], after: Trial | None) -> list[Converted]:
    """Activations that were seen to keep something after conversion, where none stands that was left alone."""
    functions = recognise.torchs()
    left = [site for site in sites if site.why_not]
    found: dict[tuple[str, str], int] = {}
    for kept in after.saved.tensors if after is not None else ():
        module, function = kept.by[0].module, functions.get(kept.by[0].operation)
        if function is None:
            continue
        name = f"{module}.{function}()" if module else f"{function}()"
        if not any(_leads(site, one, module, function) for site in left for one in site.names):
            found[name, function] = found.get((name, function), 0) + kept.bytes
    why_not = "it is called where convert does not look: in a helper, another method than forward, or in place"
    return [Converted(*who, "a call", "a call", count, count, reason=why_not) for who, count in found.items()]


def _leads(site: Site, place: str, module: str, function: str) -> bool:
    """Whether what a function keeps in a module is of the site: a module's by its name, others' by their owner's."""
    if site.kind in ("attribute", "call") and place.rpartition(".")[0] == module:
        return site.known is not None and site.known.called == function
    return within(module, place)


def converted(site: Site, method: Method | None, before: Trial | None, after: Trial | None) -> Converted:
    """The row of a site that goes by a method now, or was left alone."""
    alone = [None if one is None else one.alone.get(site.name) for one in (before, after)]
    if site.why_not or method is None:
        return Converted(site.name, site.function, site.was, site.was, alone[0], alone[1], reason=site.why_not)
    dtype = after.dtypes.get(site.name) if after is not None else None
    known = None if isinstance(method, Compressed) else site.known
    error = None if dtype is None or known is None else error_of(known, dtype, method)
    return Converted(site.name, site.function, site.was, str(method), alone[0], alone[1], error)
