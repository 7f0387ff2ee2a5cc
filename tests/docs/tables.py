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
STATES = "needs trained states; tests/flower/test_examples.py runs it"
PROCESSES = "starts many processes; tests/flower/test_deployment.py does the same"
NETWORK = "needs the network"
JOBS = "starts many processes; tests/studies/test_parallel.py does the same"
ARRAY = "starts many processes; tests/faults/test_races.py does the same"
SLURM = "needs a cluster with Slurm and a shared disk"
CLUSTER = "needs a cluster; tests/engines/test_ray.py simulates one"
A_SERVICE = "needs systemd; tests/flower/test_services.py has it check the units"
AN_ENGINE = "needs a Docker engine; no test does it"
A_BACKUP = "needs a run; tests/flower/test_upkeep.py copies and restores in the same order"
UNTIL_CTRL_C = "serves until Ctrl-C; tests/flower/test_status.py starts the same server"

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
    "fedgh flower check .": "asks a server; see test_preflight.py",
    "fedgh flower join .": "asks a SuperLink; tests/flower/test_deployment.py joins",
    "fedgh flower metrics . --out my-run --port 9464": UNTIL_CTRL_C,
    "sh server/train.sh my-run": A_SERVER,
    "sh server/flwr.sh log RUN-ID federation --show": A_SERVER,
    "fedgh flower predict . patients.npy --csv said.csv": STATES,
    "fedgh flower export . --format onnx": STATES,
    "sudo useradd --system --create-home --home-dir /srv/fedgh fedgh": A_SERVICE,
    "sudo python3.11 -m venv /opt/fedgh": A_SERVICE,
    "sudo /opt/fedgh/bin/pip install '.[flower]'": NETWORK,
    "sudo cp server/services/*.service /etc/systemd/system/": A_SERVICE,
    "sudo systemctl enable --now fedgh-{superlink,superexec,nginx}@$(systemd-escape --path "
    "/srv/fedgh/federation)": A_SERVICE,
    "sudo -u fedgh env PATH=/opt/fedgh/bin:$PATH sh server/register.sh": A_SERVICE,
    "sudo -u fedgh env PATH=/opt/fedgh/bin:$PATH sh server/train.sh": A_SERVICE,
    "sudo cp services/fedgh-node@.service /etc/systemd/system/": A_SERVICE,
    "sudo systemctl enable --now fedgh-node@$(systemd-escape --path /srv/fedgh/0)": A_SERVICE,
    "journalctl --follow --unit 'fedgh-node@*'": A_SERVICE,
    "pip wheel --no-deps --wheel-dir federation/server/services .": NETWORK,
    "docker compose --project-directory federation/server/services up --detach --build": AN_ENGINE,
    "fedgh flower check federation/participants/0": "asks a server; see test_preflight.py",
    "sh server/revoke.sh 1": "asks a SuperLink; tests/flower/test_restored.py revokes a key",
    "cp key.pub server/participants/1.pub": "a part of tests/flower/test_restored.py",
    "sh server/flwr.sh stop RUN-ID federation": A_SERVER,
    "tar --create --gzip --file run.tar.gz --directory federation/my-run checkpoint "
    "--exclude ./checkpoint .": A_BACKUP,
    "mkdir federation/my-run": A_BACKUP,
    "tar --extract --file run.tar.gz --directory federation/my-run": A_BACKUP,
    "python -m tools.tune_pays": "takes hours; tests/studies/test_tune_pays.py runs a small grid",
    "fedgh reproduce pays --seeds 0,1,2,3,4 --only 'pays-*-m50'": HOURS,
    "fedgh reproduce pays --seeds 0,1,2,3,4 --only 'pays-*-m200'": HOURS,
    "fedgh reproduce pays --seeds 0,1,2 --only 'pays-*-m1000'": HOURS,
    "fedgh reproduce pays --seeds 0,1,2 --only 'cifar*'": HOURS,
    "fedgh reproduce as-published": HOURS,
    "python -m pytest test_fednova.py": "tests/docs/test_examples.py calls the same functions",
    "fedgh compare demo --methods standalone,fedgh,fedproto --seeds 0,1 --jobs 2": JOBS,
    "fedgh data fetch cifar10": NETWORK,
    "sbatch compare.sbatch": SLURM,
    "fedgh compare cifar10-hetero --seeds $(seq -s, 0 9) --out /shared/compare --no-run": SLURM,
    "for seed in 0 1 2; do fedgh compare demo --methods standalone,fedgh --seeds $seed --out all "
    "> seed-$seed.log 2>&1 & done; wait": ARRAY,
    "fedgh compare demo --methods standalone,fedgh --seeds 0,1,2 --out all --no-run": ARRAY,
    "flock -n /shared/lock sleep 60": SLURM,
    "flock -n /shared/lock true; echo $?": SLURM,
    "CUDA_VISIBLE_DEVICES=0,1 fedgh compare cifar10-hetero --set run.device=cuda --jobs 2": (
        "needs GPUs"
    ),
    "ray start --head --port 6379": CLUSTER,
    "ray start --address FIRST-MACHINE:6379": CLUSTER,
    "fedgh run cifar10-hetero --engine ray --set run.address=auto --out runs/on-ray": CLUSTER,
    "ray stop": CLUSTER,
    "sh rehearse.sh": "starts many processes; tests/flower/test_examples.py runs it",
}
"""Commands that no test runs. Each must be on at least one page."""

PHOTOS = {f"photos/{name}/{number}.png" for name in "abcde" for number in range(30)}

GIVEN = {"docs/commands.md": PHOTOS, "docs/use.md": {*PHOTOS, "more.png"}}
"""Images that a page assumes to exist."""
