# One place for every command. `make setup` once; `make test` and `make demo` are the two that a newcomer needs.

PYTHON ?= python3
# Those that pyproject.toml declares.
PYTHONS := 3.11 3.12 3.13 3.14
PYSPARKS ?= 4.1.4 4.2.1
VENV := .venv
BIN := $(VENV)/bin
RUN := $(BIN)/python
PYTEST := $(BIN)/pytest

# The tests start Python some thousand times: what one has compiled, the next one takes.
export PYTHONDONTWRITEBYTECODE :=
# Their JVMs live for seconds or minutes: the second compiler would only take a core from them.
test-pysparks test-spark test-hbase test-hbases test-long: export JDK_JAVA_OPTIONS := $(JDK_JAVA_OPTIONS) -XX:TieredStopAtLevel=1

.PHONY: help system setup ahead check docs test test-static test-here test-fast test-process test-long test-beside test-pythons test-install wheels test-pysparks test-spark test-hbase test-hbases demo demo-hbase demo-cdc bench bench-embedded bench-peers bench-tso bench-hbase test-all soak soak-service record-fixtures proto lock format clean

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(VENV)/.built ## the environment, with all that is compiled; as root with apt also the system packages

# Before the environment, so that what is missing is named at once; and again later, for a JDK may have gone away.
system: ## the system packages that tests and demos need: installs them as root with apt, otherwise names them
	@PYTHON="$(PYTHON)" .ci/system all

$(VENV)/.ready: requirements/dev.txt requirements/kerberos.txt pyproject.toml
	@PYTHON="$(PYTHON)" .ci/system setup
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --no-compile --requirement requirements/dev.txt
	if command -v krb5-config >/dev/null; then $(BIN)/pip install --quiet --requirement requirements/kerberos.txt; fi
	touch $@

$(VENV)/.built: $(VENV)/.ready setup.py $(shell find src -name '*.pyx' -o -name '*.pxd' -o -name '*.h')
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

check: setup ## format, lint, types, import contracts, numbers of hazards
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(RUN) tests/docs/hazard_numbers.py

docs: setup ## the documentation as a site in build/site, its links and anchors checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

ahead: setup ## the environments of test-pythons, in what the parts before them leave idle
	@mkdir -p build/pythons
	@nice -n 19 .ci/pythons --ahead $(PYTHONS) </dev/null >build/pythons/ahead.log 2>&1 &

test: system ahead test-static test-here test-beside ## what CI runs, in a quarter of an hour
	@echo "left out: make test-long, test-pysparks, wheels, test-hbases and soak; make test-all runs them too"

test-static: setup ## check and docs, side by side
	$(MAKE) --no-print-directory --jobs 2 --output-sync=target check docs

test-beside: setup ## the parts that often wait for their servers, two at a time; each says at its end what it did
	$(MAKE) --no-print-directory --jobs 2 --output-sync=target test-spark test-hbase test-pythons

test-here: setup ## test-fast and test-process in one run: three workers, for many tests wait
	$(PYTEST) -n 3 -m "not spark and not hbase and not long and not soak"

test-fast: setup ## pure tests: protocol, oracle, wire, stores in memory, models, simulation
	$(PYTEST) -n 2 -m "not process and not spark and not hbase and not long and not soak"

test-process: setup ## real processes: killed, stopped, forked
	$(PYTEST) -n 2 -m "process and not hbase and not long and not soak"

test-pythons: ## a client, its TSO and their processes, on every declared Python that is here
	.ci/pythons $(PYTHONS)

test-install: ## sdist and wheel, installed without extras and with them; a program and the command line on each
	.ci/install $(PYTHON)

wheels: ## the sdist and a wheel for each declared Python that is here, and one for aarch64, each tried; in build/wheels
	.ci/install $(PYTHONS)
	.ci/aarch64

test-pysparks: setup ## reads, writes, a transaction and a stream on the declared PySparks beside the suite's own
	.ci/pysparks $(PYSPARKS) -- -q tests/spark/test_spark_smoke.py

test-spark: setup ## a real Spark: two workers, for it waits as often as it computes
	$(PYTEST) -n 2 --dist loadfile -m "spark and not hbase and not long and not soak"

test-hbase: setup ## a real HBase, ZooKeeper and Apache Omid, from their jars
	$(PYTEST) -m "hbase and not long and not soak"

test-long: setup ## what make test leaves out: most mutants, seeds, examples and kills, Spark Connect, servers that one test needs
	PYOMID_TEST_EXAMPLES=all $(PYTEST) -n 2 -m "(long or hypothesis) and not spark and not hbase and not soak"
	$(PYTEST) -m "long and spark and not hbase and not soak"
	PYOMID_TEST_REMOTE="local[2]" $(PYTEST) tests/spark/test_spark_connect.py tests/spark/test_spark_smoke.py
	$(PYTEST) -m "long and hbase and not soak"

test-hbases: setup ## a deployment over HBase 2.4, 2.5 and 3.0, and over one with Apache Phoenix: not in CI
	$(PYTEST) tests/hbase/test_versions.py tests/hbase/test_phoenix.py -m hbase

demo: system setup ## the flights pipeline with its faults; report in build/demo/report.html
	$(RUN) -m examples.flights

demo-hbase: system setup ## the same over a real HBase, with its servers' faults; report in build/demo-hbase/report.html; SECURED=1: by Kerberos and TLS
	$(RUN) -m examples.flights hbase $(if $(SECURED),--secured)

demo-cdc: system setup ## change data of four tables, landed as one cut beside kills, and table by table in Delta; report in build/cdc/report.html
	$(RUN) -m examples.cdc --delta

bench: setup ## embedded store and Spark: ratios against raw peers of the same run
	$(RUN) -m benchmarks

bench-embedded: setup ## the embedded client beside sqlite3 and LMDB itself, then YCSB with threads and asyncio
	$(RUN) -m benchmarks.embedded.peers
	$(RUN) -m benchmarks.ycsb
	$(RUN) -m benchmarks.ycsb --asyncio

bench-peers: setup ## pyomid, Delta Lake, Iceberg, DuckLake and Parquet on the flights in one run: a Markdown table (fetches them once)
	$(RUN) -m benchmarks.spark.peers

bench-tso: setup ## the TSO beside Apache Omid's: commits, begins, restart; the conflict map by itself (needs gcc, a JDK)
	$(RUN) -m benchmarks.tso.conflict_map
	$(RUN) -m benchmarks.tso.run
	$(RUN) -m benchmarks.tso.abuse

bench-hbase: setup ## a real HBase: client, TSO, Spark, fail-over, upkeep; Java peers in the same run; all goals at the end
	$(RUN) -m benchmarks.hbase

test-all: test test-long test-pysparks wheels test-hbases soak ## test, and what takes hours: mutants, soaks, AddressSanitizer, wheels, other HBases
	@echo "left out: benchmarks and demos; tests skipped above name what this machine lacks"

soak: setup ## long runs: simulation seeds, kills, histories
	$(PYTEST) -m soak --timeout=7200

soak-service: setup ## an hour of a web service and a Spark job in one folder, under faults; picture in build/service/picture.svg
	$(RUN) -m benchmarks.service

record-fixtures: setup ## what Apache Omid and HBase send and store, as bytes for tests without Java (needs a JDK, Maven)
	PYTHONPATH=tests/support $(RUN) tests/fixtures/java/record.py

proto: ## regenerates the protobuf messages of the wire and of HBase's RPC, and their numbers for compiled code
	cd src && ../$(RUN) -m grpc_tools.protoc -I. --python_out=. --pyi_out=. pyomid/omid/wire/omid.proto pyomid/omid/hbase/rpc/hbase.proto
	PYOMID_KEEP_FIELDS=1 $(PYTEST) -q tests/wire/test_field_numbers.py

lock: ## pins what the extras and the dependency groups of pyproject.toml ask for
	$(PYTHON) -m venv build/lock
	build/lock/bin/pip install --quiet --upgrade 'pip>=25.1'
	build/lock/bin/pip install --quiet --group dev '.[metrics,tracing,shell,server,connect,hbase,demo]'
	build/lock/bin/pip freeze --all --exclude pip --exclude pyomid > requirements/dev.txt

format: setup ## ruff, in place
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## all that was built
	rm -rf build $(VENV)
	find src -name '*.so' -delete
