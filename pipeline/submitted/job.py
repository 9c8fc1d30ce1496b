"""What spark-submit runs: the command line again. In a folder of its own, because Python puts a script's folder first on its path."""

from penstock.pipeline.cli import main

main()
