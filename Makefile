# make demo and make test are all a fresh machine needs: Python 3.11 or newer, make, git.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# One thread each: tests and recipes run beside other work, and threaded LAPACK collapses there.
export OMP_NUM_THREADS := 1
export OPENBLAS_NUM_THREADS := 1
export MKL_NUM_THREADS := 1

.PHONY: demo test lint bench clean

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

demo: $(VENV)/installed
	mkdir -p demo
	$(BIN)/spectrascope analyze fixtures/grok --heads 4 -o demo/grok.spectra
	$(BIN)/spectrascope rank demo/grok.spectra --metrics fixtures/grok/metrics.csv --plot demo/grok.png --quiet --format jsonl > demo/grok.jsonl
	@echo "figure: demo/grok.png    rows: demo/grok.jsonl    store: demo/grok.spectra"

test: $(VENV)/installed
	$(BIN)/python -m pytest --numprocesses auto

lint: $(VENV)/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(VENV)/installed
	$(BIN)/python benchmarks/speed.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/reports.py
	$(BIN)/python benchmarks/trajectory.py
	$(BIN)/python benchmarks/competitors.py
	$(BIN)/python benchmarks/large.py

clean:
	rm -rf $(VENV) demo build dist .mypy_cache .ruff_cache .pytest_cache
