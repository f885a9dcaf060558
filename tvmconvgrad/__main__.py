"""python -m tvmconvgrad"""

from tvmconvgrad.cli import main

if __name__ == "__main__":
    main(prog_name="tvmconvgrad")
