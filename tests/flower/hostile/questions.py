"""What a hostile server asks: an honest question but for one thing."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from fedgh import __version__
from tests.flower.real import two

PRIVATE = ["privacy.protects=sample", "federation.rounds=2", "run.deadline=300"]
"""The experiment that all questions are about."""

HEADER = save({"weight": torch.zeros(10, 16), "bias": torch.zeros(10)})
"""What is sent to be trained on."""


@dataclass(frozen=True)
class Question:
    """What is asked, and how it is answered."""

    refusal: str | None  # a pattern; None when it does no harm and is answered
    settings: dict[str, Any] = field(default_factory=dict)  # whole sections of another experiment
    overrides: tuple[str, ...] = ()  # the same for one that is possible
    fields: dict[str, Any] = field(default_factory=dict)  # other fields of the head
    raw: bytes | None = None  # other bytes than those of a head

    def head(self, client: int) -> bytes:
        """The bytes of its head."""
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
        return self.raw or json.dumps({**fields, **self.fields}).encode()

    @property
    def payload(self) -> bytes | None:
        """What should not be answered asks for an upload; the rest, for a look at the client."""
        return None if self.refusal is None else HEADER


NO_NAME = "^not a readable message: experiment: String should match pattern"
NOT_READABLE = "^not a readable message: "
NO_PRIVACY = "^this client sends nothing without privacy"
OVER_BOUND = "^this participant's bound of ε = [0-9.]+ would be passed$"
NOT_FETCHED = "^cifar10 is not on this client's machine, and a client downloads nothing at"
NOT_SAID = "^ConfigError; see the client's own log$"


def questions(network: Path) -> dict[str, Question]:
    """All of them, by name; the folder of a network is one of the participants' files."""
    return {
        "a network of a folder": _network(f"transformers/{network}"),
        "a network of code": _network("evil:make"),
        "a network of Python": _network("os:getcwd"),
        "networks of code": Question(
            _foreign("model.extractors"), {"model": {"extractors": ["evil:make"]}}
        ),
        "a method of code": Question(_foreign("method.name"), {"method": {"name": "evil:make"}}),
        "data in a file": Question(NOT_SAID, {"data": {"name": "npz", "path": "/etc/passwd"}}),
        "data elsewhere": Question(NOT_FETCHED, {"data": {"name": "cifar10"}}),
        "the folder above": Question(NO_NAME, fields={"experiment": ".."}),
        "a long name": Question(NO_NAME, fields={"experiment": "x" * 10_000}),
        "many clients": _too_much("clients", federation={"clients": 10**8}),
        "many epochs": _too_much("epochs", local={"epochs": 10**9}),
        "wide": _too_much("rep-dim", model={"rep_dim": 10**9}),
        "many classes": _too_much("classes", data={"classes": list(map(str, range(10**5)))}),
        "garbage": Question(NOT_READABLE, raw=b"\xff\xfe\x00garbage"),
        "size": Question("^not a message of fedgh$", fields={"fingerprint": "x" * 2**21}),
        "no number": Question(NOT_READABLE + "deadline", fields={"deadline": float("nan")}),
        "another client": Question("takes this node for client 7", fields={"client": 7}),
        "no privacy": Question(NO_PRIVACY, overrides=("privacy.protects=nothing",)),
        "little privacy": Question(OVER_BOUND, overrides=("privacy.epsilon=1000",)),
        # Names are nothing but names, and the participant's own limit of time holds.
        "the ledger's name": Question(None, fields={"experiment": "privacy.json"}),
        "the folder's name": Question(None, fields={"experiment": "experiments"}),
        "for ever": Question(None, fields={"experiment": "for-ever", "deadline": 1e300}),
    }


def _foreign(setting: str, name: str = "evil:make") -> str:
    return rf"^{setting} = '{re.escape(name)}' is not part of fedgh, and this client does not"


def _network(name: str) -> Question:
    refusal = _foreign("method.shared", name)
    return Question(refusal, {"method": {"name": "fml", "shared": name}})


def _too_much(limit: str, **settings: Any) -> Question:
    return Question(rf"^[a-z._]+ asks for \d+, more than max-{limit}=", settings)
