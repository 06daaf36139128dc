.DEFAULT_GOAL := help
SHELL := /bin/bash
export GOFLAGS := -buildvcs=false
export GOTOOLCHAIN := local

# A tag, or what stands in for one: 0.0.0 and the commit. It is a version to dpkg and rpm, too.
VERSION ?= $(patsubst v%,%,$(shell git describe --tags --match 'v[0-9]*' 2>/dev/null || \
  echo 0.0.0-git$$(TZ=UTC git log -1 --format=%cd.%h --date=format-local:%Y%m%d%H%M%S 2>/dev/null || echo 0)))
# All times in packages are that of the commit, so that two builds of one commit are the same bytes.
export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
PROXY := bin/criproxy
# Without the pages of gRPC's own tracing, which criproxy does not serve: they draw in text/template, for which the linker
# keeps every method of every type. A seventh of the program.
TAGS := grpcnotrace

help: ## say what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(PROXY): FORCE
	go build -tags $(TAGS) -trimpath -ldflags "-X github.com/criproxy/criproxy/internal/version.Version=$(VERSION)" -o $(PROXY) ./cmd/criproxy
FORCE:
.PHONY: FORCE help run build dist deb rpm reproducible man test unit integration runtimes kubelets conformance nightly bench microbench soak fuzz chaos mutants lint vm testbed testbed-down clean

build: $(PROXY) ## build bin/criproxy

run: build ## build it, and see it work: two runtimes in memory, a client, and the proxy between
	$(PROXY) demo

ARCHS ?= amd64 arm64
DIST ?= dist
NFPM := go tool -modfile=.ci/nfpm/go.mod nfpm
PACKAGE := $(NFPM) package -f packaging/nfpm.yaml -t $(DIST)/
BINARIES := $(ARCHS:%=$(DIST)/linux-%/criproxy)

$(DIST)/linux-%/criproxy: FORCE
	CGO_ENABLED=0 GOOS=linux GOARCH=$* go build -tags $(TAGS) -trimpath -ldflags "-s -w -X github.com/criproxy/criproxy/internal/version.Version=$(VERSION)" -o $@ ./cmd/criproxy

dist: $(BINARIES) ## static binaries for amd64 and arm64, and their checksums, in dist
	cd $(DIST) && for a in $(ARCHS); do cp -p linux-$$a/criproxy criproxy-$(VERSION)-linux-$$a; done
	cd $(DIST) && sha256sum $(ARCHS:%=criproxy-$(VERSION)-linux-%) > criproxy-$(VERSION).sha256

deb: $(BINARIES) ## Debian packages, in dist
	for a in $(ARCHS); do VERSION=$(VERSION) DIST=$(DIST) ARCH=$$a $(PACKAGE) -p deb || exit 1; done

rpm: $(BINARIES) ## RPM packages, in dist
	for a in $(ARCHS); do VERSION=$(VERSION) DIST=$(DIST) ARCH=$$a $(PACKAGE) -p rpm || exit 1; done

man: ## write the manual page and the completion anew, after a change of flags or commands
	go test ./cmd/criproxy -run '^Test(ManualPage|CompletionInPackages)IsCurrent$$' -update-man

reproducible: ## build all of it twice, in other folders and from nothing, and compare
	packaging/reproducible.sh $(VERSION)

# Kubelets mostly wait, so their tests go on beside the others.
BESIDE_KUBELETS = $(MAKE) --no-print-directory kubelets & kubelets=$$!; $(MAKE) --no-print-directory $(1); rest=$$?; wait $$kubelets && exit $$rest

test: ## all tests, raced; the integration tests start real runtimes and need root
	@$(call BESIDE_KUBELETS,unit runtimes)

unit: ## the tests that need nothing but Go
	go test -race -shuffle=on -timeout 15m ./...
	go test -run 'Allocates|NeedsNoMemory' ./criadapter ./rewrite # counts, which the race detector changes
	go test -run 'MemoryStays|HoldMore|IdleConnections' ./cmd/criproxy ./internal/transport # as is how much memory is taken

integration: ## the tests with real runtimes
	@$(call BESIDE_KUBELETS,runtimes)

runtimes:
	cd testbed/csi && go test -race
	cd testbed/transport && go test -race
	cd testbed/browser && go test
	cd testbed && go test -race -timeout 25m $$(go list ./... | grep -v $(KUBELETS:%=-e /%$$) -e testbed$$ -e /cluster -e /gvisor)

# The packages of the testbed that start kubelets, besides the testbed itself. They take turns.
KUBELETS := crio outage
kubelets:
	cd testbed && go test -race -timeout 40m -p 1 $(KUBELETS:%=./%) .

vm: ## a node in a virtual machine, with systemd and cgroup v2: install, upgrade, reboot, cut its power; takes minutes
	@missing=; for pair in qemu-system-x86_64:qemu-system-x86 mmdebstrap:mmdebstrap mkfs.ext4:e2fsprogs; do \
	  command -v "$${pair%:*}" >/dev/null || missing+=" $${pair#*:}"; \
	done; \
	[ -z "$$missing" ] || { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $$missing; } || \
	  { echo "make vm: left out: there is no$$missing here, and apt-get cannot install it"; exit 1; }
	cd testbed/vm && go test -v -timeout 60m -boot

conformance: ## all specs of critest, on each runtime and through criproxy, in an hour, and a kubelet's figures: docs/conformance.md
	cd testbed/figures && go test -v -timeout 30m -report $(CURDIR)/docs/conformance.md
	cd testbed/critest && go test -v -timeout 3h -all -on 1.7,2.4 -report $(CURDIR)/docs/conformance.md

# Their builds alone take longer than the gate has for them. .ci/nightly brings what it takes beside Go.
nightly: ## what the gate leaves out: a whole cluster, Kubernetes' specs of nodes, gVisor, and Docker: docs/conformance.md
	cd testbed/cluster && go test -race -v -timeout 2h -conformance -report $(CURDIR)/docs/conformance.md
	cd testbed/gvisor && go test -race -v -timeout 60m
	cd testbed/outage && go test -race -v -timeout 60m -docker -run Docker

bench: ## what criproxy costs, next to what a user could have instead: docs/performance.md
	cd testbed && go run ./bench -out ../docs/performance.md -json ../docs/performance.json $(BENCHFLAGS)

SOAK ?= 10m
SPEED ?= 1
soak: ## a kubelet's calls for SOAK, SPEED times as often: docs/soak.md
	cd testbed && go run ./bench soak -for $(SOAK) -speed $(SPEED) -out ../docs/soak.md

microbench: ## what the parts of the hot path cost
	go test -run '^$$' -bench . -benchmem ./...

# A number of runs, because to Go before 1.27 the end of a time is at times a failure: https://go.dev/issue/75804.
FUZZTIME ?= 10000x
fuzz: ## each fuzz target FUZZTIME times
	@for p in $$(go list ./...); do \
	  for f in $$(go test -list '^Fuzz' $$p | grep '^Fuzz'); do \
	    echo "$$p $$f"; go test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 20x $$p || exit 1; \
	  done; \
	done

CHAOS_SEED ?= 1
CHAOS_STEPS ?= 100
CHAOS_CLOCK ?=
chaos: ## inject faults drawn by CHAOS_SEED, CHAOS_STEPS of them, in memory and on real parts: docs/chaos.md. CHAOS_CLOCK=1 sets the machine's clock, too
	go test ./internal/daemon -run '^(TestChaos|TestTheInvariantsOfChaos.*$(if $(CHAOS_CLOCK),|TestNothingDependsOnTheClock.*))$$' -timeout 2h -v \
	  -args -chaos.seed=$(CHAOS_SEED) -chaos.steps=$(CHAOS_STEPS) -chaos.times $(if $(CHAOS_CLOCK),-chaos.clock) -chaos.report=$(CURDIR)/docs/chaos.md
	cd testbed/chaos && go test -timeout 2h -v -args -chaos.seed=$(CHAOS_SEED) -chaos.steps=$(CHAOS_STEPS) -chaos.times -chaos.report=$(CURDIR)/docs/chaos.md

mutants: ## break the code on purpose, one thing after another, and see the tests notice: docs/robustness.md
	go run ./internal/mutants -report docs/robustness.md

lint: ## what CI asks for besides the tests
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo "gofmt would change:"; gofmt -l $$(git ls-files '*.go'); exit 1; }
	go vet ./...
	go mod tidy -diff
	go tool -modfile=.ci/tools/go.mod staticcheck ./...
	cd testbed && go vet ./... && go mod tidy -diff
	cd testbed/csi && go vet ./... && go mod tidy -diff
	cd testbed/transport && go vet ./... && go mod tidy -diff
	cd testbed/browser && go vet ./... && go mod tidy -diff

testbed: build ## start two real containerds and the proxy, and leave them up to play with
	cd testbed && go run ./cmd/testbed up -proxy $(CURDIR)/$(PROXY)

testbed-down: ## stop them, and clean up all they made
	cd testbed && go run ./cmd/testbed down

clean: ## remove what was built here
	rm -rf bin dist
