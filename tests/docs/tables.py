"""Changes that make the commands of pages smaller, and commands that no test runs, with reasons."""

SMALL_FIRST = [
    "run.engine=serial",
    "model.extractors=perceptron",
    "model.rep_dim=16",
    "local.lr=0.05",
]
"""Settings that are inserted before those of a page, so those of the page override them."""

SMALL_LAST = ["federation.rounds=1", "local.epochs=1"]
"""Settings that are appended, so they override those of the page."""

SMALL = {
    "run": [],
    "partition": [],
    "flower init": [],
    "compare": ["--seeds", "0", "--rounds", "1"],
    "advise": ["--seeds", "0", "--rounds", "1"],
    "tune": ["--seeds", "0", "--rounds", "1"],
    "reproduce": ["--budget", "smoke", "--seeds", "0", "--only", "fedgh"],
}
"""Commands that train or take settings, with the options that are appended to them."""

HARMLESS = {"echo"}
"""Programs that a shell may run; `cd` and `fedgh` are handled separately."""

A_MACHINE = "sets up an environment; .ci/run does it"
A_SERVER = "a server on its own machine; tests/flower/test_deployment.py starts the same scripts"
MINUTES = "takes minutes"
HOURS = "takes hours; tests/studies/test_reproduce.py runs a part of it on digits"
PROCESSES = "starts many processes; tests/flower/test_deployment.py does the same"
NETWORK = "needs the network"

NOT_RUN = {
    "make run": A_MACHINE,
    "make setup": A_MACHINE,
    "make test": "runs this test",
    "make test-slow": MINUTES,
    "make test-quick": "runs a part of these tests",
    "make help": "prints the comments of the Makefile",
    "make test-faults": MINUTES,
    "make fuzz": MINUTES,
    "make check": A_MACHINE,
    "make docs": "tests/docs/test_site.py builds the site",
    "FEDGH_DATA=... make bench": MINUTES,
    "pip install '.[flower]'": NETWORK,
    "pip install '.[flower]' scikit-learn": NETWORK,
    "pip install '.[report]'": NETWORK,
    "fedgh flower up federation": PROCESSES,
    "fedgh flower up rehearsal": PROCESSES,
    "sh server/superlink.sh": A_SERVER,
    "sh server/superexec.sh": A_SERVER,
    "nginx -p \"$PWD/server\" -c nginx.conf -g 'daemon off;'": "needs nginx; no test does it",
    "sh server/register.sh": "asks a SuperLink; tests register keys by server/flwr.sh",
    "fedgh flower join .": "asks a SuperLink; tests/flower/test_deployment.py joins",
    "sh server/train.sh my-run": A_SERVER,
    "sh server/flwr.sh log RUN-ID federation --show": A_SERVER,
    "python -m tools.tune_pays": "takes hours; tests/studies/test_tune_pays.py runs a small grid",
    "fedgh reproduce pays --seeds 0,1,2,3,4 --only 'pays-*-m50'": HOURS,
    "fedgh reproduce pays --seeds 0,1,2,3,4 --only 'pays-*-m200'": HOURS,
    "fedgh reproduce pays --seeds 0,1,2 --only 'pays-*-m1000'": HOURS,
    "fedgh reproduce pays --seeds 0,1,2 --only 'cifar*'": HOURS,
    "python -m pytest test_fednova.py": "tests/docs/test_examples.py calls the same functions",
    "sh rehearse.sh": "tests/flower/test_examples.py runs both sites in one process",
}
"""Commands that no test runs. Each must be on at least one page."""

PHOTOS = {f"photos/{name}/{number}.png" for name in "abcde" for number in range(30)}

GIVEN = {"docs/commands.md": PHOTOS, "docs/use.md": {*PHOTOS, "more.png"}}
"""Images that a page assumes to exist."""

BLOCKS_ELSEWHERE = {
    ("docs/deploy.md", "newest = max("): "needs trained states: tests/flower/test_examples.py",
}
"""Blocks that another test runs: the page, and a part of the block's text."""
