"""The command line: `paceline`, or `pl`. A client of the control API; `render` only turns rows into text."""
