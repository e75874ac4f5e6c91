"""Reads in compiled kernels how programs publish and acquire data: barriers, tickets and scopes."""

import re

# Workspace that the last program of a row reads; ``pair_stats``, ``items`` and the like are parts of it.
WORKSPACE = ("counters", "pair_stats", "items", "keys", "partials", "records", "scratch")
TICKET, BARRIER = "tt.atomic_rmw add, acq_rel", re.compile(r"\b(ttg|gpu)\.barrier\b")
MOVES = re.compile(
    r"%([\w.#]+) = (?:tt\.(?:addptr|bitcast|splat|broadcast|expand_dims)|ttg\.convert_layout) %([\w.#]+)"
)
LOADS, MAKES = re.compile(r"= tt\.load %([\w.#]+)"), re.compile(r"\s*%([\w.#]+) = ")
# A load that bypasses caches, as Triton up to 3.8 writes it and as 3.9 does, where the modifier is one of a policy's.
UNCACHED = re.compile(r"(?<= )cacheModifier = cg\b|\bcache_modifier = cg\b")
SPEAKS = re.compile(r"\b(tt\.(load|store|atomic_\w+)|scf\.\w+|cf\.\w+)\b")  # touches memory, or branches


def faults(program, target):
    """The faults of a compiled kernel, in words; and its number of tickets."""
    found, count = of_ttgir(program.asm["ttgir"], target.backend, [*names_of(program.src.signature)])
    text = program.asm["amdgcn" if target.backend == "hip" else "ptx"]
    if target.backend != "hip":
        return found + of_ptx(text, count), count
    return found + (of_amdgcn(text) if count else []), count  # other additions look like tickets


def names_of(signature):
    """The names of a kernel's parameters, one by one: of arguments, and of fields of tuples. Constants are left out."""
    items = signature.items() if isinstance(signature, dict) else zip(signature._fields, signature, strict=True)
    for name, kind in items:
        if hasattr(kind, "_fields"):
            yield from names_of(kind)
        elif isinstance(kind, tuple):
            yield from (name for part in kind if part != "constexpr")
        elif kind != "constexpr":
            yield name


def of_ttgir(text, backend, names):
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    tickets = [i for i, line in enumerate(lines) if TICKET in line]
    found = [f"scope: {line.strip()}" for line in lines if "tt.atomic_" in line and ", gpu, " not in line]
    for i in tickets:
        before = next(line for line in reversed(lines[:i]) if SPEAKS.search(line) or BARRIER.search(line))
        if not BARRIER.search(before):
            found.append(f"no barrier before a ticket, but {before.strip()}")
    if tickets:
        for line, root in list(loads_of(lines, names))[tickets[0] :]:
            if root in WORKSPACE and not UNCACHED.search(line):
                found.append(f"a load that a cache may answer: {line.strip()}")
        # On gfx942 a barrier waits for no stores. One thread's are safe: it takes the ticket.
        for line in lines[: tickets[-1]] if backend == "hip" else ():
            if re.search(r"\btt\.store\b.*tensor<", line):
                found.append(f"stores of many threads before a ticket: {line.strip()}")
    return found, len(tickets)


def loads_of(lines, names):
    """Each line, and the parameter of ``names`` that it loads from, if any.

    Other regions may use a name again.
    """
    roots = {}
    for line in lines:
        if "tt.func public" in line:
            given = re.findall(r"%([\w.]+): (!tt\.ptr)?", line)
            roots = {own: name for (own, pointer), name in zip(given, names, strict=True) if pointer}
        load, made, move = LOADS.search(line), MAKES.match(line), MOVES.search(line)
        yield line, roots.get(load[1]) if load else None
        if made:
            roots.pop(made[1], None)
        if move and move[2] in roots:
            roots[move[1]] = roots[move[2]]


def of_ptx(text, count):
    tickets = re.findall(r"atom\.\S*acq_rel\S*\.add\S*", text)
    found = [f"scope: {ticket}" for ticket in tickets if ".gpu." not in ticket]
    if len(tickets) < count:
        found.append(f"{count} tickets became {len(tickets)}")
    return found


def unseen(program, target):
    """Faults that are put into the text of a compiled kernel with tickets, and are not detected there."""
    ttgir = program.asm["ttgir"]
    planted = {
        "no barrier": re.sub(r".*\b(ttg|gpu)\.barrier\b.*\n", "", ttgir),
        "relaxed ticket": ttgir.replace("acq_rel, gpu", "relaxed, gpu", 1),
        "ticket of a block": ttgir.replace("acq_rel, gpu", "acq_rel, cta", 1),
        "cached loads": UNCACHED.sub("", ttgir),
    }
    if target.backend == "hip":
        stores = re.sub(r"(tt\.store .*: )(!tt\.ptr<f32>)", r"\1tensor<128x\2>", ttgir)
        planted["stores of all threads"] = stores
    names = [*names_of(program.src.signature)]
    _, count = of_ttgir(ttgir, target.backend, names)
    missed = [name for name, text in planted.items() if of_ttgir(text, target.backend, names) == ([], count)]
    if target.backend == "hip" and not of_amdgcn(program.asm["amdgcn"].replace("buffer_wbl2 sc1", "s_nop 0")):
        missed.append("no write-back")
    if target.backend == "cuda" and not of_ptx(program.asm["ptx"].replace("acq_rel", "relaxed"), count):
        missed.append("relaxed ticket in PTX")
    return missed


def of_amdgcn(text):
    """Before a ticket its wave writes back and waits for its stores; afterwards it invalidates what it had read.

    The compiler leaves out the wait if the wave has waited already, and has stored nothing since.
    """
    found = []
    lines = [line.strip() for line in text.splitlines() if re.match(r"\s+[a-z]|\.L", line) and "s_nop" not in line]
    for i, line in enumerate(lines):
        if re.match(r"global_atomic_add .*\bsc0\b", line):  # its result is used, unlike any other addition's
            ahead, after = lines[i - 2 : i], lines[i + 1 : i + 3]
            # Back to the last wait of the same block; without one, all that stands before may have stored.
            last = next((j for j in range(i - 2, 0, -1) if re.match(r"s_waitcnt vmcnt\(0\)|\.L", lines[j])), 0)
            since = last if lines[last].startswith("s_waitcnt") else 0
            stored = any(re.match(r"(global|flat|buffer|scratch)_store", before) for before in lines[since:i])
            written = ahead == ["buffer_wbl2 sc1", "s_waitcnt vmcnt(0)"] or (
                not stored and ahead[1:] == ["buffer_wbl2 sc1"]
            )
            if not written or after != ["s_waitcnt vmcnt(0)", "buffer_inv sc1"]:
                found.append(f"a ticket between {ahead} and {after}")
    return found
