# Lockstep: `make demo` and `make test` do all their own set-up. `make help` lists the targets.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEMO_READY := $(VENV)/.ready-demo
SERVERS := $(VENV)/.servers
DEMO_SERVERS := $(VENV)/.servers-demo
PEERS := $(VENV)/peers
ROOMS := catalogue records prometheus outcomes cli instrumentation trainer agent ledger alerts dashboards reports
FRAMEWORKS := telemetry,transformers,lightning,accelerate,mlflow,wandb,tensorboard
DEMO_EXTRAS := agent,trainer,alerts,dashboards,reports
EXTRAS := $(DEMO_EXTRAS),kubernetes,archive,ledger,$(FRAMEWORKS),dev

export PATH := $(abspath $(BIN)):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# A thousand processes of the tests would each compile the project anew.
unexport PYTHONDONTWRITEBYTECODE

# pytest's workers: two more than cores, for many tests wait for processes and servers.
JOBS ?= $(shell expr `nproc` + 2)
PARALLEL := -n $(JOBS) --dist loadscope --no-loadscope-reorder
SLOW ?= one
SEED ?=
INTERVAL ?=
# Another torch has an environment of its own. Without the extra `trainer`, which pins the tested version.
TORCH ?= 2.13.0
TORCH_VENV := .venv-torch-$(TORCH)
TORCH_EXTRAS := agent,reports,$(FRAMEWORKS),dev

.DEFAULT_GOAL := help
.PHONY: help install kubernetes-lab locks servers demo test test-quick test-release durations test-clusters test-torch train-matrix check format generate golden bench bench-overhead
.PHONY: trace dashboards-check bench-boards bench-scale bench-stragglers bench-verdicts bench-rejudge bench-loops bench-hangs bench-endings bench-logs bench-agent bench-alerts bench-weeks clean bench-ledger package wheels

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# torch first and by pip itself: whichever build of 2.13.0 pip finds is enough, a CPU build too.
define INSTALL
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Python 3.11 or newer is needed; set PYTHON=/path/to/it" >&2; exit 2; }
	@$(PYTHON) -m venv $(VENV) || { echo "the venv module is missing; apt-get install python3-venv" >&2; exit 2; }
	@echo 'installing torch 2.13.0 and the project into $(VENV): half a minute, or as the network allows'
	@$(BIN)/python -m pip install --quiet 'torch==2.13.0'
	@$(BIN)/python -m pip install --quiet --editable '.[$(1)]'
	@touch $@
endef
# Those that are here of the supported ones; another one is PYTHONS=/path/to/python3.13.
PYTHONS ?= $(shell command -v python3.11 python3.12 python3.13)
SOURCES := pyproject.toml build_native.py $(wildcard instrumentation/native/* instrumentation/native/plugin/*)

$(READY): $(SOURCES)
	$(call INSTALL,$(EXTRAS))

$(DEMO_READY): $(SOURCES)
	$(call INSTALL,$(DEMO_EXTRAS))

$(DEMO_SERVERS): deploy/install-servers.sh
	@sh deploy/install-servers.sh
	@touch $@

$(SERVERS): deploy/install-servers.sh
	@sh deploy/install-servers.sh tests
	@touch $@

install: $(READY) ## Create .venv with the project and everything it needs

kubernetes-lab: ## Build the Kubernetes control plane that tests start, in ~/.cache (Go; half an hour once)
	tests/labs/kubernetes-lab/build.sh control-plane packagers operator kinds

LOCK = uv pip compile --quiet --no-header --no-annotate --universal --python-version 3.11 --generate-hashes
locks: ## Resolve the packages of the images anew, with hashes (uv)
	cd deploy/container && $(LOCK) ../../pyproject.toml --extra agent --extra kubernetes --extra archive --output-file agent.lock
	cd deploy/container && $(LOCK) ../../pyproject.toml --extra ledger --extra kubernetes --output-file ledger.lock
	cd deploy/container && printf 'hatchling\ncyclonedx-bom\n' | $(LOCK) - --output-file build.lock

servers: $(SERVERS) ## Install Prometheus, Alertmanager and PostgreSQL from the distribution where they are missing

demo: $(if $(wildcard $(READY)),$(READY),$(DEMO_READY)) $(DEMO_SERVERS) ## Train, slow one rank, be paged, get the verdict (SLOW=none: a healthy run; SEED=n; INTERVAL=15s: as slow as a cluster)
	@lockstep demo --slow $(SLOW) $(if $(SEED),--seed $(SEED)) $(if $(INTERVAL),--interval $(INTERVAL))

# A test of servers may starve next to the others on two cores: tests that failed (status 1, and no other)
# run once more, alone, up to the first failure. Their first failure stays in the output, to be mended.
define PYTEST
	@echo 'pytest $(2) -m "$(1)"'; $(BIN)/python -m pytest $(2) -m "$(1)" || { [ $$? -eq 1 ] || exit 1; \
		echo "once more, alone: the tests that failed above"; \
		$(BIN)/python -m pytest --last-failed --last-failed-no-failures none --maxfail 1 -v -m "$(1)"; }
endef

test: $(READY) $(SERVERS) ## Run the suite: quick, server and multi-process tests, then those that measure time
	$(call PYTEST,not release and not timing and not cluster and not e2e,$(PARALLEL))
	$(call PYTEST,timing and not release,$$(grep -rl --include="*.py" "mark\.timing" tests))

test-quick: $(READY) ## Run in a minute the files of tests that take two seconds and need no server and one process
	$(BIN)/python -m pytest --quick $(PARALLEL) -m "not server and not distributed and not e2e and not gpu and not release and not promtool and not timing and not cluster"

test-release: $(READY) $(SERVERS) ## Run what takes an hour or two: large matrices, all intervals, thousands of histories; before a release
	$(call PYTEST,release and not timing,$(PARALLEL))
	$(call PYTEST,release and timing)

durations: $(READY) $(SERVERS) ## Record how long each file of tests takes, so that the longest starts first (tests/durations.json)
	rm -f tests/durations.json && echo '{}' > tests/durations.json
	LOCKSTEP_DURATIONS=$(abspath tests/durations.json) $(MAKE) --no-print-directory test

test-clusters: $(READY) $(SERVERS) ## Run the demo, the wheel, and a live Slurm and a live Kubernetes; ten minutes each
	$(call PYTEST,(cluster or e2e) and not release)

$(TORCH_VENV)/.ready: $(SOURCES)
	@$(PYTHON) -m venv $(TORCH_VENV)
	@echo 'torch==$(TORCH)' > $(TORCH_VENV)/constraints.txt
	@echo 'installing torch $(TORCH) and the project into $(TORCH_VENV): minutes, as the network allows'
	@$(TORCH_VENV)/bin/python -m pip install --quiet --requirement $(TORCH_VENV)/constraints.txt
	@$(TORCH_VENV)/bin/python -m pip install --quiet --constraint $(TORCH_VENV)/constraints.txt \
		--editable '.[$(TORCH_EXTRAS)]'
	@touch $@

# Warnings are no errors here: another torch deprecates other things than the one that is tested.
test-torch: $(TORCH_VENV)/.ready ## Run the tests of the instrumentation on another torch (TORCH=2.7.1; 40 minutes at most)
	PATH=$(abspath $(TORCH_VENV)/bin):$$PATH timeout 2400 $(TORCH_VENV)/bin/python -m pytest $(PARALLEL) \
		-W default -m "not gpu and not release" tests/instrumentation

train-matrix: $(READY) ## Train every strategy and hybrid on 1 to 8 CPU ranks, resume it, compare (5 minutes)
	PYTHONPATH=bench $(BIN)/python -u -m trainer_validation.parallel_matrix

check: $(READY) $(SERVERS) ## Format, lint, types, import contracts, generated files, promtool
	ruff format --check .
	ruff check .
	mypy
	lint-imports
	$(BIN)/python tests/architecture/house_rules.py
	@$(MAKE) --no-print-directory generate
	@git diff --exit-code --stat -- docs catalogue deploy instrumentation/native alerts/generated dashboards/generated \
		|| { echo "generated files were out of date; they are up to date now: commit them" >&2; exit 1; }
	lockstep alerts check

format: $(READY) ## Format the code and fix what the linter can
	ruff format .
	ruff check --fix .

generate: $(READY) ## Generate docs, rules and boards from the catalogue
	$(BIN)/python -c 'from lockstep.recorder.native import render; print(render(), end="")' > instrumentation/native/page_layout.h
	PYTHONPATH=docs $(BIN)/python -m writers spec
	lockstep alerts generate
	lockstep dashboards generate
	PYTHONPATH=docs $(BIN)/python -m writers pages

trace: $(READY) ## Print where a metric is declared, set, recorded, alerted on and drawn (METRIC=name)
	@PYTHONPATH=docs $(BIN)/python -m writers.trace '$(METRIC)'

dashboards-check: $(READY) $(SERVERS) ## Lint the boards; run all their queries on a real job and on a simulated cluster (NODES=16)
	lockstep dashboards generate --check
	$(BIN)/python -m pytest -q tests/dashboards/test_boards_lint.py tests/dashboards/test_boards_live.py
	PYTHONPATH=bench $(BIN)/python -m simulated_cluster.boards_on_cluster --nodes $(or $(NODES),16)
	$(BIN)/python -m pytest -q tests/dashboards/test_pages_in_a_browser.py tests/ledger/web/test_ledger_pages_in_a_browser.py \
		tests/reports/document/test_reports_in_a_browser.py tests/alerts/stack/test_pager_in_a_browser.py

bench-boards: $(READY) $(SERVERS) ## Fill a Prometheus with four incidents and a silence; hold the boards' first screens against them (12 minutes)
	mkdir -p demo-out/boards && PYTHONPATH=bench $(BIN)/python -m simulated_cluster.incidents --out demo-out/boards

golden: $(READY) ## Rewrite the golden files; read their diff before you commit
	LOCKSTEP_GOLDEN=1 $(BIN)/python -m pytest -q tests/agent

$(PEERS): bench/overhead/peers.txt | $(READY)
	@echo 'installing the tools to compare with into $(PEERS)'
	@$(BIN)/python -m pip install --quiet --upgrade --target $(PEERS) --no-deps --requirement $<
	@touch $@

bench: bench-overhead bench-stragglers bench-rejudge bench-agent ## Run every bench

bench-overhead: $(READY) $(PEERS) ## Print what watching costs a step, beside TraceML
	$(BIN)/python bench/overhead/overhead.py

bench-stragglers: $(READY) ## Print who is named when one rank is slow, and when none is (WORK=folder: go on there)
	$(BIN)/python bench/stragglers/stragglers.py --seed $(or $(SEED),1) $(if $(WORK),--work $(WORK))

bench-verdicts: $(READY) ## Print confusion tables by generator and false alarms on nulls (SEED=n)
	$(BIN)/python bench/reports/verdict_tables.py --seed $(or $(SEED),1)

bench-rejudge: $(READY) ## Judge the recordings of the corpus anew: right, wrong, changed (HEALTHY=2000 made runs beside it; KEPT=folder of --keep)
	PYTHONPATH=tests $(BIN)/python -u bench/reports/rejudge.py --healthy $(or $(HEALTHY),0) $(if $(KEPT),--kept $(KEPT))

bench-loops: $(READY) ## Print whom a report names in 22 public kinds of loops, with a process of them slow (BUSY=2: beside as many)
	PYTHONPATH=bench/loops $(BIN)/python -m public_loops --busy $(or $(BUSY),0)

bench-hangs: $(READY) ## Print whom the reports name in a thousand simulated hangs
	$(BIN)/python bench/hangs/hangs.py 1000

bench-endings: $(READY) ## Make the endings of a job by the trainer and print what is said of each
	$(BIN)/python -u bench/endings/endings.py

bench-logs: $(READY) ## Print how a thousand made logs of jobs are judged
	$(BIN)/python bench/joblogs/confusion.py 1000

bench-alerts: $(READY) ## Print how often pages of objectives are false, and how soon a bad day is paged (SEED=n)
	$(BIN)/python bench/alerts/false_pages.py --seed $(or $(SEED),1)
	$(BIN)/python bench/alerts/feasible_rates.py

bench-weeks: $(READY) $(SERVERS) ## Simulate months of 64 nodes; print false pages and planted faults told (SEED=n; MONTHS=m; 5 minutes a month)
	$(BIN)/python -u bench/alerts/weeks.py --seed $(or $(SEED),1) --months $(or $(MONTHS),1)

bench-scale: $(READY) $(SERVERS) ## Measure what 16 to 512 live nodes cost a Prometheus with the rules, and write docs/capacity.md (NODES="16 64 128": these; 14 minutes, 3 GB)
	PYTHONPATH=bench $(BIN)/python -u -m simulated_cluster.scale $(if $(NODES),--nodes $(NODES),--write)
	$(if $(NODES),,PYTHONPATH=docs $(BIN)/python -m writers pages)

bench-agent: $(READY) ## Print what the node agent costs, on a fake node of 8 GPUs
	-@$(MAKE) --no-print-directory $(PEERS)
	PYTHONPATH=bench $(BIN)/python bench/node_agent/agent_cost.py --peers $(PEERS)

bench-ledger: $(READY) ## Print what the ledger answers under load, and what 200 kills leave (STORE=postgresql://...; an hour)
	$(BIN)/python -u bench/ledger/throughput.py $(if $(STORE),--store '$(STORE)')
	$(BIN)/python -u bench/ledger/kill_soak.py $(if $(STORE),--store '$(STORE)')
	$(BIN)/python -u bench/ledger/away.py
	$(BIN)/python -u bench/ledger/scale.py

wheels: ## Build a wheel for each machine and each supported Python in PYTHONS (with its headers) in dist/
	for python in $(PYTHONS); do for machine in x86_64 aarch64; do \
		$$python -m venv dist/build && dist/build/bin/pip install -q hatchling && \
		LOCKSTEP_WHEEL_MACHINE=$$machine dist/build/bin/python -m hatchling build -t wheel -d dist || exit 1; \
		rm -rf dist/build; done; done

package: $(READY) ## Build a Debian package and an RPM of the agent in dist/
	bash deploy/package/build.sh $(BIN)/python

clean: ## Remove .venv and everything generated
	rm -rf $(VENV) .venv-torch-* dist demo-out .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
