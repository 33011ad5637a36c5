# Thin: every target is one command. `make help` lists them.
CARGO := packaging/cargo
# By the environment, so that no shell reads a path of the clone's.
export RINGWAY_PEERS := $(CURDIR)/target/peers
# Expanded only where used, so that packaging/bootstrap has provided a toolchain by then.
TARGET = $(shell $(CARGO) -vV | sed -n 's/^host: //p')
BINARY = target/$(TARGET)/release/ringway
LAB = $(BINARY)-lab
PREFIX ?= /usr
DESTDIR ?=
MINUTES ?= 10

help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

demo: bootstrap release ## Watch real HTTP go through Ringway and survive a backend's death
	@packaging/as-root $(LAB) demo $(ARGS)

test: ## The gate: run the tests (prepares the machine first, as demo does)
	@packaging/test

test-guarded: ## The guarded steps whose inputs have not passed on this machine: other kernels, drivers, DPDK, documents, upgrade, release
	@packaging/test guarded

test-all: export RINGWAY_SEED := $(or $(RINGWAY_SEED),$(shell date +%s))
test-all: test ## And what takes longer: guarded steps, long tests, Debian 13's DPDK, the package under a real systemd, all tables on all kernels, drivers, other processors
	@packaging/test guarded all record
	@packaging/check-guarded
	@packaging/test long
	@packaging/test-dpdk
	@packaging/test-systemd
	@packaging/test-kernels
	@packaging/test-drivers
	@packaging/bootstrap --archs
	@packaging/test-archs

flaky: ## Run tests many times beside load: N=20 LOAD=4 TESTS=WORD CHANGED=1 SHARD=3/10 WHOLE=1
	@packaging/test flaky

fuzz: bootstrap ## Mutated frames through the packet path: MINUTES=10 or EPISODES=, SEED=, EPISODE=
	@packaging/test-programs release-test >/dev/null
	@packaging/as-root target/$(TARGET)/release-test/ringway-fuzz $(if $(EPISODES),--episodes $(EPISODES),--minutes $(MINUTES)) $(SEED:%=--seed %) $(EPISODE:%=--episode %)

mutants: bootstrap ## Plant deliberate faults, one after the other: which does no test notice? ONLY=word
	@packaging/mutants $(ONLY)

test-kernels: ## Every program and packet table on four of Debian's kernels, in QEMU
	@packaging/bootstrap --tests
	@packaging/test-kernels

test-drivers: ## Drivers of six NICs on four of Debian's kernels, in QEMU
	@packaging/bootstrap --tests
	@packaging/test-drivers

test-archs: ## Packet crates and l2fwd beside the Linux bridge on an emulated Loongson-3; packet tables on arm64
	@packaging/bootstrap --archs
	@packaging/test-archs

bench: bootstrap release ## Compare Ringway with nginx, HAProxy and nftables on this machine
	@packaging/as-root $(LAB) bench lb $(ARGS)

bootstrap: ## Check the machine and install what is missing
	@packaging/bootstrap

build: ## Debug build
	@$(CARGO) build --workspace

# The MIR is for packaging/check-mir, which asks for cargo's messages, too.
release: ## The released programs: two statically linked files
	@STATIC_FLAGS=--emit=mir packaging/cargo-static build --release -p ringway -p ringway-lab $(MESSAGES)

# Not static: DPDK's drivers are shared libraries.
dpdk: bootstrap ## The engine with DPDK's devices as ports: ringway-dpdk (needs libdpdk-dev)
	@$(CARGO) build --release --target $(TARGET) --target-dir target/dpdk -p ringway --features dpdk
	@install -D target/dpdk/$(TARGET)/release/ringway $(BINARY)-dpdk
	@echo $(BINARY)-dpdk

previous: # The release before this commit
	@packaging/previous >/dev/null

print-binary:
	@echo $(BINARY)

docs: ## The documents as a book, under target/book/html (needs mdbook, or cargo to install it)
	@packaging/book

lint: ## clippy, shellcheck, formats
	@packaging/test lint

fmt: ## Format Rust and C
	@$(CARGO) fmt --all
	@find bpf lab -name '*.[ch]' -print0 | xargs -0 clang-format -i

install: release ## Install ringway and its unit under $(DESTDIR)$(PREFIX); enables nothing
	install -D -m 755 $(BINARY) "$(DESTDIR)$(PREFIX)/bin/ringway"
	install -D -m 644 packaging/ringway.service "$(DESTDIR)$(PREFIX)/lib/systemd/system/ringway.service"
	install -D -m 644 packaging/ringway-nics.service "$(DESTDIR)$(PREFIX)/lib/systemd/system/ringway-nics.service"
	install -D -m 644 packaging/ringway.sysusers "$(DESTDIR)$(PREFIX)/lib/sysusers.d/ringway.conf"
	install -D -m 644 packaging/prometheus/ringway.rules.yml "$(DESTDIR)$(PREFIX)/share/ringway/prometheus/ringway.rules.yml"
	install -D -m 644 packaging/grafana/ringway.json "$(DESTDIR)$(PREFIX)/share/ringway/grafana/ringway.json"
	install -d -m 755 "$(DESTDIR)/etc/ringway"

install-lab: release ## Install ringway-lab, which measures, under $(DESTDIR)$(PREFIX)
	install -D -m 755 $(LAB) "$(DESTDIR)$(PREFIX)/bin/ringway-lab"

deb: bootstrap release ## Debian packages, checksums and bills of materials under target/deb
	@packaging/deb $(BINARY) $(TARGET) target/deb

clean: ## Remove everything built and fetched
	rm -rf target

.PHONY: help demo test test-guarded test-all flaky mutants fuzz test-kernels test-drivers test-archs bench bootstrap build release previous print-binary docs lint fmt install install-lab deb clean
