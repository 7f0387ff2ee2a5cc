"""Requests of a malicious server, each honest except for one field."""

import re
from dataclasses import dataclass, field
from json import dumps
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from fedgh import __version__
from tests.flower.real import two

PRIVATE = ["privacy.protects=sample", "federation.rounds=2", "run.deadline=300"]
"""The settings of the honest experiment."""

HEADER = save({"weight": torch.zeros(10, 16), "bias": torch.zeros(10)})
"""The download: a header."""


@dataclass(frozen=True)
class HostileRequest:
    """A request and the expected answer."""

    refusal: str | None  # pattern of the error; None if the request is harmless and answered
    # Changed sections of the settings, not validated.
    settings: dict[str, Any] = field(default_factory=dict)
    overrides: tuple[str, ...] = ()  # changes of the settings that give a valid experiment
    fields: dict[str, Any] = field(default_factory=dict)  # changed fields of the JSON
    raw: bytes | None = None  # bytes to send instead of the JSON

    def json(self, client: int) -> bytes:
        """Return the JSON of the request to a client."""
        experiment = two(*PRIVATE, *self.overrides)
        fields = {
            "version": __version__,
            "torch": torch.__version__,
            "experiment": "hostile",
            "start": 1,
            "client": client,
            "round": 1,
            "trained": 0,
            "committed": 0,
            "settled": 0,
            "evaluate": True,
            "evaluate_globally": True,
            "deadline": 60.0,
            "settings": {**experiment.config.portable(), **self.settings},
            "fingerprint": experiment.fingerprint(),
        }
        return self.raw or dumps({**fields, **self.fields}).encode()

    @property
    def payload(self) -> bytes | None:
        """Download of a request that must be refused; None for one that only evaluates."""
        return None if self.refusal is None else HEADER


NO_NAME = "^not a readable message: experiment: String should match pattern"
NOT_READABLE = "^not a readable message: "
NO_PRIVACY = "^this client sends nothing without privacy"
OVER_BOUND = "^this participant's bound of ε = [0-9.]+ would be passed$"
NOT_FETCHED = "^cifar10 is not on this client's machine, and a client downloads nothing at"
NOT_REVEALED = "^the client's network or data do not fit this federation; see the client's own log$"


def hostile_requests(network: Path) -> dict[str, HostileRequest]:
    """Return all requests by name; `network` is a folder on the clients' machine."""
    return {
        "a network of a folder": _network(f"transformers/{network}"),
        "a network of code": _network("evil:make"),
        "a network of Python": _network("os:getcwd"),
        "networks of code": HostileRequest(
            _foreign("model.extractors"), {"model": {"extractors": ["evil:make"]}}
        ),
        "a method of code": HostileRequest(
            _foreign("method.name"), {"method": {"name": "evil:make"}}
        ),
        "data in a file": HostileRequest(
            NOT_REVEALED, {"data": {"name": "npz", "path": "/etc/passwd"}}
        ),
        "data elsewhere": HostileRequest(NOT_FETCHED, {"data": {"name": "cifar10"}}),
        "the folder above": HostileRequest(NO_NAME, fields={"experiment": ".."}),
        "a long name": HostileRequest(NO_NAME, fields={"experiment": "x" * 10_000}),
        "many clients": _too_much("clients", federation={"clients": 10**8}),
        "many epochs": _too_much("epochs", local={"epochs": 10**9}),
        "wide": _too_much("rep-dim", model={"rep_dim": 10**9}),
        "many classes": _too_much("classes", data={"classes": list(map(str, range(10**5)))}),
        "garbage": HostileRequest(NOT_READABLE, raw=b"\xff\xfe\x00garbage"),
        "size": HostileRequest("^not a message of fedgh$", fields={"fingerprint": "x" * 2**21}),
        "no number": HostileRequest(NOT_READABLE + "deadline", fields={"deadline": float("nan")}),
        "another client": HostileRequest("takes this node for client 7", fields={"client": 7}),
        "no privacy": HostileRequest(NO_PRIVACY, overrides=("privacy.protects=nothing",)),
        "little privacy": HostileRequest(OVER_BOUND, overrides=("privacy.epsilon=1000",)),
        # Harmless: names do not select files, and the client's own limit of time holds.
        "the ledger's name": HostileRequest(None, fields={"experiment": "privacy.json"}),
        "the folder's name": HostileRequest(None, fields={"experiment": "experiments"}),
        "for ever": HostileRequest(None, fields={"experiment": "for-ever", "deadline": 1e300}),
    }


def _foreign(setting: str, name: str = "evil:make") -> str:
    return rf"^{setting} = '{re.escape(name)}' is not part of fedgh, and this client does not"


def _network(name: str) -> HostileRequest:
    refusal = _foreign("method.shared", name)
    return HostileRequest(refusal, {"method": {"name": "fml", "shared": name}})


def _too_much(limit: str, **settings: Any) -> HostileRequest:
    return HostileRequest(rf"^[a-z._]+ asks for \d+, more than max-{limit}=", settings)
