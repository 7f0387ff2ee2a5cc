"""Cost of secure aggregation: python -m benchmarks.secure [CLIENTS ...]

One round of the protocol in this process, in which one client drops out after the shares. The
numbers are CPU seconds of one core and bytes without transport. The sum is compared with the plain
one.
"""

import sys
import time
from collections import defaultdict
from functools import lru_cache, partial

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec

from benchmarks.machine import this_machine
from fedgh.secure.client import MaskingClient, Memory
from fedgh.secure.server import UnmaskingServer
from fedgh.secure.signatures import is_signed, sign
from fedgh.secure.step import PHASES
from fedgh.secure.terms import Terms

CLIENTS = (3, 10, 100)
LENGTHS = (10_000, 100_000, 1_000_000)


def measure(clients: int, length: int) -> dict[str, float]:
    """Return the cost for one client that stays, and for the server."""
    keys = [ec.generate_private_key(ec.SECP384R1()) for _ in range(clients)]

    def verify(client: int, signature: bytes, message: bytes) -> bool:
        return is_signed(keys[client].public_key(), signature, message)

    once = lru_cache(None)(verify)  # only client 0 pays for its own verifications
    terms = Terms("bench", 1, 1, "0" * 64, "0" * 64, tuple(range(clients)), 3)
    server = UnmaskingServer(terms, once)
    parties = [
        MaskingClient(k, Memory(terms), partial(sign, key), verify if k == 0 else once)
        for k, key in enumerate(keys)
    ]
    lost = clients - 1 if clients > terms.threshold else None
    rng = np.random.default_rng(0)
    plain, masked = (np.zeros(length, dtype=np.uint64) for _ in range(2))
    cost = defaultdict[str, float](float)
    senders: list[int] = []
    for phase in PHASES:
        if phase == "consistency":
            server.close_uploads(senders)
        for k, step in server.steps(phase).items():
            if k == lost and phase == "upload":
                continue
            numbers = rng.integers(0, 2**40, size=length, dtype=np.uint64)
            before, answer = time.process_time(), ""
            if phase == "upload":
                masked += parties[k].masked(step, numbers)
            else:
                answer = parties[k].answer(step)
            if k == 0:
                cost["mask" if phase == "upload" else "messages"] += time.process_time() - before
                cost["sent"] += len(answer)
                cost["received"] += len(step.content)
            if phase == "upload":
                plain += numbers
                senders.append(k)
            else:
                server.add(phase, k, answer)
    before = time.process_time()
    masks = server.masks(length)
    cost["server"] = time.process_time() - before
    assert np.array_equal(masked - masks, plain), "the sum is wrong"
    return dict(cost)


def main(chosen: list[int]) -> None:
    print(this_machine())
    print(
        "| clients | numbers | client: messages | client: masks | server: unmask | messages, sent "
        "| received | upload | without |\n|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    )
    for clients in chosen:
        for length in LENGTHS:
            cost = measure(clients, length)
            seconds = (f"{cost[name]:.3f} s" for name in ("messages", "mask", "server"))
            sizes = (f"{cost[name] / 1000:.1f} KB" for name in ("sent", "received"))
            uploads = (f"{size * length / 1e6:.2f} MB" for size in (8, 4))
            cells = (str(clients), f"{length:,}", *seconds, *sizes, *uploads)
            print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main([int(text) for text in sys.argv[1:]] or list(CLIENTS))
