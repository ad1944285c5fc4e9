"""`python -m hmmlm`."""

from hmmlm.cli import main

if __name__ == "__main__":
    main()
