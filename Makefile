.DEFAULT_GOAL := help
SHELL := /bin/bash
export GOTOOLCHAIN := local
# All is compiled in the same way, so that tests, packages and tools share what the compiler has made. grpcnotrace leaves
# out the pages of gRPC's own tracing, which criproxy does not serve: they use text/template, for which the linker keeps
# every method of every type, a seventh of the program.
export GOFLAGS := -buildvcs=false -trimpath -tags=grpcnotrace
export CGO_ENABLED := 0

# A tag or, without one, 0.0.0 and the commit. dpkg and rpm accept it as a version, too.
VERSION ?= $(patsubst v%,%,$(shell git describe --tags --match 'v[0-9]*' 2>/dev/null || \
  echo 0.0.0-git$$(TZ=UTC git log -1 --format=%cd.%h --date=format-local:%Y%m%d%H%M%S 2>/dev/null || echo 0)))
# All times in packages are the commit's, so that two builds of one commit are identical.
export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
PROXY := bin/criproxy

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(PROXY): FORCE
	go build -ldflags "-X github.com/criproxy/criproxy/internal/config.Version=$(VERSION)" -o $(PROXY) ./cmd/criproxy
FORCE:
.PHONY: FORCE size support next arm64 help run build dist deb rpm krew image release verify-release reproducible man test test-all machine smoke race integration runtimes kubelets peers conformance nightly bench microbench grpc-path soak fuzz chaos why mutants lint lint-main lint-modules portable vm vm-tools testbed testbed-down clean

build: $(PROXY) ## build bin/criproxy

run: build ## build criproxy and run a demonstration: two runtimes in memory, a client, and criproxy between them
	$(PROXY) demo

ARCHS ?= amd64 arm64
DIST ?= dist
NFPM := go run -modfile=.ci/nfpm/go.mod github.com/goreleaser/nfpm/v2/cmd/nfpm
CYCLONEDX := go run -exec 'env GOPROXY=off' -modfile=.ci/sbom/go.mod github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod
RELEASE := go run -C .ci/release .
PACKAGE := $(NFPM) package -f packaging/nfpm.yaml -t $(DIST)/
BINARIES := $(ARCHS:%=$(DIST)/linux-%/criproxy)
COMMIT ?= $(shell git rev-parse HEAD 2>/dev/null)
RELEASED := ! -name '*.sha256' \( -name 'criproxy[-_]*' -o -name 'kubectl-criproxy-*' -o -name krew.yaml \)
R := $(DIST)/criproxy-$(VERSION)# what all files of a release begin with, but for those of packages

$(DIST)/linux-%/criproxy: FORCE
	GOOS=linux GOARCH=$* go build -ldflags "-s -w -X github.com/criproxy/criproxy/internal/config.Version=$(VERSION)" -o $@ ./cmd/criproxy
$(DIST)/linux-%/criproxy-on-node: FORCE
	GOOS=linux GOARCH=$* go build -C packaging/container -ldflags "-s -w" -o $(abspath $@) .
$(DIST)/licences.txt: FORCE # of all that is linked; fails if one is not allowed
	@mkdir -p $(DIST)
	$(RELEASE) licences -out $(abspath $@) -root $(CURDIR) cmd/criproxy packaging/container

dist: $(BINARIES) ## static binaries for amd64 and arm64, and their checksums, in dist
	cd $(DIST) && for a in $(ARCHS); do cp -p linux-$$a/criproxy criproxy-$(VERSION)-linux-$$a; done
	cd $(DIST) && sha256sum $(ARCHS:%=criproxy-$(VERSION)-linux-%) > criproxy-$(VERSION).sha256

deb: $(BINARIES) $(DIST)/licences.txt ## Debian packages, in dist
	for a in $(ARCHS); do VERSION=$(VERSION) DIST=$(DIST) ARCH=$$a $(PACKAGE) -p deb || exit 1; done

krew: $(BINARIES) $(DIST)/licences.txt ## the plugin of kubectl for krew: archives and a manifest, in dist
	for a in $(ARCHS); do tar -C $(DIST)/linux-$$a --transform s/criproxy/kubectl-criproxy/ --owner=0 --group=0 --mtime=@$(SOURCE_DATE_EPOCH) -cf - criproxy -C $(CURDIR) LICENSE -C $(abspath $(DIST)) licences.txt \
	  | gzip -n > $(DIST)/kubectl-criproxy-$(VERSION)-linux-$$a.tar.gz || exit 1; done
	sed "s/VERSION/$(VERSION)/g$(foreach a,$(ARCHS),; s/SHA256-$a/$$(sha256sum $(DIST)/kubectl-criproxy-$(VERSION)-linux-$a.tar.gz | cut -c1-64)/)" packaging/krew.yaml > $(DIST)/krew.yaml

rpm: $(BINARIES) $(DIST)/licences.txt ## RPM packages, in dist
	for a in $(ARCHS); do VERSION=$(VERSION) DIST=$(DIST) ARCH=$$a $(PACKAGE) -p rpm || exit 1; done

image: $(BINARIES) $(BINARIES:=-on-node) $(DIST)/licences.txt ## the image of the DaemonSet, as an OCI layout in a tar file, in dist
	$(RELEASE) image -out $(abspath $(R)-oci.tar) -root $(CURDIR) -from $(abspath $(DIST)) -version $(VERSION) -commit "$(COMMIT)" $(ARCHS)

release: ## all files of release VERSION, from a clean clone, in dist; SIGNING_KEY, a file of an ssh key, signs them: docs/release.md
	packaging/release.sh may-begin "$(VERSION)" "$(origin COMMIT)"
	@rm -rf $(DIST)/criproxy[-_]* $(DIST)/kubectl-criproxy-* $(DIST)/krew.yaml $(DIST)/linux-*
	@$(MAKE) --no-print-directory dist deb rpm krew image
	cp $(DIST)/licences.txt $(R)-licences.txt
	for a in $(ARCHS); do for p in '' -on-node; do $(CYCLONEDX) bin -json -std -licenses -noserial -notimestamp -version v$(VERSION) -output $(R)$$p-linux-$$a.cdx.json $(DIST)/linux-$$a/criproxy$$p 2> $(DIST)/sbom.log || { cat $(DIST)/sbom.log; exit 1; }; done; done
	$(RELEASE) provenance -out $(abspath $(R).provenance.json) -root $(CURDIR) -version $(VERSION) -commit "$(COMMIT)" $$(find $(abspath $(DIST)) -maxdepth 1 $(RELEASED))
	cd $(DIST) && LC_ALL=C sha256sum $$(find . -maxdepth 1 $(RELEASED) -printf '%P\n' | LC_ALL=C sort) > criproxy-$(VERSION).sha256
	packaging/release.sh sign $(R).sha256 "$(SIGNING_KEY)"

verify-release: ## check the files of release VERSION in dist as their users can; SIGNERS is the file of the keys that may sign them
	packaging/verify-release.sh $(DIST) $(VERSION) $(SIGNERS)

man: ## update the manual page and the completion after a change of flags or commands
	go test ./cmd/criproxy -run '^TestManualPageIsCurrent$$|^TestCompletionInPackagesIsCurrent$$' -update-man

portable: ## check that what other programs import builds on other systems, too
	GOOS=darwin go vet ./codec ./rewrite ./director/... ./criadapter ./hook/...
reproducible: ## build everything twice, in different folders and from scratch, and compare
	packaging/reproducible.sh $(VERSION)

# make lint vets. A linker spends a fifth of its time on what only debuggers read. The race detector needs a C compiler:
# without one, tests run without it, and say so. Its processes sleep for a second as they end, unless told otherwise, and tests
# run the program hundreds of times.
RACE := $(if $(shell command -v "$${CC:-gcc}"),-race)
GOTEST := go test -vet=off -ldflags='-s -w'
RACETEST := CGO_ENABLED=$(if $(RACE),1,0) GORACE=atexit_sleep_ms=10 $(GOTEST) $(RACE)
# Go keeps results of tests, and does not know that these run programs which it has built anew.
REALTEST = $(GOTEST) -count=1

# What takes longest comes first. Two packages run at a time: with the race detector, four make slow processors so busy
# that a runtime answers nothing for 3s, and is gone.
FIRST := ./cmd/criproxy ./internal/server ./internal/transport ./internal/backend ./internal/testing/model
# These read recordings in one goroutine, in which the race detector finds nothing; with it they take seven times as long.
COMPUTES := ^TestWhy|^Test(The)?Commands?ThatWhy
test: ## run the tests that need only Go, as any user: three minutes, with the race detector if there is gcc
	@$(RACETEST) -short -p 2 -timeout 10m -skip '$(COMPUTES)' $(FIRST) ./...
	@$(GOTEST) -short -timeout 5m -run '$(COMPUTES)' ./cmd/criproxy
	@echo "make test: all passed$(if $(RACE),, WITHOUT THE RACE DETECTOR: it needs gcc). Left out: $$(grep -rE 'untested\.TakesLong\(t|^\[short\] skip' --include='*_test.go' --include='*.txtar' cmd internal testdata | wc -l) tests that take long or need other programs, and all with real runtimes: make test-all"

# each makes one part after the other, also after one has failed, and names those that did.
each = failed=; for part in $(1); do began=$$SECONDS; printf '\n=== make %s\n' "$$part"; \
  $(MAKE) --no-print-directory $$part || failed+=" $$part"; printf '=== make %s: %ds\n' "$$part" $$((SECONDS - began)); \
  done; [ -z "$$failed" ] || { echo "make $@: what failed:$$failed"; exit 1; }

# One part at a time: kubelets and runtimes look slow on a machine that is busy with something else. A test that cannot test
# something here says so in the file $CRIPROXY_UNTESTED; with CI=true it fails.
PARTS := race smoke kubelets kubectl runtimes peers grpc-path portable reproducible fuzz mutants
test-all: export PATH := $(CURDIR)/bin:$(PATH)
test-all: ## run all tests: real runtimes and kubelets, packages, a browser, fuzzing; needs root and Debian; an hour
	@. .ci/machine; lacks=$$(lacks; cd testbed && go run ./cmd/testbed lacks); [ -z "$$lacks" ] || \
	  { printf 'make test-all leaves out what needs these; make machine installs the packages, on Debian as root:\n%s\n' "$$lacks"; [ "$$CI" != true ]; }
	+@. .ci/machine; export CRIPROXY_UNTESTED=$$(mktemp); chmod a+w "$$CRIPROXY_UNTESTED"; code=0; ($(call each,$(PARTS))) || code=$$?; \
	  left_out; [ $$code != 0 ] || passed $$SECONDS; rm "$$CRIPROXY_UNTESTED"; exit $$code

machine: ## install the programs that make test-all calls and Go does not build: on Debian, as root
	@. .ci/machine; machine

smoke: ## one pod on a real containerd and one on a runtime in memory, and an outage; needs root
	cd testbed && go run ./cmd/testbed build containerd24 runc noseccomp cni app
	cd testbed && $(REALTEST) -timeout 3m ./smoke

race: ## run the tests that need only Go, all of them
	$(RACETEST) -shuffle=on -p 2 -timeout 15m $(FIRST) ./...
	$(GOTEST) -run 'Allocates|NeedsNoMemory' ./criadapter ./rewrite ./internal/observe/telemetry # the race detector changes allocation counts
	$(GOTEST) -run 'MemoryStays|HoldMore|IdleConnections|ThousandNodes' ./cmd/criproxy ./internal/transport # and the use of memory

integration: ## run the tests with real runtimes and other peers
	+@$(call each,kubelets runtimes peers)

PEERS := csi transport browser fleet
peers: # of other kinds: gRPC's other implementations, a driver of storage, a browser, a store of logs
	+@$(call each,$(PEERS:%=peer-%))
peer-transport: GOTEST = $(RACETEST)
peer-fleet: fleet-programs
fleet-programs: # from nothing they take longer than a test may
	cd testbed/fleet && go build -ldflags=-w -o /dev/null ./collector github.com/VictoriaMetrics/VictoriaLogs/app/victoria-logs
peer-%:
	cd testbed/$* && $(REALTEST) -timeout 15m

# The packages come first, because they take long to build, and the integration tests in parallel.
runtimes:
	cd testbed && go run ./cmd/testbed build && go run ./cmd/testbed build nerdctl critest
	cd testbed && $(REALTEST) -timeout 15m ./packages $$(go list ./... | grep -v $(KUBELETS:%=-e /%$$) -e testbed$$ -e /cluster -e /gvisor -e /packages -e /smoke -e /why)

# The packages of the testbed that start kubelets, in addition to the testbed itself. They take turns. The race detector
# would make them a quarter more work, so only make nightly gives it to criproxy here.
KUBELETS := outage crio
kubelets:
	cd testbed && go run ./cmd/testbed build && go run ./cmd/testbed build kubelet crio
	cd testbed && CRIPROXY_TESTBED_RACE=off $(REALTEST) -timeout 15m -p 1 $(KUBELETS:%=./%) .

# The rest of the package is in make cluster.
kubectl: # what people reach with it: a node's criproxy, as somebody who may and as one who may not
	cd testbed && go run ./cmd/testbed build && go run ./cmd/testbed build kubelet cluster
	cd testbed && $(REALTEST) -timeout 15m -run TestADaemonSetBringsCriproxyToItsNode ./cluster

vm: vm-tools ## test a node in a virtual machine with systemd and cgroup v2: installation, upgrade, reboot, power cut; takes minutes
	cd testbed/vm && go test -v -timeout 60m -boot

vm-tools:
	@missing=; for pair in qemu-system-x86_64:qemu-system-x86 mmdebstrap:mmdebstrap mkfs.ext4:e2fsprogs; do \
	  command -v "$${pair%:*}" >/dev/null || missing+=" $${pair#*:}"; \
	done; \
	[ -z "$$missing" ] || { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $$missing; } || \
	  { echo "make vm: left out: there is no$$missing here, and apt-get cannot install it"; exit 1; }

support: ## write on what the tests of this machine have passed into docs/support.md: after make integration, vm, nightly
	cd testbed && go test ./internal/support -update

next: ## try the newest CRI and kubelet that the module proxy has, pre-releases too, and say what the profile does not know
	.ci/next

conformance: ## run critest on each runtime and through criproxy (an hour), and compare a kubelet's figures: docs/evidence/conformance.md
	cd testbed/figures && go test -v -timeout 30m -report $(CURDIR)/docs/evidence/conformance.md
	cd testbed/critest && go test -v -timeout 3h -all -on 1.7,2.4 -report $(CURDIR)/docs/evidence/conformance.md

# The same tests with criproxy on the data path of grpc-go. Those with kubelets take turns, as above.
GRPC := integration critest chaos outage
grpc-path: ## run the tests of what serves calls, and those with real runtimes, on the data path of grpc-go
	+@$(call each,grpc-path-race $(GRPC:%=grpc-path-%))
grpc-path-race:
	$(RACETEST) -ldflags '-s -w -X github.com/criproxy/criproxy/internal/config.DefaultDataPath=grpc' -p 2 -timeout 15m ./cmd/... ./internal/server/... ./internal/observe/... ./internal/command/... ./director/... ./criadapter
grpc-path-%:
	cd testbed && go run ./cmd/testbed build && go run ./cmd/testbed build kubelet nerdctl critest
	cd testbed && CRIPROXY_TESTBED_DATA_PATH=grpc $(REALTEST) -timeout 15m ./$*

# The gate has no time for them. .ci/nightly installs what they need in addition to Go. All are run, also after one failed.
NIGHTLY := simulation kubelets-race cluster specs vm-specs gvisor why-faults docker arm64 next
nightly: ## run the tests that the gate leaves out: kubelets with the race detector, a whole cluster, Kubernetes' specs of nodes, gVisor, Docker, arm64, and what comes next: docs/evidence/conformance.md
	+@$(call each,$(NIGHTLY))

.PHONY: $(NIGHTLY)
simulation:
	go test -v -timeout 60m ./internal/testing/model -run 'TestSimulation$$' -simulate 30m -report $(CURDIR)/docs/evidence/simulation.md
kubelets-race:
	cd testbed && go test -v -timeout 60m -p 1 $(KUBELETS:%=./%) .
cluster:
	cd testbed/cluster && go test -v -timeout 1h -skip KubernetesOwnSpecs
specs:
	set -e; all=$$(mktemp -d); trap "rm -r $$all" EXIT; mkdir $$all/node-suite; \
	(cd testbed/cluster && CRIPROXY_TESTBED_RECORD=$$all/node-suite go test -v -timeout 2h -run KubernetesOwnSpecs -conformance -report $(CURDIR)/docs/evidence/conformance.md); \
	go test -v ./cmd/criproxy -run WhyOnRecordings -args -why-recordings $$all -update-why
vm-specs: vm-tools
	cd testbed/vm && go test -v -timeout 90m -boot -conformance -run SpecsOfNodes -report $(CURDIR)/docs/evidence/conformance.md
gvisor:
	cd testbed/gvisor && go test -v -timeout 60m
why-faults:
	cd testbed/why && CRIPROXY_TESTBED_RACE=off go test -v -timeout 60m
docker:
	cd testbed/outage && go test -v -timeout 60m -docker -run Docker

DEMO ?= 30
why: build ## record runs that were not made for criproxy why, and a demo of DEMO minutes, and check what it says of them: docs/evidence/why.md
	set -e; all=$$(mktemp -d); trap "rm -r $$all" EXIT; mkdir $$all/demo $$all/chaos $$all/critest; \
	$(PROXY) demo >$$all/said & demo=$$!; sleep 5; \
	for minute in $$(seq 10 10 $(DEMO)); do sleep 600; $(PROXY) dump -admin "$$(grep -o '/[^ ]*admin.sock' $$all/said | head -1)" $$all/demo/$$minute.jsonl.zst; done; kill $$demo; rm $$all/said; \
	(cd testbed && CRIPROXY_TESTBED_RECORD=$$all/chaos go test -timeout 30m ./chaos -run TestChaosOnRealParts && CRIPROXY_TESTBED_RECORD=$$all/critest go test -timeout 30m ./critest); \
	go test -v ./cmd/criproxy -run WhyOnRecordings -args -why-recordings $$all -update-why

# qemu-user runs a program for another processor at a tenth of its speed, and starts each in half a second of computing: so
# few tests run at once. internal/testing has no code of the product.
ARM64_MEMORY := MemoryStays|HoldMore|IdleConnections|ThousandNodes
ARM64_SPEED := ReadsNothingIsBounded|MistakeEndsOnlyItsConnection|FloodsAreCutOff|AnyCommandReachesAnyNode|ANodeInTroubleIsNamed
ARM64_LACKS := KernelListsConnectedClients
arm64: ## run the unit tests as programs for arm64, under emulation
	@echo "arm64: left out, because the memory of a process is the emulator's: $(ARM64_MEMORY)"
	@echo "arm64: left out, because they give floods, or dozens of programs, some seconds: $(ARM64_SPEED)"
	@echo "arm64: left out, because the emulator has no sock_diag: $(ARM64_LACKS)"
	go run ./internal/testing/emulated env GOARCH=arm64 $(GOTEST) -p 1 -parallel 2 -timeout 60m -skip '$(ARM64_MEMORY)|$(ARM64_SPEED)|$(ARM64_LACKS)' $$(go list ./... | grep -v /internal/testing/)

bench: ## measure the cost of criproxy and of the alternatives: docs/evidence/performance.md
	cd testbed && go run ./bench -out ../docs/evidence/performance.md -json ../docs/evidence/performance.json $(BENCHFLAGS)

SOAK ?= 10m
SPEED ?= 1
soak: ## make a kubelet's calls for the time SOAK, SPEED times as often: docs/evidence/soak.md
	cd testbed && go run ./bench soak -for $(SOAK) -speed $(SPEED) -out ../docs/evidence/soak.md

microbench: ## measure the parts of the hot path
	go test -run '^$$' -bench . -benchmem ./...

# A number of runs: with a duration, Go before 1.27 sometimes fails at its end: https://go.dev/issue/75804.
FUZZTIME ?= 10000x
FUZZLIMIT ?= 10m# of a target: go test -timeout does not bound fuzzing
fuzz: ## run each fuzz target FUZZTIME times
	@for p in $$(go list ./...); do \
	  for f in $$(go test -list '^Fuzz' $$p | grep '^Fuzz'); do \
	    echo "$$p $$f"; timeout -s QUIT -k 20 $(FUZZLIMIT) go test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 20x $$p || exit 1; \
	  done; \
	done

CHAOS_SEED ?= 1
CHAOS_STEPS ?= 60
CHAOS_CLOCK ?=
chaos: ## inject CHAOS_STEPS random faults, drawn by CHAOS_SEED, in each mode of ids: docs/evidence/chaos.md. CHAOS_CLOCK=1 also sets the machine's clock
	cd testbed/chaos && go test -timeout 2h -v -args -chaos.seed=$(CHAOS_SEED) -chaos.steps=$(CHAOS_STEPS) -chaos.times $(if $(CHAOS_CLOCK),-chaos.clock) -chaos.report=$(CURDIR)/docs/evidence/chaos.md

mutants: ## break the code on purpose, one change at a time, and check that the tests notice: docs/evidence/robustness.md
	go run ./internal/testing/mutants

# Lines that are neither blank nor a comment: in commit $(1), or those of now.
SINCE ?= 4d2fe514
lines = $$(git grep -hcvE '^[[:space:]]*(//.*)?$$' $(1) -- $(2) | awk '{ n += $$1 } END { print n }')
size = now=$(call lines,,$(2)); was=$(call lines,$(SINCE),$(2)); printf '%-7s %6d now, %6d at $(SINCE): %+d\n' $(1) $$now $$was $$((now - was))
size: ## count the lines of the product, its tests, the testbed and the docs, now and at the commit SINCE
	@$(call size,product,'*.go' ':!*_test.go' ':!testbed' ':!internal/testing' ':!hook/hookapi' ':!.ci')
	@$(call size,tests,'*_test.go' 'internal/testing/*.go' ':!testbed')
	@$(call size,testbed,'testbed/*.go')
	@$(call size,docs,'*.md' ':!testbed')

# vet and staticcheck read what the compiler has made for make test, and with it the same flags.
STATICCHECK = $(shell go tool -n -modfile=.ci/tools/go.mod staticcheck)
RACEFLAGS = GOFLAGS='$(GOFLAGS) $(RACE)' CGO_ENABLED=$(if $(RACE),1,0)
MODULES := testbed testbed/csi testbed/transport testbed/browser testbed/fleet packaging/container .ci/release
lint: lint-main lint-modules ## run the checks of CI that are not tests
lint-main:
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo "gofmt would change:"; gofmt -l $$(git ls-files '*.go'); exit 1; }
	$(RACEFLAGS) go vet ./...
	go mod tidy -diff
	$(RACEFLAGS) $(STATICCHECK) ./...
lint-modules:
	for m in $(MODULES); do (cd $$m && go vet ./... && go mod tidy -diff) || exit 1; done
	cd testbed/npd && go mod tidy -diff

testbed: build ## start two real containerds and the proxy, and leave them running for experiments
	cd testbed && go run ./cmd/testbed up -proxy $(CURDIR)/$(PROXY)

testbed-down: ## stop them and clean up
	cd testbed && go run ./cmd/testbed down

clean: ## remove built files
	rm -rf bin dist
