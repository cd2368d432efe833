"""Rows, and the ways to show them: tables, JSON and CSV, figures. Everything here works from the store alone.

rows.py              what the store says, as rows of plain values
formats.py           rows -> json, jsonl, csv
tables.py            rows -> a table on a terminal or in a pipe
figures.py           matplotlib, imported when a figure is asked for
training_metrics.py  the user's metrics file, drawn beside the ranks
"""
