"""`python -m penstock.receiver`: started by the driver, never by hand."""

from penstock.receiver.process import main

if __name__ == "__main__":
    raise SystemExit(main())
