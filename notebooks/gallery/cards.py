"""A card for each function: its picture, its fits to choose from with their errors, tables to copy, and its kernels."""

from pathlib import Path

from fitting.fewbit.report import KIND_NAMES
from fitting.words import counted
from notebooks.gallery.c_array import as_c, sides
from notebooks.gallery.curves import window
from notebooks.gallery.fits import Fit, Shelf
from notebooks.gallery.latex import as_latex
from notebooks.gallery.markup import Html, tag
from notebooks.gallery.numbers import DOWN, MUCH, UP, percent, short
from notebooks.gallery.pictures import fit_picture, function_picture

KERNELS = Path(__file__).resolve().parents[2] / "kernels" / "generated"
TARGETS = ("triton", "torch")
WEIGHTS = {"norm": "x from N(0, 1)"}  # others go by their own names
FIRST = 3  # bits of the table that a card shows at first, unless fewer are exact


def card(shelf: Shelf) -> Html:
    """The card of a function."""
    x_range = window(shelf.fits)
    tables = (i for i, fit in enumerate(shelf.fits) if fit.is_fewbit and (fit.error == 0 or fit.kept_bits == FIRST))
    shown = next(tables, 0)
    return tag(
        "article",
        _head(shelf),
        tag("figure", function_picture(shelf, x_range), _key(("f", "f"), ("slope", "f′"))),
        _chooser(shelf, shown),
        tag("div", *(_fit(fit, x_range) for fit in shelf.fits), class_="panels"),
        _kernels(shelf),
        class_="card",
        id=shelf.id,
        data_words=f"{shelf.title} {shelf.activation.expr}".lower(),
    )


def _head(shelf: Shelf) -> Html:
    params = ", ".join(f"{key} = {value:g}" for key, value in shelf.activation.params.items())
    facts = [tag("code", f"f(x) = {shelf.activation.expr}")]
    facts += [tag("code", params)] if params else []
    none = "no function of PyTorch’s" * (shelf.title == shelf.name)  # with other parameters it may have one
    torch = tag("code", shelf.torch) if shelf.torch else none
    return tag("header", tag("h3", shelf.title), tag("p", torch, class_="torch"), tag("p", *facts, class_="expression"))


def _key(*lines: tuple[str, str]) -> Html:
    """What the lines of a picture are."""
    return tag("figcaption", *(tag("span", words, class_=f"key {kind}") for kind, words in lines))


def _chooser(shelf: Shelf, shown: int) -> Html:
    """A button for each fit. Radio buttons, of which CSS shows the one chosen: no script is needed."""
    groups: dict[str, list[Html]] = {}
    for i, fit in enumerate(shelf.fits):
        group = "Few bits" if fit.is_fewbit else "The paper’s" if fit.is_published else "From the output"
        words = ", ".join(filter(None, (str(fit.kept_bits) if fit.is_fewbit else fit.kind, fit.manner)))
        button = tag(
            "input",
            type="radio",
            name=f"{shelf.id}-fit",
            id=f"{fit.id}-choice",
            value=i,
            checked=i == shown,
            aria_label=fit.label,
        )
        groups.setdefault(group, []).append(tag("label", button, tag("span", words + _version(fit))))
    lines = [tag("div", tag("span", name, class_="group"), *buttons) for name, buttons in groups.items()]
    return tag("fieldset", tag("legend", f"Fits of {shelf.title}", class_="unseen"), *lines, class_="chooser")


def _version(fit: Fit) -> str:
    return f", v{fit.entry.version}" * (fit.entry.version > 1)


def _fit(fit: Fit, x_range: tuple[float, float]) -> Html:
    if fit.is_fewbit:
        error = [("error", "f′ − q")] if fit.document["error"]["linf"] else []
        key = _key(("exact", "f′"), ("fit", f"q, {fit.setting}"), *error)
    elif len(fit.document["solution"]["branches"]) == 2:
        key = _key(("exact", "g = f′∘f⁻¹"), ("fit left", "q, left"), ("fit right", "q, right"))
    else:
        key = _key(("exact", "g = f′∘f⁻¹"), ("fit", "q"))
    facts = _fewbit_facts(fit) if fit.is_fewbit else _invact_facts(fit)
    return tag(
        "section",
        tag("h4", fit.label),
        tag("figure", fit_picture(fit, x_range), key),
        Html() if fit.is_fewbit else _formula(fit.document["solution"]),
        tag("dl", *(part for name, value in facts + _origin(fit) for part in (tag("dt", name), tag("dd", value)))),
        _exports(fit),
        id=fit.id,
        class_="panel",
    )


def _fewbit_facts(fit: Fit) -> list[tuple[str, object]]:
    error, solution = fit.document["error"], fit.document["solution"]
    weight = fit.document["options"]["weight"]
    lo, hi = fit.document["options"]["domain"]
    facts: list[tuple[str, object]] = [
        ("∫(f′ − q)²w", short(fit.error, 4)),
        ("at least", _least(fit)),
    ]
    if fit.printed:
        facts.append(("paper", f"{fit.printed[0]} {fit.printed[1]}"))
    place = "" if error["linf_at"] is None else f" at x = {short(error['linf_at'], 4)}"
    return [
        *facts,
        ("max |f′ − q|", short(error["linf"], 4) + place),
        ("keeps", f"{counted(fit.kept_bits, 'bit')} an element"),
        ("table", f"{counted(len(solution['levels']), 'level')}, {counted(len(solution['codes']), 'interval')}"),
        ("weight", f"{WEIGHTS.get(weight, weight)} on [{short(lo)}, {short(hi)}]"),
    ]


def _least(fit: Fit) -> str:
    """The proven bound, and how near this table is to it. Rounded to the side on which both hold."""
    if fit.above is None:
        return "no bound above 0 found"
    levels = f"{counted(2**fit.kept_bits, 'level')} {KIND_NAMES[fit.document['options']['levels']]}"
    if fit.error == 0:
        near = "exact"
    elif fit.above > MUCH:
        near = f"{percent(fit.above)} above that"
    else:
        near = f"at most {percent(fit.above, UP)} above" if fit.above else "the least"
    return f"{short(fit.least, 4, DOWN)} with {levels}, proven: this is {near}"


def _invact_facts(fit: Fit) -> list[tuple[str, object]]:
    error, solution = fit.document["error"], fit.document["solution"]
    price, weight = solution["price"], fit.document["options"]["weight"]
    parts = ", ".join(f"{price[key]} {key}" for key in ("fma", "other", "special", "division") if price[key])
    facts: list[tuple[str, object]] = [
        ("RMS error", f"{short(error['rms'])}; floor {short(error['floor_rms'], rounding=DOWN)}{_share(fit)}")
    ]
    if fit.paper is not None:
        facts.append(("paper’s", f"{short(fit.paper)} RMS, by its formulas"))
    facts.append(("largest", f"{short(error['linf'])}; floor {short(error['floor_linf'], rounding=DOWN)}"))
    return [
        *facts,
        ("|q − g| at most", _bounds(error["bound"]) + ", in parts of max(1, |g|)" * fit.is_relative),
        ("price", f"{counted(price['instructions'], 'instruction')} an element: {parts}"),
        ("keeps", "the output" + f" and {counted(fit.kept_bits, 'bit')} an element" * bool(fit.kept_bits)),
        ("rule", solution["rule"]),
        ("weight", WEIGHTS.get(weight, weight)),
    ]


def _bounds(bounds: list[float | None]) -> str:
    """What is proven of each side, rounded up."""
    if None not in bounds:
        return f"{', '.join(short(bound, rounding=UP) for bound in bounds)}, proven"
    if not any(bound is not None for bound in bounds):
        return "no bound found"
    words = ["no bound found" if bound is None else f"{short(bound, rounding=UP)}, proven" for bound in bounds]
    return "; ".join(f"{side}: {word}" for side, word in zip(sides(bounds), words, strict=True))


def _share(fit: Fit) -> str:
    """How far above the floor, where that is worth saying: a floor of rounding errors is none to compare with."""
    return "" if fit.above is None or fit.above > MUCH else f", {percent(fit.above, UP)} above it"


def _formula(solution: dict[str, object]) -> Html:
    branches: list[dict[str, object]] = solution["branches"]  # type: ignore[assignment]
    lines = []
    for side, branch in zip(sides(branches), branches, strict=True):
        if side == "left":
            sign = "<" if solution["border_side"] == "right" else "≤"
            lines.append(tag("p", f"left, x {sign} {short(float(solution['border']), 5)}:"))  # type: ignore[arg-type]
        elif side:
            lines.append(tag("p", "right:"))
        if branch["variable"] is not None:
            lines.append(tag("code", f"s = {branch['variable']}"))
        lines.append(tag("code", f"q = {branch['expression']}"))
    return tag("div", *lines, class_="formula", tabindex="0", role="group", aria_label="formula")


def _origin(fit: Fit) -> list[tuple[str, object]]:
    command = fit.document["provenance"]["command"]
    again = [("made by", _words(command))] if command else []
    return [
        ("file", tag("code", fit.place)),
        ("version", Html(f"{fit.entry.version}, sha256 {tag('code', fit.document['sha256'][:16])}")),
        *again,
    ]


def _words(command: str) -> Html:
    """A command that breaks between words, not within its options."""
    return tag("code", *(part for word in command.split(" ") for part in (tag("span", word), " ")))


def _exports(fit: Fit) -> Html:
    """The fit as texts to copy, which are there to be read, too."""
    texts = [("JSON", "json", fit.text), ("LaTeX", "tex", as_latex(fit)), ("C array", "c", as_c(fit))]
    of = f"{fit.entry.function}: {fit.label}"
    return tag("div", *(copyable(f"{fit.id}-{ending}", name, of, text) for name, ending, text in texts), class_="texts")


def copyable(id_: str, name: str, of: str, text: str) -> Html:
    """A text to unfold, and a button that copies it, which the script shows."""
    button = tag("button", "Copy", type="button", data_copy=id_, hidden=True, aria_label=f"Copy the {name} of {of}")
    # The parser drops one line break after <pre>, so one is given to it.
    body = tag("pre", Html("\n"), text, id=id_, tabindex="0", aria_label=f"{name} of {of}")
    return tag("div", tag("details", tag("summary", name), body), button, class_="text")


def _kernels(shelf: Shelf) -> Html:
    """The modules that codegen emitted. They stand on the page, which may be moved away from the repository."""
    texts = []
    for target in TARGETS if shelf.is_usual else ():
        path = KERNELS / f"{shelf.name}_{target}.py"
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            texts.append(copyable(f"{shelf.name}-{target}", path.name, shelf.name, text))
    return (
        tag("div", tag("h4", "Emitted kernels, in ", tag("code", "kernels/generated")), *texts, class_="texts kernels")
        if texts
        else Html()
    )
