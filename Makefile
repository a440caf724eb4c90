# The targets need only Go and make. Tools are built from the versions pinned in tools/go.mod. Python targets also need
# Python.

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c

GO      ?= go
TOOLS   := bin/tools
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo unversioned)

PYTHON  ?= python3
VENV    := bin/venv

# Flags that make `go build` and `go test` behave the same with and without git.
export GOFLAGS := -mod=readonly -buildvcs=false

GO_FILES  = $(shell find . -name '*.go' -not -path './bin/*' -not -name '*.pb.go' -not -name '*.connect.go')
STORMS   ?= 50
STRATEGIES ?=
STORM_SEED ?= 0
FAULTS   ?= 10
STORM_MS ?= 80
TIME     ?= 10m
SEEDS    ?= 1000
TEST     ?= TestChains
SEED     ?= 1
HOSTS    ?= 20
FIRST    ?= 1
SCHEDULES ?= 20
DASHBOARDS ?= 2
COUNT    ?= 6
PACKAGES ?= ./...
RESULTS  ?= docs/bench/$(shell date +%F).md
BENCH    ?=
STUDY    ?=

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

.PHONY: build
build: ## build bin/perdure
	$(GO) build -trimpath -ldflags '-X main.version=$(VERSION)' -o bin/perdure ./cmd/perdure

RELEASED := linux-amd64 linux-arm64

LICENCES := bin/licences.txt
.PHONY: $(LICENCES) licences
$(LICENCES): $(TOOLS)/licences
	$(TOOLS)/licences $@

licences: $(TOOLS)/licences ## write third-party modules and their licences into docs/licences.md
	$(TOOLS)/licences $(LICENCES) docs/licences.md

.PHONY: release
release: $(LICENCES) ## build static binaries for each system, with checksums, into bin/release
	@rm -rf bin/release && mkdir -p bin/release && cp $(LICENCES) bin/release/
	@for system in $(RELEASED); do \
		echo "building perdure $(VERSION) for $$system"; \
		CGO_ENABLED=0 GOOS=$${system%-*} GOARCH=$${system#*-} $(GO) build -trimpath \
			-ldflags '-s -w -X main.version=$(VERSION)' -o "bin/release/perdure-$(VERSION)-$$system" ./cmd/perdure; \
	done
	@cd bin/release && sha256sum perdure-* > SHA256SUMS && cat SHA256SUMS

CERTIFICATES ?= /etc/ssl/certs/ca-certificates.crt

.PHONY: image
image: release $(TOOLS)/crane ## write an image for Linux on amd64 and arm64, with the certificates in CERTIFICATES, as an OCI layout into bin/image
	PATH="$(CURDIR)/$(TOOLS):$$PATH" tools/image/image.sh bin/image $(VERSION) $(CERTIFICATES) $(LICENCES) \
		$(foreach system,$(RELEASED),$(subst -,/,$(system))=bin/release/perdure-$(VERSION)-$(system))

.PHONY: manifests
manifests: $(TOOLS)/helm ## write deploy/kubernetes from the chart
	$(TOOLS)/helm template perdure deploy/helm/perdure --kube-version 1.36.0 > deploy/kubernetes/perdure.yaml

.PHONY: demo
demo: build ## train through failures, on this machine, in under a minute
	bin/perdure demo

WHEELS    := amd64-manylinux_2_17_x86_64 arm64-manylinux_2_17_aarch64
WHEELS_IN := bin/wheels

.PHONY: wheels
wheels: $(VENV)/ready $(LICENCES) ## build Python packages with the program inside, for Linux on amd64 and arm64, into bin/wheels
	@rm -rf $(WHEELS_IN) && mkdir -p $(WHEELS_IN)
	@for wheel in $(WHEELS); do \
		CGO_ENABLED=0 GOOS=linux GOARCH=$${wheel%%-*} $(GO) build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' \
			-o $(WHEELS_IN)/perdure ./cmd/perdure; \
		PERDURE_PROGRAM="$(CURDIR)/$(WHEELS_IN)/perdure" PERDURE_PLATFORM=$${wheel#*-} \
		PERDURE_LICENCES="$(CURDIR)/$(LICENCES)" \
		PERDURE_VERSION="$(VERSION)" PERDURE_COMMITS=$$(git rev-list --count HEAD 2>/dev/null || echo 0) \
			$(VENV)/bin/python -m build --wheel --no-isolation --outdir $(WHEELS_IN) python > /dev/null; \
	done
	@rm $(WHEELS_IN)/perdure && ls -sh $(WHEELS_IN)

.PHONY: check
check: check-fmt check-vet check-static check-test check-python check-docs check-part ## everything a change must pass, in 8 minutes on 2 cores: format, vet, staticcheck, tests, what has concurrency with the race detector, and the part of check-all of the day, or PART=3
	@echo "skipped: the other parts of make check-all, pages in a browser (make check-browser looks at them), PyTorch and the wheel (make check-torch), real servers of etcd (make check-etcd), the chart for Kubernetes (make check-kubernetes), many storms on hosts that are apart (make check-hosts)"

# check leaves slow tests and cases to check-all, which runs them in parts of a minute each. tools/check/parts lists
# them, and TestParts checks that it lists every test that -short shortens. check also runs one part. The number of days
# since 1970 selects the part and the seeds.
PART ?=
.PHONY: check-part check-all
check-part: $(TOOLS)/gotestsum ## the part of check-all of the day, or PART=3, with seeds of the day, or of DAY=20000
	@tools/check/part $(PART)

check-all: check-fmt check-vet check-static check-test check-python check-docs $(TOOLS)/gotestsum ## check, and all parts of what it leaves out: some 20 minutes
	@tools/check/part $$(grep -v '^#' tools/check/parts | cut -d' ' -f1 | uniq)

.PHONY: check-fmt
check-fmt: $(TOOLS)/gofumpt
	@unformatted=$$($(TOOLS)/gofumpt -l $(GO_FILES)) || exit 1; \
	if [ -n "$$unformatted" ]; then echo "not formatted; run make fmt:"; echo "$$unformatted"; exit 1; fi

.PHONY: check-vet
check-vet:
	$(GO) vet ./...
	GOOS=js GOARCH=wasm $(GO) vet ./internal/sim # as make replay builds it

.PHONY: check-static
check-static: $(TOOLS)/staticcheck
	$(TOOLS)/staticcheck ./...

# vet runs as a separate target. Linking without debugger symbols (-w) takes half the time. A process under the race
# detector sleeps for a second before it ends, to catch what is still running. No test's findings come then, and there
# are sixty such processes. PLAIN packages run without the race detector. They start no goroutines, as TestParts checks,
# or they are the command, whose tests are hundreds of small jobs of real processes. RACED tests of the command run with
# it instead: jobs with faults of each kind.
# The simulation runs without it, and then with it on fewer seeds. CALM tests of CALMLY packages run without it:
# negative controls, files in which each byte is damaged in turn, and storms that repeat in virtual time what other
# tests of their package do with it.
# Tests of the command mostly wait for processes, so four run at a time, as do three raced packages. LONG packages start
# first, so that they do not delay the end.
PLAIN  := /studies/pages$$|/internal/core/|/internal/data/(table|checkpoint)(/|$$)|/internal/run/report$$|/cmd/perdure$$|/internal/run/workload|^github.com/perdure/perdure$$
RACED  := ^(TestSameModel|TestFaultKinds)$$
LONG   := /cmd/perdure$$|/internal/sim$$|/worker$$|/internal/data/updatelog$$
CALM   := ^(TestControls|TestRiftsControl|TestResumesWeakened|TestInspectFiles|TestInspectTwice|TestDenseStorm|TestContinueStorm|TestProgramsState|TestLogsMerged|TestForks|TestLaws)$$
CALMLY := /worker$$|/internal/data/updatelog$$|/internal/run/study
check-test: export GORACE := atexit_sleep_ms=0
.PHONY: check-test
check-test: $(TOOLS)/gotestsum
	@all=$$($(GO) list $(PACKAGES)); \
	all=$$(grep -E '$(LONG)' <<< "$$all" || true; grep -Ev '$(LONG)' <<< "$$all" || true); \
	plain=$$(grep -E '$(PLAIN)|/internal/sim$$' <<< "$$all" || true); rest=$$(grep -Ev '$(PLAIN)' <<< "$$all" || true); \
	command=$$(grep -E '/cmd/perdure$$' <<< "$$all" || true); calm=$$(grep -E '$(CALMLY)' <<< "$$all" || true); \
	for tests in "$${plain:+-parallel 4 -skip $(RACED) $$plain}" "$${calm:+-run $(CALM) $$calm}" \
		"$${rest:+-race -p 3 -skip $(CALM) $$rest}" "$${command:+-race -run $(RACED) $$command}"; do \
		[ -z "$$tests" ] || $(TOOLS)/gotestsum --format pkgname-and-test-fails -- -short -vet=off -ldflags=-w -timeout 14m $$tests; \
	done

# Python dependencies are in a separate environment. Without Python its checks are skipped with a message.
$(VENV)/ready: python/requirements.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/pip install --quiet --disable-pip-version-check --requirement python/requirements.txt
	@touch $@

.PHONY: check-python
check-python: build ## format, types and tests of the Python package, with real processes
	@command -v $(PYTHON) > /dev/null || { echo "skipped: the Python package; there is no $(PYTHON)"; exit 0; }; \
	$(MAKE) --no-print-directory $(VENV)/ready; cd python; export PYTHONPATH=src; \
	for check in 'ruff check --quiet --no-cache .' 'ruff format --quiet --no-cache --check .' 'mypy --no-incremental src' \
		'pytest --quiet --ignore tests/torch'; do ../$(VENV)/bin/$$check; done

SITE := bin/venv-site
$(SITE)/ready: tools/site/requirements.txt
	$(PYTHON) -m venv $(SITE)
	$(SITE)/bin/pip install --quiet --disable-pip-version-check --requirement tools/site/requirements.txt
	@touch $@

.PHONY: docs
docs: $(SITE)/ready ## build the documentation site into bin/site; a broken link or a page outside the navigation is an error
	NO_MKDOCS_2_WARNING=1 $(SITE)/bin/mkdocs build --quiet --strict
	@echo 'to read it: $(PYTHON) -m http.server --directory bin/site, then open http://localhost:8000'

.PHONY: check-docs
check-docs: ## build the site, if there is a Python
	@command -v $(PYTHON) > /dev/null || { echo "skipped: the documentation site; there is no $(PYTHON)"; exit 0; }; \
	$(MAKE) --no-print-directory docs > /dev/null

TORCH := bin/venv-torch
$(TORCH)/ready: python/requirements.txt python/requirements-torch.txt
	$(PYTHON) -m venv $(TORCH)
	$(TORCH)/bin/pip install --quiet --disable-pip-version-check -r python/requirements.txt -r python/requirements-torch.txt
	@touch $@

.PHONY: check-torch
check-torch: build check-wheel $(TORCH)/ready ## what the Python package does for PyTorch, with real processes that are killed; it installs PyTorch, of several GB
	cd python && PYTHONPATH=src ../$(TORCH)/bin/pytest tests/torch tests/test_examples.py tests/test_run.py tests/test_progress.py

.PHONY: check-wheel
check-wheel: ## build the wheel for this machine, install it into an environment that has nothing, and run the first Python program of README.md
	@$(MAKE) --no-print-directory wheels WHEELS_IN=bin/wheel WHEELS=$(filter $(shell $(GO) env GOARCH)-%,$(WHEELS))
	cd python && PYTHONPATH=src PERDURE_WHEEL="$$(ls "$(CURDIR)"/bin/wheel/*.whl)" ../$(VENV)/bin/pytest tests/test_wheel.py

.PHONY: storm
storm: ## kill, freeze and cut off real processes at random, from within and by signals from outside, STORMS=50 jobs for each recovery strategy (STRATEGIES='chain:2;resend:20' for some), from STORM_SEED on (0: of the clock, printed): the same model, the same sums, and what strategies that may lose updates come to
	$(GO) test ./cmd/perdure -run 'TestStorm|TestLearns|TestSums|TestSignal' -count 1 -v -timeout 0 -storm.runs=$(STORMS) -storm.seed=$(STORM_SEED) $(if $(STRATEGIES),-storm.strategies='$(STRATEGIES)') -storm.faults=$(FAULTS) -storm.ms=$(STORM_MS)

.PHONY: check-s3
check-s3: $(TOOLS)/versitygw ## keep checkpoints on a real S3 server, and kill and freeze it; its first build takes minutes
	$(GO) test ./cmd/perdure -run TestS3 -count 1 -v -s3.server="$(CURDIR)/$(TOOLS)/versitygw"

.PHONY: check-etcd
check-etcd: $(TOOLS)/etcd ## keep a coordinator's facts in real servers of etcd, which are killed, frozen and away for a minute, and measure takeovers and saves: four minutes
	$(GO) test ./internal/data/registry/etcd -run 'TestServer|TestHistories' -bench Server -count 1 -v -timeout 0 -etcd.server="$(CURDIR)/$(TOOLS)/etcd" -etcd.seed=$(SEED)

.PHONY: check-kubernetes
check-kubernetes: $(TOOLS)/helm ## what the chart makes: with the types of Kubernetes and the controller of JobSet, without a cluster; and that an image is the same twice. Its first build takes eight minutes
	$(GO) test ./cmd/perdure -run 'TestPods|TestManifests|TestChart' -count 1 -helm.program="$(CURDIR)/$(TOOLS)/helm"
	$(GO) -C tools/kubernetes test . -count 1 -helm.program="$(CURDIR)/$(TOOLS)/helm"

SKYPILOT := bin/venv-skypilot
.PHONY: check-skypilot
check-skypilot: ## load deploy/skypilot with SkyPilot itself, without a cloud; it needs Python 3.11 or newer
	$(PYTHON) -m venv $(SKYPILOT)
	$(SKYPILOT)/bin/pip install --quiet --disable-pip-version-check --requirement tools/skypilot/requirements.txt
	$(SKYPILOT)/bin/python tools/skypilot/check.py deploy/skypilot

.PHONY: check-upgrade check-hosts
check-upgrade: ## jobs that are upgraded while they run, FROM=an older program of Perdure; half a minute
	$(GO) test ./cmd/perdure -run TestUpgrade -count 1 -v -timeout 10m -upgrade.from="$(FROM)"

check-hosts: $(TOOLS)/etcd $(TOOLS)/versitygw ## jobs with keys on five hosts that are apart, network namespaces with a switch that cuts, delays and loses: two coordinators, three members of etcd; it needs root: HOSTS=20 storms for each of five strategies, a quarter of a minute each
	$(GO) test ./cmd/perdure -run "TestApart|TestPagesApart|TestCuts|TestAloneApart|TestAttack|TestNoQuorum" -apart.attack -apart.s3="$(CURDIR)/$(TOOLS)/versitygw" -count 1 -v -timeout 0 -apart.storms=$(HOSTS) -apart.seed=$(SEED) -apart.etcd="$(CURDIR)/$(TOOLS)/etcd"

# Chromium comes as an npm package that contains the program. It needs libraries that most systems have.
CHROMIUM := @sparticuz/chromium@153.0.0
CHROME   := bin/browser/chromium
$(CHROME):
	@command -v npm > /dev/null || { echo "check-browser needs npm, from which Chromium comes"; exit 1; }
	npm install --silent --no-audit --no-fund --no-save --prefix bin/browser $(CHROMIUM)
	cp tools/browser/unpack.mjs bin/browser/ && TMPDIR="$(CURDIR)/bin/browser" node bin/browser/unpack.mjs

.PHONY: check-browser
check-browser: build $(TOOLS)/browser $(CHROME) $(VENV)/ready ## open reports and the dashboard in headless Chromium, wide, narrow, dark and unfolded: no error, no text cut off; use the buttons of the dashboard, and compare it with summary.json in DASHBOARDS=2 runs; pictures are in bin/browser
	rm -rf bin/browser/runs bin/browser/cell.html && mkdir -p bin/browser/shots
	for seed in 1 2 3; do for recovery in resend:20 chain:2 none; do \
		bin/perdure train --clocks 120 --seed $$seed --recovery $$recovery --batch 40 --compute-ms 5 \
			--fault kill:server:0@clock:40 --fault kill:worker:1@clock:80 -q --out "bin/browser/runs/a/$$recovery-$$seed"; \
	done; done
	for staleness in 0 1 2 3 4 5 6 7 8 9; do \
		bin/perdure train --clocks 60 --consistency ssp:$$staleness --batch 20 -q --out bin/browser/runs/b/$$staleness; done
	bin/perdure train mf --clocks 40 -q --out bin/browser/runs/c
	bin/perdure report bin/browser/runs/a/none-1 -o bin/browser/one.html
	bin/perdure report bin/browser/runs/a -o bin/browser/groups.html
	bin/perdure report bin/browser/runs/b bin/browser/runs/c -o bin/browser/many.html
	$(TOOLS)/browser $(CHROME) bin/browser/shots bin/browser/one.html bin/browser/groups.html bin/browser/many.html
	bin/perdure train --dashboard --consistency ssp:3 --recovery chain:2 --servers 3 --clocks 700 --compute-ms 40 -q \
		--out bin/browser/runs/live & $(TOOLS)/browser live $(CHROME) bin/browser/shots bin/browser/runs/live && wait $$!
	PYTHONPATH=python/src PERDURE_BINARY=bin/perdure $(VENV)/bin/python tools/browser/notebook.py bin/browser/runs/notebook \
		bin/browser/cell.html & $(TOOLS)/browser frame $(CHROME) bin/browser/shots bin/browser/cell.html && wait $$!
	for seed in $$(seq 1 $(DASHBOARDS)); do \
		bin/perdure train --dashboard --recovery resend:10 --clocks 100 --compute-ms 20 --seed $$seed -q \
			--fault kill:server:0@clock:$$((20 + seed)) --fault freeze:worker:1@clock:40 --fault kill:coordinator@clock:60 \
			--fault kill:worker:*@clock:$$((70 + seed)) --out bin/browser/runs/same-$$seed & \
		$(TOOLS)/browser same $(CHROME) bin/browser/shots bin/browser/runs/same-$$seed && wait $$!; done

.PHONY: check-large
check-large: ## train a table of 0.9 GB (2.7 with its state) on a busy machine, and see that no process is taken for dead; 12 GB of memory and some ten minutes
	$(GO) test ./cmd/perdure -run TestLargeTable -count 1 -v -timeout 0 -large.rows=229376

.PHONY: soak
soak: ## train for TIME=10m, and see that no process grows
	$(GO) test ./cmd/perdure -run TestSoak -count 1 -v -timeout 0 -soak.time=$(TIME)

.PHONY: sim
sim: ## run the whole cluster in virtual time, SEEDS=1000 times
	$(GO) test ./internal/sim -count 1 -timeout 0 -sim.seeds=$(SEEDS)

.PHONY: replay
replay: ## run the simulation of TEST=TestChains, SEED=1 under SCHEDULES=20 orders of what happens at one instant, from FIRST=1 on; each does the same again. Needs node
	GOOS=js GOARCH=wasm $(GO) test -c -o bin/sim.wasm ./internal/sim
	GOROOT=$$($(GO) env GOROOT) node --stack-size=8192 tools/exact.js bin/sim.wasm $(FIRST) $(SCHEDULES) -test.run '$(TEST)$$' -sim.seed=$(SEED)

.PHONY: bench
bench: build $(TOOLS)/benchstat ## measure PACKAGES=./... COUNT=6 times, then perdure bench; keep both in RESULTS=docs/bench/DATE.md
	$(GO) test -run '^$$' -bench . -benchmem -count $(COUNT) -timeout 0 $(PACKAGES) | tee bin/bench.txt
	$(TOOLS)/benchstat bin/bench.txt | tee bin/benchstat.txt
	bin/perdure bench $(BENCH) | tee bin/perdure-bench.txt
	@mkdir -p $(dir $(RESULTS))
	@{ printf '# Benchmarks of %s\n\n`perdure %s`\n\n```\n' "$$(date +%F)" '$(strip bench $(BENCH))'; cat bin/perdure-bench.txt; \
	printf '```\n\n`go test -bench . -count %s %s`, by benchstat\n\n```\n' '$(COUNT)' '$(PACKAGES)'; cat bin/benchstat.txt; \
	printf '```\n'; } > $(RESULTS)
	@echo "kept in $(RESULTS)"

STUDIES := bound consistency failure failure-paper regret grid scar spot topics
study-%: QUICK = $(if $(findstring --quick,$(STUDY)),-quick)
.PHONY: $(STUDIES:%=study-%)
$(STUDIES:%=study-%): study-%: build ## run studies/%.yaml, as far as it is not done, and write its page into docs/studies; STUDY has flags of perdure study, and with --quick the page is next to the runs
	bin/perdure study studies/$*.yaml $(STUDY)
	$(GO) run ./studies/pages runs/$*$(QUICK) $(if $(QUICK),runs/$*$(QUICK)/page,docs/studies/$*)

.PHONY: study-tables
study-tables: ## recompute the tables of the study pages from the files in docs/studies, and compare; UPDATE=1 writes them into the pages
	$(GO) test -C studies/pages -run 'TestTables$$' -count 1 $(if $(UPDATE),-tables.write)

.PHONY: fmt
fmt: $(TOOLS)/gofumpt ## format all Go files
	$(TOOLS)/gofumpt -w $(GO_FILES)

.PHONY: generate
generate: $(TOOLS)/buf $(TOOLS)/protoc-gen-go $(TOOLS)/protoc-gen-connect-go ## generate Go from internal/proc/control/v1/control.proto
	PATH="$(CURDIR)/$(TOOLS):$$PATH" buf generate --template internal/proc/control/buf.gen.yaml --path internal/proc/control/v1

.PHONY: clean
clean: ## remove what was built
	rm -rf bin

# Tools. buf has a separate module: only `make generate` needs it, and it would change the versions of all other
# dependencies.
$(TOOLS)/staticcheck: TOOL = honnef.co/go/tools/cmd/staticcheck
$(TOOLS)/gofumpt: TOOL = mvdan.cc/gofumpt
$(TOOLS)/gotestsum: TOOL = gotest.tools/gotestsum
$(TOOLS)/benchstat: TOOL = golang.org/x/perf/cmd/benchstat
$(TOOLS)/protoc-gen-go: TOOL = google.golang.org/protobuf/cmd/protoc-gen-go
$(TOOLS)/protoc-gen-connect-go: TOOL = connectrpc.com/connect/cmd/protoc-gen-connect-go

$(TOOLS)/%: tools/go.mod
	$(GO) -C tools build -o "$(CURDIR)/$@" $(TOOL)

$(TOOLS)/buf: tools/buf/go.mod
	$(GO) -C tools/buf build -o "$(CURDIR)/$@" github.com/bufbuild/buf/cmd/buf

$(TOOLS)/browser: tools/browser/go.mod $(wildcard tools/browser/*.go tools/browser/*.js)
	$(GO) -C tools/browser build -o "$(CURDIR)/$@" .

$(TOOLS)/versitygw: tools/s3/go.mod
	$(GO) -C tools/s3 build -o "$(CURDIR)/$@" github.com/versity/versitygw/cmd/versitygw

$(TOOLS)/etcd: tools/etcd/go.mod
	$(GO) -C tools/etcd build -o "$(CURDIR)/$@" go.etcd.io/etcd/server/v3

$(TOOLS)/helm: tools/helm/go.mod
	$(GO) -C tools/helm build -o "$(CURDIR)/$@" helm.sh/helm/v3/cmd/helm

$(TOOLS)/crane: tools/kubernetes/go.mod
	$(GO) -C tools/kubernetes build -o "$(CURDIR)/$@" github.com/google/go-containerregistry/cmd/crane

$(TOOLS)/licences: tools/licences/go.mod tools/licences/main.go
	$(GO) -C tools/licences build -o "$(CURDIR)/$@" .
