"""The script that spark-submit runs: the same command line. It has its own folder, because Python puts a script's
folder first on its path."""

from penstock.pipeline.cli import main

main()
